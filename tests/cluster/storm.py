"""A storm of short pods on one node, while everything around them is killed.

Pods of equal and unequal sizes come and go; each tells the environment it started with through a
file on the node. What the API server told is recorded, and checked when it is over (`complaints`):

* the GPU in the annotation of an attested pod is the one the kubelet and its container say;
* what was given are the (GPU, size) pairs that were decided, exchanged only within a class;
* no reader of pods and nodes ever saw a GPU above its units;
* no pod waited for more than 10 s while there was room and the kubelet was there: one that is
  killed takes up to 12 s on two cores until it looks at its pods again, and till then nobody knows
  who has which of the ids it gave out last;
* nothing is left on any books.

Pods that fail because the kubelet, or the plugin while it answered, was killed are counted apart.
"""

from __future__ import annotations

import itertools
import pickle
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpushare.contract import names
from gpushare.deviceplugin.core.refusals import MARK
from gpushare.kube import objects
from gpushare.kube.reading import read_bound_pod, read_request
from gpushare.model.calls import classes_of
from gpushare.model.holding import Placement, placement_of
from gpushare.policy.fit import place
from gpushare_testcluster import wait_for
from gpushare_testcluster.errors import TimedOut
from tests.cluster import extending, plugging, speaking
from tests.cluster.history import Event, History

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

Object = dict[str, Any]
STUCK_S = 10.0


