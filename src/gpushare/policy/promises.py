"""Room that is promised to pods which are not there yet.

A pod with `status.nominatedNodeName` is about to be tried on that node: preemption has made room
for it, or we have found it room and told the scheduler (extender.nudge). kube-scheduler counts such
pods on their node when it filters others of lower or equal priority; so do we, GPU by GPU: each is
placed on a copy of the node's books.

Where it has no place yet because the pods evicted for it are still terminating, it is placed as if
those were gone and charged on the real books all the same: what they leave is not given away
twice. One that has no place even then promises nothing.

Between two pods nominated to one node the more important counts against the other and not the
other way round (higher priority, then the earlier nomination), or both would wait for ever.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpushare.model.gpus import Holding, NodeBooks
from gpushare.model.holding import Placement
from gpushare.model.owner import Owner
from gpushare.model.request import Request
from gpushare.policy.fit import place


@dataclass(frozen=True, slots=True)
class Promise:
    """A pod nominated to a node. `since` orders nominations: the smaller is the earlier."""

    uid: str
    request: Request
    owner: Owner
    priority: int
    since: int


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, as far as promises to others depend on it."""

    uid: str
    priority: int


def counted(promises: Iterable[Promise], asker: Asker) -> list[Promise]:
    """The promises of one node that count against `asker`, the most important first."""
    order = sorted(promises, key=lambda p: (-p.priority, p.since))
    kept: list[Promise] = []
    for promise in order:
        if promise.uid == asker.uid or promise.priority < asker.priority:
            break  # those after it count less than the asker's own, or than the asker
        kept.append(promise)
    return kept


def with_promises(
    books: NodeBooks, promises: Sequence[Promise], leaving: Iterable[Holding] = ()
) -> NodeBooks:
    """The books with every promise charged, in order. `leaving`: what terminating pods hold."""
    if not promises:
        return books
    later: NodeBooks | None = None
    for promise in promises:
        answer = place(books, promise.request, promise.owner)
        if not isinstance(answer, Placement):
            if later is None:
                later = books
                for holding in leaving:
                    later = later.release(holding)
            answer = place(later, promise.request, promise.owner)
        if isinstance(answer, Placement):
            holding = answer.holding(promise.request, promise.owner)
            books = books.charge(holding)
            later = later.charge(holding) if later is not None else None
    return books
