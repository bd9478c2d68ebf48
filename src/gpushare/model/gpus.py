"""A node's GPUs: as they are published, and as they stand with what pods hold.

`Node` and `Gpu` are what the API says. `NodeBooks` and `GpuBooks` add what pods hold; they are
values: charging a pod gives new books and leaves the old ones as they were, so a what-if is a
function call and needs no rollback.

**Unattributed memory.** A pod that runs on a node without a usable GPU assignment could be on any
of its GPUs. Its units are `pending`: counted once in the node's sum, and missing on every GPU when
a fit is decided.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpushare.contract.allocation import Allocation
from gpushare.contract.names import CORE_PERCENT_MAX, Mode
from gpushare.contract.units import Unit
from gpushare.model.owner import Owner


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as its node publishes it."""

    index: int
    units: int
    uuid: str | None = None
    model: str | None = None
    memory_mib: int | None = None
    healthy: bool = True
    cordoned: bool = False

    @property
    def open(self) -> bool:
        """Whether it takes anything new."""
        return self.healthy and not self.cordoned


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which GPUs a pod's containers are on, as annotations say it; amounts are the spec's."""

    app: Allocation
    init: Allocation
    single_gpu: int | None = None
    """The old add-on's form: the whole pod is on this GPU."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node as the API describes it."""

    name: str
    mode: Mode = Mode.SHARE
    placement: str = "binpack"
    gpus: tuple[Gpu, ...] = ()
    unit: Unit = Unit.GIB
    advertised: int | None = None
    """Units the node's status offers; 0 when its plugin is gone, None where it says nothing."""
    address: str | None = None
    isolation: str | None = None
    attests: bool = False
    """Its plugin is ours, reports which pod got which GPU, and corrects."""
    corrections: Mapping[str, Assignment] = field(default_factory=dict)
    """Pod UID -> where the kubelet really put it; wins over the pod's own annotation."""

    @property
    def units(self) -> int:
        """Units of all its GPUs, whatever their state."""
        return sum(gpu.units for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class Holding:
    """What one pod holds on its node: units per GPU, or units that could be anywhere."""

    owner: Owner
    gpus: tuple[tuple[int, int, int], ...] = ()
    """(GPU index, units, core percent), by index."""
    pending: int = 0
    core: int = 0
    """Core percent asked for; a pod without is memory-only."""

    @property
    def units(self) -> int:
        return self.pending + sum(units for _, units, _ in self.gpus)


@dataclass(frozen=True, slots=True)
class GpuBooks:
    """One GPU and what is held on it."""

    gpu: Gpu
    used: int = 0
    core_used: int = 0
    pods: int = 0
    owners: Mapping[Owner, int] = field(default_factory=dict)
    """Owner -> how many of its pods are here."""

    @property
    def free(self) -> int:
        """Units nobody holds; 0 on a GPU above its total."""
        return max(0, self.gpu.units - self.used)

    @property
    def core_free(self) -> int:
        return max(0, CORE_PERCENT_MAX - self.core_used)

    def charged(self, owner: Owner, units: int, core: int, sign: int) -> "GpuBooks":
        """These books with a pod's units added (sign 1) or taken away (sign -1)."""
        owners = dict(self.owners)
        count = owners.get(owner, 0) + sign
        if count:
            owners[owner] = count
        else:
            owners.pop(owner, None)
        return GpuBooks(
            self.gpu,
            self.used + sign * units,
            self.core_used + sign * core,
            self.pods + sign,
            owners,
        )


@dataclass(frozen=True, slots=True)
class NodeBooks:
    """One node and what is held on it."""

    node: Node
    gpus: tuple[GpuBooks, ...] = ()
    used: int = 0
    """Units held on known GPUs."""
    pending: int = 0
    """Units held by pods whose GPU is unknown."""
    memory_pods: int = 0
    core_pods: int = 0

    @staticmethod
    def empty(node: Node) -> "NodeBooks":
        """The books of a node on which nothing runs."""
        return NodeBooks(node, tuple(GpuBooks(gpu) for gpu in node.gpus))

    @staticmethod
    def of(node: Node, holdings: Iterable[Holding]) -> "NodeBooks":
        """The books of a node with all of `holdings` on them.

        The same as charging them one by one to empty books, at a tenth of the cost.
        """
        used: dict[int, int] = {}
        core_used: dict[int, int] = {}
        owners: dict[int, dict[Owner, int]] = {gpu.index: {} for gpu in node.gpus}
        pending = memory_pods = core_pods = 0
        for holding in holdings:
            pending += holding.pending
            if holding.core:
                core_pods += 1
            else:
                memory_pods += 1
            for index, units, core in holding.gpus:
                used[index] = used.get(index, 0) + units
                core_used[index] = core_used.get(index, 0) + core
                here = owners[index]
                here[holding.owner] = here.get(holding.owner, 0) + 1
        return NodeBooks(
            node,
            tuple(
                GpuBooks(
                    gpu,
                    used.get(gpu.index, 0),
                    core_used.get(gpu.index, 0),
                    sum(owners[gpu.index].values()),
                    owners[gpu.index],
                )
                for gpu in node.gpus
            ),
            sum(used.values()),
            pending,
            memory_pods,
            core_pods,
        )

    @property
    def largest_free(self) -> int:
        """The largest amount a single GPU of the node could take now."""
        return max((self.available(gpu) for gpu in self.gpus), default=0)

    def available(self, gpu: GpuBooks) -> int:
        """Units of one of its GPUs that may be given away: none that could be somebody's."""
        if not gpu.gpu.open:
            return 0
        return max(0, gpu.gpu.units - gpu.used - self.pending)

    def charge(self, holding: Holding) -> "NodeBooks":
        """These books with `holding` on them."""
        return self._changed(holding, 1)

    def release(self, holding: Holding) -> "NodeBooks":
        """These books without `holding`, which must be on them."""
        return self._changed(holding, -1)

    def _changed(self, holding: Holding, sign: int) -> "NodeBooks":
        gpus = self.gpus
        used = self.used
        if holding.gpus:
            mine = {index: (units, core) for index, units, core in holding.gpus}
            gpus = tuple(
                books.charged(holding.owner, *mine[books.gpu.index], sign)
                if books.gpu.index in mine
                else books
                for books in gpus
            )
            used += sign * sum(units for units, _ in mine.values())
        return NodeBooks(
            self.node,
            gpus,
            used,
            self.pending + sign * holding.pending,
            self.memory_pods + (0 if holding.core else sign),
            self.core_pods + (sign if holding.core else 0),
        )
