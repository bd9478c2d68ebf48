"""API objects -> the model: what a node has, what a pod asks for, where its annotations put it.

Pure functions. What a user or a cluster got wrong never stops the reading: it becomes a `Problem`
beside a safe reading (a typo in a label falls back as CONTRACT says, an unreadable assignment
leaves the pod unattributed). The one exception is a pod's request, where no reading is safe: it
raises RequestError and the caller decides.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gpushare.contract import names
from gpushare.contract.allocation import (
    CodecError,
    decode_allocation,
    decode_corrections,
    decode_old_index,
    decode_time_ns,
)
from gpushare.contract.inventory import (
    Device,
    NodeInfo,
    decode_cordoned,
    decode_devices,
    decode_node,
)
from gpushare.contract.names import Mode, Reason
from gpushare.contract.quantity import QuantityError, whole
from gpushare.contract.units import Unit
from gpushare.kube.objects import Container, Node, ObjectMeta, Pod, Quantities
from gpushare.model import gpus as model
from gpushare.model.gpus import Assignment
from gpushare.model.ledger import PodRecord
from gpushare.model.owner import Owner, owner_of
from gpushare.model.request import ContainerAsk, Request, RequestError, compile_request

MAX_GPU_COUNT = 64


@dataclass(frozen=True, slots=True)
class Problem:
    """Something on an object that somebody should mend.

    `reason` is constant per kind of problem (an Event's reason); `message` says what and how to
    mend it, without the object's name.
    """

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class NodeReading:
    node: model.Node
    problems: tuple[Problem, ...] = ()


# --- Nodes --------------------------------------------------------------------------------------


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
    count = min(count, MAX_GPU_COUNT)
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


# --- Pods ---------------------------------------------------------------------------------------


def asks_for_gpu_memory(pod: Pod) -> bool:
    """Whether any container names one of our resources; cheap, and true for bad amounts too."""
    for containers in (pod.spec.containers, pod.spec.init_containers or ()):
        for container in containers:
            resources = container.resources
            if resources is None:
                continue
            for amounts in (resources.limits, resources.requests):
                if amounts and (names.RESOURCE_MEM in amounts or names.RESOURCE_CORE in amounts):
                    return True
    return False


def read_request(pod: Pod) -> Request | None:
    """What a pod asks for; None if nothing of ours. Raises RequestError, its field a path."""
    if not asks_for_gpu_memory(pod):
        return None
    asks = [
        *_asks("spec.initContainers", pod.spec.init_containers or (), init=True),
        *_asks("spec.containers", pod.spec.containers, init=False),
    ]
    if not asks:
        return None
    return _compiled(tuple(asks), _gpu_count(pod.metadata))


@lru_cache(maxsize=4096)
def _compiled(asks: tuple[ContainerAsk, ...], gpu_count: int) -> Request | None:
    """compile_request, once for all replicas of an application: requests are values."""
    return compile_request(asks, gpu_count)


def _asks(path: str, containers: Iterable[Container], *, init: bool) -> list[ContainerAsk]:
    return [
        ContainerAsk(
            index=index,
            units=units,
            core=core,
            init=init,
            sidecar=init and container.restart_policy == "Always",
        )
        for index, container in enumerate(containers)
        for units, core in [
            (
                _amount(f"{path}[{index}]", container, names.RESOURCE_MEM),
                _amount(f"{path}[{index}]", container, names.RESOURCE_CORE),
            )
        ]
        if units or core
    ]


def _amount(path: str, container: Container, resource: str) -> int:
    """Limits count; requests only where there is no limit (the API server wants them equal)."""
    resources = container.resources
    if resources is None:
        return 0
    for which, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        if amounts and resource in amounts:
            try:
                return whole(amounts[resource])
            except QuantityError as error:
                field = f"{path}.resources.{which}[{resource}]"
                raise RequestError(
                    Reason.BAD_REQUEST, field, amounts[resource], str(error)
                ) from None
    return 0


def _gpu_count(metadata: ObjectMeta) -> int:
    value = (metadata.labels or {}).get(names.LABEL_GPU_COUNT)
    if value is None:
        return 0
    if (
        value.isascii()
        and value.isdecimal()
        and len(value) <= 3
        and 0 < int(value) <= MAX_GPU_COUNT
    ):
        return int(value)
    raise RequestError(
        Reason.GPU_COUNT,
        f"metadata.labels[{names.LABEL_GPU_COUNT}]",
        value,
        f"{value!r} is not a number of GPUs; use a whole number from 1 to {MAX_GPU_COUNT}, quoted",
    )


def read_owner(metadata: ObjectMeta) -> Owner:
    """The application a pod belongs to."""
    controller = next(
        ((ref.kind, ref.name) for ref in metadata.owner_references or () if ref.controller), None
    )
    template_hash = (metadata.labels or {}).get("pod-template-hash")
    return owner_of(metadata.namespace or "default", metadata.name, controller, template_hash)


def is_finished(pod: Pod) -> bool:
    """Succeeded or Failed: it holds nothing any more."""
    return pod.status is not None and pod.status.phase in ("Succeeded", "Failed")


def read_assignment(annotations: dict[str, str] | None) -> tuple[Assignment | None, Problem | None]:
    """Where a pod's annotations put it: the first generation if it can be read, else the old
    add-on's. None, with the problem if there is one, where neither can."""
    if not annotations:
        return None, None
    problem: Problem | None = None
    value = annotations.get(names.ANNOTATION_ALLOCATION)
    if value is not None:
        try:
            return _assignment(value, annotations.get(names.ANNOTATION_INIT_ALLOCATION)), None
        except CodecError as error:
            problem = Problem("UnreadableAllocation", str(error))
    old = annotations.get(names.ANNOTATION_OLD_IDX)
    if old is not None:
        try:
            return Assignment({}, {}, single_gpu=decode_old_index(old)), None
        except CodecError as error:
            problem = problem or Problem("UnreadableAllocation", str(error))
    return None, problem


@lru_cache(maxsize=4096)
def _assignment(app: str, init: str | None) -> Assignment:
    """Many pods have the same few allocations: `{"0":{"1":4}}`. Raises CodecError."""
    return Assignment(
        decode_allocation(names.ANNOTATION_ALLOCATION, app),
        decode_allocation(names.ANNOTATION_INIT_ALLOCATION, init) if init else {},
    )


def read_assume_time_ns(annotations: dict[str, str] | None) -> int | None:
    """When the pod's GPU was decided, Unix ns; None where that cannot be read."""
    for name in (names.ANNOTATION_ASSUME_TIME, names.ANNOTATION_OLD_ASSUME_TIME):
        value = (annotations or {}).get(name)
        if value is not None:
            try:
                return decode_time_ns(name, value)
            except CodecError:
                continue
    return None


def read_record(pod: Pod, request: Request) -> PodRecord:
    """The ledger's record of a pod that is on a node. Its `spec.nodeName` must be set."""
    assert pod.spec.node_name
    assignment, _ = read_assignment(pod.metadata.annotations)
    return PodRecord(
        uid=pod.metadata.uid or f"{pod.metadata.namespace}/{pod.metadata.name}",
        namespace=pod.metadata.namespace or "default",
        name=pod.metadata.name,
        node=pod.spec.node_name,
        owner=read_owner(pod.metadata),
        request=request,
        assignment=assignment,
        finished=is_finished(pod),
        unprotected=(pod.metadata.annotations or {}).get(names.ANNOTATION_UNPROTECTED),
        attested=(pod.metadata.annotations or {}).get(names.ANNOTATION_ASSIGNED) == "true",
    )


def read_bound_pod(pod: Pod) -> tuple[PodRecord | None, RequestError | None]:
    """The record of a pod that stands on a node, whatever its spec: None if it asks for nothing.

    An amount nobody can serve got past the API server only where our rules are stricter (a
    `gpu-count` that does not divide, say). What the kubelet charged is then still the plain sum of
    its containers, so the record holds that, unattributed unless its annotation tells.
    """
    try:
        request = read_request(pod)
    except RequestError as error:
        return _plainly_charged(pod), error
    return (read_record(pod, request) if request is not None else None), None


def _plainly_charged(pod: Pod) -> PodRecord | None:
    plain: list[ContainerAsk] = []
    for init, containers in ((True, pod.spec.init_containers or []), (False, pod.spec.containers)):
        for index, container in enumerate(containers):
            try:
                units = _amount("", container, names.RESOURCE_MEM)
            except RequestError:
                continue
            sidecar = init and container.restart_policy == "Always"
            plain.append(ContainerAsk(index, units, init=init, sidecar=sidecar))
    request = compile_request(plain)
    return read_record(pod, request) if request is not None else None
