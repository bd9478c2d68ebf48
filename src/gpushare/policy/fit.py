"""Whether a request fits on a node, on which GPUs, or a typed reason why not.

A pod's containers go together on one GPU when one has room for all of them; otherwise chunk by
chunk (see model.request), all or nothing. The search for such a split is exact: largest chunk
first, GPUs in the policy's order, backtracking, with positions already known to fail remembered.
With `gpu-count: M` the pod gets the M most preferred of the GPUs that have room for an M-th part.

GPUs that are unhealthy or cordoned take nothing new. Units of pods whose GPU is unknown are missing
on every GPU (model.gpus, unattributed memory).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.contract.names import Mode, Reason
from gpushare.model.gpus import GpuBooks, NodeBooks
from gpushare.model.holding import Placement
from gpushare.model.owner import Owner
from gpushare.model.request import Chunk, Request
from gpushare.policy import DEFAULT_GPU_POLICY, GPU_POLICIES
from gpushare.policy.preference import Preference

SEARCH_LIMIT = 50_000
"""Steps after which the search for a split gives up; reached only by pods with dozens of
containers, which are then refused rather than decided late."""


NOBODY = Owner("", "", "")
"""An owner without pods anywhere, for questions whose answer does not depend on the owner."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request has no place on a node."""

    reason: Reason
    largest_free: int
    """Units the node's emptiest open GPU could still take."""


Answer = Placement | Refusal


def place(
    books: NodeBooks, request: Request, owner: Owner, preference: Preference | None = None
) -> Answer:
    """Where `request` goes on the node, by `preference` or else by the node's own policy."""
    obstacle = _obstacle(books, request)
    if obstacle is not None:
        return Refusal(obstacle, books.largest_free)
    if preference is None:
        preference = GPU_POLICIES.get(books.node.placement, GPU_POLICIES[DEFAULT_GPU_POLICY])
    gpus = [gpu for gpu in books.gpus if gpu.gpu.open]
    count = request.gpus_per_chunk
    if len(gpus) < count:
        return Refusal(Reason.GPU_COUNT, books.largest_free)

    part, core = request.units // count, request.core
    reserved = books.pending
    best = sorted(
        (preference(gpu, owner), gpu.gpu.index)
        for gpu in gpus
        if part <= gpu.gpu.units - gpu.used - reserved and (not core or core <= gpu.core_free)
    )
    if len(best) >= count:
        chosen = tuple(sorted(index for _, index in best[:count]))
        return Placement((chosen,) * len(request.chunks))
    if len(request.chunks) > 1:
        split = _split(gpus, reserved, request, owner, preference)
        if split is not None:
            return split
    return Refusal(_misfit(books, request), books.largest_free)


def why_not(books: NodeBooks, request: Request) -> Reason | None:
    """Why a request has no place on the node; None where it has one.

    What `place` finds, without choosing GPUs: whether there is a place depends neither on the
    policy nor on the owner. Several times faster, for who asks thousands of nodes.
    """
    count = request.gpu_count or 1
    part, core = request.units // count + books.pending, request.core
    takes = opens = room = 0
    for gpu in books.gpus:
        if gpu.gpu.healthy and not gpu.gpu.cordoned:
            free = gpu.gpu.units - gpu.used
            room += free
            opens += 1
            if part <= free and (not core or core <= gpu.core_free):
                takes += 1
    obstacle = _obstacle_with(room, books, request)
    if obstacle is not None:
        return obstacle
    if opens < count:
        return Reason.GPU_COUNT
    if takes >= count:
        return None
    if len(request.chunks) > 1:
        answer = place(books, request, NOBODY)
        return answer.reason if isinstance(answer, Refusal) else None
    return _misfit(books, request)


def _obstacle(books: NodeBooks, request: Request) -> Reason | None:
    """What keeps the request off the node before any single GPU is looked at."""
    room = sum(gpu.gpu.units - gpu.used for gpu in books.gpus if gpu.gpu.open)
    return _obstacle_with(room, books, request)


def _obstacle_with(room: int, books: NodeBooks, request: Request) -> Reason | None:
    """`room`: units that the node's open GPUs have left, before unattributed memory."""
    node = books.node
    if not node.mode.shares_memory:
        return Reason.NOT_SHARING
    if not node.gpus or node.advertised == 0:
        return Reason.NOT_READY
    if request.core:
        if node.mode is not Mode.CORE_MEM or books.memory_pods:
            return Reason.MODE_MIX
    elif books.core_pods:
        return Reason.MODE_MIX
    room -= books.pending
    if node.advertised is not None:
        room = min(room, node.advertised - books.used - books.pending)
    return Reason.NODE_FULL if room < request.units else None


def _misfit(books: NodeBooks, request: Request) -> Reason:
    """Why no GPU, or set of GPUs, takes a request that the node's sum would hold."""
    largest = books.largest_free
    for chunk in request.chunks:
        tied = len(chunk.containers) > 1 and not request.gpu_count
        if tied and chunk.units > largest >= max(ask.units for ask in chunk.containers):
            return Reason.INIT_STRADDLE
    return Reason.NO_GPU_FITS


def _split(
    gpus: Sequence[GpuBooks],
    reserved: int,
    request: Request,
    owner: Owner,
    preference: Preference,
) -> Placement | None:
    """Chunks on several GPUs, or None where there is no way."""
    order = sorted(
        range(len(request.chunks)),
        key=lambda i: (-request.chunks[i].units, -request.chunks[i].core, i),
    )
    search = _Search([request.chunks[i] for i in order], reserved, owner, preference)
    found = search.run(0, tuple(gpus))
    if found is None:
        return None
    chosen: list[tuple[int, ...]] = [()] * len(order)
    for position, gpu in zip(order, found, strict=True):
        chosen[position] = (gpu,)
    return Placement(tuple(chosen))


class _Search:
    """Depth-first over chunks. A position is the chunk's number and the free amounts left; one
    known to fail is not tried again, whichever GPUs those amounts are on."""

    def __init__(
        self, chunks: Sequence[Chunk], reserved: int, owner: Owner, preference: Preference
    ) -> None:
        self._chunks = chunks
        self._reserved = reserved
        self._owner = owner
        self._preference = preference
        self._dead: set[tuple[int, tuple[tuple[int, int], ...]]] = set()
        self._steps = 0

    def run(self, number: int, gpus: tuple[GpuBooks, ...]) -> list[int] | None:
        if number == len(self._chunks):
            return []
        self._steps += 1
        if self._steps > SEARCH_LIMIT:
            return None
        position = (number, tuple(sorted((gpu.free, gpu.core_free) for gpu in gpus)))
        if position in self._dead:
            return None
        chunk = self._chunks[number]
        tried: set[tuple[int, int]] = set()
        for gpu in sorted(gpus, key=lambda gpu: self._preference(gpu, self._owner)):
            room = gpu.gpu.units - gpu.used - self._reserved
            if chunk.units > room or chunk.core > gpu.core_free or (room, gpu.core_free) in tried:
                continue
            tried.add((room, gpu.core_free))
            after = gpu.charged(self._owner, chunk.units, chunk.core, 1)
            rest = self.run(number + 1, tuple(after if g is gpu else g for g in gpus))
            if rest is not None:
                return [gpu.gpu.index, *rest]
        self._dead.add(position)
        return None
