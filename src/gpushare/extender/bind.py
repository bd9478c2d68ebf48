"""One pod to one node: re-check, choose, reserve, write, and know what became of it.

Between the re-check and the reservation nothing awaits, so binds to one node decide one after the
other, each seeing those before it on the books, while their writes, and binds to other nodes, go on
side by side.

    known pod ── already so? ── class wait ── place on the books ── reserve ── POST ── outcome
                                                                      │
                 rolled back, corrected or left to `settle` ◄─────────┘

* **The same pod again** (the scheduler repeats a bind whose answer it did not see): one in flight
  is joined, one that went through is answered with success, both without a second decision.
* **Everything ends by the deadline**, well or badly: the scheduler's time-out is longer, so it
  never has to guess. When the API server's answer did not tell, the reservation stays and `settle`
  finds out.
* **A Binding to a node that does not exist would be accepted** by the API server: the node must be
  on our books. A pod the watch has not shown yet is fetched.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpushare.contract import names
from gpushare.contract.allocation import binding_annotations
from gpushare.extender.classwait import ClassWaits
from gpushare.extender.outcome import (
    Bind,
    bound_already,
    elsewhere,
    failed,
    moved,
    waiting_from,
)
from gpushare.extender.state import ClusterState, Reservation
from gpushare.extender.waiting import WaitingPod, read_waiting
from gpushare.extender.wire import BindingArgs
from gpushare.kube import binding
from gpushare.kube.binding import Bound, BoundOtherwise, Outcome, Undecided
from gpushare.kube.connection import Connection
from gpushare.kube.errors import InvalidName, KubeError, NotFound
from gpushare.kube.objects import Pod
from gpushare.kube.resources import pod_path
from gpushare.model.gpus import Assignment
from gpushare.model.holding import Placement, gpu_units
from gpushare.model.ledger import PodRecord
from gpushare.policy.fit import place
from gpushare.view.reasons import short

log = logging.getLogger(__name__)

DEADLINE_S: Final = 4.5
"""Under the scheduler's time-out (30 s) and under what a new leader waits (5 s)."""
WRITE_S: Final = 1.5
"""Of the deadline this is kept for the write: a wait before it ends so much earlier."""

DECISION_KEYS: Final = frozenset(
    {names.ANNOTATION_ALLOCATION, names.ANNOTATION_INIT_ALLOCATION, names.ANNOTATION_CORE}
)


