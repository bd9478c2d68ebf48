"""The collector is off exactly while the first lists arrive."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from gpushare.kube.firstlist import synced_without_gc


class Follower:
    def __init__(self) -> None:
        self.synced = asyncio.Event()


@pytest.fixture(autouse=True)
def _leave_the_collector_as_it_was() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


async def test_collector_is_off_until_all_are_synced_then_frozen() -> None:
    gc.unfreeze()
    one, two = Follower(), Follower()
    waiting = asyncio.create_task(synced_without_gc(one, two))
    await asyncio.sleep(0.01)
    assert not gc.isenabled()
    one.synced.set()
    await asyncio.sleep(0.01)
    assert not gc.isenabled()
    two.synced.set()
    await asyncio.wait_for(waiting, 5)
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


async def test_collector_comes_back_when_the_api_server_does_not() -> None:
    follower = Follower()
    waiting = asyncio.create_task(synced_without_gc(follower, gc_off_at_most_s=0.05))
    await asyncio.sleep(0.15)
    assert gc.isenabled()
    assert not waiting.done()
    follower.synced.set()
    await asyncio.wait_for(waiting, 5)


async def test_collector_comes_back_when_the_wait_is_cancelled() -> None:
    waiting = asyncio.create_task(synced_without_gc(Follower()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gc.isenabled()
