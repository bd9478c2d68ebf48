"""`--without`: what if a node, or one GPU of it, fails?"""

from __future__ import annotations

import pytest

from tests.simulate.conftest import Simulate
from tests.simulate.objects import Object, node, pod, waiting

PODS: list[Object] = [
    pod("bare", 4, 0),
    pod("replica", 4, 0, owner=("ReplicaSet", "web")),
    pod("going", 3, 0, terminating=True),
    pod("other", 2, 1),
    pod("elsewhere", 6, 0, node="b"),
]


def test_pods_of_a_failed_node_must_find_another(simulate: Simulate) -> None:
    ran = simulate([node("a"), node("b"), *PODS], "--without", "a")
    assert ran.status == 0
    assert [n["name"] for n in ran.json["nodes"]] == ["b"]
    assert set(ran.pods("b")) == {"bare", "replica", "going", "other", "elsewhere"}
    assert ran.warned("pod default/bare, displaced from a, goes to b, GPU 1")


def test_a_failed_gpu_stays_in_the_table_and_its_pods_move(simulate: Simulate) -> None:
    ran = simulate([node("a"), node("b"), *PODS], "--without", "a:0")
    assert ran.held("a")[0] == 0
    assert ran.pods("a")["other"] == [1]
    (found, _) = ran.json["nodes"]
    assert [gpu["healthy"] for gpu in found["gpus"]] == [False, True]
    moved = {n for n in ("bare", "replica", "going") if ran.warned(f"default/{n}, displaced from")}
    assert moved == {"bare", "replica", "going"}


def test_a_gpu_may_be_named_by_its_uuid(simulate: Simulate) -> None:
    ran = simulate([node("a"), *PODS[:4]], "--without", "a:GPU-1")
    assert ran.pods("a")["other"] == [0]


def test_a_pod_over_two_gpus_moves_as_a_whole(simulate: Simulate) -> None:
    both = pod("p", 8, {0: 4, 1: 4}, labels={"aliyun.com/gpu-count": "2"})
    ran = simulate([node("a", [15, 15, 15]), both], "--without", "a:1")
    assert ran.pods("a") == {"p": [0, 2]}


def test_what_finds_no_place_is_said_and_the_status_is_1(simulate: Simulate) -> None:
    full = [pod("x", 14, 0, node="b"), pod("y", 14, 1, node="b")]
    ran = simulate([node("a"), node("b"), pod("p", 4, 0), *full], "--without", "a")
    assert ran.status == 1
    assert ran.no_place == {"p": "node-full"}
    assert ran.warned("pod default/p, displaced from a, finds no place")


def test_daemon_pods_go_with_their_node(simulate: Simulate) -> None:
    daemon = pod("d", 4, 0, owner=("DaemonSet", "agent"))
    ran = simulate([node("a"), node("b"), daemon], "--without", "a")
    assert ran.pods("b") == {}
    assert ran.warned("--without a: 1 DaemonSet pod goes with the node")


def test_pods_without_gpu_memory_are_not_moved_and_that_is_said(simulate: Simulate) -> None:
    ran = simulate([node("a"), node("b"), pod("web", None)], "--without", "a")
    assert ran.warned("--without a: 1 pod without GPU memory there: not placed anew")


def test_a_pod_whose_gpu_is_unknown_stays_when_a_gpu_fails(simulate: Simulate) -> None:
    ran = simulate([node("a"), pod("lost", 4)], "--without", "a:0")
    assert ran.json["nodes"][0]["pending"] == 4


def test_several_outages_and_new_pods_at_once(simulate: Simulate) -> None:
    nodes = [node("a"), node("b"), node("c")]
    ran = simulate([*nodes, *PODS, waiting("new", 15)], "--without", "a", "--without", "b")
    assert [n["name"] for n in ran.json["nodes"]] == ["c"]
    assert list(ran.no_place) == ["new"]


@pytest.mark.parametrize(
    ("outage", "said"),
    [
        ("z", "there is no node 'z'; nodes: a, b"),
        ("a:7", "there is no GPU '7' on this node; GPUs: 0, 1"),
        ("a:", "there is no GPU '' on this node; GPUs: 0, 1"),
    ],
)
def test_what_is_not_there_cannot_fail(simulate: Simulate, outage: str, said: str) -> None:
    ran = simulate([node("a"), node("b")], "--without", outage)
    assert ran.status == 2
    assert said in ran.err
