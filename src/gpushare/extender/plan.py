"""Whom to nudge, and where to: the decisions of `nudge`, without I/O.

A pod is nudged when the scheduler's last question about it ended in our rejection, that was not
just now, and a node has room for it on the books. (The scheduler saw a sample of the nodes only, or
asked before our watch had shown the room; neither makes it ask again.)

* **The important first**: higher priority, then older. A nudge is a promise on the books, so the
  room of one is not found for the next.
* **Repeated, bounded.** The scheduler may be trying the pod at that moment, and its failure
  handling then clears the nomination; a pod tried often waits out a backoff of up to 10 s.
  `PAUSES_S` are the pauses between tries; after the last the nomination is cleared, since it holds
  room, and the pair of pod and node rests, longer each time: something else keeps the pod off that
  node (CPU, affinity, taints), and its next tries go to other nodes.
* A nomination by preemption stays as it is; on its node we only wake the pod.
"""

from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from gpushare.extender.asks import Ask, Asks
from gpushare.extender.decide import Decider
from gpushare.extender.state import ClusterState
from gpushare.extender.waiting import WaitingPod
from gpushare.model.request import Request

GRACE_S: Final = 0.3
"""What wakes us wakes the scheduler too; so long it has to help the pod by itself."""
PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)
"""After each try; together longer than the scheduler's longest backoff (10 s)."""
LOST_PAUSE_S: Final = 0.3
"""Before the next try when the nomination has been cleared by somebody else."""
IN_HAND_S: Final = 6.0
"""So long a pod whose node was answered yes is left to its bind."""
REST_S: Final = (60.0, 900.0)
"""A node where something else keeps the pod off rests from the first up to the second."""
MAX_ACTIVE: Final = 16
"""Nudges at a time: enough to keep a scheduler busy that was not woken."""
MAX_RANKED: Final = 128
"""Of nodes with room so many are compared."""


@dataclass(frozen=True, slots=True)
class Nominate:
    """Name the node to the scheduler. `wake_only`: the nomination stands, the pod sleeps."""

    pod: WaitingPod
    node: str
    wake_only: bool = False


@dataclass(frozen=True, slots=True)
class Clear:
    """Take our nomination back."""

    pod: WaitingPod
    node: str


@dataclass(slots=True)
class Nudge:
    """A pod that is being nudged."""

    node: str
    tries: int
    last_at: float
    wake_only: bool
    seen: bool = False
    """The watch has shown the nomination."""


