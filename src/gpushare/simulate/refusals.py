"""Why a pod has no place: a code, a sentence, and the nodes that came closest.

Every node has one reason, the first of: it does not share its GPUs; it is cordoned; a taint; the
pod's nodeSelector; its node affinity; a resource beside GPU memory; what policy.fit says. The
sentence counts them ("0 of 3 nodes: 1 does not match its nodeSelector, …"), as kube-scheduler does.

**The code** is one of CONTRACT's (our own names), which speak of GPUs only. It is the code of the
node that came furthest: of those that nothing but their GPUs keeps the pod off, the code nearest to
a fit (`_FURTHEST`). Where the rules or other resources keep the pod off every node, no code fits
well: it is `not-ready` if any node shares its GPUs (there is room of the kind, not for this pod,
not now), else `not-sharing`; the sentence says what it really was.

**Candidates** are the nodes that nothing but their GPUs keeps off, those with the most free first.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpushare.contract.names import Reason
from gpushare.contract.units import Unit
from gpushare.model.gpus import NodeBooks
from gpushare.model.ledger import Ledger
from gpushare.model.request import Request
from gpushare.policy.fit import why_not
from gpushare.simulate.constraints import HOSTNAME, Constraints, obstacle, untolerated
from gpushare.simulate.hosts import Ask, Hosts
from gpushare.simulate.scene import Scene, Waiting
from gpushare.view import reasons
from gpushare.view.report import Candidate

_FURTHEST = (
    Reason.NO_GPU_FITS,
    Reason.INIT_STRADDLE,
    Reason.GPU_COUNT,
    Reason.NODE_FULL,
    Reason.MODE_MIX,
    Reason.NOT_READY,
    Reason.NOT_SHARING,
)
"""Nearest to a fit first."""

MAX_CANDIDATES = 100
"""Candidates that are listed; the rest have less free."""

MAX_TALLIES = 64
"""Questions whose answers are kept current; each remembers every node."""

_NOT_ITS_AFFINITY = "{} not matching its node affinity"


@dataclass(frozen=True, slots=True)
class Why:
    """Why a pod has no place."""

    reason: Reason
    message: str
    candidates: Sequence[Candidate] = ()


@dataclass(slots=True)
class _Tally:
    """One question's answers of all nodes, as of a generation of the books."""

    seen: int
    texts: dict[str, str] = field(default_factory=dict)
    """Node -> what keeps the pod off it, `{}` for how many."""
    counts: dict[str, int] = field(default_factory=dict)
    """Such a text -> nodes."""
    codes: dict[str, Reason] = field(default_factory=dict)
    """Node that nothing but its GPUs keeps the pod off -> what policy.fit says."""
    free: dict[str, int] = field(default_factory=dict)
    """Such a node -> its largest free amount."""


