"""Whom the extender nudges, where to, how often, and when it stops."""

from __future__ import annotations

import pytest

from gpushare.extender.plan import (
    GRACE_S,
    IN_HAND_S,
    MAX_ACTIVE,
    PAUSES_S,
    REST_S,
    Clear,
    Nominate,
)
from gpushare.view.reasons import short
from tests.extender.fake_cluster import Json, allocation, node, pod
from tests.extender.state_helpers import World


def standing(name: str, on: str, units: int) -> Json:
    return pod(name, units, nodeName=on, annotations=allocation(0, units=units))


def planned(world: World, after_s: float = 0.0) -> list[tuple[str, str, str]]:
    """(what, pod, node) of what is planned `after_s` from now."""
    world.now += after_s
    return [
        (
            "clear" if isinstance(a, Clear) else "wake" if a.wake_only else "nominate",
            a.pod.name,
            a.node,
        )
        for a in world.planner.plan(world.now)
    ]


@pytest.fixture
def world() -> World:
    """A full node, and a pod that was rejected there."""
    world = World()
    world.put(node("n1", [15]), standing("old", "n1", 15), pod("p", 8))
    assert world.filter(pod("p", 8)) == ([], {"n1": "node(s) have too little free GPU memory"})
    return world


def test_a_rejected_pod_is_nominated_when_there_is_room(world: World) -> None:
    assert planned(world, 5) == []
    world.gone(standing("old", "n1", 15))
    assert planned(world) == [("nominate", "p", "n1")]
    assert planned(world) == []


def test_a_question_of_a_moment_ago_is_left_to_the_scheduler(world: World) -> None:
    world.filter(pod("p", 8))
    world.gone(standing("old", "n1", 15))
    assert planned(world) == []
    assert world.planner.next_due == world.now + GRACE_S
    assert planned(world, GRACE_S) == [("nominate", "p", "n1")]


def test_room_outside_the_sample_is_found_at_once(world: World) -> None:
    world.put(node("n2", [15]))
    world.filter(pod("p", 8), "n1")
    assert planned(world, GRACE_S) == [("nominate", "p", "n2")]


def test_pods_nobody_asked_about_or_that_had_room_are_left_alone(world: World) -> None:
    world.gone(standing("old", "n1", 15))
    world.put(pod("fresh", 2), pod("lucky", 2))
    world.filter(pod("lucky", 2))
    world.filter(pod("unknown", 2))
    assert planned(world, 60) == [("nominate", "p", "n1")]


def test_after_a_restart_the_pods_own_condition_tells(world: World) -> None:
    text = f"0/1 nodes are available: 1 {short(world.ask(pod('p', 8)).reason)}."  # type: ignore[arg-type]
    condition = {"type": "PodScheduled", "status": "False", "message": text}
    other = {**condition, "message": "0/1 nodes are available: 1 Insufficient cpu."}
    restarted = World()
    restarted.put(node("n1", [15]))
    restarted.put(pod("p", 8, conditions=[condition]), pod("q", 2, conditions=[other]))
    assert planned(restarted) == [("nominate", "p", "n1")]


def test_a_bound_pod_needs_nothing_more(world: World) -> None:
    world.gone(standing("old", "n1", 15))
    assert planned(world, 1) == [("nominate", "p", "n1")]
    world.put(standing("p", "n1", 8))
    assert planned(world, 60) == []
    assert world.planner.active == {}


def test_tries_are_repeated_then_the_nomination_is_cleared_and_the_node_rests(
    world: World,
) -> None:
    world.gone(standing("old", "n1", 15))
    assert planned(world, 1) == [("nominate", "p", "n1")]
    world.put(pod("p", 8, nominatedNodeName="n1"))
    for pause_s in PAUSES_S[:-1]:
        assert planned(world, pause_s / 2) == []
        assert planned(world, pause_s / 2) == [("nominate", "p", "n1")]
        world.filter(pod("p", 8, nominatedNodeName="n1"), "other")
    assert planned(world, PAUSES_S[-1]) == [("clear", "p", "n1")]
    world.put(pod("p", 8))
    assert planned(world, 1) == []
    assert planned(world, REST_S[0] / 2) == []
    assert planned(world, REST_S[0] / 2) == [("nominate", "p", "n1")]


def test_a_node_where_something_else_keeps_the_pod_off_starves_no_other_node(
    world: World,
) -> None:
    world.put(node("n2", [15, 15]))  # ranks after n1, which keeps less free
    world.gone(standing("old", "n1", 15))
    assert planned(world, 1) == [("nominate", "p", "n1")]
    for pause_s in PAUSES_S[:-1]:
        assert planned(world, pause_s) == [("nominate", "p", "n1")]
    assert planned(world, PAUSES_S[-1]) == [("clear", "p", "n1"), ("nominate", "p", "n2")]
    per_hour = [
        sum(action == "nominate" for _ in range(720) for action, _, _ in planned(world, 5.0))
        for _ in range(3)
    ]
    assert per_hour[-1] <= 2 * len(PAUSES_S) * 3600 / REST_S[1]  # both rest, longer each time


