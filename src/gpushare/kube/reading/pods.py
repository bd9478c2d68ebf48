"""A Pod object -> what it asks for, and where its annotations put it."""

from collections.abc import Iterable
from functools import lru_cache

from gpushare.contract import names
from gpushare.contract.allocation import (
    CodecError,
    decode_allocation,
    decode_old_index,
    decode_time_ns,
)
from gpushare.contract.names import Reason
from gpushare.contract.quantity import QuantityError, whole
from gpushare.kube.objects import Container, ObjectMeta, Pod
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
