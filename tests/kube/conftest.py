"""A fake API server, and a connection to it."""

from collections.abc import AsyncIterator

import pytest

from gpushare.kube.config import Config
from gpushare.kube.connection import Connection
from gpushare.kube.credentials import FixedHeader

from .fake_api import FakeApi


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as fake:
        yield fake


@pytest.fixture
async def connection(api: FakeApi) -> AsyncIterator[Connection]:
    config = Config(api.url, FixedHeader.token("t"), "the test's configuration")
    async with Connection(config) as connected:
        yield connected