@dataclass
class Binder:
    """Binds pods. One per process."""

    state: ClusterState
    connection: Connection
    clock: Callable[[], float]
    deadline_s: float = DEADLINE_S
    now_ns: Callable[[], int] = time.time_ns
    in_flight: dict[str, tuple[str, "asyncio.Task[Bind]"]] = field(default_factory=dict)
    """Pod UID -> (node, the bind that is running)."""

    def __post_init__(self) -> None:
        self._last_ns = 0
        self._waits = ClassWaits(self.state, self.clock)

    async def bind(self, args: BindingArgs) -> Bind:
        """Bind a pod as the scheduler says; ends within `deadline_s`."""
        running = self.in_flight.get(args.pod_uid)
        if running is None:
            task = asyncio.ensure_future(self._bind(args))
            self.in_flight[args.pod_uid] = (args.node, task)
            task.add_done_callback(lambda _: self.in_flight.pop(args.pod_uid, None))
        elif running[0] == args.node:
            task = running[1]
        else:
            return Bind(f"a bind of this pod to {running[0]} is still running", "busy")
        # Whoever asked may hang up; what is on the way to the API server goes on.
        return await asyncio.shield(task)

    async def drain(self) -> None:
        """Wait for the binds in flight; each has its deadline."""
        while self.in_flight:
            await asyncio.wait([task for _, task in self.in_flight.values()])

    async def _bind(self, args: BindingArgs) -> Bind:
        end = self.clock() + self.deadline_s
        try:
            pod = await self._known(args, end)
        except (KubeError, InvalidName) as error:
            return Bind(f"the pod cannot be read: {error}", "api")
        if isinstance(pod, Bind):
            return pod
        standing = self.state.standing(pod.uid)
        if standing is not None:
            return await self._again(pod, args.node, standing, end)
        if args.node not in self.state.ledger:
            return Bind(f"node {args.node} is not known to gpushare", "no-node")
        if pod.request is None:
            return await self._plain(pod, args.node, end)
        refused = await self._waits.passed(args.node, pod.uid, pod.request, end - WRITE_S)
        if refused:
            return Bind(refused, "class-wait")
        reservation = self._reserve(pod, args.node)
        if isinstance(reservation, Bind):
            return reservation
        return await self._write(pod, reservation, end)

    async def _again(self, pod: WaitingPod, node: str, standing: PodRecord, end: float) -> Bind:
        """A bind of a pod that is on the books already."""
        earlier = self.state.reservations.get(pod.uid)
        if standing.node != node or standing.assignment is None:
            return elsewhere(standing, earlier)
        if earlier is None or earlier.certain:
            return Bind()
        # An earlier write may have gone through: the same decision once more tells.
        return await self._write(pod, earlier, end)

    async def _known(self, args: BindingArgs, end: float) -> WaitingPod | Bind:
        """The pod the scheduler means, or why there is none."""
        pod = self.state.waiting.get(args.pod_uid)
        if pod is None and self.state.standing(args.pod_uid) is None:
            path = pod_path(args.pod_namespace, args.pod_name)
            try:
                fetched = await self.connection.get(
                    path, Pod, timeout_s=max(0.01, end - WRITE_S - self.clock())
                )
            except NotFound:
                return Bind("the pod does not exist", "gone")
            meta = fetched.metadata
            if meta.uid != args.pod_uid:
                return Bind(f"another pod bears the name by now, UID {meta.uid}", "gone")
            if meta.deletion_timestamp:
                return Bind("the pod is being deleted", "gone")
            if fetched.spec.node_name:
                return bound_already(fetched, args.node)
            pod = read_waiting(fetched)
        if pod is None:
            record = self.state.standing(args.pod_uid)
            assert record is not None
            pod = waiting_from(record)
        if (pod.namespace, pod.name) != (args.pod_namespace, args.pod_name):
            return Bind(f"UID {pod.uid} is pod {pod.full_name}", "gone")
        if pod.error is not None:
            return Bind(f"{short(pod.error.reason)}: {pod.error}", pod.error.reason)
        return pod

    def _reserve(self, pod: WaitingPod, node: str) -> Reservation | Bind:
        """The decision, charged on the books. No await in here: this is the lock."""
        assert pod.request is not None
        standing = self.state.standing(pod.uid)
        if standing is not None:  # bound by somebody else while we waited
            return elsewhere(standing, None)
        books = self.state.nominations.books(node, pod.asker)
        if books is None:
            return Bind(f"node {node} is not known to gpushare", "no-node")
        answer = place(books, pod.request, pod.owner)
        if not isinstance(answer, Placement):
            return Bind(short(answer.reason), answer.reason)
        return self.state.reserve(
            PodRecord(
                uid=pod.uid,
                namespace=pod.namespace,
                name=pod.name,
                node=node,
                owner=pod.owner,
                request=pod.request,
                assignment=Assignment(
                    answer.allocation(pod.request, init=False),
                    answer.allocation(pod.request, init=True),
                ),
            ),
            answer,
        )

    async def _write(self, pod: WaitingPod, reservation: Reservation, end: float) -> Bind:
        """One Binding with the decision, and the books made to agree with what came of it."""
        record, placement = reservation.record, reservation.placement
        node = self.state.ledger.get_books(record.node)
        if node is None:
            self.state.roll_back(reservation)
            return Bind(f"node {record.node} is not known to gpushare", "no-node")
        held = {gpu: units for gpu, (units, _) in placement.held(record.request).items()}
        assert record.assignment is not None
        annotations = binding_annotations(
            app=record.assignment.app,
            init=record.assignment.init,
            core=placement.core_allocation(record.request),
            held=held,
            gpu_units=gpu_units(node.node),
            assume_time_ns=self._assume_time_ns(),
        )
        reservation.done = None
        try:
            outcome = await self._post(pod, record.node, annotations, end)
        except BaseException:
            # Nobody knows: `settle` will find out.
            reservation.done = self.clock()
            raise
        reservation.done = self.clock()
        result = self._concluded(outcome, reservation)
        if result.error:
            log.warning("%s: not bound to %s: %s", pod.full_name, record.node, result.error)
        else:
            where = ", ".join(f"{units} units of GPU {gpu}" for gpu, units in sorted(held.items()))
            took_ms = (reservation.done - reservation.since) * 1000
            log.info("%s: bound to %s, %s (%.0f ms)", pod.full_name, record.node, where, took_ms)
        return result

    async def _post(
        self, pod: WaitingPod, node: str, annotations: dict[str, str], end: float
    ) -> Outcome:
        return await binding.bind(
            self.connection,
            pod.namespace,
            pod.name,
            pod.uid,
            node,
            annotations,
            decision_keys=DECISION_KEYS,
            deadline_s=max(0.05, end - self.clock()),
        )

    def _concluded(self, outcome: Outcome, reservation: Reservation) -> Bind:
        state, record = self.state, reservation.record
        match outcome:
            case Bound(before=before):
                reservation.certain = True
                return Bind(conflict=before)
            case BoundOtherwise(node=node, annotations=annotations):
                state.correct(reservation, moved(record, node, annotations))
                return Bind(f"the pod is on node {node} already", "bound-already", conflict=True)
            case Undecided(error=error):
                return Bind(f"whether the pod is bound is not known yet: {error}", "undecided")
            case _:
                state.roll_back(reservation)
                return failed(outcome)

    async def _plain(self, pod: WaitingPod, node: str, end: float) -> Bind:
        """A pod that asks for nothing of ours: bound as the scheduler would."""
        try:
            outcome = await self._post(pod, node, {}, end)
        except InvalidName as error:
            return Bind(str(error), "no-node")
        return Bind() if isinstance(outcome, Bound) else failed(outcome)

    def _assume_time_ns(self) -> int:
        """The time, never the same twice: the plugin tells the order of binds by it."""
        self._last_ns = max(self._last_ns + 1, self.now_ns())
        return self._last_ns
