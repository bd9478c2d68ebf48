"""Long random walks through the world of one node: the same properties, under heavy traffic.

A walk is its seed. `python -m tests.deviceplugin.core.test_walks SEED` prints one's events.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import pytest

from tests.deviceplugin.requests import INIT_ONLY, REQUESTS
from tests.deviceplugin.world import SECOND, World

TELL_OF_INIT = frozenset({"checkpoint", "hook"})
"""The sources that tell of init containers that have finished."""
EVERY_SOURCE = frozenset({"checkpoint", "podresources", "status"})
STEPS = 250
SEEDS = [*range(12), 34, 162]
"""The last two once showed ghosts that were let go too early."""
FORGETTING_SEEDS = [*SEEDS, 32, 61, 98, 126, 141, 293]
"""The last ones once showed a GPU above its units after a kubelet's start."""


class Walk:
    """One node under random events."""

    def __init__(
        self,
        seed: int,
        *,
        sources: frozenset[str] = EVERY_SOURCE,
        bypass: float = 0.0,
        forgets: float = 0.0,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.random = random.Random(seed)
        gpus = self.random.choice([(15, 15, 8), (15, 15), (8, 8, 8, 8), (15, 15, 15, 15)])
        placement = self.random.choice(["binpack", "spread"])
        self.world = World(seed, gpus, placement, sources=sources, forgets=forgets)
        self.world.kubelet.interrupt = self._interrupt
        self.bypass = bypass
        self.say = say
        told = [r for r in REQUESTS if r != INIT_ONLY or not sources.isdisjoint(TELL_OF_INIT)]
        self.requests = self.random.sample(told, self.random.choice([1, 3, len(told)]))

    def run(self, steps: int = STEPS) -> World:
        actions: list[tuple[int, Callable[[], object]]] = [
            (30, self.create),
            (40, self.admit),
            (25, self.see),
            (15, self.world.attest),
            (15, self.world.publish),
            (14, self.leave),
            (4, self.delete_finished),
            (0 if self.world.forgets else 3, self.reorder),
            (5, self.world.begin_all),
            (3 if self.world.forgets else 0, self.finish_containers),
            (1, self.world.restart_kubelet),
            (1, self.world.start_plugin),
            (2, self.world.kubelet.update_allocated),
            (5, self.later),
        ]
        weights = [weight for weight, _ in actions]
        for _ in range(steps):
            action = self.random.choices(actions, weights)[0][1]
            self.say(f"{getattr(action, '__name__', action)}")
            action()
            self.world.check_no_id_twice()
            self.world.check_reader()
        self.world.check_settled()
        return self.world

    def create(self) -> None:
        decided = self.random.random() >= self.bypass
        name = self.random.choice([None, None, "web-0"])
        if any(pod.record.name == name and not pod.gone for pod in self.world.pods.values()):
            name = None
        uid = self.world.create(self.random.choice(self.requests), decided=decided, name=name)
        if uid is not None:
            pod = self.world.pods[uid]
            self.say(f"   {uid} {pod.containers} {pod.decided} {pod.record.name}")

    def admit(self) -> None:
        if self.world.queue:
            uid = self.world.queue[0]
            self.world.admit()
            self.say(f"   {uid} {self.world.kubelet.pod_devices.get(uid)}")

    def see(self) -> None:
        if self.world.unseen:
            self.world.see()

    def leave(self) -> None:
        live = [uid for uid, pod in self.world.pods.items() if pod.live]
        if live:
            uid = self.random.choice(live)
            self.say(f"   {uid}")
            self.world.leave(uid, finish=self.random.random() < 0.5)

    def finish_containers(self) -> None:
        run = [uid for uid, pod in self.world.pods.items() if pod.live and pod.started]
        if run:
            uid = self.random.choice(run)
            self.say(f"   {uid}")
            self.world.finish_containers(uid)

    def delete_finished(self) -> None:
        for uid, pod in self.world.pods.items():
            if not pod.live and not pod.gone:
                self.world.leave(uid, finish=False)

    def reorder(self) -> None:
        self.random.shuffle(self.world.queue)

    def later(self) -> None:
        self.world.now += 20 * SECOND

    def _interrupt(self) -> None:
        """Between two steps of one allocation."""
        fault = self.random.choice([None] * 6 + ["attest", "list", "see"])
        if fault is not None:
            self.say(f"   … {fault}")
        if fault == "attest":
            self.world.attest()
            self.world.publish()
        elif fault == "list":
            self.world.kubelet.update_allocated()
        elif fault == "see":
            while self.world.unseen:
                self.world.see()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "sources",
    [
        EVERY_SOURCE,
        frozenset({"checkpoint"}),
        frozenset({"podresources"}),
        frozenset({"podresources", "status"}),
        frozenset({"hook"}),
    ],
    ids=lambda sources: "+".join(sorted(sources)),
)
def test_pods_get_what_was_decided(seed: int, sources: frozenset[str]) -> None:
    world = Walk(seed, sources=sources).run()
    assert not world.refusals
    assert not world.overruled


@pytest.mark.parametrize("seed", SEEDS)
def test_undecided_pods_among_them_are_placed_and_attributed(seed: int) -> None:
    Walk(seed, bypass=0.5).run()


@pytest.mark.parametrize("seed", FORGETTING_SEEDS)
@pytest.mark.parametrize("sources", [EVERY_SOURCE, frozenset({"hook"})], ids=["all", "hook"])
def test_a_kubelet_that_forgets_pods(seed: int, sources: frozenset[str]) -> None:
    """Some are refused, but nothing is given twice, nothing straddles, and the books are right."""
    Walk(seed, sources=sources, forgets=0.5).run()


def test_without_the_preference_the_kubelets_choice_is_refused() -> None:
    walk = Walk(1)
    walk.world.prefers = False
    assert any("several GPUs" in text for _, text in walk.run().refusals)


if __name__ == "__main__":
    Walk(int(sys.argv[1]), say=print).run()
