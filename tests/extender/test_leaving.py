"""Pods that leave before anybody saw which GPU they had stay charged, as long as that matters."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace

import pytest

from gpushare.contract import names
from gpushare.extender import leaving
from gpushare.extender.leaving import LEAVE_GRACE_S, SILENT_S, Leavers
from gpushare.extender.main import App
from gpushare.model.ledger import Ledger, PodRecord
from tests.deviceplugin import world as plugin_world
from tests.deviceplugin.requests import REQUESTS
from tests.extender.fake_cluster import FakeCluster, Json, allocation, node, pod
from tests.extender.state_helpers import World
from tests.extender.test_bind import ready
from tests.extender.test_bind import used as used_of_app
from tests.extender.test_state import Heard, reserve, used
from tests.kube.fake_api import eventually

ATTESTS = '{"version":1,"unit":"GiB","attests":true,"injection":"fake"}'
GPUS = [15, 15, 15]


def sharing(name: str = "n1", *, serves: bool = True, **corrections: dict[str, int]) -> Json:
    """A node whose plugin attests. `serves`: it is there. `corrections`: pod -> GPU -> units."""
    annotations = {names.ANNOTATION_NODE: ATTESTS}
    if corrections:
        entries = {f"uid-{pod}": {"0": gpus} for pod, gpus in corrections.items()}
        annotations[names.ANNOTATION_CORRECTIONS] = json.dumps(entries)
    manifest = node(name, GPUS, **annotations)
    if not serves:
        manifest["status"]["allocatable"] = {names.RESOURCE_MEM: "0"}
    return manifest


def bound(
    name: str, gpu: int, units: int = 4, *, attested: bool = False, on: str = "n1", **more: object
) -> Json:
    annotations = {
        **allocation(gpu, units=units),
        names.ANNOTATION_ASSIGNED: "true" if attested else "false",
    }
    return pod(name, units, nodeName=on, annotations=annotations, **more)


def later(world: World, seconds: float, name: str = "n1") -> list[int]:
    """Units per GPU after that time."""
    world.now += seconds
    world.state.leavers.round()
    return used(world, name)


@pytest.fixture
def world() -> World:
    world = World()
    world.put(sharing())
    return world


ENDS = pytest.mark.parametrize("end", ["deleted", "Succeeded", "Failed"])


def leave(world: World, manifest: Json, end: str = "deleted") -> None:
    if end == "deleted":
        world.gone(manifest)
    else:
        world.put({**manifest, "status": {"phase": end}})


# --- how long ------------------------------------------------------------------------------------


@ENDS
def test_it_stays_for_a_moment_in_case_the_plugin_does_not_know_yet(world: World, end: str) -> None:
    world.put(bound("a", 0))
    leave(world, bound("a", 0), end)
    assert later(world, 0) == [4, 0, 0]
    assert later(world, LEAVE_GRACE_S - 0.1) == [4, 0, 0]
    assert later(world, 0.1) == [0, 0, 0]


@ENDS
def test_it_stays_until_who_may_have_its_gpu_is_attested(world: World, end: str) -> None:
    world.put(bound("a", 0), bound("b", 1))
    leave(world, bound("a", 0), end)
    assert later(world, 60) == [4, 4, 0]
    world.put(bound("b", 0, attested=True))  # it was the other way round
    assert later(world, 0) == [4, 0, 0]


def test_one_chunk_of_the_same_class_is_enough(world: World) -> None:
    several = pod("b", 4, 8, nodeName="n1", annotations=allocation(1, 1))
    world.put(bound("a", 0), several)
    world.gone(bound("a", 0))
    assert later(world, 60) == [4, 12, 0]


def test_pods_of_other_classes_do_not_matter(world: World) -> None:
    world.put(bound("a", 0), bound("b", 1, 8), bound("c", 2, 6))
    world.put(sharing("n2"), bound("d", 1, on="n2"))  # nor those on other nodes
    world.gone(bound("a", 0))
    assert later(world, LEAVE_GRACE_S) == [0, 8, 6]


def test_pods_that_have_left_too_do_not_matter(world: World) -> None:
    world.put(bound("a", 0), bound("b", 1), bound("c", 2))
    world.gone(bound("a", 0))
    assert later(world, LEAVE_GRACE_S) == [4, 4, 4]
    world.gone(bound("b", 1))
    leave(world, bound("c", 2), "Succeeded")
    assert later(world, 0) == [0, 4, 4]
    assert later(world, LEAVE_GRACE_S) == [0, 0, 0]


def test_a_pod_that_came_after_the_grace_cannot_have_its_gpu(world: World) -> None:
    """A stream of short pods of one class keeps nobody charged for ever."""
    world.put(bound("a", 0), bound("b", 1))
    world.gone(bound("a", 0))
    world.put(bound("in time", 2))
    assert later(world, LEAVE_GRACE_S) == [4, 4, 4]
    world.put(bound("late", 2, 4), bound("b", 1, attested=True))
    assert later(world, 0) == [4, 4, 8]
    world.put(bound("in time", 2, attested=True))
    assert later(world, 0) == [0, 4, 8]


# --- who is let go at once -----------------------------------------------------------------------


@ENDS
def test_an_attested_pod_is_released_at_once(world: World, end: str) -> None:
    world.put(bound("a", 0, attested=True), bound("b", 1))
    leave(world, bound("a", 0, attested=True), end)
    assert used(world) == [0, 4, 0]


@ENDS
def test_without_a_plugin_that_attests_it_is_released_at_once(end: str) -> None:
    world = World()
    world.put(node("n1", GPUS), bound("a", 0), bound("b", 1))
    leave(world, bound("a", 0), end)
    assert used(world) == [0, 4, 0]


def test_a_pod_first_seen_when_it_had_finished_holds_nothing(world: World) -> None:
    world.put(bound("a", 0, phase="Succeeded"))
    assert used(world) == [0, 0, 0]


def test_a_finished_pod_that_is_attested_after_all_is_released_at_once(world: World) -> None:
    world.put(bound("a", 0), bound("b", 1))
    world.put(bound("a", 0, phase="Succeeded"))
    assert used(world) == [4, 4, 0]
    world.put(bound("a", 0, phase="Succeeded", attested=True))
    assert used(world) == [0, 4, 0]
    world.gone(bound("a", 0))
    assert used(world) == [0, 4, 0]
    world.put(bound("c", 2))
    world.put(bound("c", 2, phase="Succeeded", attested=True))
    assert used(world) == [0, 4, 0]


def test_a_pod_that_is_there_again_has_not_left(world: World) -> None:
    """A list from an API server that lags behind can say so."""
    world.put(bound("a", 0))
    world.gone(bound("a", 0))
    world.put(bound("a", 0))
    assert later(world, LEAVE_GRACE_S) == [4, 0, 0]
    assert world.state.standing("uid-a") is not None


def test_a_reservation_that_is_rolled_back_was_never_there(world: World) -> None:
    world.put(pod("p", 4), bound("b", 1))
    assert world.state.roll_back(reserve(world, "p"))
    assert used(world) == [0, 4, 0]


def test_a_pod_whose_bind_was_never_seen_may_have_been_there(world: World) -> None:
    world.put(pod("p", 4), pod("q", 4))
    reservation = reserve(world, "p")
    assert world.state.gone(reservation)
    assert not world.state.gone(reservation)
    reserve(world, "q", 1)
    world.gone(pod("q", 4))  # as a new list does
    assert world.state.reservations == {}
    assert used(world) == [4, 4, 0]
    assert later(world, LEAVE_GRACE_S) == [0, 0, 0]


# --- the plugin, and the node --------------------------------------------------------------------


def test_while_the_plugin_restarts_it_stays_for_half_a_minute(world: World) -> None:
    world.put(bound("a", 0), bound("b", 1))
    world.gone(bound("a", 0))
    world.put(sharing(serves=False))
    assert later(world, SILENT_S - 0.1) == [4, 4, 0]
    world.put(sharing(serves=False))  # the same once more does not begin anew
    assert later(world, 0.1) == [0, 4, 0]


def test_a_plugin_that_comes_back_finds_it_still_charged(world: World) -> None:
    world.put(bound("a", 0), bound("b", 1))
    world.put(sharing(serves=False))
    world.now += SILENT_S / 2
    world.gone(bound("a", 0))
    world.put(sharing())
    assert later(world, SILENT_S) == [4, 4, 0]
    world.put(sharing(serves=False))  # once more
    assert later(world, SILENT_S / 2) == [4, 4, 0]
    world.put(sharing(), bound("b", 1, attested=True))
    assert later(world, 0) == [0, 4, 0]


def test_where_the_plugin_has_been_away_for_long_it_is_released_at_once(world: World) -> None:
    world.put(bound("a", 0), sharing(serves=False))
    world.now += SILENT_S
    world.gone(bound("a", 0))
    assert used(world) == [0, 0, 0]
    world.gone(sharing())
    world.put(sharing(serves=False), bound("b", 1))  # a new node under the name
    world.gone(bound("b", 1))
    assert used(world) == [0, 4, 0]


def test_it_goes_when_the_node_has_no_plugin_of_ours_any_more(world: World) -> None:
    world.put(bound("a", 0), bound("b", 1))
    world.gone(bound("a", 0))
    world.put(node("n1", GPUS))
    assert later(world, 0) == [0, 4, 0]


def test_it_goes_with_its_node(world: World) -> None:
    world.put(bound("a", 0), bound("b", 1))
    world.gone(bound("a", 0), sharing())
    world.state.leavers.round()
    assert "uid-a" not in world.state.ledger.pods
    world.put(sharing())
    assert used(world) == [0, 4, 0]


# --- counted once --------------------------------------------------------------------------------


def test_a_finished_pod_that_is_deleted_leaves_once(world: World) -> None:
    world.put(bound("a", 0))
    world.put(bound("a", 0, phase="Succeeded"))
    world.now += LEAVE_GRACE_S / 2
    world.gone(bound("a", 0))
    assert later(world, LEAVE_GRACE_S / 2) == [0, 0, 0]
    assert world.state.ledger.pods == {}


def test_a_finished_pod_that_was_let_go_is_not_charged_when_it_is_deleted(world: World) -> None:
    world.put(bound("a", 0))
    world.put(bound("a", 0, phase="Succeeded"))
    later(world, LEAVE_GRACE_S)
    world.put(bound("a", 0, phase="Succeeded", labels={"seen": "again"}))
    world.gone(bound("a", 0))
    assert used(world) == [0, 0, 0]
    assert world.state.ledger.pods == {}


@ENDS
def test_the_nodes_correction_wins_and_stays(world: World, end: str) -> None:
    world.put(bound("a", 0))
    leave(world, bound("a", 0), end)
    world.put(sharing(a={"1": 4}))
    assert used(world) == [0, 4, 0]
    assert later(world, LEAVE_GRACE_S) == [0, 4, 0]
    world.put(sharing())
    assert used(world) == [0, 0, 0]


def test_a_pod_created_again_under_its_name_is_another_one(world: World) -> None:
    world.put(bound("web-0", 0))
    world.gone(bound("web-0", 0))
    world.put(bound("web-0", 1, uid="uid-second"))
    assert later(world, LEAVE_GRACE_S) == [4, 4, 0]
    world.put(bound("web-0", 1, uid="uid-second", attested=True))
    assert later(world, 0) == [0, 4, 0]


# --- what else sees it ---------------------------------------------------------------------------


def test_a_pod_that_is_gone_is_on_no_node_to_the_scheduler(world: World) -> None:
    world.put(bound("a", 0))
    world.gone(bound("a", 0))
    assert world.state.standing("uid-a") is None
    assert world.state.ledger.recount("n1") == 0


def test_nobody_is_told_that_a_finished_pod_has_no_gpu(world: World) -> None:
    undecided = pod("u", 4, nodeName="n1")
    world.put(undecided)
    world.state.listener = heard = Heard()
    world.put({**undecided, "status": {"phase": "Failed"}})
    assert world.state.ledger.books("n1").pending == 4
    assert heard.heard == []


def test_the_room_it_will_leave_stays_promised(world: World) -> None:
    """As a terminating pod's: whoever was nominated for it loses none to others."""
    world.put(bound("b", 1, 15, attested=True), bound("c", 2, 15, attested=True), bound("a", 0, 8))
    world.put(pod("next", 15, nominatedNodeName="n1"))
    world.put(bound("a", 0, 8, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert world.filter(pod("small", 2))[0] == []
    world.gone(bound("a", 0, 8))
    assert world.filter(pod("small", 2))[0] == []
    assert later(world, LEAVE_GRACE_S) == [0, 15, 15]
    assert world.filter(pod("small", 2))[0] == []


def test_a_call_may_still_be_taken_for_it_only_during_the_grace(world: World) -> None:
    """What keeps confusable binds waiting (classwait)."""
    world.put(bound("a", 0), bound("b", 1), bound("c", 2, attested=True))
    world.put(bound("d", 2, phase="Succeeded"), sharing(d={"2": 4}))

    def awaited() -> list[str]:
        return [record.name for record in world.state.leavers.awaited("n1")]

    world.gone(bound("a", 0))
    assert awaited() == ["a", "b"]
    world.now += LEAVE_GRACE_S
    assert world.state.leavers.round()  # whoever waits is told
    assert awaited() == ["b"]
    assert not world.state.leavers.round()


async def test_the_extender_lets_go_by_itself_and_tells_who_waits(
    app: App, api: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "LEAVE_GRACE_S", 0.8)
    await ready(app, api, sharing(), bound("a", 0))
    api.delete_pod("a")
    await eventually(lambda: "uid-a" in app.extender.state.leavers)
    assert used_of_app(app) == [4, 0, 0]
    told = asyncio.Event()
    app.extender.state.subscribers.append(told)
    await asyncio.wait_for(told.wait(), 5)
    assert used_of_app(app) == [0, 0, 0]


# --- with the plugin -----------------------------------------------------------------------------


class Node(plugin_world.World):
    """One node with the real core of the plugin, and the extender's books beside it."""

    step_s = 0.1
    seen_every = 15
    """Steps; 1.5 s, so the plugin knows and has published before a grace ends."""

    def __post_init__(self) -> None:
        self.extenders = Ledger()
        self.clock = 0.0
        self.leavers_ = Leavers(self.extenders, lambda: self.clock)
        super().__post_init__()
        self.node = replace(self.node, advertised=self.node.units)

    def ledger(self, *, leavers: bool = False) -> Ledger:
        if not leavers:
            return super().ledger()
        self.extenders.put_node(self.api_node())
        return self.extenders

    def changed(self, uid: str) -> None:
        pod = self.pods[uid]
        record: PodRecord = replace(pod.record, attested=pod.assigned)
        if pod.gone:
            self.leavers_.remove(uid)
        else:
            self.leavers_.put(record)
        super().changed(uid)

    def walk(self, steps: int) -> None:
        kinds = self.random.sample(REQUESTS, 2)
        for step in range(steps):
            self.clock += self.step_s
            self.extenders.put_node(self.api_node())
            self.leavers_.round()
            live = [uid for uid, pod in self.pods.items() if pod.live]
            match self.random.choice("ccaallsAp" if step % self.seen_every else "x"):
                case "c":
                    self.create(self.random.choice(kinds), decided=True)
                case "a" if self.queue:
                    self.admit()
                case "l" if live:
                    self.leave(self.random.choice(live), finish=self.random.random() < 0.5)
                case "s" if self.unseen:
                    self.see()
                case "A":
                    self.attest()
                case "p":
                    self.publish()
                case "x":
                    while self.unseen:
                        self.see()
                    self.attest()
                    self.publish()
            assert self.extenders.recount("n1") == 0
            self.check_no_id_twice()


@pytest.mark.parametrize("seed", [6, 19, 30, 53, 69, 78])
def test_whoever_leaves_when_no_gpu_is_given_away_twice(seed: int) -> None:
    """Seeds that over-commit a GPU where units are released at once."""
    rng = random.Random(seed)
    gpus = rng.choice([(8, 8), (15, 15), (8, 8, 8, 8)])
    node = Node(seed, gpus, rng.choice(["spread", "binpack"]))
    node.walk(400)
    assert not node.overruled
    assert not node.refusals
    node.check_settled()
    node.clock += LEAVE_GRACE_S
    node.leavers_.round()
    assert all(uid not in node.leavers_ for uid in node.extenders.pods)
