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

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Why:
    """Why a pod has no place."""

    reason: Reason
    message: str
    candidates: Sequence[Candidate] = ()


class Refusals:
    """Explains refusals; an unchanged question is answered from memory."""

    def __init__(self, scene: Scene, ledger: Ledger, hosts: Hosts) -> None:
        self._scene = scene
        self._ledger = ledger
        self._hosts = hosts
        self._unit = scene.cluster(ledger).unit(scene.nodes, scene.default_unit)
        self._known: dict[tuple[Request, Constraints, Ask], tuple[int, Why]] = {}
        """Question -> (the books' generation then, its answer)."""

    def why(self, pod: Waiting) -> Why:
        """Why no node takes `pod`, as the books stand."""
        if pod.unfit is not None:
            return Why(pod.unfit.reason, pod.unfit.message)
        assert pod.request is not None
        question = (pod.request, pod.constraints, pod.ask)
        known = self._known.get(question)
        if known is not None and known[0] == self._ledger.generation:
            return known[1]
        why = self._find(pod, pod.request)
        self._known[question] = (self._ledger.generation, why)
        return why

    def _find(self, pod: Waiting, request: Request) -> Why:
        counts: dict[str, int] = {}
        """What keeps nodes off -> how many."""
        codes: set[Reason] = set()
        close: list[NodeBooks] = []
        sharing = False
        for name in sorted(self._scene.nodes):
            books = self._ledger.books(name)
            sharing = sharing or books.node.mode.shares_memory
            text = self._kept_off(pod, books)
            if text is None:
                code = why_not(books, request)
                assert code is not None
                codes.add(code)
                text = f"{{}} {_GPU_TEXTS[code]}"
                if code is not Reason.NOT_SHARING:
                    close.append(books)
            counts[text] = counts.get(text, 0) + 1
        reason = next((code for code in _FURTHEST if code in codes), None)
        if reason is None:
            reason = Reason.NOT_READY if sharing else Reason.NOT_SHARING
        close.sort(key=lambda books: (-books.largest_free, books.node.name))
        candidates = [
            Candidate(books.node.name, books.largest_free) for books in close[:MAX_CANDIDATES]
        ]
        return Why(reason, self._message(pod, request, reason, counts, candidates), candidates)

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
                return "{} not matching its node affinity"
        resource = self._hosts.lacking(books.node.name, pod.ask)
        return f"{{}} with too little {resource}" if resource is not None else None

    def _message(
        self,
        pod: Waiting,
        request: Request,
        reason: Reason,
        counts: dict[str, int],
        candidates: list[Candidate],
    ) -> str:
        parts = [text.format(n) for text, n in sorted(counts.items(), key=lambda e: (-e[1], e[0]))]
        total = sum(counts.values())
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
    Reason.NOT_SHARING: "not sharing GPU memory",
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
