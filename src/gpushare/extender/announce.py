"""What people see in `kubectl describe`: Events on waiting pods, on pods nobody decided, on nodes.

kube-scheduler's own Event says why in a constant text. Ours adds the amounts and what would help.
It comes a moment after the rejection, so that a pod placed meanwhile gets none, and again only when
its text changes, at most once in `REPEAT_S`: the cost of an Event is a write.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn

from gpushare.contract import names
from gpushare.contract.names import Reason
from gpushare.contract.units import Unit
from gpushare.extender.decide import Answer, Decider
from gpushare.extender.state import ClusterState, Listener
from gpushare.extender.waiting import WaitingPod
from gpushare.kube.events import About, Recorder, Severity
from gpushare.kube.objects import Node, Pod
from gpushare.kube.reading import Problem
from gpushare.model.ledger import PodRecord
from gpushare.view.reasons import message

REPEAT_S: Final = 60.0
DELAY_S: Final = 0.5
MAX_KEPT: Final = 20_000

WAITING: Final = "GPUMemoryUnavailable"
"""An Event's reason: a pod waits for GPU memory."""
UNDECIDED: Final = "GPUUndecided"
"""An Event's reason: a pod that asks for GPU memory was bound without a GPU."""


@dataclass(slots=True)
class _Told:
    at: float
    text: str


@dataclass
class Announcer(Listener):
    """Writes Events through `recorder`; its `run` must be running."""

    recorder: Recorder
    clock: Callable[[], float]
    _queue: OrderedDict[str, Answer] = field(default_factory=OrderedDict)
    """Pod UID -> the rejection to tell of."""
    _told: OrderedDict[str, _Told] = field(default_factory=OrderedDict)
    """Pod UID -> what was told last."""
    _undecided: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """UIDs of pods without a GPU that were told of."""

    # -- what the state tells ---------------------------------------------------------------------

    def node_problems(self, node: Node, problems: tuple[Problem, ...]) -> None:
        for problem in problems:
            self.recorder.event(About.node(node), Severity.WARNING, problem.reason, problem.message)

    def pod_problem(self, pod: Pod, problem: Problem) -> None:
        if self._first(f"{problem.reason} {pod.metadata.uid}"):
            self.recorder.event(About.pod(pod), Severity.WARNING, problem.reason, problem.message)

    def unattributed(self, pod: Pod, record: PodRecord) -> None:
        if self._first(record.uid):
            self.recorder.event(
                About.pod(pod), Severity.WARNING, UNDECIDED, _undecided_text(pod, record)
            )

    def _first(self, key: str) -> bool:
        if key in self._undecided:
            return False
        self._undecided[key] = None
        if len(self._undecided) > MAX_KEPT:
            self._undecided.popitem(last=False)
        return True

    # -- waiting pods -----------------------------------------------------------------------------

    def rejected(self, answer: Answer) -> None:
        """A pod has no place among the nodes it was asked about."""
        uid = answer.pod.uid
        told = self._told.get(uid)
        if told is None or self.clock() >= told.at + REPEAT_S:
            self._queue[uid] = answer
            if len(self._queue) > MAX_KEPT:
                self._queue.popitem(last=False)

    async def run(self, state: ClusterState, decider: Decider) -> NoReturn:
        """Tell of rejections, until cancelled."""
        while True:
            await asyncio.sleep(DELAY_S)
            self.flush(state, decider)

    def flush(self, state: ClusterState, decider: Decider) -> None:
        """Tell of the rejections noted, of pods that wait still."""
        queue, self._queue = self._queue, OrderedDict()
        for uid, answer in queue.items():
            pod = state.waiting.get(uid)
            if pod is not None and state.standing(uid) is None:
                self._tell(pod, waiting_text(pod, answer, state, decider))

    def _tell(self, pod: WaitingPod, text: str) -> None:
        told = self._told.get(pod.uid)
        self._told[pod.uid] = _Told(self.clock(), text)
        self._told.move_to_end(pod.uid)
        if len(self._told) > MAX_KEPT:
            self._told.popitem(last=False)
        if told is None or told.text != text:
            about = About("Pod", pod.name, pod.uid, pod.namespace, "v1")
            self.recorder.event(about, Severity.WARNING, WAITING, text)


def waiting_text(pod: WaitingPod, answer: Answer, state: ClusterState, decider: Decider) -> str:
    """Why a pod waits, in a sentence, with the largest free amount and what would help."""
    if pod.error is not None:
        return f"{pod.error.field}: {pod.error}"
    assert pod.request is not None
    return message(
        answer.reason or Reason.NO_GPU_FITS,
        largest_free=decider.largest_free(answer.names),
        units=pod.request.units,
        unit=_unit(state, answer.names),
        gpu_count=pod.request.gpu_count,
    )


def _unit(state: ClusterState, nodes: list[str]) -> Unit:
    for name in nodes:
        books = state.ledger.get_books(name)
        if books is not None and books.gpus:
            return books.node.unit
    return state.unit


def _undecided_text(pod: Pod, record: PodRecord) -> str:
    scheduler = pod.spec.scheduler_name or "default-scheduler"
    return (
        f"the pod asks for {record.request.units} {names.RESOURCE_MEM}, but nobody has decided "
        f"which GPU of node {record.node} it gets; its units are counted on every GPU there. "
        f"It was bound by another than gpushare (schedulerName {scheduler!r}): use a scheduler "
        "that has gpushare as an extender with `ignorable: false`, and leave spec.nodeName unset"
    )
