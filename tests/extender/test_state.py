"""The books follow the watches, whatever comes when; reservations are confirmed or undone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract import names
from gpushare.contract.names import Reason
from gpushare.extender.state import Listener
from gpushare.kube.objects import Node, Pod
from gpushare.kube.reading import Problem
from gpushare.kube.resources import Ref
from gpushare.model.gpus import Assignment
from gpushare.model.holding import Placement
from gpushare.model.ledger import PodRecord
from tests.extender.fake_cluster import Json, allocation, node, pod
from tests.extender.state_helpers import World


def used(world: World, name: str = "n1") -> list[int]:
    return [gpu.used for gpu in world.state.ledger.books(name).gpus]


def standing(name: str, gpu: int, units: int = 4, on: str = "n1", **more: object) -> Json:
    return pod(name, units, nodeName=on, annotations=allocation(gpu, units=units), **more)


@pytest.fixture
def world() -> World:
    world = World()
    world.put(node("n1", [15, 15]))
    return world


def reserve(world: World, name: str, gpu: int = 0, on: str = "n1"):  # type: ignore[no-untyped-def]
    waiting = world.state.waiting[f"uid-{name}"]
    assert waiting.request is not None
    record = PodRecord(
        waiting.uid,
        "default",
        name,
        on,
        waiting.owner,
        waiting.request,
        Assignment({0: {gpu: waiting.request.units}}, {}),
    )
    return world.state.reserve(record, Placement(((gpu,),)))


def test_pods_are_booked_when_they_stand_and_released_when_they_end(world: World) -> None:
    world.put(standing("a", 1), standing("b", 1))
    assert used(world) == [0, 8]
    world.put(standing("a", 1, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert used(world) == [0, 8]
    world.put(standing("a", 1, phase="Succeeded"))
    assert used(world) == [0, 4]
    world.gone(standing("b", 1))
    assert used(world) == [0, 0]


def test_a_pod_under_the_same_name_is_another_one(world: World) -> None:
    world.put(standing("web-0", 0))
    world.put(standing("web-0", 1, uid="uid-second"))
    assert used(world) == [4, 4]
    world.gone(standing("web-0", 0))
    assert used(world) == [0, 4]


def test_the_watch_confirms_a_reservation(world: World) -> None:
    world.put(pod("p", 4))
    reserve(world, "p")
    generation = world.state.ledger.generation
    world.put(standing("p", 0))
    assert used(world) == [4, 0]
    assert world.state.reservations == {}
    assert world.state.waiting == {}
    assert world.state.ledger.generation == generation


def test_an_older_event_leaves_a_reservation_alone(world: World) -> None:
    world.put(pod("p", 4))
    reservation = reserve(world, "p")
    world.put(pod("p", 4, labels={"newer": "yes"}))
    assert used(world) == [4, 0]
    assert list(world.state.still_waiting()) == []
    assert world.state.roll_back(reservation)
    assert used(world) == [0, 0]
    assert [p.name for p in world.state.still_waiting()] == ["p"]


def test_what_the_watch_says_of_a_bound_pod_wins_over_the_reservation(world: World) -> None:
    world.put(node("n2", [15]), pod("p", 4))
    reservation = reserve(world, "p")
    world.put(standing("p", 0, on="n2"))
    assert used(world) == [0, 0]
    assert used(world, "n2") == [4]
    assert not world.state.roll_back(reservation)
    assert used(world, "n2") == [4]


def test_a_pod_that_is_gone_takes_its_reservation_along(world: World) -> None:
    world.put(pod("p", 4))
    reservation = reserve(world, "p")
    world.gone(pod("p", 4))
    assert used(world) == [0, 0]
    assert not world.state.roll_back(reservation)


def test_a_node_that_comes_back_has_its_pods(world: World) -> None:
    world.put(standing("a", 1))
    world.gone(node("n1", [15, 15]))
    assert "n1" not in world.state.ledger
    again = node("n1", [15, 15])
    again["metadata"]["uid"] = "uid-again"
    world.put(again)
    assert used(world) == [0, 4]
    world.state.nodes.deleted(Ref("uid-n1", "", "n1", "9"))  # late: of the one before
    assert "n1" in world.state.ledger


def test_an_inventory_that_loses_a_gpu_keeps_the_others_index(world: World) -> None:
    world.put(standing("a", 1))
    without_0 = node("n1", [15, 15])
    devices = '[{"index":1,"uuid":"GPU-n1-1","model":"T4","memory_mib":15360,"units":15}]'
    without_0["metadata"]["annotations"][names.ANNOTATION_DEVICES] = devices
    world.put(without_0)
    books = world.state.ledger.books("n1")
    assert [(gpu.gpu.index, gpu.used) for gpu in books.gpus] == [(1, 4)]


def test_finished_and_deleted_pods_do_not_wait(world: World) -> None:
    for end in ({"phase": "Failed"}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}):
        world.put(pod("p", 4))
        assert "uid-p" in world.state.waiting
        world.put(pod("p", 4, **end))
        assert world.state.waiting == {}
    world.put(pod("none"))
    assert world.state.waiting == {}


def test_a_bad_request_waits_with_its_error(world: World) -> None:
    world.put(pod("p", 5, labels={names.LABEL_GPU_COUNT: "2"}))
    error = world.state.waiting["uid-p"].error
    assert error is not None
    assert error.reason is Reason.GPU_COUNT


class Heard(Listener):
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def node_problems(self, node: Node, problems: tuple[Problem, ...]) -> None:
        self.heard += [(node.metadata.name, problem.reason) for problem in problems]

    def pod_problem(self, pod: Pod, problem: Problem) -> None:
        self.heard.append((pod.metadata.name, problem.reason))

    def unattributed(self, pod: Pod, record: PodRecord) -> None:
        self.heard.append((pod.metadata.name, "unattributed"))


def test_what_is_wrong_is_told_when_it_changes(world: World) -> None:
    world.state.listener = heard = Heard()
    typo = {names.LABEL_PLACEMENT: "speard"}
    world.put(node("n1", [15], labels=typo), node("n1", [15], labels=typo, other="x"))
    assert heard.heard == [("n1", "UnknownPlacement")]
    world.put(node("n1", [15]), node("n1", [15], labels=typo))
    assert len(heard.heard) == 2
    world.put(pod("p", 4, nodeName="n1"))
    assert heard.heard[2:] == [("p", "unattributed")]


KINDS = ["waits", "stands", "reserved", "rolled back", "older", "gone", "succeeded"]


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(KINDS)), max_size=25))
def test_whatever_happens_the_books_are_those_of_the_pods_that_stand(
    events: list[tuple[str, str]],
) -> None:
    world = World()
    world.put(node("n1", [100, 100]))
    stands: dict[str, int] = {}
    reserved = {}
    ended: set[str] = set()
    for name, kind in events:
        if name in ended and kind != "gone":
            continue
        match kind:
            case "waits" | "older" if name not in stands:
                world.put(pod(name, 4, labels={"v": kind}))
            case "stands":
                stands[name] = 1
                reserved.pop(name, None)
                world.put(standing(name, 1))
            case "reserved" if name not in stands and f"uid-{name}" in world.state.waiting:
                if name not in reserved:
                    reserved[name] = reserve(world, name, 0)
            case "rolled back" if name in reserved:
                assert world.state.roll_back(reserved.pop(name))
            case "gone":
                stands.pop(name, None)
                reserved.pop(name, None)
                ended.add(name)
                world.gone(pod(name, 4))
            case "succeeded" if name in stands:
                del stands[name]
                ended.add(name)
                world.put(standing(name, 1, phase="Succeeded"))
    assert used(world) == [4 * len(reserved), 4 * len(stands)]
    assert set(world.state.reservations) == {f"uid-{name}" for name in reserved}
    assert world.state.ledger.recount("n1") == 0
