"""filter, prioritize, preempt: answers from memory alone.

For every request there is one table of answers over all nodes (policy.verdicts), kept in a bounded
store and brought up to date before each use: a call costs its own names and the nodes that changed.
A question whose answer cannot have changed (same names, no verdict moved) gets the same bytes.

Nodes with promises to other pods are few and depend on who asks; they are looked at one by one.

**Every rejection is FailedAndUnresolvable.** A node reaches us only when the scheduler's own sum
fits, so its preemption finds no victim there, and says so in a longer message each time, which
requeues the pod: a storm. The exception is the pod's own nominated node, where `Unresolvable` would
let the scheduler evict once more while the first victims are still leaving.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare.contract.names import Reason
from gpushare.extender import wire
from gpushare.extender.asks import Ask, Asks
from gpushare.extender.state import ClusterState
from gpushare.extender.waiting import WaitingPod, read_waiting
from gpushare.extender.wire import Candidates, FilterResult, HostPriority, MetaVictims, NodeItems
from gpushare.kube.objects import Pod
from gpushare.model.owner import Owner
from gpushare.model.request import Request
from gpushare.policy import OWNER_BLIND
from gpushare.policy.fit import NOBODY, why_not
from gpushare.policy.preempt import helps
from gpushare.policy.promises import Asker
from gpushare.policy.rank import DEFAULT_NODE_RANKING, NODE_RANKINGS, Ranking, RankKey, scores
from gpushare.policy.verdicts import Ranks, Verdicts
from gpushare.view.reasons import short

log = logging.getLogger(__name__)

MAX_REQUESTS: Final = 64
"""Requests whose answers are kept: sizes of pods, of which a cluster has few."""
MAX_OWNERS: Final = 256
"""(request, owner) pairs whose ranks are kept, where an owner has pods already."""

NEAREST: Final = (
    Reason.INIT_STRADDLE,
    Reason.NO_GPU_FITS,
    Reason.GPU_COUNT,
    Reason.NODE_FULL,
    Reason.MODE_MIX,
    Reason.BAD_REQUEST,
    Reason.NOT_READY,
    Reason.NOT_SHARING,
)
"""Of several nodes' reasons the first of these is told to people: that node came nearest."""

TAKEN: Final = "the pod is being bound to another node"
"""Said of nodes when a pod is asked about that is on the books of another one."""

_TEXT: Final = {reason: short(reason) for reason in Reason}


@dataclass(slots=True)
class Answer:
    """A filter's answer, and what to say of it."""

    body: bytes
    pod: WaitingPod
    passed: int
    reason: Reason | None
    """Why no node has room; None if one has, or if the pod asks for nothing."""
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Kept:
    """The answers to one request, and the last answer in bytes."""

    verdicts: Verdicts
    names: list[str] | None = None
    version: int = -1
    passed: int = 0
    reason: Reason | None = None
    body: bytes = b""


