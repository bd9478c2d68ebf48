"""Which containers the kubelet's calls cannot tell apart.

The kubelet asks a device plugin for a container's units by their number alone; which pod they are
for it never says. Two containers of one **class** may swap their GPUs without harm to the books:
both get what one of them was decided to get. Two of different classes with the same **call size**
may not: a pod that spans two GPUs with 4 + 4 units beside one that holds 8 on a third.

The call size of a container is what GetPreferredAllocation is called with: all of its units. A
container that reuses an init container's ids to the last one is not called for at all (see
model.request), so it cannot be confused with anything.
"""

from dataclasses import dataclass

from gpushare.model.request import Request


@dataclass(frozen=True, slots=True)
class CallClass:
    """What makes a container's call. `units` is the call size."""

    units: int
    gpu_count: int
    init: bool
    """A regular init container: what it gets is handed on to later containers of its pod."""


def classes_of(request: Request) -> frozenset[CallClass]:
    """The classes of a pod's containers that the kubelet makes calls for."""
    classes: set[CallClass] = set()
    pool = 0
    for chunk in request.chunks:
        for ask in chunk.containers:
            reused = min(ask.units, pool)
            regular_init = ask.init and not ask.sidecar
            if ask.units > reused:
                classes.add(CallClass(ask.units, request.gpu_count, regular_init))
            pool = max(pool, ask.units) if regular_init else pool - reused
    return frozenset(classes)


def confusable(mine: frozenset[CallClass], other: frozenset[CallClass]) -> bool:
    """Whether a call for one pod could be answered with a GPU decided for the other, and matter."""
    return any(a.units == b.units and a != b for a in mine for b in other)
