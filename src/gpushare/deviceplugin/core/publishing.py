"""What pods' and the node's annotations have to say, given the books.

A reader takes a pod's place from its own annotation unless the node's `gpushare.dev/corrections`
has it. Pods cannot be patched two at a time; an exchange is therefore published in **one write**,
to the node, and each pod's annotation follows. A correction goes again once the pods agree, and
some time later: readers watch pods and nodes apart, and one must not see the correction gone before
the pod's new annotation.

A pod that has ended or is gone but whose ids were not attested stays charged by its correction,
since somebody else may have its ids. The amounts are then the correction's own.

A kubelet that has started can forget a pod that was attested; then its annotation says so no more,
until it is known again what it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.contract import names
from gpushare.contract.allocation import (
    Allocation,
    binding_annotations,
    encode_corrections,
)
from gpushare.deviceplugin.core.books import Books, NodePod
from gpushare.model.gpus import Assignment
from gpushare.model.holding import Placement, gpu_units, holding_of_gone, placement_of
from gpushare.model.owner import Owner

LINGER_NS = 30_000_000_000
"""How long a correction stays after the pod's annotation agrees with it."""

PADDING_INDEX = 4095
"""A container index no pod has: units a gone pod holds beyond what its containers add up to."""


@dataclass(frozen=True, slots=True)
class PodPatch:
    """Annotations to set on a pod (None removes)."""

    uid: str
    namespace: str
    name: str
    annotations: Mapping[str, str | None]


@dataclass(slots=True)
class Corrections:
    """Which pods are corrected, and since when their own annotations agree."""

    agreed_ns: dict[str, int]
    """Pod UID -> when its annotation was first seen to agree; only of corrected pods."""

    def wanted(self, books: Books, now_ns: int) -> dict[str, str | None]:
        """The node's two annotations as they should be; None for one that should not be there."""
        app: dict[str, Allocation] = {}
        init: dict[str, Allocation] = {}
        for uid, pod in books.pods.items():
            corrected = self._correction(books, uid, pod, now_ns)
            if corrected is not None:
                app[uid] = corrected.app
                if corrected.init:
                    init[uid] = corrected.init
        for uid in [uid for uid in self.agreed_ns if uid not in app]:
            del self.agreed_ns[uid]
        return {
            names.ANNOTATION_CORRECTIONS: encode_corrections(app) if app else None,
            names.ANNOTATION_INIT_CORRECTIONS: encode_corrections(init) if init else None,
        }

    def _correction(self, books: Books, uid: str, pod: NodePod, now_ns: int) -> Assignment | None:
        if not pod.live:
            return _charge(books, pod)
        own = _own(books, pod)
        where = pod.placement
        if where is None:
            # It had a place that is another's now: it could be anywhere.
            return _nowhere(pod) if own is not None else None
        if own is None and not pod.attested:
            return None  # charged on every GPU until it is known
        if own is None and uid not in self.agreed_ns:
            return None  # its annotation is written at once; nobody counts it twice
        if own == where:
            if uid not in self.agreed_ns:
                return None
            if self.agreed_ns[uid] == 0:
                self.agreed_ns[uid] = now_ns
            if now_ns - self.agreed_ns[uid] >= LINGER_NS:
                return None
        else:
            self.agreed_ns[uid] = 0
        request = pod.facts.record.request
        return Assignment(
            where.allocation(request, init=False), where.allocation(request, init=True)
        )


def pod_patches(books: Books, now_ns: int) -> list[PodPatch]:
    """Pods whose annotations do not yet say what was attested.

    To be written after the node's corrections: only then is nothing seen twice in between.
    """
    patches: list[PodPatch] = []
    for pod in books.pods.values():
        where = pod.placement
        if not pod.live:
            continue
        if not pod.facts.started and any(p.forgotten and not p.attested for p in pod.pieces):
            annotations = _marks(pod, "false") if pod.facts.assigned else None
        elif pod.attested and where is not None:
            annotations = _agreeing(books, pod, where, now_ns)
        else:
            continue
        if annotations:
            record = pod.facts.record
            patches.append(PodPatch(record.uid, record.namespace, record.name, annotations))
    return patches


def _agreeing(
    books: Books, pod: NodePod, where: Placement, now_ns: int
) -> dict[str, str | None] | None:
    facts = pod.facts
    request = facts.record.request
    if _own(books, pod) == where:
        return None if facts.assigned else _marks(pod, "true")
    held = {index: units for index, (units, _) in where.held(request).items()}
    written: dict[str, str | None] = {
        **binding_annotations(
            app=where.allocation(request, init=False),
            init=where.allocation(request, init=True),
            core={},
            held=held,
            gpu_units=gpu_units(books.node),
            assume_time_ns=facts.bound_ns or now_ns,
        )
    }
    written[names.ANNOTATION_ASSIGNED] = "true"
    if names.ANNOTATION_OLD_IDX in written:
        written[names.ANNOTATION_OLD_ASSIGNED] = "true"
    else:
        written |= {name: None for name in _OLD_GENERATION if name in facts.annotations}
    return written


def _marks(pod: NodePod, assigned: str) -> dict[str, str | None]:
    """The annotations that tell whether the pod was attested, of the generations that it has."""
    marks: dict[str, str | None] = {}
    if names.ANNOTATION_ALLOCATION in pod.facts.annotations:
        marks[names.ANNOTATION_ASSIGNED] = assigned
    if names.ANNOTATION_OLD_IDX in pod.facts.annotations:
        marks[names.ANNOTATION_OLD_ASSIGNED] = assigned
    return marks


_OLD_GENERATION = (
    names.ANNOTATION_OLD_IDX,
    names.ANNOTATION_OLD_POD,
    names.ANNOTATION_OLD_DEV,
    names.ANNOTATION_OLD_ASSIGNED,
    names.ANNOTATION_OLD_ASSUME_TIME,
)


def _own(books: Books, pod: NodePod) -> Placement | None:
    """Where the pod's own annotation has it."""
    record = pod.facts.record
    if record.assignment is None:
        return None
    return placement_of(record.request, record.assignment, books.node)


def _nowhere(pod: NodePod) -> Assignment:
    """An assignment that tells of no GPU: readers charge the pod on every one."""
    asks = [call.ask for piece in pod.pieces for call in piece.calls]
    return Assignment(
        {ask.index: {} for ask in asks if not ask.init},
        {ask.index: {} for ask in asks if ask.init},
    )


def _charge(books: Books, pod: NodePod) -> Assignment:
    """A correction that keeps a ghost charged with all it may hold."""
    app: dict[int, dict[int, int]] = {}
    init: dict[int, dict[int, int]] = {}
    held: dict[int, int] = {}
    for piece in pod.pieces:
        for index in piece.place or ():
            held[index] = held.get(index, 0) + piece.units // len(piece.place or ())
        for call in piece.calls:
            ask = call.ask
            share = {index: ask.units // len(piece.place or ()) for index in piece.place or ()}
            (init if ask.init else app)[ask.index] = share
    told = dict.fromkeys(held, 0)
    gone = holding_of_gone(Assignment(app, init), Owner("", "Pod", ""), books.node)
    told |= {index: units for index, units, _ in gone.gpus}
    missing = {index: units - told[index] for index, units in held.items() if units > told[index]}
    if missing:
        app[PADDING_INDEX] = missing
    return Assignment(app, init)
