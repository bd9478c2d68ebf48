"""Removes the hooks and libraries of earlier versions, once nothing on the node needs them.

Each version has a directory of its own, and containers keep the library they started with. Some
time after the start no other instance is answering the kubelet any more. Then every specification
is written once more, so that all name this version's hook; what no allocation has is removed.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.deviceplugin.injection.allocations import FILES_FAILED, AllocationDevices
from gpushare.isolation.installing import remove_others

log = logging.getLogger(__name__)

AFTER_S: Final = 600.0
"""By then an earlier instance, which may overlap with this one in a rolling update, has ended."""


@dataclass
class Retiring:
    """`run` it once."""

    home: Path
    """Where every version is installed."""
    allocations: AllocationDevices
    current: Callable[[], Iterable[Path | None]]
    """The files that this version has installed."""

    async def run(self) -> None:
        """Wait, then remove."""
        await asyncio.sleep(AFTER_S)
        self.retire()

    def retire(self) -> None:
        """Remove what nobody needs; a failure is no harm, and the log tells."""
        try:
            self.allocations.rebuild(())
            needed = [*self.current(), *self.allocations.libraries()]
            for path in remove_others(self.home, {file.parent for file in needed if file}):
                log.info("removed %s, which nobody uses any more", path)
        except FILES_FAILED as error:
            log.warning("earlier versions are not removed from %s: %s", self.home, error)
