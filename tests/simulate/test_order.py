"""Who is placed first, and that nothing but the input decides."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gpushare.simulate.main import main
from tests.simulate.conftest import Simulate
from tests.simulate.objects import Object, controller, dump, node, pod, waiting


def priority_class(name: str, value: int, *, default: bool = False) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "globalDefault": default,
    }


def classed(name: str, class_name: str | None) -> Object:
    return waiting(name, 15, **({"priorityClassName": class_name} if class_name else {}))


ONE = node(gpus=[15])


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        (None, None, "first"),
        (None, "high", "second"),
        ("low", None, "second"),
        ("high", "system-cluster-critical", "second"),
        ("system-node-critical", "system-cluster-critical", "first"),
        ("unheard-of", "high", "second"),
        ("low", "unheard-of", "second"),
    ],
)
def test_priority_comes_before_the_order_of_the_input(
    simulate: Simulate, first: str | None, second: str | None, winner: str
) -> None:
    classes = [priority_class("high", 1000), priority_class("low", -5)]
    ran = simulate([*classes, ONE, classed("first", first), classed("second", second)])
    assert list(ran.pods("a")) == [winner]


def test_an_unknown_class_counts_as_0_and_is_said_to(simulate: Simulate) -> None:
    ran = simulate([ONE, classed("p", "unheard-of")])
    assert ran.warned("priority class unheard-of is not in the input: 1 pod counts with priority 0")


def test_the_global_default_counts_for_pods_without_a_class(simulate: Simulate) -> None:
    default = priority_class("normal", 100, default=True)
    low = priority_class("low", 50)
    ran = simulate([default, low, ONE, classed("first", "low"), classed("second", None)])
    assert list(ran.pods("a")) == ["second"]


def test_what_the_api_server_has_filled_in_wins(simulate: Simulate) -> None:
    second = waiting("second", 15, priority=7, priorityClassName="unheard-of")
    ran = simulate([ONE, classed("first", None), second])
    assert list(ran.pods("a")) == ["second"]
    assert ran.json["warnings"] != []


def test_nobody_is_preempted_and_that_is_said(simulate: Simulate) -> None:
    ran = simulate([ONE, pod("low", 15, 0), waiting("high", 4, priority=9)])
    assert list(ran.no_place) == ["high"]
    assert ran.warned("not modelled: preemption; 1 pod without a place has a higher priority")


def test_among_equal_nodes_the_first_by_name_is_taken(simulate: Simulate) -> None:
    ran = simulate([node("b"), node("a"), waiting("p", 4)])
    assert ran.pods("a") == {"p": [0]}


@pytest.mark.parametrize(("ranking", "taken"), [("binpack", "b"), ("spread", "a")])
def test_the_node_ranking(simulate: Simulate, ranking: str, taken: str) -> None:
    objects = [node("a"), node("b"), pod("p", 4, 0, node="b"), waiting("q", 4)]
    for n in objects[:2]:
        n["metadata"]["labels"]["ack.node.gpu.placement"] = "binpack"
    ran = simulate(objects, "--node-ranking", ranking)
    assert "q" in ran.pods(taken)


def test_many_owners_and_many_nodes_end_as_asking_every_node_would(simulate: Simulate) -> None:
    """More nodes than are asked one by one: the shortcuts of the chooser must not show."""
    nodes = [node(f"n{i:02}", [8, 8]) for i in range(12)]
    jobs = [controller("Job", f"j{i}", units=3, parallelism=5) for i in range(5)]
    ran = simulate([*nodes, *jobs, *(waiting(f"p{i}", 2) for i in range(6))])
    assert ran.status == 0
    for name in (n["metadata"]["name"] for n in nodes):
        assert all(used <= 8 for used in ran.held(name))
    used = [sum(ran.held(n["metadata"]["name"])) for n in nodes]
    assert sum(used) == 5 * 5 * 3 + 6 * 2
    assert sum(1 for units in used if units) <= 7


def test_the_same_input_gives_the_same_output(simulate: Simulate) -> None:
    objects = [node("a"), node("b"), pod("p", 4, 0), controller("Job", parallelism=5)]
    assert simulate(objects).out == simulate(objects).out


def test_the_order_of_files_does_not_matter_to_pods_on_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {
        "nodes": [node("a"), node("b")],
        "one": [pod("p", 4, 0), pod("lost", 3, "garbled")],
        "two": [pod("q", 5, 1, node="b"), pod("r", 2, 0, node="b")],
        "new": [controller("Job", parallelism=3)],
    }
    files = {}
    for name, objects in parts.items():
        files[name] = tmp_path / f"{name}.json"
        files[name].write_text(dump(*objects))
    printed = set()
    for order in itertools.permutations(files.values()):
        assert main([*(str(file) for file in order), "-o", "json"]) == 0
        printed.add(capsys.readouterr().out)
    assert len(printed) == 1
