"""What somebody should know about a cluster beyond its numbers, a line each.

inspect writes them to stderr, beside the table, and into the JSON's `warnings`. Each line says
which object, what is the matter and what to do. A line about many pods names the first few.
"""

from collections.abc import Iterable, Sequence

from gpushare.contract import names
from gpushare.contract.names import Mode
from gpushare.contract.quantity import QuantityError, whole
from gpushare.contract.units import Unit
from gpushare.kube.cluster import Cluster
from gpushare.kube.objects import Node
from gpushare.model.gpus import GpuBooks, NodeBooks
from gpushare.model.ledger import HeldPod, PodRecord

NAMED = 3
"""Pods that one line names; the rest are counted."""


def notes(cluster: Cluster, nodes: Iterable[str], unit: Unit) -> list[str]:
    """The notes on the named nodes, in their order, then those on the cluster.

    unit   the report's; a node of another one gets a note
    """
    lines: list[str] = []
    for name in nodes:
        books = cluster.ledger.books(name)
        where = f"node {name}"
        lines += [f"{where}: {text}" for text in _node_notes(cluster, books)]
        lines += [f"{where}: {text}" for text in _pod_notes(cluster, name)]
        if books.node.gpus and books.node.unit is not unit:
            lines.append(
                f"{where}: its amounts are units of {books.node.unit}, others' are {unit}, so sums "
                "over the cluster mix them; set one unit everywhere"
            )
    return lines


def stray_notes(cluster: Cluster) -> list[str]:
    """Notes on pods that are in no sum: their request cannot be read, or nobody has told of the
    node they are on."""
    lines = [
        f"pod {named}: {problem.message}; it is in no sum here"
        for named, problem in cluster.uncharged.items()
    ]
    stray = cluster.ledger.pods_without_node()
    if not stray:
        return lines
    where = sorted({pod.node for pod in stray})
    units = sum(pod.request.units for pod in stray)
    return [
        *lines,
        f"{_pods(stray)} on {'a node that is' if len(where) == 1 else 'nodes that are'} not there "
        f"({_first(where)}): {units} units, in no sum here",
    ]


def hidden_notes(cluster: Cluster, shown: Iterable[str]) -> list[str]:
    """Notes on nodes that no table shows, though somebody meant them to share their GPUs.

    shown   the nodes that are in the table
    """
    hidden = sorted(set(cluster.nodes).difference(shown))
    lines = [
        f"node {name}: {problem.message}"
        for name in hidden
        for problem in cluster.node_problems.get(name, ())
    ]
    idle = [name for name in hidden if cluster.ledger.books(name).node.mode.shares_memory]
    if idle:
        noun, verb = ("node", "is") if len(idle) == 1 else ("nodes", "are")
        lines.append(
            f"{noun} {_first(idle)} {verb} labelled as sharing GPU memory, but without "
            f"{names.RESOURCE_MEM}: no device plugin has offered any there"
        )
    return lines


# --- One node -----------------------------------------------------------------------------------


def _node_notes(cluster: Cluster, books: NodeBooks) -> list[str]:
    node, api = books.node, cluster.nodes[books.node.name]
    lines = [problem.message for problem in cluster.node_problems.get(node.name, ())]
    if api.spec is not None and api.spec.unschedulable:
        lines.append("cordoned (kubectl cordon): it takes no new pods")
    if node.gpus and not node.mode.shares_memory:
        lines.append(
            f"offers {names.RESOURCE_MEM}, but its mode is {node.mode}: nothing new is placed "
            f"here; label it {names.LABEL_MODE}=cgpu (or share)"
        )
    if not node.gpus:
        lines.append(
            f"offers no {names.RESOURCE_MEM}: its device plugin is not running, or it never had one"
        )
    elif node.advertised == 0 or (node.advertised is None and node.attests):
        lines.append(
            f"its device plugin is down (allocatable {names.RESOURCE_MEM} is "
            f"{'0' if node.advertised == 0 else 'missing'}): nothing new starts here until it is "
            "back"
        )
    else:
        lines += _sum_notes(books, api)
    if node.isolation == "none" and node.mode in (Mode.CGPU, Mode.CORE_MEM):
        lines.append(
            f"its mode is {node.mode}, but nothing holds containers to their share "
            f"({names.LABEL_ISOLATION}=none)"
        )
    for gpu in books.gpus:
        lines += _gpu_notes(gpu)
    return lines


