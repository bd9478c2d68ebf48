"""Pods that left before anybody saw which GPU they had.

The kubelet does not say for whom it asks the node's plugin for units. So the plugin may have taken
pod A for pod B of the same class (model.calls): A was decided on GPU 0 and B on GPU 1, and really
it is the other way round. That does no harm while both are there. But when A ends before the plugin
has found out (`PodRecord.attested`), what has become free is GPU 1, and giving away GPU 0 would
over-commit it until the plugin has attested B and published the correction.

So on a node whose plugin attests, a pod that was on the books and leaves un-attested (its object is
gone, or it has Succeeded or Failed) is a **leaver**, and stays charged as it was

* for `LEAVE_GRACE_S`: the plugin's watch may lag, and it may still take a call for the pod's;
* then until every pod that could have got its GPU instead is attested, or has left too. Those are
  the pods that, at the end of the grace, are on the node, un-attested, and have a chunk of a class
  of the leaver's. Later pods cannot have its GPU: no call is taken for the leaver's any more. So a
  stream of short pods of one class does not keep a leaver for ever.

A leaver's charge ends early with the plugin: when the node goes, or no longer says that its plugin
attests, or has advertised nothing for `SILENT_S` (a plugin that restarts advertises nothing for
some seconds).

A leaver is an unfinished pod to the ledger, so it is counted once whatever else is known of it: a
correction of its node wins over its annotation, and stays when the leaver has been let go. What is
not known: pods that left before this process saw them on a node. Of those the node's corrections
tell, as soon as the plugin has published them.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NoReturn

from gpushare.model.calls import classes_of
from gpushare.model.gpus import Holding, Node
from gpushare.model.ledger import Ledger, PodRecord
from gpushare.model.request import Request

LEAVE_GRACE_S: Final = 2.0
"""So long the plugin may not know yet that a pod has left."""
SILENT_S: Final = 30.0
"""So long a plugin that advertises nothing may be restarting."""
ROUND_S: Final = 0.5


def attests(node: Node) -> bool:
    """Whether the node's plugin is there and says which pod got which GPU.

    It is gone without `attests` in the node's annotation, or with an advertised amount of 0, to
    which the kubelet takes it when a plugin dies.
    """
    return node.attests and bool(node.advertised)


@dataclass(slots=True)
class _Leaver:
    node: str
    since: float
    """Of the clock, when it left."""
    then: PodRecord | None
    """The pod on the books once it is let go; None if its object is gone."""
    others: set[str] | None = None
    """UIDs of the pods that may have its GPU; None while the grace lasts."""


class Leavers:
    """Puts pods on the ledger and takes them off, some later than they left."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._leavers: dict[str, _Leaver] = {}
        """Pod UID -> a pod that has left and is still charged."""
        self._silent: dict[str, float] = {}
        """Node name -> since when its plugin, which attests, has advertised nothing."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._leavers

    # -- what the watches say ---------------------------------------------------------------------

    def put(self, record: PodRecord) -> None:
        """A pod is on a node, or has changed there."""
        if not record.finished:
            self._leavers.pop(record.uid, None)
            self._ledger.put_pod(record)
        elif self._keeps(record.uid, record):
            self._ledger.put_pod(replace(record, finished=False))
        else:
            self._ledger.put_pod(record)

    def remove(self, uid: str) -> None:
        """A pod's object is gone."""
        if not self._keeps(uid, None):
            self._ledger.remove_pod(uid)

    def note_node(self, node: Node) -> None:
        """A node is, or has changed to, `node`."""
        if node.attests and not attests(node):
            self._silent.setdefault(node.name, self._clock())
        else:
            self._silent.pop(node.name, None)

    def forget_node(self, name: str) -> None:
        """A node is gone."""
        self._silent.pop(name, None)

    def _keeps(self, uid: str, then: PodRecord | None) -> bool:
        """Whether a pod that is as `then`, or gone, stays charged."""
        known = then is not None and then.attested
        leaver = self._leavers.get(uid)
        if leaver is not None:
            leaver.then = then
            if known:
                del self._leavers[uid]
            return not known
        old = self._ledger.pod(uid)
        if old is None or old.finished or old.attested or known:
            return False
        node = old.node if then is None else then.node
        if not self._attested_lately(node):
            return False
        self._leavers[uid] = _Leaver(node, self._clock(), then)
        return True

    # -- questions --------------------------------------------------------------------------------

    def awaited(self, node: str) -> Iterator[PodRecord]:
        """The pods on a node's books for which the plugin may still take a call: those not
        attested, and those that left a moment ago."""
        for held in self._ledger.pods_on(node):
            record = held.record
            if record is not None and not record.attested and not record.finished:
                leaver = self._leavers.get(held.uid)
                if leaver is None or leaver.others is None:
                    yield record

    def is_gone(self, uid: str) -> bool:
        """Whether a pod is on the books although its object is gone."""
        leaver = self._leavers.get(uid)
        return leaver is not None and leaver.then is None

    def holdings(self, node: str) -> Iterator[Holding]:
        """What the leavers of a node are charged with."""
        for uid, leaver in self._leavers.items():
            if leaver.node == node and (holding := self._ledger.holding(uid)) is not None:
                yield holding

    # -- letting go -------------------------------------------------------------------------------

    async def run(self, changed: Callable[[], None]) -> NoReturn:
        """Let go who is due, until cancelled; `changed` is called when that changed anything."""
        while True:
            await asyncio.sleep(ROUND_S)
            if self._leavers and self.round():
                changed()

    def round(self) -> bool:
        """Let go who is due. True if anybody was, or if a grace has ended."""
        news = False
        for uid, leaver in list(self._leavers.items()):
            graced = leaver.others is None
            if self._due(leaver, uid):
                self._let_go(uid, leaver)
                news = True
            elif graced and leaver.others is not None:
                news = True
        return news

    def _due(self, leaver: _Leaver, uid: str) -> bool:
        if not self._attested_lately(leaver.node):
            return True
        if leaver.others is None:
            if self._clock() < leaver.since + LEAVE_GRACE_S:
                return False
            leaver.others = self._others(leaver.node, uid)
        leaver.others = {other for other in leaver.others if self._unknown(other)}
        return not leaver.others

    def _others(self, node: str, uid: str) -> set[str]:
        """The pods on the node that may have the leaver's GPU."""
        mine = self._ledger.pod(uid)
        assert mine is not None
        return {
            record.uid
            for record in self.awaited(node)
            if share_a_class(record.request, mine.request)
        }

    def _unknown(self, uid: str) -> bool:
        """Whether a pod is there, and nobody has seen yet which GPU it has."""
        record = self._ledger.pod(uid)
        return not (record is None or record.attested or record.finished or uid in self._leavers)

    def _let_go(self, uid: str, leaver: _Leaver) -> None:
        del self._leavers[uid]
        if leaver.then is None:
            self._ledger.remove_pod(uid)
        else:
            self._ledger.put_pod(leaver.then)

    def _attested_lately(self, name: str) -> bool:
        """Whether the node's plugin attests, or is perhaps only restarting."""
        books = self._ledger.get_books(name)
        if books is None:
            return False
        if attests(books.node):
            return True
        since = self._silent.get(name)
        return since is not None and self._clock() < since + SILENT_S


@lru_cache(4096)
def share_a_class(one: Request, other: Request) -> bool:
    """Whether the plugin may take a chunk of one for a chunk of the other."""
    return not set(classes_of(one)).isdisjoint(classes_of(other))
