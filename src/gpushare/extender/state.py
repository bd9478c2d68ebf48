"""The cluster as the extender knows it: the ledger, kept current by the watches and by our binds.

**Nodes and pods** come from two reflectors, by UID, and become facts of the ledger. A pod that asks
for nothing of ours costs a glance.

**Reservations.** A bind charges its pod on the books before it writes (`reserve`), so that the next
decision sees it. What the watch says later wins: the pod on a node confirms the reservation or
corrects it, the pod's end drops it. What the watch says of the time *before* does not undo it: an
event that shows the pod still without a node only updates what is known of it as a waiting pod. A
failed bind is rolled back, unless the watch has spoken meanwhile.

**Pods that leave** give back their units at once, except where nobody has seen yet which GPU they
had (`leaving`).

Nothing here awaits: whoever reads, decides and reserves in one go does so under no lock but the
event loop's. Listeners are told, synchronously, what happened.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpushare.contract.units import Unit
from gpushare.extender.leaving import Leavers
from gpushare.extender.nominations import Nominations
from gpushare.extender.waiting import WaitingPod, read_waiting
from gpushare.kube.objects import Node, Pod
from gpushare.kube.reading import (
    Problem,
    asks_for_gpu_memory,
    is_finished,
    read_bound_pod,
    read_node,
)
from gpushare.kube.resources import Ref
from gpushare.model.gpus import Holding
from gpushare.model.holding import Placement
from gpushare.model.ledger import Ledger, PodRecord
from gpushare.policy import GPU_POLICIES

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Reservation:
    """A bind's charge on the books that the watch has not confirmed. Known by identity."""

    record: PodRecord
    placement: Placement
    since: float
    """Of the clock, when it was made."""
    done: float | None = None
    """When its bind ended; None while it is in flight."""
    certain: bool = False
    """The API server has said that the pod is bound so."""


class Listener:
    """Who wants to know. Called in the middle of an update: notes, does nothing else."""

    def node_problems(self, node: Node, problems: tuple[Problem, ...]) -> None:
        """Something is wrong with a node's labels or annotations; told when it changes."""

    def pod_problem(self, pod: Pod, problem: Problem) -> None:
        """Something is wrong with a pod on a node; may be told again."""

    def unattributed(self, pod: Pod, record: PodRecord) -> None:
        """A pod stands on a node without a usable assignment; may be told again."""


@dataclass
class ClusterState:
    """Feed it through `nodes` and `pods`, the handlers of two reflectors."""

    clock: Callable[[], float]
    unit: Unit = Unit.GIB
    """Where a node's plugin publishes none."""
    listener: Listener = field(default_factory=Listener)
    ledger: Ledger = field(default_factory=Ledger)
    waiting: dict[str, WaitingPod] = field(default_factory=dict)
    """Pod UID -> a pod that asks and that the watch has shown on no node; reserved ones too."""
    reservations: dict[str, Reservation] = field(default_factory=dict)
    """Pod UID -> the reservation nobody has confirmed yet."""
    unschedulable: set[str] = field(default_factory=set)
    """Names of cordoned nodes."""
    subscribers: list[asyncio.Event] = field(default_factory=list)
    """Set whenever books, waiting pods or nodes changed; each is cleared by its owner."""

    def __post_init__(self) -> None:
        self.leavers = Leavers(self.ledger, self.clock)
        self.nominations = Nominations(self.ledger, self._leaving)
        self.nodes = NodeHandler(self)
        self.pods = PodHandler(self)

    def touch(self) -> None:
        """Tell the subscribers that something changed."""
        for event in self.subscribers:
            event.set()

    # -- reservations -----------------------------------------------------------------------------

    def reserve(self, record: PodRecord, placement: Placement) -> Reservation:
        """Charge a pod that is about to be bound."""
        reservation = Reservation(record, placement, self.clock())
        self.reservations[record.uid] = reservation
        self.ledger.put_pod(record)
        self.touch()
        return reservation

    def roll_back(self, reservation: Reservation) -> bool:
        """The pod is not bound so. False if the watch has told something else meanwhile."""
        uid = reservation.record.uid
        if self.reservations.get(uid) is not reservation:
            return False
        del self.reservations[uid]
        self.ledger.remove_pod(uid)
        self.touch()
        return True

    def gone(self, reservation: Reservation) -> bool:
        """The pod's object is gone, and may have been on the node before. False if the watch has
        told something else meanwhile."""
        uid = reservation.record.uid
        if self.reservations.get(uid) is not reservation:
            return False
        del self.reservations[uid]
        self.leavers.remove(uid)
        self.touch()
        return True

    def correct(self, reservation: Reservation, record: PodRecord) -> None:
        """The pod turned out to be bound otherwise, by somebody else."""
        if self.reservations.get(record.uid) is reservation:
            reservation.record, reservation.certain = record, True
            self.ledger.put_pod(record)
            self.touch()

    # -- questions --------------------------------------------------------------------------------

    def standing(self, uid: str) -> PodRecord | None:
        """The pod on the books, reserved or confirmed; None for one that is gone."""
        return None if self.leavers.is_gone(uid) else self.ledger.pod(uid)

    def still_waiting(self) -> Iterable[WaitingPod]:
        """Waiting pods that no bind has taken up."""
        ledger = self.ledger
        return (pod for uid, pod in self.waiting.items() if ledger.pod(uid) is None)

    def _leaving(self, node: str) -> list[Holding]:
        terminating = (self.ledger.holding(uid) for uid in self.pods.terminating.get(node, ()))
        return [*filter(None, terminating), *self.leavers.holdings(node)]


