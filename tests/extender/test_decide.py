"""filter, prioritize, preempt: what the scheduler is told."""

from __future__ import annotations

import msgspec
import pytest

from gpushare.contract import names
from gpushare.contract.names import Reason
from gpushare.extender.wire import Candidates, ExtenderArgs
from gpushare.view.reasons import short
from tests.extender.fake_cluster import Json, allocation, node, pod
from tests.extender.state_helpers import World

FULL = short(Reason.NODE_FULL)
NO_GPU = short(Reason.NO_GPU_FITS)


def standing(name: str, on: str, gpu: int, units: int, **more: object) -> Json:
    return pod(name, units, nodeName=on, annotations=allocation(gpu, units=units), **more)


@pytest.fixture
def world() -> World:
    world = World()
    world.put(node("n1", [15, 15]), node("n2", [15]), node("n3", [15, 15]))
    world.put(standing("a", "n1", 0, 8), standing("b", "n1", 1, 8), standing("c", "n2", 0, 10))
    return world


def test_each_node_has_its_reason(world: World) -> None:
    assert world.filter(pod("p", 10)) == (["n3"], {"n1": NO_GPU, "n2": FULL})
    assert world.filter(pod("p", 4)) == (["n1", "n2", "n3"], {})
    assert world.filter(pod("p", 16)) == ([], {"n1": FULL, "n2": FULL, "n3": NO_GPU})


def test_what_is_not_known_or_not_sharing_never_passes(world: World) -> None:
    world.put(node("n4", [15], labels={names.LABEL_MODE: "default"}))
    passed, failed = world.filter(pod("p", 4), "n4", "unknown")
    assert passed == []
    assert failed == {"n4": short(Reason.NOT_SHARING), "unknown": short(Reason.NOT_READY)}


def test_every_rejection_is_unresolvable_but_that_of_the_pods_own_nominated_node(
    world: World,
) -> None:
    answer = msgspec.json.decode(world.ask(pod("p", 16)).body)
    assert answer["FailedNodes"] == {}
    assert set(answer["FailedAndUnresolvableNodes"]) == {"n1", "n2", "n3"}
    nominated = msgspec.json.decode(world.ask(pod("p", 16, nominatedNodeName="n2")).body)
    assert nominated["FailedNodes"] == {"n2": FULL}
    assert set(nominated["FailedAndUnresolvableNodes"]) == {"n1", "n3"}


def test_a_pod_that_asks_for_nothing_passes_everywhere(world: World) -> None:
    assert world.filter(pod("p"), "n1", "unknown") == (["n1", "unknown"], {})
    assert world.scores(pod("p"), "n1") == {"n1": 0}
    assert world.preempt(pod("p"), n1=["a"]) == {"n1": ["a"]}


def test_a_request_nobody_can_serve_passes_nowhere(world: World) -> None:
    bad = pod("p", 5, labels={names.LABEL_GPU_COUNT: "2"})
    passed, failed = world.filter(bad)
    assert passed == []
    assert set(failed.values()) == {short(Reason.GPU_COUNT)}
    assert world.preempt(bad, n1=["a", "b"]) == {}


def test_an_unchanged_question_gets_the_same_bytes(world: World) -> None:
    first = world.ask(pod("p", 10)).body
    assert world.ask(pod("q", 10)).body is first
    world.put(standing("d", "n3", 0, 1))  # the books change, no answer does
    assert world.ask(pod("p", 10)).body is first
    world.put(standing("e", "n3", 1, 6))
    assert world.ask(pod("p", 10)).body is first
    world.put(standing("f", "n3", 0, 5))
    assert world.filter(pod("p", 10))[0] == []


def test_whole_nodes_come_back_as_they_came(world: World) -> None:
    body = b"""{"Pod": {"metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"containers": [{"resources": {"limits": {"aliyun.com/gpu-mem": "10"}}}]}},
        "Nodes": {"items": [{"metadata": {"name": "n1"}, "own": 1},
                            {"metadata": {"name": "n3"}, "own": [2]}]}, "NodeNames": null}"""
    args = msgspec.json.decode(body, type=ExtenderArgs)
    candidates = Candidates(args)
    answer = msgspec.json.decode(world.decider.filter(args.pod, candidates).body)
    assert answer["Nodes"] == {"items": [{"metadata": {"name": "n3"}, "own": [2]}]}
    assert answer["NodeNames"] is None
    assert answer["FailedAndUnresolvableNodes"] == {"n1": NO_GPU}
    assert [p.host for p in world.decider.prioritize(args.pod, candidates)] == ["n1", "n3"]


def test_a_pod_on_the_books_has_one_right_node(world: World) -> None:
    again = pod("a", 8)
    passed, failed = world.filter(again)
    assert passed == ["n1"]
    assert set(failed) == {"n2", "n3"}
    assert world.filter(again, "n2", "n3")[0] == []
    assert world.preempt(again, n1=["b"]) == {}


# --- nominated pods ------------------------------------------------------------------------------


