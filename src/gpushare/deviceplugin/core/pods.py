"""What the plugin knows of a pod on its node, read from the API object."""

from dataclasses import dataclass
from datetime import datetime

from gpushare.contract import names
from gpushare.kube.objects import Pod
from gpushare.kube.reading import read_assume_time_ns, read_bound_pod
from gpushare.model.ledger import PodRecord

ANNOTATION_MIRROR = "kubernetes.io/config.mirror"
"""On the API object that stands for a static pod; its UID is not the one the kubelet knows."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod that asks for GPU memory and is on this node."""

    record: PodRecord
    bound_ns: int
    """When it came to the node, Unix ns: the order in which the kubelet is likely to ask."""
    created_ns: int = 0
    """When it was created, Unix ns, a whole second: the order after the kubelet's start."""
    app_names: tuple[str, ...] = ()
    init_names: tuple[str, ...] = ()
    """Names of the containers by index."""
    started: bool = False
    """One of its containers was created: the kubelet has allocated for all of them, and will not
    ask again."""
    assigned: bool = False
    """Its annotation says that a plugin has attested it."""
    annotations: frozenset[str] = frozenset()
    """Those of our annotations that it has."""
    error: str | None = None
    """Why nobody could serve its request."""
    static: bool = False
    refused: str | None = None
    """The kubelet's message if it refused the pod because of what a device plugin answered."""

    def container(self, name: str) -> tuple[bool, int] | None:
        """(init, index) of the container called `name`."""
        if name in self.app_names:
            return False, self.app_names.index(name)
        if name in self.init_names:
            return True, self.init_names.index(name)
        return None


def read_facts(pod: Pod) -> PodFacts | None:
    """What a pod on this node is to the plugin; None if it asks for nothing of ours."""
    if not pod.spec.node_name:
        return None
    record, error = read_bound_pod(pod)
    if record is None:
        return None
    annotations = pod.metadata.annotations or {}
    has_new = names.ANNOTATION_ALLOCATION in annotations
    assigned = annotations.get(
        names.ANNOTATION_ASSIGNED if has_new else names.ANNOTATION_OLD_ASSIGNED
    )
    status = pod.status
    refused = None
    if status is not None and status.phase == "Failed":
        refused = status.message if status.reason == "UnexpectedAdmissionError" else None
    return PodFacts(
        record=record,
        bound_ns=_bound_ns(pod),
        created_ns=_rfc3339_ns(pod.metadata.creation_timestamp) or 0,
        app_names=tuple(container.name for container in pod.spec.containers),
        init_names=tuple(container.name for container in pod.spec.init_containers or ()),
        started=_started(pod),
        assigned=assigned == "true",
        annotations=frozenset(_OURS & annotations.keys()),
        error=str(error) if error is not None else None,
        static=ANNOTATION_MIRROR in annotations,
        refused=refused,
    )


_OURS = {
    names.ANNOTATION_ALLOCATION,
    names.ANNOTATION_INIT_ALLOCATION,
    names.ANNOTATION_ASSIGNED,
    names.ANNOTATION_ASSUME_TIME,
    names.ANNOTATION_OLD_IDX,
    names.ANNOTATION_OLD_ASSIGNED,
}


def _bound_ns(pod: Pod) -> int:
    """The time its GPU was decided, else when it was scheduled, else created."""
    assumed = read_assume_time_ns(pod.metadata.annotations)
    if assumed is not None:
        return assumed
    for condition in (pod.status and pod.status.conditions) or ():
        if condition.type == "PodScheduled" and condition.status == "True":
            scheduled = _rfc3339_ns(condition.last_transition_time)
            if scheduled is not None:
                return scheduled
    return _rfc3339_ns(pod.metadata.creation_timestamp) or 0


def _rfc3339_ns(text: str | None) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp()) * 1_000_000_000 if text else None
    except ValueError:
        return None


def _started(pod: Pod) -> bool:
    """A container was created: admission, where all ids are given out, was before that."""
    status = pod.status
    if status is None:
        return False
    containers = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    return status.phase == "Running" or any(container.container_id for container in containers)
