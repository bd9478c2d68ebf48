"""Whatever the order of events, each pod's place is one that was decided, and known."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpushare.model.request import Request
from tests.deviceplugin.requests import REQUESTS
from tests.deviceplugin.world import SECOND, World


class Cluster(RuleBasedStateMachine):
    """Pods decided by the extender."""

    bypass = False
    sources = frozenset({"checkpoint", "podresources", "status"})

    @initialize(
        seed=st.integers(0, 2**32),
        gpus=st.sampled_from([(15, 15, 8), (15, 15), (8, 8, 8, 8), (15,)]),
        placement=st.sampled_from(["binpack", "spread"]),
    )
    def start(self, seed: int, gpus: tuple[int, ...], placement: str) -> None:
        self.world = World(seed, gpus, placement, sources=self.sources)
        self.fault: str | None = None
        self.world.kubelet.interrupt = self._interrupt

    def _interrupt(self) -> None:
        fault, self.fault = self.fault, None
        if fault == "attest":
            self.world.attest()
            self.world.publish()
        elif fault == "list":
            self.world.kubelet.update_allocated()
        elif fault == "see":
            while self.world.unseen:
                self.world.see()

    @rule(
        asked=st.sampled_from(REQUESTS),
        count=st.integers(1, 3),
        decided=st.booleans(),
        name=st.sampled_from([None, None, "web-0"]),
    )
    def create(self, asked: Request, count: int, decided: bool, name: str | None) -> None:
        for _ in range(count):
            taken = any(p.record.name == name and not p.gone for p in self.world.pods.values())
            self.world.create(
                asked, decided=decided or not self.bypass, name=None if taken else name
            )

    @rule(fault=st.sampled_from([None, None, "attest", "list", "see"]))
    @precondition(lambda self: self.world.queue)
    def admit(self, fault: str | None) -> None:
        self.fault = fault
        self.world.admit()
        self.fault = None

    @rule(choice=st.integers(0, 1000))
    @precondition(lambda self: len(self.world.queue) > 1)
    def kubelet_gets_pods_in_another_order(self, choice: int) -> None:
        queue = self.world.queue
        queue.insert(0, queue.pop(choice % len(queue)))

    @rule(choice=st.integers(0, 1000), finish=st.booleans())
    @precondition(lambda self: any(pod.live for pod in self.world.pods.values()))
    def leave(self, choice: int, finish: bool) -> None:
        live = [uid for uid, pod in self.world.pods.items() if pod.live]
        self.world.leave(live[choice % len(live)], finish=finish)

    @rule()
    @precondition(lambda self: any(not p.live and not p.gone for p in self.world.pods.values()))
    def delete_finished(self) -> None:
        for uid, pod in self.world.pods.items():
            if not pod.live and not pod.gone:
                self.world.leave(uid, finish=False)

    @rule()
    @precondition(lambda self: self.world.unseen)
    def see(self) -> None:
        self.world.see()

    @rule()
    def attest(self) -> None:
        self.world.attest()

    @rule()
    def containers_start(self) -> None:
        self.world.begin_all()

    @rule()
    def publish(self) -> None:
        self.world.publish()

    @rule()
    def restart_plugin(self) -> None:
        self.world.start_plugin()

    @rule()
    def restart_kubelet(self) -> None:
        self.world.restart_kubelet()

    @rule()
    def somebody_lists_pod_resources(self) -> None:
        self.world.kubelet.update_allocated()

    @rule()
    def time_passes(self) -> None:
        self.world.now += 20 * SECOND

    @invariant()
    def no_id_is_given_twice(self) -> None:
        self.world.check_no_id_twice()
        self.world.check_reader()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_settled()
            self.check_refusals()

    def check_refusals(self) -> None:
        assert not self.world.refusals
        assert not self.world.overruled


class ClusterWithBypass(Cluster):
    """Some pods come by another scheduler, undecided."""

    bypass = True

    def check_refusals(self) -> None:
        pass


TestEveryPodIsDecided = Cluster.TestCase
TestEveryPodIsDecided.settings = settings(max_examples=150, stateful_step_count=40)
TestSomePodsAreUndecided = ClusterWithBypass.TestCase
TestSomePodsAreUndecided.settings = settings(max_examples=100, stateful_step_count=40)
