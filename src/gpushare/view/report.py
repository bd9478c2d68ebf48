"""A cluster's GPU memory as a report: who holds what, on which GPU of which node.

The structs are the JSON output of `simulate -o json` and `inspect -o json`, field for field; every
other rendering (tables, YAML) is made from them. Amounts are units of the report's `unit`.
"""

from collections.abc import Iterable

import msgspec

from gpushare.contract.units import Unit
from gpushare.model.gpus import NodeBooks
from gpushare.model.ledger import HeldPod, Ledger


class PodShare(msgspec.Struct, frozen=True):
    """A pod and the units it holds where it is listed."""

    namespace: str
    name: str
    units: int


class GpuReport(msgspec.Struct, frozen=True):
    index: int
    uuid: str | None
    total: int
    allocated: int
    healthy: bool
    cordoned: bool
    pods: list[PodShare]


class NodeReport(msgspec.Struct, frozen=True):
    name: str
    address: str | None
    mode: str
    placement: str
    isolation: str | None
    allocated: int
    """Units held on known GPUs and pending ones together."""
    total: int
    largest_free: int
    pending: int
    pending_pods: list[PodShare]
    gpus: list[GpuReport]


class Candidate(msgspec.Struct, frozen=True):
    """A node that was considered for a pod without a place."""

    node: str
    largest_free: int


class Unscheduled(msgspec.Struct, frozen=True):
    """A pod that asks for GPU memory and has no place; `reason` is a code of contract.names."""

    namespace: str
    name: str
    reason: str
    message: str
    candidates: list[Candidate]


class Report(msgspec.Struct, frozen=True):
    unit: str
    nodes: list[NodeReport]
    allocated: int
    total: int
    unscheduled: list[Unscheduled] = []
    warnings: list[str] = []
    version: int = 1


def build_report(
    ledger: Ledger,
    nodes: Iterable[str],
    unit: Unit,
    *,
    unscheduled: Iterable[Unscheduled] = (),
    warnings: Iterable[str] = (),
) -> Report:
    """The report of the named nodes, in order of name. Raises KeyError for one that is unknown."""
    reports = [_node_report(ledger, ledger.books(name)) for name in sorted(nodes)]
    return Report(
        unit=unit,
        nodes=reports,
        allocated=sum(node.allocated for node in reports),
        total=sum(node.total for node in reports),
        unscheduled=list(unscheduled),
        warnings=list(warnings),
    )


def _node_report(ledger: Ledger, books: NodeBooks) -> NodeReport:
    node = books.node
    held = sorted(ledger.pods_on(node.name), key=_name)
    shares: dict[int, list[PodShare]] = {gpu.index: [] for gpu in node.gpus}
    for pod in held:
        for index, units, _ in pod.holding.gpus:
            shares[index].append(_share(pod, units))
    return NodeReport(
        name=node.name,
        address=node.address,
        mode=node.mode,
        placement=node.placement,
        isolation=node.isolation,
        allocated=books.used + books.pending,
        total=node.units,
        largest_free=books.largest_free,
        pending=books.pending,
        pending_pods=[_share(pod, pod.holding.pending) for pod in held if pod.holding.pending],
        gpus=[
            GpuReport(
                index=gpu.gpu.index,
                uuid=gpu.gpu.uuid,
                total=gpu.gpu.units,
                allocated=gpu.used,
                healthy=gpu.gpu.healthy,
                cordoned=gpu.gpu.cordoned,
                pods=shares[gpu.gpu.index],
            )
            for gpu in books.gpus
        ],
    )


def _name(pod: HeldPod) -> tuple[str, str]:
    """(namespace, name); a pod that is gone but still charged is known by its UID alone."""
    return (pod.record.namespace, pod.record.name) if pod.record else ("", pod.uid)


def _share(pod: HeldPod, units: int) -> PodShare:
    return PodShare(*_name(pod), units)
