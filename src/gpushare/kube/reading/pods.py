"""A Pod object -> what it asks for, and where its annotations put it."""

from functools import lru_cache

from gpushare.contract import names
from gpushare.contract.allocation import (
    CodecError,
    decode_allocation,
    decode_old_index,
    decode_time_ns,
)
from gpushare.contract.names import Reason
from gpushare.contract.quantity import QuantityError, RawQuantity, whole
from gpushare.kube.objects import Container, ObjectMeta, Pod, ResourceRequirements
from gpushare.kube.reading.problem import Problem
from gpushare.model.gpus import Assignment
from gpushare.model.ledger import PodRecord
from gpushare.model.owner import Owner, owner_of
from gpushare.model.request import ContainerAsk, Request, RequestError, compile_request

MAX_GPU_COUNT = 64
"""More GPUs than any node has."""


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
    named: list[_Named] = []
    for init, containers in ((True, pod.spec.init_containers), (False, pod.spec.containers)):
        for index, container in enumerate(containers or ()):
            resources = container.resources
            if resources is None:
                continue
            memory = _amount(resources, names.RESOURCE_MEM)
            core = _amount(resources, names.RESOURCE_CORE)
            if memory is not None or core is not None:
                sidecar = init and container.restart_policy == "Always"
                named.append((index, memory, core, init, sidecar, _opted_out(container)))
    if not named:
        return None
    return _compiled(tuple(named), (pod.metadata.labels or {}).get(names.LABEL_GPU_COUNT))


_Amount = tuple[str, RawQuantity]
"""(limits or requests, what stands there)."""

_Named = tuple[int, _Amount | None, _Amount | None, bool, bool, bool]
"""A container that names our resources: (index, memory, core, init, sidecar, opted out)."""


def _opted_out(container: Container) -> bool:
    """Only by a value that stands in the manifest; as for the kubelet, the last one counts."""
    values = [env.value for env in container.env or () if env.name == names.ENV_DISABLE_ISOLATION]
    return bool(values) and values[-1] == "true"


def _amount(resources: ResourceRequirements, resource: str) -> _Amount | None:
    """Limits count; requests only where there is no limit (the API server wants them equal)."""
    if resources.limits and resource in resources.limits:
        return "limits", resources.limits[resource]
    if resources.requests and resource in resources.requests:
        return "requests", resources.requests[resource]
    return None


@lru_cache(maxsize=4096)
def _compiled(named: tuple[_Named, ...], gpu_count: str | None) -> Request | None:
    """The request, once for all replicas of an application: requests are values."""
    asks: list[ContainerAsk] = []
    for index, memory, core, init, sidecar, opted_out in named:
        path = f"spec.{'initContainers' if init else 'containers'}[{index}]"
        asks.append(
            ContainerAsk(
                index=index,
                units=_whole(path, names.RESOURCE_MEM, memory),
                core=_whole(path, names.RESOURCE_CORE, core),
                init=init,
                sidecar=sidecar,
                opted_out=opted_out,
            )
        )
    if not any(ask.units or ask.core for ask in asks):
        return None
    return compile_request(asks, _gpu_count(gpu_count))


def _whole(path: str, resource: str, amount: _Amount | None) -> int:
    if amount is None:
        return 0
    which, value = amount
    try:
        return whole(value)
    except QuantityError as error:
        field = f"{path}.resources.{which}[{resource}]"
        raise RequestError(Reason.BAD_REQUEST, field, value, str(error)) from None


def _gpu_count(value: str | None) -> int:
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
    namespace = metadata.namespace or "default"
    for reference in metadata.owner_references or ():
        if reference.controller:
            template_hash = (metadata.labels or {}).get("pod-template-hash")
            return _controller(namespace, reference.kind, reference.name, template_hash)
    return owner_of(namespace, metadata.name, None, None)


@lru_cache(maxsize=4096)
def _controller(namespace: str, kind: str, name: str, template_hash: str | None) -> Owner:
    """The application of all replicas that one controller has."""
    return owner_of(namespace, "", (kind, name), template_hash)


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
    annotations = pod.metadata.annotations or {}
    assignment, _ = read_assignment(annotations)
    return PodRecord(
        uid=pod.metadata.uid or f"{pod.metadata.namespace}/{pod.metadata.name}",
        namespace=pod.metadata.namespace or "default",
        name=pod.metadata.name,
        node=pod.spec.node_name,
        owner=read_owner(pod.metadata),
        request=request,
        assignment=assignment,
        finished=is_finished(pod),
        unprotected=annotations.get(names.ANNOTATION_UNPROTECTED),
        attested=annotations.get(names.ANNOTATION_ASSIGNED) == "true",
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
            if container.resources is None:
                continue
            try:
                amount = _amount(container.resources, names.RESOURCE_MEM)
                units = _whole("", names.RESOURCE_MEM, amount)
            except RequestError:
                continue
            sidecar = init and container.restart_policy == "Always"
            plain.append(ContainerAsk(index, units, init=init, sidecar=sidecar))
    request = compile_request(plain)
    return read_record(pod, request) if request is not None else None
