"""A Node object -> what the node has: its mode, its policy, its GPUs, its corrections."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpushare.contract import names
from gpushare.contract.allocation import CodecError, decode_corrections
from gpushare.contract.inventory import (
    Device,
    NodeInfo,
    decode_cordoned,
    decode_devices,
    decode_node,
)
from gpushare.contract.names import Mode
from gpushare.contract.quantity import QuantityError, whole
from gpushare.contract.units import Unit
from gpushare.kube.objects import Node, Quantities
from gpushare.kube.reading.problem import Problem
from gpushare.model import gpus as model
from gpushare.model.gpus import Assignment

MAX_GPUS = 64
"""More than any node has; a published count beyond it is garbage."""


@dataclass(frozen=True, slots=True)
class NodeReading:
    node: model.Node
    problems: tuple[Problem, ...] = ()


def read_node(
    node: Node, gpu_policies: Iterable[str], default_unit: Unit = Unit.GIB
) -> NodeReading:
    """A node as the model knows it, and what is wrong with it.

    gpu_policies   the known values of the placement label
    default_unit   the unit where the node's plugin publishes none
    """
    problems: list[Problem] = []
    labels = node.metadata.labels or {}
    annotations = node.metadata.annotations or {}
    mode = _mode(labels, problems)
    placement = _placement(labels, tuple(gpu_policies), problems)
    info = _info(annotations, default_unit, problems)
    advertised = _status_amount(node, names.RESOURCE_MEM, "allocatable", problems)
    gpus = _gpus(node, annotations, advertised, problems)
    status = node.status
    return NodeReading(
        model.Node(
            name=node.metadata.name,
            mode=mode,
            placement=placement,
            gpus=gpus,
            unit=info.unit,
            advertised=advertised,
            address=next(
                (a.address for a in (status and status.addresses) or () if a.type == "InternalIP"),
                None,
            ),
            isolation=labels.get(names.LABEL_ISOLATION),
            attests=info.attests,
            corrections=_corrections(annotations, problems),
        ),
        tuple(problems),
    )


def read_mode(node: Node) -> Mode:
    """What a node's labels make of its GPUs."""
    return _mode(node.metadata.labels or {}, [])


def offers_gpu_memory(node: Node) -> bool:
    """Whether a node's status or inventory says it has GPU memory to share."""
    status = node.status
    for amounts in (status and status.capacity, status and status.allocatable):
        if amounts and amounts.get(names.RESOURCE_MEM, "0") not in ("0", 0):
            return True
    return names.ANNOTATION_DEVICES in (node.metadata.annotations or {})


def _mode(labels: dict[str, str], problems: list[Problem]) -> Mode:
    value = labels.get(names.LABEL_MODE)
    old = labels.get(names.LABEL_OLD_SHARE)
    if value is None:
        return Mode.SHARE if old == "true" else Mode.DEFAULT
    try:
        mode = Mode(value)
    except ValueError:
        problems.append(
            Problem(
                "UnknownMode",
                f"label {names.LABEL_MODE}={value!r} is not known; the node's GPUs are not shared. "
                f"Use one of {', '.join(Mode)}",
            )
        )
        return Mode.DEFAULT
    if old in ("true", "false") and (old == "true") != mode.shares_memory:
        problems.append(
            Problem(
                "ContradictingLabels",
                f"labels {names.LABEL_OLD_SHARE}={old} and {names.LABEL_MODE}={value} contradict "
                f"each other; the latter counts. Remove {names.LABEL_OLD_SHARE}",
            )
        )
    return mode


def _placement(labels: dict[str, str], known: tuple[str, ...], problems: list[Problem]) -> str:
    value = labels.get(names.LABEL_PLACEMENT)
    if value is None:
        return known[0]
    if value not in known:
        problems.append(
            Problem(
                "UnknownPlacement",
                f"label {names.LABEL_PLACEMENT}={value!r} is not known; {known[0]} is used. "
                f"Use one of {', '.join(known)}",
            )
        )
        return known[0]
    return value


def _info(annotations: dict[str, str], default: Unit, problems: list[Problem]) -> NodeInfo:
    value = annotations.get(names.ANNOTATION_NODE)
    if value is None:
        return NodeInfo(unit=default)
    try:
        return decode_node(value)
    except CodecError as error:
        problems.append(Problem("UnreadableAnnotation", f"{error}; unit {default} is assumed"))
        return NodeInfo(unit=default)


def _gpus(
    node: Node, annotations: dict[str, str], advertised: int | None, problems: list[Problem]
) -> tuple[model.Gpu, ...]:
    cordoned_indexes, cordoned_uuids = decode_cordoned(
        annotations.get(names.ANNOTATION_CORDONED, "")
    )
    devices: tuple[Device, ...] | None = None
    value = annotations.get(names.ANNOTATION_DEVICES)
    if value is not None:
        try:
            devices = decode_devices(value)
        except CodecError as error:
            problems.append(
                Problem("UnreadableAnnotation", f"{error}; GPUs are taken as equal instead")
            )
    if devices is None:
        capacity = _status_amount(node, names.RESOURCE_MEM, "capacity", problems)
        units = advertised or capacity or 0
        count = _status_amount(node, names.RESOURCE_COUNT, "capacity", problems)
        if count is None:
            count = _status_amount(node, names.RESOURCE_COUNT, "allocatable", problems)
        return equal_gpus(units, count or 1, cordoned_indexes) if units else ()
    unknown = {str(i) for i in cordoned_indexes - {d.index for d in devices}} | (
        cordoned_uuids - {d.uuid for d in devices}
    )
    if unknown:
        problems.append(
            Problem(
                "UnknownCordonedGpu",
                f"{names.ANNOTATION_CORDONED} names {', '.join(sorted(unknown))}, which is no GPU "
                "of this node",
            )
        )
    return tuple(
        model.Gpu(
            index=device.index,
            units=device.units,
            uuid=device.uuid,
            model=device.model,
            memory_mib=device.memory_mib,
            healthy=device.healthy,
            cordoned=device.index in cordoned_indexes or device.uuid in cordoned_uuids,
        )
        for device in devices
    )


def equal_gpus(
    units: int, count: int, cordoned: frozenset[int] = frozenset()
) -> tuple[model.Gpu, ...]:
    """GPUs of a node that publishes only its sum and their number: each the quotient.

    That is all older tools knew; wrong where a node's GPUs differ, so used only where no inventory
    is published.
    """
    count = min(count, MAX_GPUS)
    return tuple(
        model.Gpu(index=i, units=units // count, cordoned=i in cordoned) for i in range(count)
    )


def _status_amount(node: Node, resource: str, which: str, problems: list[Problem]) -> int | None:
    amounts: Quantities | None = getattr(node.status, which) if node.status else None
    if not amounts or resource not in amounts:
        return None
    try:
        return whole(amounts[resource])
    except QuantityError as error:
        problems.append(Problem("UnreadableStatus", f"status.{which}[{resource}]: {error}"))
        return None


def _corrections(annotations: dict[str, str], problems: list[Problem]) -> dict[str, Assignment]:
    read: list[dict[str, dict[int, dict[int, int]]]] = []
    for name in (names.ANNOTATION_CORRECTIONS, names.ANNOTATION_INIT_CORRECTIONS):
        value = annotations.get(name)
        try:
            read.append(decode_corrections(name, value) if value else {})
        except CodecError as error:
            problems.append(Problem("UnreadableAnnotation", f"{error}; it is left out"))
            read.append({})
    app, init = read
    return {uid: Assignment(app.get(uid, {}), init.get(uid, {})) for uid in sorted({*app, *init})}