class Decider:
    """Answers the scheduler's questions about `state`; writes nothing but `asks`."""

    def __init__(
        self,
        state: ClusterState,
        asks: Asks,
        clock: Callable[[], float],
        ranking: str = DEFAULT_NODE_RANKING,
    ) -> None:
        self._state = state
        self._asks = asks
        self._clock = clock
        self._ranking: Ranking = NODE_RANKINGS[ranking]
        self._kept: OrderedDict[Request, _Kept] = OrderedDict()
        self._ranks: OrderedDict[tuple[Request, Owner | None], Ranks] = OrderedDict()

    # -- filter -----------------------------------------------------------------------------------

    def filter(self, pod: Pod, candidates: Candidates) -> Answer:
        """Which of the nodes have room, and why the others have not."""
        waiting = read_waiting(pod)
        names = candidates.names
        if waiting.error is not None:
            failed = dict.fromkeys(names, _TEXT[waiting.error.reason])
            return self._answer(waiting, candidates, [], {}, failed, waiting.error.reason)
        if waiting.request is None:
            return self._answer(waiting, candidates, names, {}, {}, None)
        standing = self._state.standing(waiting.uid)
        if standing is not None:
            return self._taken(waiting, candidates, standing.node)
        kept = self._verdicts(waiting.request)
        promised = self._promised(waiting, kept.verdicts, names)
        if promised or waiting.nominated or candidates.raw is not None:
            return self._one_by_one(waiting, kept.verdicts, candidates, promised)
        if kept.version != kept.verdicts.version or kept.names != names:
            answer = self._one_by_one(waiting, kept.verdicts, candidates, {}, note=False)
            kept.names, kept.version = names, kept.verdicts.version
            kept.passed, kept.reason, kept.body = answer.passed, answer.reason, answer.body
        return self._noted(Answer(kept.body, waiting, kept.passed, kept.reason, names))

    def _taken(self, pod: WaitingPod, candidates: Candidates, node: str) -> Answer:
        """The pod is on the books already: bound, or with a bind whose end is not known. The
        scheduler asks again because it has not heard; there is one right answer."""
        passed = [name for name in candidates.names if name == node]
        failed = {name: TAKEN for name in candidates.names if name != node}
        return self._answer(pod, candidates, passed, {}, failed, None)

    def _one_by_one(
        self,
        pod: WaitingPod,
        verdicts: Verdicts,
        candidates: Candidates,
        promised: Mapping[str, Reason],
        *,
        note: bool = True,
    ) -> Answer:
        fits, reasons = verdicts.fits, verdicts.reasons
        passed = [n for n in candidates.names if n in fits and n not in promised]
        refused: dict[str, Reason] = {}
        if len(passed) < len(candidates.names):
            unknown = Reason.NOT_READY
            refused = {
                n: promised[n] if n in promised else reasons.get(n, unknown)
                for n in candidates.names
                if n not in fits or n in promised
            }
        reason = nearest(refused.values()) if not passed else None
        failed = {n: _TEXT[r] for n, r in refused.items()}
        helped: dict[str, str] = {}
        if pod.nominated in failed:
            helped[pod.nominated] = failed.pop(pod.nominated)
        return self._answer(pod, candidates, passed, helped, failed, reason, note=note)

    def _answer(
        self,
        pod: WaitingPod,
        candidates: Candidates,
        passed: list[str],
        failed: dict[str, str],
        unresolvable: dict[str, str],
        reason: Reason | None,
        *,
        note: bool = True,
    ) -> Answer:
        raw = candidates.raw
        result = FilterResult(
            nodes=None if raw is None else NodeItems([raw[name] for name in passed]),
            node_names=passed if raw is None else None,
            failed_nodes=failed,
            failed_and_unresolvable_nodes=unresolvable,
        )
        answer = Answer(wire.encode(result), pod, len(passed), reason, candidates.names)
        return self._noted(answer) if note else answer

    def _noted(self, answer: Answer) -> Answer:
        names, pod = answer.names, answer.pod
        if pod.request is not None:
            only = names[0] if len(names) == 1 else None
            ask = Ask(self._clock(), len(names), answer.passed, only, answer.reason)
            self._asks.note(pod.uid, ask)
        return answer

    def _promised(self, pod: WaitingPod, verdicts: Verdicts, names: list[str]) -> dict[str, Reason]:
        """Node -> why it has no room beside what it has promised to others, where that is so."""
        nodes = self._state.nominations.nodes
        if not nodes:
            return {}
        assert pod.request is not None
        promised: dict[str, Reason] = {}
        for name in names if len(names) < len(nodes) else set(nodes).intersection(names):
            if name in nodes and name in verdicts.fits:
                reason = self.refusal(name, pod.request, pod.asker)
                if reason is not None:
                    promised[name] = reason
        return promised

    # -- prioritize -------------------------------------------------------------------------------

    def prioritize(self, pod: Pod, candidates: Candidates) -> list[HostPriority]:
        """Every candidate's score, 0 to 10: its rank among them."""
        waiting = read_waiting(pod)
        points: dict[str, int] = {}
        if waiting.request is not None:
            points = scores(self.rank_keys(waiting.request, waiting.owner, candidates.names))
        get = points.get
        return [HostPriority(name, get(name, 0)) for name in candidates.names]

    def rank_keys(self, request: Request, owner: Owner, names: list[str]) -> dict[str, RankKey]:
        """The rank keys of those of `names` that have room; smallest is best."""
        ledger = self._state.ledger
        at_home = {
            name
            for name in ledger.nodes_of(owner)
            if ledger.books(name).node.placement not in OWNER_BLIND
        }
        if not at_home:
            return self._ranks_of(request, None).keys(names)
        keys = self._ranks_of(request, None).keys(n for n in names if n not in at_home)
        keys.update(self._ranks_of(request, owner).keys(n for n in names if n in at_home))
        return keys

    # -- preempt ----------------------------------------------------------------------------------

    def preempt(self, pod: Pod, victims: Mapping[str, MetaVictims]) -> dict[str, MetaVictims]:
        """Of the nodes, with the victims the scheduler proposes, those where that would help."""
        waiting = read_waiting(pod)
        if waiting.error is not None or self._state.standing(waiting.uid) is not None:
            return {}
        if waiting.request is None:
            return dict(victims)
        request, asker = waiting.request, waiting.asker
        return {
            node: proposed
            for node, proposed in victims.items()
            if self._would_help(node, request, asker, proposed)
        }

    def _would_help(self, node: str, request: Request, asker: Asker, victims: MetaVictims) -> bool:
        books = self._state.nominations.books(node, asker)
        if books is None or not victims.pods:
            return False
        ledger = self._state.ledger
        holdings = [
            holding
            for uid in {pod.uid for pod in victims.pods}
            if (record := ledger.pod(uid)) is not None
            and record.node == node
            and (holding := ledger.holding(uid)) is not None
        ]
        return helps(books, request, holdings)

    # -- what others need of it -------------------------------------------------------------------

    def refusal(self, node: str, request: Request, asker: Asker) -> Reason | None:
        """Why `asker` has no room on one node, promises to others counted; None if it has."""
        books = self._state.nominations.books(node, asker)
        return Reason.NOT_READY if books is None else why_not(books, request)

    def fitting(self, request: Request) -> set[str]:
        """The nodes that have room for a request, promises not counted. Not to be changed."""
        return self._verdicts(request).verdicts.fits

    def largest_free(self, names: list[str]) -> int:
        """The largest amount that any GPU of the nodes could still take."""
        ledger = self._state.ledger
        books = (ledger.get_books(name) for name in names)
        return max((b.largest_free for b in books if b and b.node.mode.shares_memory), default=0)

    def _verdicts(self, request: Request) -> _Kept:
        kept = self._kept.get(request)
        if kept is None:
            kept = self._kept[request] = _Kept(Verdicts(self._state.ledger, request))
            if len(self._kept) > MAX_REQUESTS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(request)
        kept.verdicts.refresh()
        return kept

    def _ranks_of(self, request: Request, owner: Owner | None) -> Ranks:
        key = (request, owner)
        ranks = self._ranks.get(key)
        if ranks is None:
            ranks = Ranks(self._state.ledger, request, self._ranking, owner or NOBODY)
            self._ranks[key] = ranks
            if len(self._ranks) > MAX_OWNERS:
                self._ranks.popitem(last=False)
        self._ranks.move_to_end(key)
        return ranks


def nearest(reasons: Iterable[Reason]) -> Reason | None:
    """The reason of the node that came nearest; None of no reasons at all."""
    present = set(reasons)
    return next((reason for reason in NEAREST if reason in present), None)