class Refusals:
    """Explains refusals. A question asked again costs the nodes that changed since."""

    def __init__(self, scene: Scene, ledger: Ledger, hosts: Hosts) -> None:
        self._scene = scene
        self._ledger = ledger
        self._hosts = hosts
        self._unit = scene.cluster(ledger).unit(scene.nodes, scene.default_unit)
        self._sharing = any(node.node.mode.shares_memory for node in scene.nodes.values())
        self._tallies: dict[tuple[Request, Constraints, Ask], _Tally] = {}
        """Question -> its answers, the latest MAX_TALLIES of them."""

    def why(self, pod: Waiting) -> Why:
        """Why no node takes `pod`, as the books stand."""
        if pod.unfit is not None:
            return Why(pod.unfit.reason, pod.unfit.message)
        assert pod.request is not None
        tally = self._tally(pod, pod.request)
        codes = set(tally.codes.values())
        reason = next((code for code in _FURTHEST if code in codes), None)
        if reason is None:
            reason = Reason.NOT_READY if self._sharing else Reason.NOT_SHARING
        best = heapq.nsmallest(MAX_CANDIDATES, tally.free.items(), key=lambda e: (-e[1], e[0]))
        candidates = [Candidate(name, free) for name, free in best]
        return Why(reason, self._message(pod, pod.request, reason, tally, candidates), candidates)

    def _tally(self, pod: Waiting, request: Request) -> _Tally:
        question = (request, pod.constraints, pod.ask)
        tally = self._tallies.pop(question, None)
        if tally is None:
            tally = _Tally(self._ledger.generation)
            self._look_at(self._first_looked_at(pod, tally), tally, pod, request)
            if len(self._tallies) >= MAX_TALLIES:
                del self._tallies[next(iter(self._tallies))]
        else:
            changed = self._ledger.changed_since(tally.seen)
            self._look_at((name for name in changed if name in tally.texts), tally, pod, request)
            tally.seen = self._ledger.generation
        self._tallies[question] = tally
        return tally

    def _first_looked_at(self, pod: Waiting, tally: _Tally) -> Iterable[str]:
        """All nodes; for a pod that names its nodes only those, and the rest counted at once."""
        nodes, named = self._scene.nodes, pod.constraints.named_nodes
        if named is None:
            return nodes
        chosen = named & nodes.keys()
        if len(chosen) < len(nodes):
            tally.counts[_NOT_ITS_AFFINITY] = len(nodes) - len(chosen)
        return chosen

    def _look_at(self, names: Iterable[str], tally: _Tally, pod: Waiting, request: Request) -> None:
        for name in names:
            books = self._ledger.books(name)
            text = self._kept_off(pod, books)
            if text is None:
                code = why_not(books, request)
                assert code is not None
                tally.codes[name] = code
                tally.free[name] = books.largest_free
                text = f"{{}} {_GPU_TEXTS[code]}"
            else:
                tally.codes.pop(name, None)
                tally.free.pop(name, None)
            old = tally.texts.get(name)
            if old is not None:
                tally.counts[old] -= 1
            tally.texts[name] = text
            tally.counts[text] = tally.counts.get(text, 0) + 1

    def _kept_off(self, pod: Waiting, books: NodeBooks) -> str | None:
        """What keeps the pod off a node before its GPUs are looked at; `{}` stands for how many."""
        if not books.node.mode.shares_memory:
            return "{} not sharing GPU memory"
        face = self._scene.nodes[books.node.name].face
        match obstacle(pod.constraints, face):
            case "cordoned":
                return "{} cordoned"
            case "taint":
                taint = untolerated(pod.constraints, face)
                assert taint is not None
                value = f"={taint.value}" if taint.value else ""
                return f"{{}} with the untolerated taint {taint.key}{value}:{taint.effect}"
            case "selector":
                return "{} not matching its nodeSelector"
            case "affinity":
                return _NOT_ITS_AFFINITY
        resource = self._hosts.lacking(books.node.name, pod.ask)
        return f"{{}} with too little {resource}" if resource is not None else None

    def _message(
        self,
        pod: Waiting,
        request: Request,
        reason: Reason,
        tally: _Tally,
        candidates: list[Candidate],
    ) -> str:
        counts = sorted(tally.counts.items(), key=lambda entry: (-entry[1], entry[0]))
        parts = [text.format(count) for text, count in counts if count]
        total = sum(tally.counts.values())
        text = f"0 of {total} {'node' if total == 1 else 'nodes'}: {', '.join(parts)}"
        if candidates:
            best = candidates[0]
            text += f" (largest free {best.largest_free} on node {best.node})"
            hint = reasons.message(
                reason,
                largest_free=best.largest_free,
                units=request.units,
                unit=self._unit,
                gpu_count=request.gpu_count,
            )
            return f"{text}; {hint}"
        return text + self._hostname_hint(pod)

    def _hostname_hint(self, pod: Waiting) -> str:
        """The names there are, where the pod insists on one that is not."""
        wanted = dict(pod.constraints.selector).get(HOSTNAME)
        if wanted is None:
            return ""
        hosts = sorted(
            {node.face.labels.get(HOSTNAME, "") for node in self._scene.nodes.values()} - {""}
        )
        if wanted in hosts:
            return ""
        more = f", … ({len(hosts)} in all)" if len(hosts) > 10 else ""
        return (
            f"; no node has the label {HOSTNAME}={wanted}; "
            f"there are: {', '.join(hosts[:10]) or 'none'}{more}"
        )


_GPU_TEXTS = {
    Reason.NOT_READY: "with no GPU ready to share",
    Reason.MODE_MIX: "where memory-only pods and pods with a compute share would mix",
    Reason.NODE_FULL: "with too little GPU memory in all",
    Reason.GPU_COUNT: "with fewer GPUs than the pod spans",
    Reason.NO_GPU_FITS: "with no single GPU that has enough",
    Reason.INIT_STRADDLE: "where an init container and those that reuse its memory fit no one GPU",
}


def unit_of(scene: Scene, ledger: Ledger, shown: Sequence[str]) -> Unit:
    """The unit in which the table counts."""
    return scene.cluster(ledger).unit(shown, scene.default_unit)
