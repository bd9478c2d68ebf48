"""Nudges as they reach the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from gpushare.contract import names
from gpushare.extender.main import App
from gpushare.extender.plan import GRACE_S
from gpushare.extender.wire import Candidates, ExtenderArgs
from gpushare.kube.connection import Connection
from tests.extender.conftest import options, running
from tests.extender.fake_cluster import FakeCluster, Json, allocation, node, pod
from tests.extender.state_helpers import as_pod
from tests.extender.test_bind import ready
from tests.kube.fake_api import eventually


@pytest.fixture
async def nudging(api: FakeCluster, connection: Connection) -> AsyncIterator[App]:
    app = App.build(connection, options(nudge=True))
    with running(app):
        await app.nodes.synced.wait()
        await app.pods.synced.wait()
        await eventually(lambda: len(api._watches) == 2)
        yield app


def ask(app: App, manifest: Json, *names: str) -> int:
    """Ask as the scheduler does; how many nodes have room."""
    waiting = as_pod(manifest)
    candidates = Candidates(ExtenderArgs(waiting, list(names)))
    return app.extender.decider.filter(waiting, candidates).passed


def full(name: str) -> Json:
    return pod(name, 15, nodeName="n1", annotations=allocation(0, units=15))


async def test_room_the_scheduler_does_not_know_of_is_named_to_it(
    nudging: App, api: FakeCluster
) -> None:
    await ready(nudging, api, node("n1", [15]), full("old"), pod("p", 8))
    assert ask(nudging, pod("p", 8), "n1") == 0
    await asyncio.sleep(GRACE_S)
    assert api.patches == []
    api.delete_pod("old")
    await eventually(lambda: api.patches)
    ((name, body),) = api.patches
    assert name == "p"
    assert body["status"] == {"nominatedNodeName": "n1"}
    assert body["metadata"]["uid"] == "uid-p"
    assert int(body["metadata"]["annotations"][names.ANNOTATION_NUDGE]) > 10**18
    api.put_pod(full("thief"))  # the room is gone: so is the nomination
    await eventually(lambda: len(api.patches) == 2)
    assert api.patches[1][1]["status"] == {"nominatedNodeName": None}
    assert api.pods["p"]["status"]["nominatedNodeName"] is None


async def test_a_nomination_of_preemption_is_woken_by_annotation_only(
    nudging: App, api: FakeCluster
) -> None:
    waiting = pod("p", 8, nominatedNodeName="n1")
    await ready(nudging, api, node("n1", [15]), full("old"), waiting)
    assert ask(nudging, waiting, "n1") == 0
    api.delete_pod("old")
    await eventually(lambda: api.patches)
    assert "status" not in api.patches[0][1]


async def test_failures_are_counted_said_once_and_tried_again(
    nudging: App, api: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await ready(nudging, api, node("n1", [15]), full("old"), pod("p", 8))
    assert ask(nudging, pod("p", 8), "n1") == 0
    usual = api._patch

    def forbidden(name: str, body: Json) -> web.Response:
        return web.json_response({"code": 403, "reason": "Forbidden"}, status=403)

    api._patch = forbidden  # type: ignore[method-assign]
    api.delete_pod("old")
    await eventually(lambda: "cannot wake waiting pods" in caplog.text)
    assert 'reason="",verb="nudge"} 1.0' in nudging.extender.counters.text().decode()
    api._patch = usual  # type: ignore[method-assign]
    await eventually(lambda: api.pods["p"]["status"].get("nominatedNodeName") == "n1")
