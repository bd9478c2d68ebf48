"""Looks after the GPUs in a thread: what is there, what is ill, as soon as it changes.

A source belongs to one thread at a time, so whoever else wants something of it waits for its turn.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeVar

from gpushare.deviceplugin.announce import Announcer
from gpushare.deviceplugin.state import NodeState
from gpushare.node.gpus import FoundGpu, GpuSource, GpusUnavailable, Occupancy

log = logging.getLogger(__name__)

_T = TypeVar("_T")

POLL_S: Final = 5.0
"""The GPUs are looked at anew at least this often: what no event tells is found by polling."""
SLICE_S: Final = 0.5
"""The thread that waits for events looks this often whether it should end."""
RETRY_S: Final = 10.0
"""Before a driver that cannot be used is tried again."""


@dataclass
class Hardware:
    """Tells `state` of the GPUs of `source`. `run` must be running."""

    state: NodeState
    source: GpuSource
    announcer: Announcer
    _known: tuple[FoundGpu, ...] | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> NoReturn:
        """Look, wait for a change, look again, until cancelled."""
        while True:
            try:
                found = await self._ask(self.source.look)
                if self._known is None:
                    self.state.driver = await self._ask(self.source.driver)
                if found != self._known:
                    self._tell(found)
                end = time.monotonic() + POLL_S
                while time.monotonic() < end:
                    if await self._ask(lambda: self.source.wait(SLICE_S)):
                        break
            except GpusUnavailable as error:
                self.announcer.not_offering(str(error), self.state)
                await asyncio.sleep(RETRY_S)

    async def occupancy(self) -> dict[str, Occupancy]:
        """GPU UUID -> what is used of it now; it takes a moment until the source is free."""
        return await self._ask(self.source.occupancy)

    async def _ask(self, what: Callable[[], _T]) -> _T:
        async with self._turn:
            return await asyncio.to_thread(what)

    def _tell(self, found: tuple[FoundGpu, ...]) -> None:
        self._known = found
        self.state.gpus_found(found)
