"""From a decision, or from an annotation, to the units a pod holds on each GPU.

A `Placement` names the GPUs of every chunk of a request. Amounts always come from the request, the
pod's spec: that is what the kubelet charged. An annotation only says which GPU; one that does not
answer that for the whole pod leaves the pod unattributed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.contract.allocation import Allocation
from gpushare.model.gpus import Assignment, Holding, Node
from gpushare.model.owner import Owner
from gpushare.model.request import Chunk, Request


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes: for every chunk, in order, the indexes of its GPUs."""

    gpus: tuple[tuple[int, ...], ...]

    def held(self, request: Request) -> dict[int, tuple[int, int]]:
        """GPU index -> (units, core percent) held there, over all chunks."""
        held: dict[int, tuple[int, int]] = {}
        for chunk, gpus in zip(request.chunks, self.gpus, strict=True):
            for gpu in gpus:
                units, core = held.get(gpu, (0, 0))
                held[gpu] = (units + chunk.units // len(gpus), core + chunk.core)
        return held

    def holding(self, request: Request, owner: Owner) -> Holding:
        """What a pod of `owner` placed so holds."""
        held = self.held(request)
        return Holding(owner, tuple((gpu, *held[gpu]) for gpu in sorted(held)), core=request.core)

    def allocation(self, request: Request, *, init: bool) -> dict[int, dict[int, int]]:
        """Container index -> GPU index -> units, of the app or of the init containers."""
        return {
            ask.index: {gpu: ask.units // len(gpus) for gpu in gpus}
            for chunk, gpus in zip(request.chunks, self.gpus, strict=True)
            for ask in chunk.containers
            if ask.init == init and ask.units
        }

    def core_allocation(self, request: Request) -> dict[int, dict[int, int]]:
        """Container index -> GPU index -> percent, of the app containers that ask for compute."""
        return {
            ask.index: dict.fromkeys(gpus, ask.core)
            for chunk, gpus in zip(request.chunks, self.gpus, strict=True)
            for ask in chunk.containers
            if ask.core and not ask.init
        }


def placement_of(request: Request, assignment: Assignment, node: Node) -> Placement | None:
    """The placement an assignment describes, or None where it does not tell for every chunk.

    An init container missing from it (ACK writes none) is where the containers are that share its
    chunk. An assignment to a GPU the node lacks, or one that puts a chunk on two GPUs which its
    `gpu-count` did not ask for in equal parts, tells nothing.
    """
    known = {gpu.index for gpu in node.gpus}
    chunks: list[tuple[int, ...]] = []
    for chunk in request.chunks:
        gpus = _gpus_of(chunk, assignment)
        if gpus is None or not known.issuperset(gpus):
            return None
        if any(ask.units % len(gpus) for ask in chunk.containers) or chunk.units % len(gpus):
            return None
        chunks.append(gpus)
    return Placement(tuple(chunks))


def _gpus_of(chunk: Chunk, assignment: Assignment) -> tuple[int, ...] | None:
    if assignment.single_gpu is not None:
        return (assignment.single_gpu,)
    found: tuple[int, ...] | None = None
    for ask in chunk.containers:
        entry = (assignment.init if ask.init else assignment.app).get(ask.index)
        if not entry:
            if ask.init:
                continue
            return None
        gpus = tuple(sorted(entry))
        if found is not None and gpus != found:
            return None
        found = gpus
    return found


def holding_of(
    request: Request,
    owner: Owner,
    assignment: Assignment | None,
    correction: Assignment | None,
    node: Node,
) -> Holding:
    """What a pod on `node` holds: where the kubelet put it, else where it was decided, else
    anywhere (pending)."""
    if correction is not None:
        base = assignment or Assignment({}, {})
        assignment = Assignment(
            {**base.app, **correction.app}, {**base.init, **correction.init}, None
        )
    placement = placement_of(request, assignment, node) if assignment is not None else None
    if placement is None:
        return Holding(owner, pending=request.units, core=request.core)
    return placement.holding(request, owner)


def holding_of_gone(correction: Assignment, owner: Owner, node: Node) -> Holding:
    """What a pod that is no longer there still holds, from its correction alone.

    Init containers and app containers share units, so per GPU the larger of the app containers' sum
    and any init container counts. A GPU the node lacks makes it pending.
    """
    held: dict[int, int] = {}
    for units_by_gpu in correction.app.values():
        for gpu, units in units_by_gpu.items():
            held[gpu] = held.get(gpu, 0) + units
    for units_by_gpu in correction.init.values():
        for gpu, units in units_by_gpu.items():
            held[gpu] = max(held.get(gpu, 0), units)
    known = {gpu.index for gpu in node.gpus}
    if not known.issuperset(held):
        return Holding(owner, pending=sum(held.values()))
    return Holding(owner, tuple((gpu, held[gpu], 0) for gpu in sorted(held)))


def gpu_units(node: Node) -> Mapping[int, int]:
    """GPU index -> its units."""
    return {gpu.index: gpu.units for gpu in node.gpus}


__all__ = ["Allocation", "Placement", "gpu_units", "holding_of", "holding_of_gone", "placement_of"]