def _sum_notes(books: NodeBooks, api: Node) -> list[str]:
    """Whether the node's status says the same as its inventory.

    The kubelet counts the ids of failed GPUs in capacity, and only free ones are left out of
    allocatable, so that the two may differ then.
    """
    node = books.node
    told = node.advertised
    if not all(gpu.open for gpu in node.gpus):
        told = _amount((api.status and api.status.capacity) or {})
    if told is None or told == node.units:
        return []
    if names.ANNOTATION_DEVICES in (api.metadata.annotations or {}):
        return [
            f"its status says {told} units of {names.RESOURCE_MEM}, its inventory {node.units}; "
            "the smaller one limits what is placed. They agree again once its device plugin has "
            "registered with the kubelet"
        ]
    if told > node.units:
        return [
            f"{told} units over {len(node.gpus)} GPUs do not divide: {node.units} are shown. It "
            "publishes no inventory, so its GPUs are taken as equal"
        ]
    return []


def _amount(amounts: dict[str, str | int | float]) -> int | None:
    try:
        return whole(amounts[names.RESOURCE_MEM])
    except (KeyError, QuantityError):
        return None


def _gpu_notes(books: GpuBooks) -> list[str]:
    gpu = books.gpu
    name = f"GPU {gpu.index}" + (f" ({gpu.uuid})" if gpu.uuid else "")
    lines: list[str] = []
    if books.used > gpu.units:
        lines.append(
            f"{name} is above its total, {books.used} of {gpu.units} units: nothing more fits "
            "until pods on it end"
        )
    held = f"; {books.used} of its {gpu.units} units are still held" if books.used else ""
    if not gpu.healthy:
        lines.append(f"{name} is unhealthy and takes nothing new{held}")
    if gpu.cordoned:
        lines.append(f"{name} is cordoned ({names.ANNOTATION_CORDONED}), takes nothing new{held}")
    return lines


# --- Its pods -----------------------------------------------------------------------------------


def _pod_notes(cluster: Cluster, name: str) -> list[str]:
    lines: list[str] = []
    pending: list[HeldPod] = []
    gone: list[HeldPod] = []
    for held in cluster.ledger.pods_on(name):
        if held.record is None:
            gone.append(held)
            continue
        problem = cluster.pod_problems.get(held.uid)
        if problem is not None:
            lines.append(f"pod {_named(held.record)}: {problem.message}")
        elif held.holding.pending and held.record.assignment is not None:
            lines.append(
                f"pod {_named(held.record)}: its annotation names a GPU the node does not have, or "
                "does not match what the pod asks for"
            )
        if held.holding.pending:
            pending.append(held)
        if held.record.unprotected is not None:
            why = held.record.unprotected or "no reason given"
            lines.append(f"pod {_named(held.record)} runs without its memory limit: {why}")
    if pending:
        units = sum(held.holding.pending for held in pending)
        lines.append(
            f"{_pods([held.record for held in pending if held.record])} without a readable GPU: "
            f"{units} units are PENDING, missing on each of its GPUs until they are attributed"
        )
    if gone:
        units = sum(held.holding.units for held in gone)
        lines.append(
            f"{len(gone)} {'pod is' if len(gone) == 1 else 'pods are'} gone but still charged with "
            f"{units} units (UID {_first([held.uid for held in gone])}) until its device plugin "
            "has confirmed what runs"
        )
    return lines


def _pods(pods: Sequence[PodRecord]) -> str:
    """ "2 pods (default/a, default/b)" """
    noun = "pod" if len(pods) == 1 else "pods"
    return f"{len(pods)} {noun} ({_first(sorted(_named(pod) for pod in pods))})"


def _first(names_: Sequence[str]) -> str:
    more = f" and {len(names_) - NAMED} more" if len(names_) > NAMED else ""
    return ", ".join(names_[:NAMED]) + more


def _named(pod: PodRecord) -> str:
    return f"{pod.namespace}/{pod.name}"
