"""What a bind ends in, and the sentence the scheduler gets: it stands in the pod's events."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpushare.extender.state import Reservation
from gpushare.extender.waiting import WaitingPod
from gpushare.kube import binding
from gpushare.kube.binding import BoundOtherwise, Outcome
from gpushare.kube.objects import Pod
from gpushare.kube.reading import read_assignment
from gpushare.model.ledger import PodRecord


@dataclass(frozen=True, slots=True)
class Bind:
    """What became of a bind. An empty `error` is success; `reason` is a constant for metrics."""

    error: str = ""
    reason: str = ""
    conflict: bool = False
    """The API server had another pod, or the pod in another state, than the scheduler."""


def failed(outcome: Outcome) -> Bind:
    """The answer for an outcome that is no success."""
    match outcome:
        case BoundOtherwise(node=node):
            return Bind(f"the pod is on node {node} already", "bound-already", conflict=True)
        case binding.PodGone(terminating=True):
            return Bind("the pod is being deleted", "gone", conflict=True)
        case binding.PodGone():
            return Bind("the pod does not exist any more", "gone")
        case binding.PodReplaced(uid=uid):
            return Bind(f"another pod bears the name by now, UID {uid}", "gone", conflict=True)
        case binding.Rejected(error=error):
            return Bind(f"the API server did not bind it: {error}", "api")
        case binding.Undecided(error=error):
            return Bind(f"whether the pod is bound is not known yet: {error}", "undecided")
        case binding.Bound():
            raise AssertionError("a success")


def elsewhere(standing: PodRecord, reservation: Reservation | None) -> Bind:
    """The answer for a pod that is on the books of another node, or without a decision."""
    if reservation is not None and not reservation.certain:
        text = f"whether an earlier bind to {standing.node} went through is not known yet"
        return Bind(text, "undecided")
    return Bind(f"the pod is on node {standing.node} already", "bound-already", conflict=True)


def bound_already(pod: Pod, node: str) -> Bind:
    """The answer for a pod that turns out to be bound before the watch has shown it."""
    assignment, _ = read_assignment(pod.metadata.annotations)
    if pod.spec.node_name == node and assignment is not None:
        return Bind()
    return Bind(f"the pod is on node {pod.spec.node_name} already", "bound-already", conflict=True)


def moved(record: PodRecord, node: str, annotations: Mapping[str, str]) -> PodRecord:
    """The pod as somebody else has bound it."""
    assignment, _ = read_assignment(dict(annotations))
    return replace(record, node=node, assignment=assignment)


def waiting_from(record: PodRecord) -> WaitingPod:
    """A pod on the books, as a bind that is repeated needs it."""
    return WaitingPod(
        uid=record.uid,
        namespace=record.namespace,
        name=record.name,
        owner=record.owner,
        request=record.request,
        error=None,
        priority=0,
        created="",
        nominated=None,
        nudged=False,
        rejected_by_us=False,
    )