class Planner:
    """Keeps the nudges that are going on."""

    def __init__(self, state: ClusterState, asks: Asks, decider: Decider) -> None:
        self._state = state
        self._asks = asks
        self._decider = decider
        self.active: dict[str, Nudge] = {}
        """Pod UID -> its nudge."""
        self._rests: dict[str, dict[str, tuple[float, float]]] = {}
        """Pod UID -> node name -> (until when it rests, for how long that was)."""
        self._uncleared: list[Clear] = []
        self._adopted = False
        self.next_due: float | None = None
        """When `plan` should be called again even if nothing happens."""

    def plan(self, now: float) -> list[Nominate | Clear]:
        """What to do now. The promises on the books are made already."""
        self.next_due = None
        if not self._adopted:
            self._adopted = True
            self._adopt(now)
        if len(self._rests) > len(self._state.waiting):
            self._rests = {u: r for u, r in self._rests.items() if u in self._state.waiting}
        actions: list[Nominate | Clear] = self._clear_again()
        for uid, nudge in list(self.active.items()):
            action = self._go_on(uid, nudge, now)
            if action is not None:
                actions.append(action)
        actions += self._begin(now)
        return actions

    def failed(self, action: Nominate | Clear) -> None:
        """The action could not be carried out; a nomination is tried again by its pauses."""
        if isinstance(action, Clear):
            self._uncleared.append(action)
        elif not action.wake_only:
            self._state.nominations.put(action.pod, action.pod.nominated)

    def _clear_again(self) -> list[Nominate | Clear]:
        waiting = self._state.waiting
        again: list[Nominate | Clear] = [
            clear
            for clear in self._uncleared
            if clear.pod.uid not in self.active
            and (pod := waiting.get(clear.pod.uid)) is not None
            and pod.nominated in (None, clear.node)
        ]
        self._uncleared.clear()
        return again

    # -- nudges that are going on -----------------------------------------------------------------

    def _adopt(self, now: float) -> None:
        """Nominations that an earlier process made are ours to repeat or clear."""
        for pod in self._state.still_waiting():
            if pod.nominated and pod.nudged and pod.request is not None:
                self.active[pod.uid] = Nudge(pod.nominated, 1, now, wake_only=False, seen=True)

    def _go_on(self, uid: str, nudge: Nudge, now: float) -> Nominate | Clear | None:
        pod = self._state.waiting.get(uid)
        if pod is None or pod.request is None or self._state.standing(uid) is not None:
            del self.active[uid]
            self._rests.pop(uid, None)
            return None
        nudge.seen |= pod.nominated == nudge.node
        if pod.nominated not in (None, nudge.node):
            del self.active[uid]  # somebody else's nomination is better informed
            return None
        ask = self._asks.get(uid)
        if ask is not None and ask.passed and now < ask.at + IN_HAND_S:
            self._due(ask.at + IN_HAND_S)
            return None
        if self._decider.refusal(nudge.node, pod.request, pod.asker) is not None:
            return self._end(pod, nudge)
        lost = nudge.seen and pod.nominated is None and not nudge.wake_only
        pause_s = LOST_PAUSE_S if lost else PAUSES_S[nudge.tries - 1]
        if now < nudge.last_at + pause_s:
            self._due(nudge.last_at + pause_s)
            return None
        if nudge.tries == len(PAUSES_S):
            self._rest(uid, nudge.node, now)
            return self._end(pod, nudge)
        nudge.tries, nudge.last_at, nudge.seen = nudge.tries + 1, now, False
        self._due(now + PAUSES_S[nudge.tries - 1])
        self._promise(pod, nudge)
        return Nominate(pod, nudge.node, nudge.wake_only)

    def _end(self, pod: WaitingPod, nudge: Nudge) -> Clear | None:
        del self.active[pod.uid]
        if nudge.wake_only:
            return None
        self._state.nominations.remove(pod.uid)
        self._state.waiting[pod.uid] = replace(pod, nominated=None)
        return Clear(pod, nudge.node)

    def _rest(self, uid: str, node: str, now: float) -> None:
        rests = self._rests.setdefault(uid, {})
        first_s, most_s = REST_S
        rest_s = min(most_s, 2 * rests[node][1]) if node in rests else first_s
        rests[node] = (now + rest_s, rest_s)
        self._due(now + rest_s)

    # -- new ones ---------------------------------------------------------------------------------

    def _begin(self, now: float) -> list[Nominate]:
        room = MAX_ACTIVE - len(self.active)
        pods = sorted(self._eligible(now), key=lambda pod: pod.order) if room > 0 else []
        actions: list[Nominate] = []
        full: set[tuple[Request | None, int]] = set()
        for pod in pods:
            if len(actions) == room:
                break
            kind = (pod.request, pod.priority)
            node = self._node_for(pod, now) if kind not in full else None
            if node is None:
                if pod.nominated is None and pod.uid not in self._rests:
                    full.add(kind)
                continue
            nudge = Nudge(node, 1, now, wake_only=pod.nominated is not None)
            self.active[pod.uid] = nudge
            self._promise(pod, nudge)
            self._due(now + PAUSES_S[0])
            actions.append(Nominate(pod, node, nudge.wake_only))
        return actions

    def _eligible(self, now: float) -> list[WaitingPod]:
        has_room: dict[Request, bool] = {}
        eligible: list[WaitingPod] = []
        ask_of, standing = self._asks.get, self._state.standing
        for uid, pod in self._state.waiting.items():
            # Most pods wait for nothing but the scheduler: the first look is all they cost.
            ask = ask_of(uid)
            if not rejected(pod, ask):
                continue
            request = pod.request
            if request is None or uid in self.active or standing(uid) is not None:
                continue
            if request not in has_room:
                has_room[request] = bool(self._decider.fitting(request))
            if not has_room[request]:
                continue
            if ask is not None and now < ask.at + GRACE_S:
                self._due(ask.at + GRACE_S)
                continue
            eligible.append(pod)
        return eligible

    def _node_for(self, pod: WaitingPod, now: float) -> str | None:
        """The best node with room for the pod that is neither cordoned nor at rest for it."""
        assert pod.request is not None
        fits = self._decider.fitting(pod.request)
        resting = set()
        for node, (until, _) in self._rests.get(pod.uid, {}).items():
            if now < until:
                resting.add(node)
                self._due(until)
        named = pod.nominated
        if named is not None:
            usable = named in fits and named not in resting and self._free(pod, named)
            return named if usable else None
        cordoned = self._state.unschedulable
        open_to_it = (n for n in fits if n not in cordoned and n not in resting)
        names = list(islice(open_to_it, MAX_RANKED))
        keys = self._decider.rank_keys(pod.request, pod.owner, names)
        for node in sorted(keys, key=lambda n: (keys[n], n)):
            if self._free(pod, node):
                return node
        return None

    def _free(self, pod: WaitingPod, node: str) -> bool:
        assert pod.request is not None
        return self._decider.refusal(node, pod.request, pod.asker) is None

    def _promise(self, pod: WaitingPod, nudge: Nudge) -> None:
        self._state.nominations.put(pod, nudge.node)

    def _due(self, when: float) -> None:
        if self.next_due is None or when < self.next_due:
            self.next_due = when


def rejected(pod: WaitingPod, ask: Ask | None) -> bool:
    """Whether the scheduler's last question about the pod ended in our rejection. Before this
    process was asked, the pod's own condition tells."""
    return ask.passed == 0 if ask is not None else pod.rejected_by_us
