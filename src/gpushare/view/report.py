"""A cluster's GPU memory as a report: who holds what, on which GPU of which node.

The structs are the JSON output of `simulate -o json` and `inspect -o json`, field for field; every
other rendering (tables, YAML) is made from them. Amounts are units of the report's `unit`.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from gpushare.contract.units import Unit, share_limit_mib
from gpushare.model.gpus import Assignment, Node, NodeBooks
from gpushare.model.holding import placement_of
from gpushare.model.ledger import HeldPod, Ledger
from gpushare.model.request import Request

ISOLATING: Final = ("driver", "interposer")
"""Values of the node label that says what holds containers to their share; `none` does not."""


class ContainerLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container that is held to its part of the GPU it is listed under."""

    index: int
    """In its own list of the pod's spec."""
    units: int
    limit_mib: int
    """What these units are worth there, computed from the node's inventory."""
    init: bool = False
    """The list is `spec.initContainers`."""


class PodShare(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod and the units it holds where it is listed."""

    namespace: str
    name: str
    units: int
    containers: list[ContainerLimit] = []
    """Its containers with memory on this GPU, in the order in which they start; left out where
    nothing holds them to their share."""
    unprotected: str | None = None
    """Why one of its containers is not held to its limit after all."""


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
    known: dict[tuple[object, ...], _Known] = {}
    """Sizes of a node's GPUs -> limits that were computed for such nodes."""
    reports: list[NodeReport] = []
    for name in sorted(nodes):
        books = ledger.books(name)
        limits = known.setdefault(_sizes(books.node), {})
        reports.append(_node_report(ledger, books, limits))
    return Report(
        unit=unit,
        nodes=reports,
        allocated=sum(node.allocated for node in reports),
        total=sum(node.total for node in reports),
        unscheduled=list(unscheduled),
        warnings=list(warnings),
    )


def _node_report(ledger: Ledger, books: NodeBooks, known: "_Known") -> NodeReport:
    node = books.node
    held = sorted(ledger.pods_on(node.name), key=_name)
    shares: dict[int, list[PodShare]] = {gpu.index: [] for gpu in node.gpus}
    for pod in held:
        limits = _limits_of(pod, node, known)
        for index, units, _ in pod.holding.gpus:
            shares[index].append(_share(pod, units, limits.get(index)))
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


def _share(pod: HeldPod, units: int, containers: list[ContainerLimit] | None = None) -> PodShare:
    unprotected = pod.record.unprotected if pod.record else None
    return PodShare(*_name(pod), units, containers or [], unprotected)


_ByGpu = dict[int, list[ContainerLimit]]
"""GPU index -> the containers that are held to a part of it."""

_Known = dict[tuple[Request, int], _ByGpu]
"""(request, identity of an assignment) -> limits: the same for all pods that ask alike and are
placed alike, on nodes with the same GPUs."""


def _sizes(node: Node) -> tuple[tuple[int, int | None, int], ...]:
    return tuple((gpu.index, gpu.memory_mib, gpu.units) for gpu in node.gpus)


def _limits_of(pod: HeldPod, node: Node, known: _Known) -> _ByGpu:
    """What a pod's containers are held to (CONTRACT: memory limit seen by the container); nothing
    where nothing holds them, or where nobody knows the GPU. `known` is of nodes with these GPUs."""
    record = pod.record
    if node.isolation not in ISOLATING or record is None or record.finished:
        return {}
    correction = node.corrections.get(pod.uid)
    if correction is not None:
        base = record.assignment or Assignment({}, {})
        corrected = Assignment({**base.app, **correction.app}, {**base.init, **correction.init})
        return _limits(record.request, corrected, node)
    if record.assignment is None:
        return {}
    key = (record.request, id(record.assignment))
    if key not in known:
        known[key] = _limits(record.request, record.assignment, node)
    return known[key]


def _limits(request: Request, assignment: Assignment, node: Node) -> _ByGpu:
    placement = placement_of(request, assignment, node)
    if placement is None:
        return {}
    gpus = {gpu.index: gpu for gpu in node.gpus}
    limits: _ByGpu = {}
    for chunk, indexes in zip(request.chunks, placement.gpus, strict=True):
        for ask in chunk.containers:
            units = ask.units // len(indexes)
            for gpu in (gpus[index] for index in indexes):
                if units and gpu.memory_mib and gpu.units:
                    limit_mib = share_limit_mib(gpu.memory_mib, units, gpu.units)
                    limit = ContainerLimit(ask.index, units, limit_mib, ask.init)
                    limits.setdefault(gpu.index, []).append(limit)
    return limits
