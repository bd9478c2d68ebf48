"""One node in a cluster, small enough to try every order of events.

    Api        pods and the node's annotations, and a history that watches lag behind
    extender   binds with a decision, waits for a class (model.calls.confusable), keeps pods that
               left un-attested on its books until the plugin has seen that and published since
    kubelet    kubelet_model
    plugin     the pure core under test, driven as the process drives it
    reader     anybody who reads pods and node: the ledger, with corrections

Every write to the API is checked by the reader: no GPU above its units.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from gpushare.contract import names
from gpushare.contract.allocation import decode_allocation, decode_corrections
from gpushare.contract.names import Mode
from gpushare.contract.units import Unit
from gpushare.deviceplugin.core.attesting import (
    Round,
    Sighting,
    attest,
    kubelet_started,
    presume,
    release,
)
from gpushare.deviceplugin.core.books import Books
from gpushare.deviceplugin.core.ids import by_gpu, device_ids
from gpushare.deviceplugin.core.matching import Matching
from gpushare.deviceplugin.core.offers import Granted, Offer, Stale
from gpushare.deviceplugin.core.pods import PodFacts
from gpushare.deviceplugin.core.publishing import Corrections, pod_patches
from gpushare.deviceplugin.core.refusals import Refused
from gpushare.model.calls import calls_of, classes_of, confusable
from gpushare.model.gpus import Assignment, Gpu, Node
from gpushare.model.holding import Placement, placement_of
from gpushare.model.ledger import Ledger, PodRecord
from gpushare.model.owner import Owner
from gpushare.model.request import Request
from gpushare.policy.fit import place
from tests.deviceplugin.kubelet_model import Container, KubeletModel, PluginError

SECOND = 1_000_000_000


@dataclass
class ApiPod:
    """A pod object, and what the world knows of its fate."""

    record: PodRecord
    containers: list[Container]
    bound_ns: int
    decided: Placement | None
    """What the extender decided; None if it never saw the pod."""
    assigned: bool = False
    started: bool = False
    gone: bool = False

    @property
    def live(self) -> bool:
        return not self.gone and not self.record.finished

    def facts(self) -> PodFacts:
        has = {names.ANNOTATION_ALLOCATION} if self.record.assignment else set()
        return PodFacts(
            record=self.record,
            bound_ns=self.bound_ns,
            created_ns=self.bound_ns,
            app_names=tuple(c.name for c in self.containers if not c.init),
            init_names=tuple(c.name for c in self.containers if c.init),
            started=self.started,
            assigned=self.assigned,
            annotations=frozenset(has),
        )


@dataclass
class World:
    seed: int
    gpu_units: tuple[int, ...] = (15, 15, 8)
    placement: str = "spread"
    forgets: float = 0.0
    """How likely a restarted kubelet has forgotten what it gave a pod that does not run yet."""
    prefers: bool = True
    """GetPreferredAllocation is served."""
    sources: frozenset[str] = frozenset({"checkpoint", "podresources", "status"})
    letters: dict[tuple[str, str], tuple[frozenset[str], int]] = field(default_factory=dict)
    """(UID, container) -> the ids it had when it started, and when that was: the hook's letters."""
    done: set[str] = field(default_factory=set)
    """Pods whose containers have finished, which the API has yet to hear."""
    done_again: set[str] = field(default_factory=set)
    """Of these, the ones that a kubelet has admitted once more."""
    pods: dict[str, ApiPod] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    """UIDs whose last change the plugin's watch has yet to bring, in order."""
    queue: list[str] = field(default_factory=list)
    """UIDs the kubelet has yet to admit, in its order."""
    leavers: set[str] = field(default_factory=set)
    """Pods that left un-attested, which the extender keeps charged for now."""
    decided: Counter[tuple[object, object]] = field(default_factory=Counter)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    overruled: int = 0
    now: int = 1_000 * SECOND
    serial: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.node = Node(
            "n1",
            Mode.SHARE,
            self.placement,
            tuple(
                Gpu(index, units, uuid=f"GPU-{index}") for index, units in enumerate(self.gpu_units)
            ),
            attests=True,
        )
        self.annotations: dict[str, str] = {}
        self.kubelet = KubeletModel(
            [i for gpu in self.node.gpus for i in device_ids(gpu.uuid or "", Unit.GIB, gpu.units)],
            self.random,
            active=lambda uid: self.pods[uid].live and uid not in self.done,
        )
        self.start_plugin()

    # -- the API, and whoever reads it ------------------------------------------------------------

    def api_node(self) -> Node:
        app = decode_corrections("c", self.annotations.get(names.ANNOTATION_CORRECTIONS, "{}"))
        init = decode_corrections(
            "c", self.annotations.get(names.ANNOTATION_INIT_CORRECTIONS, "{}")
        )
        return replace(
            self.node,
            corrections={
                uid: Assignment(app.get(uid, {}), init.get(uid, {})) for uid in {*app, *init}
            },
        )

    def ledger(self, *, leavers: bool = False) -> Ledger:
        ledger = Ledger()
        ledger.put_node(self.api_node())
        for uid, pod in self.pods.items():
            if leavers and uid in self.leavers:
                ledger.put_pod(replace(pod.record, finished=False))
            elif not pod.gone:
                ledger.put_pod(pod.record)
        return ledger

    def check_reader(self) -> None:
        """No reader of pods and node ever sees a GPU above its units."""
        books = self.ledger().books("n1")
        for gpu in books.gpus:
            assert gpu.used <= gpu.gpu.units, f"GPU {gpu.gpu.index}: {gpu.used} of {gpu.gpu.units}"

    def changed(self, uid: str) -> None:
        self.unseen.append(uid)
        self.check_reader()

    # -- pods come and go -------------------------------------------------------------------------

    def create(self, request: Request, *, decided: bool, name: str | None = None) -> str | None:
        """A pod comes to the node; its UID, or None where it does not fit or has to wait."""
        owner = Owner("default", "Job", f"j{self.serial % 2}")
        placement: Placement | None = None
        for pod in self.pods.values():
            known = pod.live or pod.record.uid in self.unseen  # the plugin may still wait for it
            if known and not pod.assigned and confusable(pod.record.request, request):
                return None
        if decided:
            answer = place(self.ledger(leavers=True).books("n1"), request, owner)
            if not isinstance(answer, Placement):
                return None
            placement = answer
        else:
            held = sum(pod.record.request.units for pod in self.pods.values() if pod.live)
            if held + request.units > self.node.units:
                return None
        self.serial += 1
        self.now += SECOND
        uid = f"u{self.serial:03}"
        assignment = None
        if placement is not None:
            assignment = Assignment(
                placement.allocation(request, init=False), placement.allocation(request, init=True)
            )
        self.pods[uid] = ApiPod(
            PodRecord(uid, "default", name or f"p{uid}", "n1", owner, request, assignment),
            containers_of(request),
            self.now,
            placement,
        )
        if placement is not None:
            self.count(self.decided, request, placement)
        self.queue.append(uid)
        self.changed(uid)
        return uid

    def count(
        self, counter: Counter[tuple[object, object]], request: Request, p: Placement
    ) -> None:
        for cls, gpus in zip(classes_of(request), p.gpus, strict=True):
            counter[cls, gpus] += 1

    def leave(self, uid: str, *, finish: bool) -> None:
        """A pod ends (`finish`), or its object goes."""
        pod = self.pods[uid]
        if pod.live and not pod.assigned:
            self.leavers.add(uid)
        if uid in self.queue:
            self.queue.remove(uid)
        if finish:
            pod.record = replace(pod.record, finished=True)
        else:
            pod.gone = True
        self.changed(uid)

    # -- the kubelet ------------------------------------------------------------------------------

    def admit(self) -> None:
        """The kubelet takes the next pod."""
        uid = self.queue.pop(0)
        if not self.queue:
            self.kubelet.blind = False
        if uid in self.done:
            self.done.remove(uid)
            self.done_again.add(uid)
        pod = self.pods[uid]
        try:
            self.kubelet.admit(uid, pod.containers, self)
        except PluginError as error:
            self.note_decisions()
            if pod.live:
                self.refusals.append((uid, str(error)))
                self.leave(uid, finish=True)
            return
        self.note_decisions()
        if pod.live:
            self.check_truth(uid)
            # Only the checkpoint tells what the init containers of a pod have that does not run.
            if pod.started:
                return
            if "checkpoint" not in self.sources or self.random.random() < 0.7:
                self.begin(uid)

    def begin(self, uid: str) -> None:
        """The pod's first container is created."""
        self.pods[uid].started = True
        for name, ids in self.kubelet.pod_devices.get(uid, {}).items():
            self.letters[uid, name] = frozenset(ids), self.now
        self.changed(uid)

    def finish_containers(self, uid: str) -> None:
        """They have done their work; the kubelet takes its ids back, and has yet to tell."""
        self.done.add(uid)

    def begin_all(self) -> None:
        for uid in self.kubelet.pod_devices:
            pod = self.pods[uid]
            if pod.live and not pod.started and uid not in self.queue:
                self.begin(uid)

    def restart_kubelet(self) -> None:
        """A new kubelet admits what is there; what does not run, once more.

        Where kubelets forget, it may have been killed before it wrote its last allocation down, and
        it goes through the pods as they were created; else they come in any order.
        """
        self.now += 1000
        had = {*self.kubelet.pod_devices}
        hard = self.random.random() < self.forgets
        last = self.pods.get(self.kubelet.last or "")
        self.kubelet.restart(unwritten=hard and last is not None and not last.started, blind=hard)
        for uid, pod in self.pods.items():
            if not pod.live or uid in self.queue:
                continue
            if uid in had and not pod.started:
                self.queue.append(uid)
                if self.random.random() < self.forgets:
                    self.kubelet.forget(uid)
            elif uid in self.done and uid not in self.kubelet.pod_devices:
                self.queue.append(uid)
        if hard:
            self.queue.sort()  # as they were created
        else:
            self.random.shuffle(self.queue)
        self.serve_a_kubelet()
        self.publish()

    # the plugin, as the kubelet calls it

    def preferred(self, available: list[str], must: list[str], size: int) -> list[str]:
        if not self.prefers:
            return []
        answer = self.matching.prefer(available, must, size, current=False)
        if isinstance(answer, Stale):
            self.refresh(set(available) - set(must))
            answer = self.matching.prefer(available, must, size, current=True)
        assert not isinstance(answer, Stale)
        if isinstance(answer, Refused):
            raise PluginError(str(answer))
        assert isinstance(answer, Offer)
        assert len(answer.ids) == size
        return sorted(answer.ids)

    def note_decisions(self) -> None:
        """A place that was decided anew is published before the extender decides again.

        In truth that takes a moment, in which the extender does not know of it.
        """
        anew = [one for one in self.books.decisions if one.overruled is not None]
        for decision in self.books.decisions:
            self.decided[decision.piece.cls, decision.place] += 1
        self.overruled += len(anew)
        self.books.decisions.clear()
        if anew:
            self.publish()

    def allocate(self, ids: list[str]) -> None:
        self.now += 1000
        answer = self.matching.allocate(frozenset(ids), self.now, current=False)
        if isinstance(answer, Stale):
            for uid in list(self.pods):
                self._see(uid)
            self.unseen = []
            answer = self.matching.allocate(frozenset(ids), self.now, current=True)
        if isinstance(answer, Refused):
            raise PluginError(str(answer))
        assert isinstance(answer, Granted)
        for key in [key for key, (had, _) in self.letters.items() if had == answer.ids]:
            del self.letters[key]

    # -- the plugin -------------------------------------------------------------------------------

    def start_plugin(self) -> None:
        """A new plugin process: first list, then what the kubelet has, then it serves."""
        node = self.api_node()
        if hasattr(self, "books"):
            self.note_decisions()
        self.books = Books(node, Unit.GIB, dict(node.corrections))
        self.matching = Matching(self.books)
        self.corrections = Corrections(dict.fromkeys(node.corrections, 0))
        self.unseen = []
        for pod in self.pods.values():
            if not pod.gone:
                self.books.put(pod.facts())
        self.serve_a_kubelet()

    def serve_a_kubelet(self) -> None:
        """A kubelet process that the plugin process has not served before."""
        self.attest()
        presume(self.books, self.now)
        kubelet_started(self.books, self.round())

    def see(self) -> None:
        """The plugin's watch brings the next change."""
        self._see(self.unseen.pop(0))

    def _see(self, uid: str) -> None:
        pod = self.pods[uid]
        if pod.gone:
            self.books.remove(uid)
        else:
            self.books.put(pod.facts())

    def refresh(self, free: set[str]) -> None:
        """A fresh list, and a fresh look at what the kubelet has."""
        for uid in list(self.pods):
            self._see(uid)
        self.unseen = []
        self.attest()
        release(self.books, free, self.round())

    def round(self) -> Round:
        """Ask the sources. Not PodResources while the kubelet is choosing ids, see matching."""
        found: list[Sighting] = []
        lists = "podresources" in self.sources and self.matching.last is None
        if lists:
            self.kubelet.update_allocated()
        if "checkpoint" in self.sources:
            for uid, devices in self.kubelet.checkpoint.items():
                found += [Sighting(name, frozenset(ids), uid=uid) for name, ids in devices.items()]
            return Round(self.now, found, listed=True, complete=True)
        if "hook" in self.sources:
            found += [
                Sighting(name, ids, uid=uid, at_ns=at_ns)
                for (uid, name), (ids, at_ns) in self.letters.items()
                if not self.pods[uid].gone
            ]
        for uid, devices in self.kubelet.pod_devices.items():
            pod = self.pods[uid]
            plain = {c.name for c in pod.containers if c.init and not c.sidecar}
            app = {c.name for c in pod.containers if not c.init}
            for name, ids in devices.items():
                if lists and name not in plain and pod.live:
                    found.append(Sighting(name, frozenset(ids), None, "default", pod.record.name))
                if "status" in self.sources and name in app and pod.started and not pod.gone:
                    found.append(Sighting(name, frozenset(ids), uid=uid))
        return Round(self.now, found, listed=lists, complete=False)

    def attest(self) -> None:
        for attested in attest(self.books, self.round()):
            assert not attested.foreign

    def publish(self) -> None:
        """One round of writes."""
        for name, value in self.corrections.wanted(self.books, self.now).items():
            if value is None:
                self.annotations.pop(name, None)
            else:
                self.annotations[name] = value
        self.check_reader()
        if not self.books.waiting():
            self.leavers &= set(self.unseen)
        for patch in pod_patches(self.books, self.now):
            pod = self.pods[patch.uid]
            if pod.gone:
                continue
            allocation = patch.annotations.get(names.ANNOTATION_ALLOCATION)
            if allocation is not None:
                init = patch.annotations.get(names.ANNOTATION_INIT_ALLOCATION) or "{}"
                pod.record = replace(
                    pod.record,
                    assignment=Assignment(
                        decode_allocation("a", allocation), decode_allocation("i", init)
                    ),
                )
            pod.assigned = patch.annotations.get(names.ANNOTATION_ASSIGNED) == "true"
            self.changed(patch.uid)

    # -- what is true -----------------------------------------------------------------------------

    def truth(self, uid: str) -> Placement:
        """Where the kubelet has a pod."""
        pod = self.pods[uid]
        devices = self.kubelet.pod_devices[uid]
        places: list[tuple[int, ...]] = []
        for calls in calls_of(pod.record.request):
            ids: set[str] = set()
            for call in calls:
                ids |= devices[container_name(call.ask.init, call.ask.index)]
            places.append(tuple(sorted(self.shape(ids))))
        return Placement(tuple(places))

    def shape(self, ids: set[str]) -> dict[int, list[str]]:
        shape = by_gpu(ids, self.books.index_of, Unit.GIB)
        assert shape is not None
        return shape

    def check_truth(self, uid: str) -> None:
        """Ids are in equal parts on as many GPUs as were asked for, a chunk's on the same."""
        request = self.pods[uid].record.request
        for calls in calls_of(request):
            places = set()
            for call in calls:
                ids = self.kubelet.pod_devices[uid][container_name(call.ask.init, call.ask.index)]
                shape = self.shape(ids)
                assert len({len(mine) for mine in shape.values()}) == 1, "unequal parts"
                places.add(tuple(sorted(shape)))
            assert len(places) == 1, f"chunk on {places}"
            assert len(places.pop()) == request.gpus_per_chunk, "straddles"
        self.check_no_id_twice()

    def check_no_id_twice(self) -> None:
        held: Counter[str] = Counter()
        for uid, devices in self.kubelet.pod_devices.items():
            if self.pods[uid].live:
                held.update(set().union(*devices.values()))
        assert not [i for i, count in held.items() if count > 1], "an id was given twice"

    def check_settled(self) -> None:
        """After everything has been seen, attested and published, books and truth agree."""
        for uid in self.done | self.done_again:
            if self.pods[uid].live:
                self.leave(uid, finish=True)
        for _ in range(5):
            while self.queue:
                self.admit()
            self.begin_all()
            while self.unseen:
                self.see()
            self.attest()
            self.now += 60 * SECOND
            presume(self.books, self.now)
            self.publish()
        self.note_decisions()
        node, ledger = self.api_node(), self.ledger()
        given: Counter[tuple[object, object]] = Counter()
        for uid, pod in self.pods.items():
            if not pod.live:
                assert uid not in self.books.pods
                assert uid not in node.corrections
                continue
            self.count(given, pod.record.request, self.truth(uid))
            record = pod.record
            assert record.assignment is not None, f"{uid} was never attributed"
            where = placement_of(record.request, record.assignment, node)
            assert where == self.truth(uid), f"{uid}: annotation {where}, kubelet {self.truth(uid)}"
            assert pod.assigned
            holding = ledger.holding(uid)
            assert holding is not None
            assert holding == self.truth(uid).holding(record.request, record.owner)
        assert not node.corrections, "corrections stay behind"
        assert not given - self.decided, "pairs given that nobody decided"


def container_name(init: bool, index: int) -> str:
    return f"{'i' if init else 'a'}{index}"


def containers_of(request: Request) -> list[Container]:
    return [
        Container(container_name(ask.init, ask.index), ask.units, ask.init, ask.sidecar)
        for chunk in request.chunks
        for ask in chunk.containers
    ]
