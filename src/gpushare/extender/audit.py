"""The books against the facts they were made from, a few nodes at a time.

Books are changed pod by pod as events come; counting a node's pods afresh must give the same. A
difference is a fault of ours: it is mended, logged and shown as a metric.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, NoReturn

from gpushare.extender.state import ClusterState

log = logging.getLogger(__name__)

EVERY_S: Final = 60.0
AT_ONCE: Final = 20
"""Nodes counted without a pause; some 20 µs a node and pod."""


@dataclass
class Auditor:
    """Recounts all nodes once a minute."""

    state: ClusterState
    drift: int = 0
    """Units that the last round found wrong."""

    async def run(self) -> NoReturn:
        """Recount until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.round()

    async def round(self) -> None:
        """Recount every node once."""
        found = 0
        names = list(self.state.ledger)
        for start in range(0, len(names), AT_ONCE):
            for name in names[start : start + AT_ONCE]:
                if name in self.state.ledger:
                    found += self._recount(name)
            await asyncio.sleep(0)
        self.drift = found

    def _recount(self, name: str) -> int:
        wrong = self.state.ledger.recount(name)
        if wrong:
            log.error("the books of %s were wrong by %d units; mended", name, wrong)
            self.state.touch()
        return wrong
