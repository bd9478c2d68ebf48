"""A fake cluster, and the parts of an extender that follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.contract.units import Unit
from gpushare.extender.main import App
from gpushare.extender.options import Options
from gpushare.kube.config import Config
from gpushare.kube.connection import Connection
from gpushare.kube.credentials import FixedHeader
from tests.extender.fake_cluster import FakeCluster
from tests.kube.fake_api import eventually


def options(*, nudge: bool = False, bind_deadline_s: float = 2.0) -> Options:
    return Options(
        kubeconfig=Path("/nowhere"),
        context=None,
        host="127.0.0.1",
        port=0,
        node_ranking="binpack",
        unit=Unit.GIB,
        bind_deadline_s=bind_deadline_s,
        nudge=nudge,
        log_level="info",
        log_format="text",
    )


@pytest.fixture
async def api() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as fake:
        yield fake


@pytest.fixture
async def connection(api: FakeCluster) -> AsyncIterator[Connection]:
    config = Config(api.url, FixedHeader.token("t"), "the test's configuration")
    async with Connection(config) as connected:
        yield connected


@pytest.fixture
async def app(api: FakeCluster, connection: Connection) -> AsyncIterator[App]:
    """An extender that follows the cluster; it nudges nobody."""
    built = App.build(connection, options())
    with running(built):
        await built.nodes.synced.wait()
        await built.pods.synced.wait()
        await eventually(lambda: len(api._watches) == 2)
        yield built


@contextmanager
def running(app: App) -> Iterator[None]:
    tasks = [asyncio.ensure_future(what) for what in app.tasks().values()]
    try:
        yield
    finally:
        for task in tasks:
            if task.done() and task.exception():
                raise task.exception()  # type: ignore[misc]
            task.cancel()