def test_a_nominated_pod_counts_against_those_of_lower_or_equal_priority(world: World) -> None:
    world.put(pod("nominee", 15, nominatedNodeName="n3", priority=5))
    world.put(pod("nominee2", 15, nominatedNodeName="n3", priority=5))
    assert world.filter(pod("p", 4, priority=5), "n3") == ([], {"n3": FULL})
    assert world.filter(pod("p", 4, priority=4), "n3")[0] == []
    assert world.filter(pod("p", 4, priority=6), "n3")[0] == ["n3"]
    assert world.filter(pod("nominee", 15, priority=5, nominatedNodeName="n3"))[0] == ["n3"]
    assert world.filter(pod("nominee2", 15, priority=5, nominatedNodeName="n3"))[0] == ["n3"]


def test_a_promise_ends_with_the_nomination_the_pod_or_its_binding(world: World) -> None:
    nominee, asker = pod("nominee", 15, nominatedNodeName="n2"), pod("p", 5)
    for end in (
        lambda: world.put(pod("nominee", 15)),
        lambda: world.gone(nominee),
        lambda: world.put(standing("nominee", "n3", 0, 15)),
    ):
        world.gone(standing("c", "n2", 0, 10))
        world.put(nominee)
        assert world.filter(asker, "n2")[0] == []
        end()
        assert world.filter(asker, "n2")[0] == ["n2"]


def test_room_that_terminating_victims_hold_is_kept_for_the_nominated_pod(world: World) -> None:
    assert world.filter(pod("p", 5), "n2")[0] == ["n2"]
    world.put(standing("c", "n2", 0, 10, deletionTimestamp="2026-01-01T00:00:00Z"))
    world.put(pod("nominee", 15, nominatedNodeName="n2"))
    assert world.filter(pod("p", 5), "n2") == ([], {"n2": FULL})
    world.gone(standing("c", "n2", 0, 10))
    assert world.filter(pod("nominee", 15, nominatedNodeName="n2"), "n2")[0] == ["n2"]


# --- prioritize ----------------------------------------------------------------------------------


def test_scores_are_ranks_among_the_candidates(world: World) -> None:
    assert world.scores(pod("p", 5)) == {"n2": 10, "n1": 9, "n3": 8}
    assert world.scores(pod("p", 5), "n3", "n1") == {"n1": 10, "n3": 9}
    assert world.scores(pod("p", 10)) == {"n3": 10, "n1": 0, "n2": 0}


def test_the_owner_counts_where_a_policy_looks_at_it() -> None:
    world = World()
    world.put(node("n1", [15, 12], labels={names.LABEL_PLACEMENT: "spread"}), node("n2", [15]))
    mine = [{"kind": "Job", "name": "j", "uid": "x", "controller": True}]
    world.put(standing("a", "n1", 0, 8), standing("b", "n1", 1, 3, ownerReferences=mine))
    world.put(standing("c", "n2", 0, 7))
    # Kept apart from its replica on GPU 1, the pod would leave 3 on GPU 0; another one 5 on GPU 1.
    assert world.scores(pod("p", 4, ownerReferences=mine)) == {"n1": 10, "n2": 9}
    assert world.scores(pod("p", 4)) == {"n2": 10, "n1": 9}


def test_spread_over_nodes() -> None:
    world = World(ranking="spread")
    world.put(node("n1", [15]), node("n2", [15]), standing("a", "n1", 0, 4))
    assert world.scores(pod("p", 4)) == {"n2": 10, "n1": 9}


# --- preempt -------------------------------------------------------------------------------------


def test_nodes_where_eviction_frees_no_gpu_are_dropped(world: World) -> None:
    big = pod("p", 15, priority=100)
    assert world.preempt(big, n1=["a"], n2=["c"]) == {"n1": ["a"], "n2": ["c"]}
    assert world.preempt(pod("p", 16, priority=100), n1=["a", "b"], n2=["c"]) == {}
    two = pod("p", 30, priority=100, labels={names.LABEL_GPU_COUNT: "2"})
    assert world.preempt(two, n1=["a"], n2=["c"]) == {}
    assert world.preempt(two, n1=["a", "b"]) == {"n1": ["a", "b"]}


def test_victims_that_are_not_there_free_nothing(world: World) -> None:
    big = pod("p", 15, priority=100)
    assert world.preempt(big, n1=["unknown"], n2=["a"], unknown=["a"], n3=[]) == {}
    assert world.preempt(big, n1=["a", "a"]) == {"n1": ["a", "a"]}


def test_largest_free_looks_at_sharing_nodes_only(world: World) -> None:
    world.put(node("n4", [80], labels={names.LABEL_MODE: "default"}))
    assert world.decider.largest_free(["n1", "n2", "n4", "unknown"]) == 7


def test_the_cached_answers_are_bounded() -> None:
    world = World()
    world.put(node("n1", [5000]))
    for units in range(1, 200):
        owner = [{"kind": "Job", "name": f"j{units}", "uid": "x", "controller": True}]
        world.put(standing(f"s{units}", "n1", 0, 1, ownerReferences=owner))
        world.filter(pod("p", units))
        world.scores(pod("p", units, ownerReferences=owner))
    assert len(world.decider._kept) <= 64
    assert len(world.decider._ranks) <= 256
