"""Looks after the GPUs in a thread: what is there, what is ill, as soon as it changes."""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Final, NoReturn

from gpushare.deviceplugin.announce import Announcer
from gpushare.deviceplugin.state import NodeState
from gpushare.node.gpus import FoundGpu, GpuSource, GpusUnavailable

log = logging.getLogger(__name__)

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

    async def run(self) -> NoReturn:
        """Look, wait for a change, look again, until cancelled."""
        while True:
            try:
                found = await asyncio.to_thread(self.source.look)
                if found != self._known:
                    self._tell(found)
                end = time.monotonic() + POLL_S
                while time.monotonic() < end:
                    if await asyncio.to_thread(self.source.wait, SLICE_S):
                        break
            except GpusUnavailable as error:
                self.announcer.not_offering(str(error), self.state)
                await asyncio.sleep(RETRY_S)

    def _tell(self, found: tuple[FoundGpu, ...]) -> None:
        self._known = found
        self.state.gpus_found(found)
