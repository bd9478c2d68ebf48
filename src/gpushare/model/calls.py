"""What the kubelet asks a device plugin for a pod, call by call, and which pods it can confuse.

The kubelet names no pod when it asks for device ids: it says how many units. It goes through a
pod's containers in the order of its spec, init containers first. A container that takes everything
from the ids of a finished init container is not asked about beforehand; one that takes part of it
names these ids; every other one is a **fresh** call, known by its size alone.

So the plugin can take one pod's container for another's whenever their fresh calls have the same
size. That does no harm as long as both chunks (model.request) go through the same calls: then
their places on the node can simply be exchanged. They are of one **class**. Two chunks of different
classes that begin with a call of the same size must not wait for the kubelet at the same time: 4 on
each of two GPUs would be mistaken for 8 on one.
"""

from dataclasses import dataclass

from gpushare.model.request import ContainerAsk, Request


@dataclass(frozen=True, slots=True)
class Call:
    """The kubelet's allocation for one container."""

    ask: ContainerAsk
    reused: int
    """Units taken from an earlier init container of the pod."""

    @property
    def fresh(self) -> int:
        """Units newly taken from the node."""
        return self.ask.units - self.reused


@dataclass(frozen=True, slots=True)
class CallClass:
    """Chunks of one class are interchangeable for the kubelet, and on the books."""

    calls: tuple[tuple[int, int, bool], ...]
    """(units, units reused, whether it is an init container that hands its units on)."""
    gpus: int
    """GPUs the chunk is spread over."""
    opted_out: tuple[int, ...] = ()
    """Positions of the calls for containers that ask not to be held to their share."""

    def begins_like(self, other: "CallClass", position: int) -> bool:
        """Whether the calls before `position` are the same for both."""
        return self.calls[:position] == other.calls[:position] and _before(
            self.opted_out, position
        ) == _before(other.opted_out, position)

    @property
    def first(self) -> int:
        """Units of the call that begins the chunk."""
        return self.calls[0][0]


def calls_of(request: Request) -> tuple[tuple[Call, ...], ...]:
    """The calls of each chunk of a request, in the kubelet's order.

    The reuse is the kubelet's own (kubernetes/pkg/kubelet/cm/devicemanager, `devicesToReuse`), the
    same that made the chunks.
    """
    pool = 0
    chunks: list[tuple[Call, ...]] = []
    for chunk in request.chunks:
        calls: list[Call] = []
        for ask in chunk.containers:
            if not ask.units:
                continue
            call = Call(ask, min(ask.units, pool))
            calls.append(call)
            pool = max(pool, ask.units) if _hands_on(ask) else pool - call.reused
        chunks.append(tuple(calls))
    return tuple(chunks)


def classes_of(request: Request) -> tuple[CallClass, ...]:
    """The class of each chunk of a request."""
    return tuple(
        CallClass(
            tuple((call.ask.units, call.reused, _hands_on(call.ask)) for call in calls),
            request.gpus_per_chunk,
            tuple(position for position, call in enumerate(calls) if call.ask.opted_out),
        )
        for calls in calls_of(request)
    )


def confusable(one: Request, other: Request) -> bool:
    """Whether the kubelet's calls for two pods could be mistaken for each other with harm.

    True where a chunk of one and a chunk of the other have a fresh call of the same size, but are
    of different classes. Pods that ask alike are never confusable: the kubelet allocates a pod as a
    whole, so their calls come in the same order.
    """
    if one == other:
        return False
    return any(
        a != b and not _fresh_sizes(a).isdisjoint(_fresh_sizes(b))
        for a in classes_of(one)
        for b in classes_of(other)
    )


def _before(positions: tuple[int, ...], end: int) -> tuple[int, ...]:
    return tuple(position for position in positions if position < end)


def _hands_on(ask: ContainerAsk) -> bool:
    return ask.init and not ask.sidecar


def _fresh_sizes(cls: CallClass) -> set[int]:
    return {units for units, reused, _ in cls.calls if not reused}
