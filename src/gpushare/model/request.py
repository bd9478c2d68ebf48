"""What a pod asks for, compiled to the chunks that must share a GPU.

The kubelet hands the device ids of a finished init container on: every later container of the pod,
init, sidecar or app, takes what is left of them before it gets ids of its own, without the device
plugin being asked (kubernetes/pkg/kubelet/cm/devicemanager, `devicesToReuse`). Sidecars and app
containers keep what they took; regular init containers give it back to the pool.

So a container that starts while that pool is not empty runs on the pool's GPU, at least partly, and
must therefore run there wholly. Which containers are tied together this way depends on the amounts
alone, not on where they land: compiling a request replays the kubelet once and yields **chunks**,
groups of containers that share a GPU, each with the units it holds there. A pod without init
containers has one chunk per container.

    init 8, app 4          one chunk of 8     the app reuses 4 of the 8
    init 12, apps 8 + 8    one chunk of 16    the second app takes the 4 left and 4 more
    init 4, sidecar 6      one chunk of 6
    sidecar 3, app 5       chunks of 3 and 5  sidecars hand nothing on
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpushare.contract import names
from gpushare.contract.names import Reason


class RequestError(ValueError):
    """A request nobody can serve, on any node; `reason` is its code.

    `field` names the manifest's field and `value` what it holds, for messages.
    """

    def __init__(self, reason: Reason, field_name: str, value: object, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.field = field_name
        self.value = value


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    """One container's limits. `index` is its place in its own list of the pod's spec."""

    index: int
    units: int
    core: int = 0
    """Percent of one GPU's compute."""
    init: bool = False
    """Stands in `spec.initContainers`, sidecars included."""
    sidecar: bool = False
    """An init container with `restartPolicy: Always`."""
    opted_out: bool = False
    """Its environment asks not to be held to its share (CONTRACT: environment)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Containers that must share a GPU, and what they hold there together."""

    containers: tuple[ContainerAsk, ...]
    units: int
    core: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a pod asks for. Hashable: equal requests are one question to the policies."""

    chunks: tuple[Chunk, ...]
    gpu_count: int = 0
    """GPUs the pod spans, each with an equal part of every container; 0 where it does not say."""
    units: int = field(init=False)
    """Units the pod holds in all: Kubernetes' own effective request."""
    core: int = field(init=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", sum(chunk.units for chunk in self.chunks))
        object.__setattr__(self, "core", sum(chunk.core for chunk in self.chunks))
        object.__setattr__(self, "_hash", hash((self.chunks, self.gpu_count)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def gpus_per_chunk(self) -> int:
        """How many GPUs each chunk is spread over."""
        return self.gpu_count or 1


def compile_request(asks: Sequence[ContainerAsk], gpu_count: int = 0) -> Request | None:
    """The request of a pod whose containers ask `asks`, in the order of its spec, init first.

    None for a pod that asks for nothing of ours. Raises RequestError where no node could serve it:
    compute without memory or in odd steps, a `gpu-count` that does not divide every container's
    units, one together with compute, or one together with an init container (its reuse would be
    a random part of several GPUs).
    """
    asking = [ask for ask in asks if ask.units or ask.core]
    if not asking:
        return None
    for ask in asking:
        _check_core(ask, gpu_count)
        if gpu_count and ask.units % gpu_count:
            raise RequestError(
                Reason.GPU_COUNT,
                names.LABEL_GPU_COUNT,
                gpu_count,
                f"{ask.units} units of {names.RESOURCE_MEM} do not divide by "
                f'{names.LABEL_GPU_COUNT} "{gpu_count}"; ask for a multiple of {gpu_count}',
            )
    if gpu_count > 1 and any(ask.init and not ask.sidecar for ask in asking):
        raise RequestError(
            Reason.INIT_STRADDLE,
            names.LABEL_GPU_COUNT,
            gpu_count,
            f"an init container asks for {names.RESOURCE_MEM} in a pod with "
            f'{names.LABEL_GPU_COUNT} "{gpu_count}": the kubelet would hand its GPUs on at random; '
            "ask in the app containers only",
        )
    chunks = _replay(asking)
    if gpu_count:
        chunks = [
            Chunk(
                containers=tuple(ask for chunk in chunks for ask in chunk.containers),
                units=sum(chunk.units for chunk in chunks),
                core=sum(chunk.core for chunk in chunks),
            )
        ]
    return Request(tuple(chunks), gpu_count)


def _replay(asking: Sequence[ContainerAsk]) -> list[Chunk]:
    chunks: list[Chunk] = []
    pool_units = pool_core = 0
    for ask in asking:
        reused_units = min(ask.units, pool_units)
        reused_core = min(ask.core, pool_core)
        fresh = Chunk((ask,), ask.units - reused_units, ask.core - reused_core)
        if pool_units or pool_core:
            last = chunks[-1]
            chunks[-1] = Chunk(
                (*last.containers, ask), last.units + fresh.units, last.core + fresh.core
            )
        else:
            chunks.append(fresh)
        if ask.init and not ask.sidecar:
            pool_units = max(pool_units, ask.units)
            pool_core = max(pool_core, ask.core)
        else:
            pool_units -= reused_units
            pool_core -= reused_core
    return chunks


def _check_core(ask: ContainerAsk, gpu_count: int) -> None:
    if not ask.core:
        return
    where = names.RESOURCE_CORE
    if not ask.units:
        raise RequestError(
            Reason.BAD_REQUEST,
            where,
            ask.core,
            f"{where} without {names.RESOURCE_MEM} in the same container; ask for both",
        )
    if ask.core % names.CORE_PERCENT_STEP:
        raise RequestError(
            Reason.BAD_REQUEST,
            where,
            ask.core,
            f"{where} is {ask.core}; it comes in steps of {names.CORE_PERCENT_STEP}, "
            f"{names.CORE_PERCENT_MAX} being one GPU",
        )
    if gpu_count:
        raise RequestError(
            Reason.BAD_REQUEST,
            names.LABEL_GPU_COUNT,
            gpu_count,
            f"{names.LABEL_GPU_COUNT} together with {where}; a pod asks for one or the other",
        )
