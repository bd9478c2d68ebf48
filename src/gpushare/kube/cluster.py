"""API objects of a whole cluster -> its ledger, and what is wrong with the objects.

Pure. Everything is read leniently (see `reading`): an object somebody should mend never stops the
rest, it is in the books in the safe way and its problem stands beside them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpushare.contract.units import Unit
from gpushare.kube.objects import Node, Pod
from gpushare.kube.reading import (
    Problem,
    offers_gpu_memory,
    read_assignment,
    read_bound_pod,
    read_node,
)
from gpushare.model.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a cluster's objects say."""

    ledger: Ledger
    nodes: Mapping[str, Node]
    """Node name -> its object, whether it shares GPUs or not."""
    node_problems: Mapping[str, tuple[Problem, ...]]
    """Node name -> what is wrong with it; nodes without problems are left out."""
    pod_problems: Mapping[str, Problem]
    """UID of a pod on the books -> what is wrong with it."""
    uncharged: Mapping[str, Problem] = field(default_factory=dict)
    """namespace/name of a pod on a node whose request cannot be charged at all -> why not."""

    def sharing_nodes(self) -> list[str]:
        """The nodes that belong into a table of GPU memory, by name.

        Those that offer it, publish an inventory or have a live pod that asks for it (CONTRACT:
        kubectl inspect cgpu): a node whose device plugin is down must not vanish.
        """
        return sorted(
            name
            for name, node in self.nodes.items()
            if offers_gpu_memory(node) or self.ledger.pods_on(name)
        )

    def unit(self, nodes: Iterable[str], default: Unit = Unit.GIB) -> Unit:
        """The unit of GPU memory: the one most of these nodes have, `default` where none has GPUs.

        It is what their plugins publish, never guessed from sizes. Equally many: the default.
        """
        counts: dict[Unit, int] = {default: 0}
        for name in nodes:
            node = self.ledger.books(name).node
            if node.gpus:
                counts[node.unit] = counts.get(node.unit, 0) + 1
        return max(counts, key=lambda unit: counts[unit])


def read_cluster(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    gpu_policies: Iterable[str],
    default_unit: Unit = Unit.GIB,
) -> Cluster:
    """The books of a cluster, from its nodes and its pods.

    gpu_policies   the known values of the placement label, the default first
    default_unit   the unit where a node's plugin publishes none

    Pods that are on no node hold nothing and are passed over, and so are those that ask for nothing
    of ours. Given twice, the last object counts.
    """
    ledger = Ledger()
    policies = tuple(gpu_policies)
    pod_problems: dict[str, Problem] = {}
    uncharged: dict[str, Problem] = {}
    for pod in pods:  # before the nodes: each node's books are then built once
        if not pod.spec.node_name:
            continue
        record, error = read_bound_pod(pod)
        if record is None:
            if error is not None:
                named = f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"
                uncharged[named] = Problem("BadRequest", f"{error.field}: {error}")
            continue
        ledger.put_pod(record)
        problem = None
        if error is not None:
            problem = Problem("BadRequest", f"{error.field}: {error}")
        elif record.assignment is None:
            problem = read_assignment(pod.metadata.annotations)[1]
        if problem is not None:
            pod_problems[record.uid] = problem
        else:
            pod_problems.pop(record.uid, None)
    objects: dict[str, Node] = {}
    node_problems: dict[str, tuple[Problem, ...]] = {}
    for node in nodes:
        name = node.metadata.name
        reading = read_node(node, policies, default_unit)
        ledger.put_node(reading.node)
        objects[name] = node
        node_problems.pop(name, None)
        if reading.problems:
            node_problems[name] = reading.problems
    return Cluster(ledger, objects, node_problems, pod_problems, uncharged)