class NodeHandler:
    """What the reflector of nodes tells."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._policies = tuple(GPU_POLICIES)
        self._uids: dict[str, str] = {}
        """Node name -> UID of its object."""
        self._problems: dict[str, tuple[Problem, ...]] = {}
        """Node name -> what is wrong with it; healthy nodes are left out."""
        self.complete = False

    def changed(self, node: Node) -> None:
        state, name = self._state, node.metadata.name
        reading = read_node(node, self._policies, state.unit)
        self._uids[name] = node.metadata.uid
        state.leavers.note_node(reading.node)
        cordoned = bool(node.spec and node.spec.unschedulable)
        if state.ledger.put_node(reading.node) or cordoned != (name in state.unschedulable):
            state.touch()
        (state.unschedulable.add if cordoned else state.unschedulable.discard)(name)
        if reading.problems != self._problems.get(name, ()):
            if reading.problems:
                self._problems[name] = reading.problems
                state.listener.node_problems(node, reading.problems)
            else:
                del self._problems[name]

    def deleted(self, ref: Ref) -> None:
        if self._uids.get(ref.name) != ref.uid:
            return  # another node bears the name already
        del self._uids[ref.name]
        self._problems.pop(ref.name, None)
        self._state.unschedulable.discard(ref.name)
        self._state.ledger.remove_node(ref.name)
        self._state.leavers.forget_node(ref.name)
        self._state.touch()

    def listed(self) -> None:
        self.complete = True
        self._state.touch()


class PodHandler:
    """What the reflector of pods tells."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.terminating: dict[str, set[str]] = {}
        """Node name -> UIDs of pods of ours there that are being deleted."""
        self.complete = False

    def changed(self, pod: Pod) -> None:
        if not asks_for_gpu_memory(pod):
            return
        if pod.spec.node_name:
            self._on_node(pod)
        else:
            self._without_node(pod)

    def _without_node(self, pod: Pod) -> None:
        state, uid = self._state, pod.metadata.uid
        if is_finished(pod) or pod.metadata.deletion_timestamp:
            if state.waiting.pop(uid, None) is not None:
                state.nominations.remove(uid)
                state.touch()
            return
        waiting = read_waiting(pod)
        if (waiting.request or waiting.error) and state.waiting.get(uid) != waiting:
            state.waiting[uid] = waiting
            state.nominations.put(waiting, waiting.nominated)
            state.touch()

    def _on_node(self, pod: Pod) -> None:
        state, uid = self._state, pod.metadata.uid
        record, error = read_bound_pod(pod)
        state.waiting.pop(uid, None)
        state.nominations.remove(uid)
        if record is None:
            return
        self._note_terminating(record, bool(pod.metadata.deletion_timestamp))
        reservation = state.reservations.pop(uid, None)
        if reservation is not None and (record.node, record.assignment) != (
            reservation.record.node,
            reservation.record.assignment,
        ):
            log.warning(
                "%s/%s: reserved on %s as %s, but the API says %s as %s; the books follow",
                record.namespace,
                record.name,
                reservation.record.node,
                reservation.record.assignment,
                record.node,
                record.assignment,
            )
        news = state.ledger.pod(uid) != record  # attested, say, which changes no books
        state.leavers.put(record)
        if news or reservation is not None:
            state.touch()
        if error is not None:
            state.listener.pod_problem(pod, Problem("BadRequest", f"{error.field}: {error}"))
        holding = state.ledger.holding(uid)
        if holding is not None and holding.pending and not record.finished:
            state.listener.unattributed(pod, record)

    def _note_terminating(self, record: PodRecord, terminating: bool) -> None:
        if terminating and not record.finished:
            self.terminating.setdefault(record.node, set()).add(record.uid)
        else:
            self._forget_terminating(record.node, record.uid)

    def _forget_terminating(self, node: str, uid: str) -> None:
        uids = self.terminating.get(node)
        if uids is not None:
            uids.discard(uid)
            if not uids:
                del self.terminating[node]

    def deleted(self, ref: Ref) -> None:
        state = self._state
        record = state.ledger.pod(ref.uid)
        if record is not None:
            self._forget_terminating(record.node, ref.uid)
            state.reservations.pop(ref.uid, None)
            state.leavers.remove(ref.uid)
        waited = state.waiting.pop(ref.uid, None)
        state.nominations.remove(ref.uid)
        if record is not None or waited is not None:
            state.touch()

    def listed(self) -> None:
        self.complete = True
        self._state.touch()
