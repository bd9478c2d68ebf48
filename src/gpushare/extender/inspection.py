"""The old add-on's inspection of who holds what, as its tools read it (CONTRACT: HTTP shapes)."""

from gpushare.extender.wire import InspectDevice, InspectNode, InspectPod, InspectResult
from gpushare.model.gpus import NodeBooks
from gpushare.model.ledger import HeldPod, Ledger


def inspection(ledger: Ledger, node: str | None = None) -> InspectResult | None:
    """All nodes that share GPU memory, or the named one; None if that shares none.

    Units of pods whose GPU is not known are in the node's sum and on no device: the shape has no
    place for them.
    """
    names = sorted(ledger) if node is None else [node]
    nodes = [
        _node(books, ledger.pods_on(name))
        for name in names
        if (books := ledger.get_books(name)) is not None
        and (books.node.mode.shares_memory or books.used or books.pending)
    ]
    return InspectResult(nodes) if nodes or node is None else None


def _node(books: NodeBooks, held: list[HeldPod]) -> InspectNode:
    pods: dict[int, list[InspectPod]] = {gpu.gpu.index: [] for gpu in books.gpus}
    for pod in held:
        name = pod.record.name if pod.record else pod.uid
        namespace = pod.record.namespace if pod.record else ""
        for index, units, _ in pod.holding.gpus:
            pods[index].append(InspectPod(name, namespace, units))
    return InspectNode(
        name=books.node.name,
        total=books.node.units,
        used=books.used + books.pending,
        devs=[
            InspectDevice(gpu.gpu.index, gpu.gpu.units, gpu.used, pods[gpu.gpu.index])
            for gpu in books.gpus
        ],
    )
