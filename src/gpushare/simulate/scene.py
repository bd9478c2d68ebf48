"""The scene a run starts from: the nodes, who stands on them, who waits for a place.

Pods on a node stand where they stand, whatever the rules say. Pods without a node wait, in the
order of priority, then of the input; so do the pods that controllers lack. A pod that asks for no
GPU memory and has no node is only counted: the simulator answers for GPU memory. A finished pod
holds nothing, and one that is being deleted before it got a node will never need one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpushare.contract.names import Reason
from gpushare.contract.units import Unit
from gpushare.kube.cluster import Cluster
from gpushare.kube.objects import Node
from gpushare.kube.reading import Problem, offers_gpu_memory
from gpushare.model import gpus as model
from gpushare.model.ledger import Ledger, PodRecord
from gpushare.model.owner import Owner
from gpushare.model.request import Request
from gpushare.simulate.constraints import Constraints, NodeFace
from gpushare.simulate.hosts import Ask
from gpushare.simulate.objects import SimPodSpec


@dataclass(frozen=True, slots=True)
class SceneNode:
    """A node: as the model knows it, as constraints see it, and its room."""

    api: Node
    node: model.Node
    face: NodeFace
    room: Mapping[str, int]
    """Resource -> what it offers beside GPU memory."""
    given: bool = False
    """Its GPUs come from `--node` or `--share`, not from what it publishes."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why no node could ever take a pod: its request is wrong in itself."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that needs a place."""

    uid: str
    namespace: str
    name: str
    owner: Owner
    request: Request | None
    """None only beside `unfit`."""
    constraints: Constraints
    ask: Ask
    priority: int
    order: int
    """Its place in the input."""
    spec: SimPodSpec
    unfit: Unfit | None = None
    displaced_from: str | None = None
    """Where it stood before that failed: `a`, or `a, GPU 1`."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A pod on a node."""

    node: str
    ask: Ask
    record: PodRecord | None = None
    """None for a pod that asks for no GPU memory."""
    again: Waiting | None = None
    """The pod as it would wait, should it have to be placed afresh; None where it cannot."""
    daemon: bool = False
    """One of a DaemonSet: it goes with its node."""


@dataclass(frozen=True, slots=True)
class Scene:
    nodes: Mapping[str, SceneNode]
    standing: Sequence[Standing]
    waiting: Sequence[Waiting]
    node_problems: Mapping[str, tuple[Problem, ...]]
    pod_problems: Mapping[str, Problem]
    default_unit: Unit = Unit.GIB
    warnings: tuple[str, ...] = ()

    def ledger(self) -> Ledger:
        """New books, with the pods that stand on them."""
        ledger = Ledger()
        for standing in self.standing:
            if standing.record is not None:
                ledger.put_pod(standing.record)
        for node in self.nodes.values():
            ledger.put_node(node.node)
        return ledger

    def queue(self) -> list[Waiting]:
        """The pods that wait, in the order in which they are placed."""
        return sorted(self.waiting, key=lambda pod: (-pod.priority, pod.order))

    def with_policy(self, gpu_policy: str) -> "Scene":
        """The same, every node under one GPU policy."""
        nodes = {
            name: replace(node, node=replace(node.node, placement=gpu_policy))
            for name, node in self.nodes.items()
        }
        return replace(self, nodes=nodes)

    def afresh(self) -> "Scene":
        """The same, with every pod that can be placed anew waiting for it."""
        return replace(
            self,
            standing=[
                s if s.again is None else replace(s, record=None, ask=()) for s in self.standing
            ],
            waiting=[*self.waiting, *(s.again for s in self.standing if s.again is not None)],
        )

    def cluster(self, ledger: Ledger) -> Cluster:
        """The scene with these books, as views take it."""
        return Cluster(
            ledger,
            {name: node.api for name, node in self.nodes.items()},
            self.node_problems,
            self.pod_problems,
        )

    def shown(self, ledger: Ledger) -> list[str]:
        """The nodes that belong into the table (CONTRACT: kubectl inspect cgpu), by name."""
        return sorted(
            name
            for name, node in self.nodes.items()
            if node.given or offers_gpu_memory(node.api) or ledger.pods_on(name)
        )
