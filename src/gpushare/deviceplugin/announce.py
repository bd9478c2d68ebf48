"""Events where a person would look: on the pod that was refused, and on the node.

Of the pod a refusal was meant for the plugin knows only what it takes it for: the kubelet does not
say. So the Event says so too where that matters.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from gpushare.contract.names import RESOURCE_MEM
from gpushare.deviceplugin.core.books import Decision
from gpushare.deviceplugin.core.refusals import Refused
from gpushare.deviceplugin.happenings import Happenings
from gpushare.deviceplugin.state import NodeState
from gpushare.kube.events import About, Recorder, Severity
from gpushare.kube.objects import Pod

log = logging.getLogger(__name__)

REFUSED: Final = "GPUMemoryRefused"
DECIDED_LATE: Final = "GPUDecidedByNode"
MOVED: Final = "GPUDecidedAnew"
NOT_OFFERED: Final = "GPUMemoryNotOffered"
NOT_ISOLATED: Final = "GPUMemoryNotIsolated"
NOT_HELD: Final = "GPUMemoryNotHeld"
UNACCOUNTED: Final = "GPUMemoryUnaccounted"


@dataclass
class Announcer:
    """Tells people through `recorder`."""

    recorder: Recorder
    _happenings: Happenings = field(default_factory=Happenings)
    _problems: dict[str, str] = field(default_factory=dict)
    """Reason -> the text last told of the node."""

    def refused(self, refused: Refused, state: NodeState) -> None:
        """A container got nothing."""
        log.warning("refused (%s): %s", refused.cause, refused.text)
        pod = state.pods.get(refused.uid or "")
        if pod is not None:
            self.recorder.event(About.pod(pod), Severity.WARNING, REFUSED, refused.text)
        else:
            self._node(state, REFUSED, refused.text)

    def decisions(self, state: NodeState) -> None:
        """Tell of what was decided here since the last time."""
        if state.books is not None:
            told, state.books.decisions = state.books.decisions, []
            for decision in told:
                self.decided(decision, state)

    def decided(self, decision: Decision, state: NodeState) -> None:
        """A pod's GPU was decided here, because nobody had, or where it was decided is no room."""
        pod = state.pods.get(decision.piece.uid)
        gpus = " and ".join(map(str, decision.place))
        if decision.overruled is None:
            scheduler = (pod and pod.spec.scheduler_name) or "default-scheduler"
            reason, text = (
                DECIDED_LATE,
                f"the pod came to node {state.name} without a decision which GPU it gets; the node "
                f"gave it GPU {gpus} by its own policy. It was bound by another than gpushare "
                f"(schedulerName {scheduler!r}), which sees only the node's sum of {RESOURCE_MEM}: "
                "use a scheduler that has gpushare as an extender, and leave spec.nodeName unset",
            )
        else:
            was = " and ".join(map(str, decision.overruled))
            reason, text = (
                MOVED,
                f"GPU {was} of node {state.name}, which was decided for the pod, has no room for "
                f"it; it got GPU {gpus}",
            )
        log.warning("%s: %s", decision.piece.uid, text)
        if pod is not None:
            self.recorder.event(About.pod(pod), Severity.WARNING, reason, text)

    def unprotected(self, pod: Pod, container: str, why: str) -> None:
        """A container that runs is not held to its GPU memory."""
        text = f"container {container} is not held to its GPU memory: {why}"
        log.warning("pod %s/%s: %s", pod.metadata.namespace, pod.metadata.name, text)
        self.recorder.event(About.pod(pod), Severity.WARNING, NOT_HELD, text, container)

    def unaccounted(self, pod: Pod, container: str, why: str) -> None:
        """A container uses more GPU memory than is counted within its limit."""
        text = f"container {container} uses GPU memory that is not accounted for: {why}"
        log.warning("pod %s/%s: %s", pod.metadata.namespace, pod.metadata.name, text)
        self.recorder.event(About.pod(pod), Severity.WARNING, UNACCOUNTED, text, container)

    def gpu_unaccounted(self, state: NodeState, why: str) -> None:
        """More of a GPU is used than is counted within the limits of its containers."""
        log.warning("node %s: %s", state.name, why)
        self._node(state, UNACCOUNTED, why)

    def not_offering(self, why: str, state: NodeState) -> None:
        """The node offers no GPU memory though its labels want it."""
        log.error("no %s is offered: %s", RESOURCE_MEM, why)
        self._node(state, NOT_OFFERED, why)

    def problems(self, state: NodeState) -> None:
        """Tell of what is wrong with the node's labels and annotations, when it changes."""
        now = {problem.reason: problem.message for problem in state.problems}
        if state.conditions.not_offered:
            now[NOT_OFFERED] = state.conditions.not_offered
        if state.conditions.not_isolated:
            now[NOT_ISOLATED] = state.conditions.not_isolated
        for reason, text in now.items():
            if self._problems.get(reason) != text:
                log.warning("node %s: %s", state.name, text)
                self._node(state, reason, text)
        self._problems = now

    def happenings(self, state: NodeState) -> None:
        """Tell of GPUs that fail and recover, and of a change of mode."""
        if state.books is None:
            return
        news = self._happenings.news(
            state.devices, state.ailments, state.conditions.closed, state.books
        )
        for one in news:
            log.warning("node %s: %s", state.name, one.text)
            self._node(state, one.reason, one.text, one.severity, one.gpu)

    def _node(
        self,
        state: NodeState,
        reason: str,
        text: str,
        severity: Severity = Severity.WARNING,
        gpu: str = "",
    ) -> None:
        if state.node is not None:
            self.recorder.event(About.node(state.node), severity, reason, text, gpu)