def test_a_promise_holds_room_only_as_long_as_it_is_tried(world: World) -> None:
    world.gone(standing("old", "n1", 15))
    planned(world, 1)
    assert world.filter(pod("q", 8), "n1")[0] == []
    assert world.filter(pod("q", 8, priority=1), "n1")[0] == ["n1"]
    for pause_s in PAUSES_S:
        planned(world, pause_s)
    assert world.filter(pod("q", 8), "n1")[0] == ["n1"]


def test_a_lost_nomination_is_renewed_soon(world: World) -> None:
    world.gone(standing("old", "n1", 15))
    assert planned(world, 1) == [("nominate", "p", "n1")]
    world.put(pod("p", 8, nominatedNodeName="n1"))
    assert planned(world) == []
    world.put(pod("p", 8))
    assert planned(world, 0.1) == []
    assert planned(world, 0.3) == [("nominate", "p", "n1")]


def test_a_pod_that_got_its_yes_is_left_to_its_bind(world: World) -> None:
    world.gone(standing("old", "n1", 15))
    assert planned(world, 1) == [("nominate", "p", "n1")]
    assert world.filter(pod("p", 8, nominatedNodeName="n1"), "n1")[0] == ["n1"]
    assert planned(world, PAUSES_S[0] + 1) == []
    assert planned(world, IN_HAND_S) == [("nominate", "p", "n1")]


def test_room_that_is_taken_meanwhile_ends_the_nudge(world: World) -> None:
    world.gone(standing("old", "n1", 15))
    assert planned(world, 1) == [("nominate", "p", "n1")]
    world.put(standing("thief", "n1", 10))
    assert planned(world) == [("clear", "p", "n1")]
    assert planned(world, 60) == []


def test_one_pod_per_room_the_most_important_first(world: World) -> None:
    pods = [
        pod("low", 8),
        pod("high", 8, priority=10),
        pod("old-low", 8, creationTimestamp="2025-01-01T00:00:00Z"),
    ]
    world.put(*pods)
    for manifest in pods:
        world.filter(manifest)
    world.gone(standing("old", "n1", 15))
    assert planned(world, 1) == [("nominate", "high", "n1")]
    world.put(standing("high", "n1", 8), node("n2", [15]))
    assert planned(world, 1) == [("nominate", "old-low", "n2")]


def test_a_nomination_by_preemption_is_woken_but_never_moved_or_cleared(world: World) -> None:
    world.put(node("n2", [15]), pod("p", 8, nominatedNodeName="n1"))
    world.filter(pod("p", 8, nominatedNodeName="n1"), "n1")
    assert planned(world, 60) == []  # n2 has room, but victims leave n1
    world.gone(standing("old", "n1", 15))
    assert planned(world) == [("wake", "p", "n1")]
    for pause_s in PAUSES_S[:-1]:
        assert planned(world, pause_s) == [("wake", "p", "n1")]
    assert planned(world, PAUSES_S[-1]) == []
    assert world.state.nominations.node_of("uid-p") == "n1"


def test_somebody_elses_nomination_ends_ours(world: World) -> None:
    world.put(node("n2", [15]))
    assert planned(world, 1) == [("nominate", "p", "n2")]
    world.put(pod("p", 8, nominatedNodeName="n1"))
    assert planned(world, 60) == []
    assert world.planner.active == {}


def test_cordoned_nodes_are_not_named(world: World) -> None:
    cordoned = node("n2", [15])
    cordoned["spec"]["unschedulable"] = True
    world.put(cordoned)
    assert planned(world, 1) == []
    world.put(node("n2", [15]))
    assert planned(world) == [("nominate", "p", "n2")]


def test_an_earlier_process_nomination_is_taken_over() -> None:
    world = World()
    world.put(node("n1", [15]))
    mine = {"gpushare.dev/nudge": "1"}
    world.put(pod("p", 8, nominatedNodeName="n1", annotations=mine))
    world.put(pod("q", 2, nominatedNodeName="n1"))  # preemption's
    assert planned(world) == []
    seen = [planned(world, pause_s) for pause_s in PAUSES_S]
    assert seen == [[("nominate", "p", "n1")]] * (len(PAUSES_S) - 1) + [[("clear", "p", "n1")]]


def test_a_clearing_that_failed_is_repeated(world: World) -> None:
    world.gone(standing("old", "n1", 15))
    planned(world, 1)
    world.put(pod("p", 8, nominatedNodeName="n1"), standing("thief", "n1", 15))
    (clear,) = world.planner.plan(world.now)
    world.planner.failed(clear)
    assert planned(world) == [("clear", "p", "n1")]
    assert planned(world) == []


def test_a_nomination_that_failed_promises_nothing(world: World) -> None:
    world.gone(standing("old", "n1", 15))
    world.now += 1
    (action,) = world.planner.plan(world.now)
    assert isinstance(action, Nominate)
    assert world.filter(pod("q", 8), "n1")[0] == []
    world.planner.failed(action)
    assert world.filter(pod("q", 8), "n1")[0] == ["n1"]
    assert planned(world, PAUSES_S[0]) == [("nominate", "p", "n1")]


def test_nudges_are_bounded() -> None:
    world = World()
    world.put(node("n1", [1]))
    pods = [pod(f"p{i}", 2) for i in range(3 * MAX_ACTIVE)]
    world.put(*pods)
    for manifest in pods:
        world.filter(manifest)
    world.put(node("n2", [1000]))
    assert len(planned(world, 1)) == MAX_ACTIVE
    assert planned(world) == []