@dataclass
class Storm:
    """`run` it, then ask for `complaints`."""

    cluster: Cluster
    out: Path
    seed: int = 0
    pods: int = 200
    kills: int = 5
    """Of plugin, kubelet and extender each."""
    order: Path | None = None
    """The file by which the plugin is told to kill somebody between two calls (faulty_plugin)."""
    history: History = field(init=False)
    seen: list[tuple[str, dict[tuple[str, str, str], dict[int, int]]]] = field(default_factory=list)
    """(UID, PodResources at a moment when that pod had been attested)."""
    killed: Counter[str] = field(default_factory=Counter)
    kubelet_killed: list[float] = field(default_factory=list)
    """When, by time.monotonic."""

    def run(self) -> None:
        """Create all pods, killing in between, and wait until the last has gone."""
        self.random = random.Random(self.seed)
        self.log_before = len(self.cluster.node.plugin_log())
        with History(self.cluster) as self.history:
            time.sleep(0.5)
            self._blow()
            self._wait_until_over()
            self._look()
        time.sleep(0.5)

    # -- what happens -----------------------------------------------------------------------------

    def _blow(self) -> None:
        admin, rand = self.cluster.admin, self.random
        kills = [who for who in ("plugin", "kubelet", "extender") for _ in range(self.kills)]
        rand.shuffle(kills)
        if self.kills:
            kills.insert(1, "bound")
            if self.order is not None:
                kills.insert(3, "calls-plugin")
                kills.insert(6, "calls-kubelet")
        due = dict(zip(sorted(rand.sample(range(5, self.pods), len(kills))), kills, strict=True))
        kinds: list[tuple[list[int], int | None]] = [
            ([4], None), ([4], None), ([4], None), ([8], None), ([2], None), ([3], None),
            ([7], None), ([4, 8], None), ([8], 2),
        ]  # fmt: skip
        for number in range(self.pods):
            sizes, gpu_count = rand.choice(kinds)
            name = f"s{number:03}"
            admin.create(
                speaking.pod(
                    name, sizes, self.out, seconds=rand.uniform(0.3, 2.5), gpu_count=gpu_count
                )
            )
            if rand.random() < 0.15:
                self._delete(f"s{rand.randrange(number + 1):03}")
            if number in due:
                self._kill(due[number])
            while self._unfinished() > 30:
                time.sleep(0.1)
            if number % 5 == 0:
                self._look()

    def _unfinished(self) -> int:
        pods = self.cluster.admin.list("pods", namespace="default")
        return sum(one["status"].get("phase") in ("Pending", "Running") for one in pods)

    def _delete(self, name: str) -> None:
        if self.cluster.admin.find("pods", name) is not None:
            self.cluster.admin.delete("pods", name)

    def _kill(self, who: str) -> None:
        self.killed[who] += 1
        if "kubelet" in who:
            self.kubelet_killed.append(time.monotonic())
        node = self.cluster.node
        if who == "plugin":
            node.stop_plugin(hard=True)
            self._restart_plugin()
        elif who == "kubelet":
            node.restart_kubelet(hard=True, wait=False)
        elif who == "extender":
            self.cluster.restart_extender(hard=True)
        elif who == "bound":
            self._kill_between_bind_and_attest()
        elif self.order is not None:
            self._kill_between_calls(who)

    def _restart_plugin(self) -> None:
        self.cluster.node.restart_plugin(hard=True, ready="/readyz")

    def _kill_between_bind_and_attest(self) -> None:
        """Waits for a pod that is bound and not attested; its plugin is dead then."""
        for _ in range(500):
            waiting = [
                one
                for one in self.cluster.admin.list("pods", namespace="default")
                if one["spec"].get("nodeName")
                and one["status"].get("phase") == "Pending"
                and not plugging.assigned(one)
            ]
            if waiting:
                self.cluster.node.stop_plugin(hard=True)
                break
            self._one_more()
        self._restart_plugin()

    def _one_more(self) -> None:
        name = f"extra{self.random.randrange(10**9)}"
        self.cluster.admin.create(speaking.pod(name, [2], self.out, seconds=0.5))
        time.sleep(0.02)

    def _kill_between_calls(self, who: str) -> None:
        assert self.order is not None
        processes = self.cluster.processes
        record = processes.record("kubelet")
        pid = record.pid if who == "calls-kubelet" and record is not None else 0
        self.order.write_text(str(pid))
        while self.order.exists():
            self._one_more()
            time.sleep(0.2)
        if who == "calls-kubelet":
            self.cluster.node.restart_kubelet(hard=True, wait=False)
        else:
            wait_for(lambda: not processes.running("device-plugin"), 5, "the plugin is dead")
            self._restart_plugin()

    def _wait_until_over(self) -> None:
        def over() -> bool:
            self._look()
            return self._unfinished() == 0

        wait_for(over, 120, "the storm's last pod has ended")

    def _look(self) -> None:
        """The kubelet's word, beside the pods attested by now."""
        pods = self.cluster.admin.list("pods", namespace="default")
        attested = [
            one for one in pods if plugging.assigned(one) and one["status"]["phase"] == "Running"
        ]
        try:
            word = plugging.kubelets_word(self.cluster)
        except Exception:  # the kubelet is down at the moment
            return
        for one in attested:
            name = one["metadata"]["name"]
            mine = {key: held for key, held in word.items() if key[1] == name}
            if mine:
                self.seen.append((one["metadata"]["uid"], mine))

    def record(self, folder: Path) -> None:
        """Keeps what was seen, and the logs."""
        (folder / "history.pickle").write_bytes(pickle.dumps(self.history.events))
        for name in ("device-plugin", "extender", "kubelet"):
            (folder / f"{name}.log").write_text(self.cluster.log(name))

    # -- what came of it --------------------------------------------------------------------------

    def complaints(self) -> list[str]:
        """What was not as it must be."""
        pods = self.history.of_pods()
        found = self.history.over_committed()
        self.away = self._kubelet_away()
        given: Counter[tuple[object, object]] = Counter()
        decided: Counter[tuple[object, object]] = Counter()
        self.summary: Counter[str] = Counter()
        for uid, events in pods.items():
            name = events[-1].object["metadata"]["name"]
            bound = next((e for e in events if e.object["spec"].get("nodeName")), None)
            if bound is None:
                self.summary["never bound"] += 1
                continue
            self.summary["bound"] += 1
            decision = self._placement(bound.object)
            if decision is None:
                found.append(f"{name} was bound without a decision")
                continue
            self._count(decided, bound.object, decision)
            attested = [e for e in events if plugging.assigned(e.object)]
            if attested:
                self.summary["attested"] += 1
                last = attested[-1]
                where = self._placement(last.object)
                assert where is not None
                self._count(given, last.object, where)
                self.summary["corrected"] += where != decision
                found += self._contradictions(uid, events[-1].object, attested)
                found += self._moved(name, attested)
            found += self._failure(events[-1].object)
        log = self.cluster.node.plugin_log()[self.log_before :]
        anew = log.count("has no room for it; it got GPU")
        self.summary["decided anew, as a kubelet counted pods that had ended"] += anew
        surplus = given - decided
        if surplus.total() > anew or (anew and not self.kubelet_killed):
            found.append(f"given, but decided for nobody: {dict(surplus)}")
        for line in re.findall(r"correction: .*", log):
            print(line)
            if "different classes" in line:
                found.append(line)
        return found + self._stuck() + self._left_over()

    def _moved(self, name: str, attested: list[Event]) -> list[str]:
        """Whether a pod's place changed after it was attested.

        A kubelet that starts allocates anew for a pod whose containers have finished, if the one
        before had no time to say so.
        """
        found: list[str] = []
        for one, other in itertools.pairwise(attested):
            if self._placement(one.object) == self._placement(other.object):
                continue
            if any(since < other.at < until + STUCK_S for since, until in self.away):
                self.summary["given anew by a kubelet that had started"] += 1
            else:
                found.append(f"{name}: its place changed after it was attested")
        return found

    def _placement(self, one: Object) -> Placement | None:
        record, _ = read_bound_pod(msgspec.convert(one, objects.Pod))
        if record is None or record.assignment is None:
            return None
        return placement_of(record.request, record.assignment, self._node())

    def _node(self) -> Any:
        for _, ledger in self.history.states():
            if self.cluster.node.name in ledger:
                node = ledger.books(self.cluster.node.name).node
                if node.gpus and node.attests:
                    return node
        raise AssertionError("the node never published its GPUs")

    def _count(
        self, counter: Counter[tuple[object, object]], one: Object, where: Placement
    ) -> None:
        request = read_request(msgspec.convert(one, objects.Pod))
        assert request is not None
        for cls, gpus in zip(classes_of(request), where.gpus, strict=True):
            counter[cls, gpus] += 1

    def _contradictions(self, uid: str, one: Object, attested: list[Event]) -> list[str]:
        """Between the annotations of an attested pod, its environment and PodResources.

        Where a pod was given a GPU anew (`_moved`), each must agree with one of its annotations.
        """
        found: list[str] = []
        name = one["metadata"]["name"]
        told = [plugging.placed(event.object) for event in attested]
        for container in told[-1]:
            gpus = [placed[container] for placed in told]
            environ = speaking.heard(self.out, one, container)
            if environ is not None:
                self.summary["environments"] += 1
                if names.ENV_MEM_IDX not in environ and one["metadata"].get("deletionTimestamp"):
                    # the kubelet takes ids from a deleted pod while its container still starts
                    self.summary["deleted while starting, without a GPU"] += 1
                elif names.ENV_MEM_IDX not in environ:
                    found.append(f"{name}/{container}: no GPU in its environment: {environ}")
                elif plugging.environments_word(environ) not in gpus:
                    found.append(f"{name}/{container}: annotations {gpus}, environment {environ}")
            for seen_uid, word in self.seen:
                key = ("default", name, container)
                if seen_uid == uid and key in word:
                    self.summary["kubelet's word"] += 1
                    if word[key] not in gpus:
                        found.append(f"{name}/{container}: annotations {gpus}, kubelet {word[key]}")
        return found

    def _failure(self, one: Object) -> list[str]:
        status = one["status"]
        if status.get("phase") != "Failed":
            return []
        text = f"{status.get('reason')}: {status.get('message')}"
        name = one["metadata"]["name"]
        if MARK in text and not any(known in text for known in plugging.AFTER_A_START):
            return [f"{name} was refused: {text}"]
        self.summary[f"failed: {_kind(text)}"] += 1
        if status.get("reason") not in ("UnexpectedAdmissionError", "NodeStatusUnknown", None):
            return [f"{name} failed: {text}"]
        return []

    def _stuck(self) -> list[str]:
        """Pods that waited for more than 10 s on end though the node had room for them.

        While there is no kubelet the clock stands still.
        """
        spans = ", ".join(f"{until - since:.1f} s" for since, until in self.away)
        print(f"without a kubelet: {spans}")
        waiting: dict[str, tuple[str, Any, float | None]] = {}
        found: list[str] = []
        worst = 0.0
        for event, ledger in self.history.states():
            one = event.object
            if event.is_pod:
                waits = not one["spec"].get("nodeName") and event.type != "DELETED"
                if waits and event.uid not in waiting:
                    request = read_request(msgspec.convert(one, objects.Pod))
                    waiting[event.uid] = (one["metadata"]["name"], request, None)
                elif not waits:
                    waiting.pop(event.uid, None)
            node = self.cluster.node.name
            books = ledger.books(node) if node in ledger else None
            for uid, (name, request, since) in list(waiting.items()):
                room = (
                    books is not None
                    and (books.node.advertised or 0) - books.used >= request.units
                    and isinstance(place(books, request, None), Placement)  # type: ignore[arg-type]
                )
                if not room:
                    waiting[uid] = (name, request, None)
                elif since is None:
                    waiting[uid] = (name, request, event.at)
                else:
                    waited = event.at - since - _overlap(self.away, since, event.at)
                    worst = max(worst, waited)
                    if waited > STUCK_S:
                        found.append(f"{name} waited {waited:.1f} s though there is room")
                        waiting[uid] = (name, request, event.at)
        print(f"longest wait of a pod there was room for: {worst:.2f} s")
        return found

    def _kubelet_away(self) -> list[tuple[float, float]]:
        """From when to when a new kubelet process did not look at its pods, by time.monotonic."""
        began: dict[str, float] = {}
        looked: dict[str, float] = {}
        for stamp, pid, text in _KLOG.findall(self.cluster.log("kubelet")):
            at = datetime.strptime(f"{datetime.now().year}{stamp}", "%Y%m%d %H:%M:%S.%f")
            began.setdefault(pid, at.timestamp())
            if '"SyncLoop ADD"' in text:
                looked.setdefault(pid, at.timestamp())
        wall = time.time() - time.monotonic()
        return [(began[pid] - wall, at - wall) for pid, at in looked.items()]

    def _left_over(self) -> list[str]:
        """On any books, after all pods have ended."""
        admin, node = self.cluster.admin, self.cluster.node
        for one in admin.list("pods", namespace="default"):
            admin.delete("pods", one["metadata"]["name"], grace_s=0)
        found: list[str] = []

        def clean() -> bool:
            annotations = admin.get("nodes", node.name)["metadata"]["annotations"]
            used = extending.used(self.cluster)[node.name]
            left = [
                f"the extender has {used} on the node's GPUs" if any(used) else "",
                *(
                    f"{name} is still {annotations[name]}"
                    for name in (names.ANNOTATION_CORRECTIONS, names.ANNOTATION_INIT_CORRECTIONS)
                    if name in annotations
                ),
            ]
            found[:] = [what for what in left if what]
            return not found

        try:
            wait_for(clean, 60, "nothing is left on the books")
        except TimedOut:
            return list(found)
        return []


_KLOG = re.compile(r"^[IWEF](\d{4} [\d:.]+) +(\d+) (.*)$", re.MULTILINE)
"""A line of a Kubernetes process's log: month, day and time; pid; text."""


def _overlap(spans: list[tuple[float, float]], start: float, end: float) -> float:
    """How much of the time from `start` to `end` lies in `spans`."""
    return sum(max(0.0, min(end, until) - max(start, since)) for since, until in spans)


def _kind(text: str) -> str:
    """The kind of a failure: its text without what differs."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]+|\d+", "N", text)[:110]
