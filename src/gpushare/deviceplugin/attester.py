"""Looks up who really got which ids, soon after they were handed out, until nobody is in doubt.

    Allocate ──► a moment later: ask the sources ──► attest ──► publish
                     ▲                                  │
                     └── again, with growing pauses, while anybody is in doubt

The kubelet writes its checkpoint within milliseconds after Allocate. A grant stays in doubt longer
when its pod has left meanwhile or the kubelet has been killed in the middle.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NoReturn

from gpushare.deviceplugin.core.attesting import (
    Attested,
    Round,
    attest,
    kubelet_started,
    presume,
    release,
    remember,
)
from gpushare.deviceplugin.core.books import Books, Decision, Piece
from gpushare.deviceplugin.counters import Counters
from gpushare.deviceplugin.sources import Sources
from gpushare.deviceplugin.state import NodeState
from gpushare.kube.moments import set_within

log = logging.getLogger(__name__)

SHOWN_AFTER_S: Final = 0.02
"""When the kubelet is first asked after Allocate was answered."""
MAX_PAUSE_S: Final = 1.0
REST_S: Final = 10.0
"""Between two looks when nobody is in doubt."""
CHOOSING_S: Final = 2.0
"""So long after a preferred allocation the kubelet may still be at it."""


@dataclass
class Attester:
    """Attests what `state` has handed out. `run` must be running."""

    state: NodeState
    sources: Sources
    counters: Counters
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _offered_at: float = float("-inf")
    """When ids were last offered that the kubelet has not taken yet."""

    def offered(self) -> None:
        """The kubelet was told which ids to take: it is choosing."""
        self._offered_at = time.monotonic()

    @property
    def choosing(self) -> bool:
        """Whether the kubelet may be choosing ids at the moment."""
        return time.monotonic() < self._offered_at + CHOOSING_S

    def handed_out(self) -> None:
        """Ids were handed out: look soon."""
        self._offered_at = float("-inf")
        self._wanted.set()

    async def run(self) -> NoReturn:
        """Attest, until cancelled."""
        pause_s = SHOWN_AFTER_S
        while True:
            in_doubt = self.state.books is not None and self.state.books.waiting()
            if await set_within(self._wanted, pause_s if in_doubt else REST_S):
                self._wanted.clear()
                pause_s = SHOWN_AFTER_S
                await asyncio.sleep(SHOWN_AFTER_S)
            await self.look()
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)

    async def look(self) -> Round | None:
        """Ask the sources once, and take in what they show."""
        books = self.state.books
        if books is None:
            return None
        pods = list(self.state.pods.values())
        shown = await self.sources.ask(pods, may_list=not self.choosing)
        self._note(books, [*attest(books, shown), *presume(books, time.time_ns())])
        self.state.touch()
        return shown

    def remember(self, shown: Round | None) -> None:
        """Take up what an earlier process handed out, where no source told of all.

        shown   what the sources showed at the start
        """
        books, mailboxes = self.state.books, self.sources.mailboxes
        assert books is not None
        if mailboxes is None or (shown is not None and shown.complete):
            return
        for record in filter(None, map(mailboxes.record, mailboxes.names())):
            ids = frozenset(record.ids)
            if remember(books, record.owner, record.chunk, record.position, ids):
                log.debug("%s are taken to be %s's still", sorted(ids), record.owner)

    async def settle(self, free: Iterable[str]) -> None:
        """Bring the books up to date with what the kubelet has; `free` are ids it lists as free."""
        shown = await self.look()
        if shown is not None and self.state.books is not None:
            release(self.state.books, set(free), shown)

    async def kubelet_started(self) -> None:
        """A new kubelet process is there, which has not been served yet."""
        self._offered_at = float("-inf")
        shown = await self.look()
        if shown is not None and self.state.books is not None:
            kubelet_started(self.state.books, shown)
            self.state.touch()

    def _note(self, books: Books, found: list[Attested]) -> None:
        for attested in found:
            piece, other = attested.piece, attested.exchanged
            if other is None:
                log.debug("%s has GPU %s", _named(books, piece), piece.place)
                continue
            self.counters.corrections.inc()
            self._decided_here(books, piece)
            log.info(
                "correction: %s has GPU %s, %s takes GPU %s: %s",
                _named(books, piece),
                piece.place,
                _named(books, other),
                other.place,
                "they are of different classes, which should not have met here"
                if attested.foreign
                else f"the kubelet asked for the same {piece.cls.first} units for both",
            )

    def _decided_here(self, books: Books, piece: Piece) -> None:
        """A place that was decided here for another is this one's, for which nobody decided."""
        pod = books.pods.get(piece.uid)
        if pod is not None and pod.facts.record.assignment is None and piece.place is not None:
            books.decisions.append(Decision(piece, piece.place))


def _named(books: Books, piece: Piece) -> str:
    pod = books.pods.get(piece.uid)
    if pod is None:
        return f"a pod that left ({piece.uid})"
    record = pod.facts.record
    return f"{record.namespace}/{record.name} ({piece.uid}, chunk {piece.number})"
