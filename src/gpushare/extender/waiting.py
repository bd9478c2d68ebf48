"""Pods that ask for GPU memory and are on no node."""

from dataclasses import dataclass

from gpushare.contract import names
from gpushare.contract.names import Reason
from gpushare.kube.objects import Pod
from gpushare.kube.reading import asks_for_gpu_memory, read_owner, read_request
from gpushare.model.owner import Owner
from gpushare.model.request import Request, RequestError
from gpushare.policy.promises import Asker
from gpushare.view.reasons import short

_OUR_TEXTS = tuple(short(reason) for reason in Reason)


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod without a node, as far as placing it matters."""

    uid: str
    namespace: str
    name: str
    owner: Owner
    request: Request | None
    """None where no node could serve it (`error` says why), or where it asks for nothing."""
    error: RequestError | None
    priority: int
    created: str
    """`creationTimestamp`; these texts sort by time."""
    nominated: str | None
    nudged: bool
    """Bears our nudge annotation: its nomination may be ours."""
    rejected_by_us: bool
    """Its PodScheduled condition carries a reason of ours: an extender rejected it once."""

    @property
    def asker(self) -> Asker:
        return Asker(self.uid, self.priority)

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def order(self) -> tuple[int, str, str, str]:
        """Who comes first: the higher priority, then the older."""
        return (-self.priority, self.created, self.namespace, self.name)


def read_waiting(pod: Pod) -> WaitingPod:
    """A pod as it waits; whatever it asks for, nothing included."""
    request: Request | None = None
    error: RequestError | None = None
    if asks_for_gpu_memory(pod):
        try:
            request = read_request(pod)
        except RequestError as bad:
            error = bad
    meta = pod.metadata
    return WaitingPod(
        uid=meta.uid,
        namespace=meta.namespace or "default",
        name=meta.name,
        owner=read_owner(meta),
        request=request,
        error=error,
        priority=pod.spec.priority or 0,
        created=meta.creation_timestamp or "",
        nominated=(pod.status and pod.status.nominated_node_name) or None,
        nudged=names.ANNOTATION_NUDGE in (meta.annotations or {}),
        rejected_by_us=_rejected_by_us(pod),
    )


def _rejected_by_us(pod: Pod) -> bool:
    for condition in (pod.status and pod.status.conditions) or ():
        if condition.type == "PodScheduled" and condition.message:
            return any(text in condition.message for text in _OUR_TEXTS)
    return False
