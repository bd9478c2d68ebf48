"""`--compare`: policies side by side."""

from __future__ import annotations

from typing import Any

from tests.simulate.conftest import Simulate
from tests.simulate.objects import Object, controller, node, pod, waiting


def rows(simulate: Simulate, objects: list[Object], *more: str) -> dict[tuple[str, str], Any]:
    ran = simulate(objects, "--compare", "binpack,spread", *more)
    found = ran.json
    assert list(found) == ["compare", "version"]
    assert found["version"] == 1
    return {(row["gpu_policy"], row["scope"]): row for row in found["compare"]}


def test_the_documentations_job(simulate: Simulate) -> None:
    found = rows(simulate, [node(gpus=[15] * 4), controller("Job", parallelism=3)])
    assert found["binpack", "new"] == {
        "gpu_policy": "binpack",
        "scope": "new",
        "allocated": 12,
        "unscheduled": 0,
        "largest_placeable": 15,
        "blast_pods": 3,
        "blast_owner_share": 1.0,
    }
    assert found["spread", "new"] == found["binpack", "new"] | {
        "gpu_policy": "spread",
        "blast_pods": 1,
        "blast_owner_share": 0.3333,
    }


def test_a_dump_on_which_all_columns_differ(simulate: Simulate) -> None:
    """Six pods run on GPU 0; three small new ones, then a large one, which spread leaves no GPU."""
    there = [pod(f"run-{i}", 2, 0, owner=("ReplicaSet", "web")) for i in range(6)]
    new = [controller("Job", "small", units=2, parallelism=3), controller("Job", "z", units=15)]
    found = rows(simulate, [node(gpus=[15, 15, 15]), *there, *new])
    assert {key: row["allocated"] for key, row in found.items()} == {
        ("binpack", "new"): 33,
        ("binpack", "all"): 33,
        ("spread", "new"): 18,
        ("spread", "all"): 18,
    }
    assert {key: row["unscheduled"] for key, row in found.items()} == {
        ("binpack", "new"): 0,
        ("binpack", "all"): 0,
        ("spread", "new"): 1,
        ("spread", "all"): 1,
    }
    assert found["spread", "new"]["largest_placeable"] < 15
    assert found["spread", "all"]["blast_pods"] < found["spread", "new"]["blast_pods"]
    assert found["spread", "all"]["blast_owner_share"] < found["spread", "new"]["blast_owner_share"]


def test_everything_afresh_places_what_stands_too(simulate: Simulate) -> None:
    there = [pod(f"p-{i}", 2, 0, owner=("Job", "j")) for i in range(4)]
    found = rows(simulate, [node(), *there])
    assert found["spread", "new"]["blast_pods"] == 4
    assert found["spread", "all"]["blast_pods"] == 2
    assert found["spread", "all"]["blast_owner_share"] == 0.5


def test_bare_pods_count_for_the_share_only_where_nothing_else_is(simulate: Simulate) -> None:
    found = rows(simulate, [node(), waiting("p", 2)])
    assert found["spread", "new"]["blast_owner_share"] == 1.0
    both = rows(simulate, [node(), waiting("p", 2), controller("Job", parallelism=4)])
    assert both["spread", "new"]["blast_owner_share"] == 0.5
    assert rows(simulate, [node()])["spread", "new"]["blast_owner_share"] == 0


def test_the_largest_placeable_leaves_cordoned_nodes_out(simulate: Simulate) -> None:
    nodes = [node("a", [10]), node("b", [40], unschedulable=True), node("c", [30], capacity=12)]
    assert rows(simulate, nodes)["spread", "new"]["largest_placeable"] == 12


def test_the_table(simulate: Simulate) -> None:
    objects = [node(gpus=[15] * 4), controller("Job", parallelism=3)]
    ran = simulate(objects, "--compare", "binpack,spread", output="table")
    lines = ran.out.splitlines()
    assert lines[0].split()[:3] == ["POLICY", "PLACED", "ALLOCATED(GiB)"]
    assert lines[1].split()[:5] == ["binpack", "new", "12/60", "(20%)", "0"]
    assert lines[1].endswith("3 pods, 100% of one owner's")
    assert lines[3].endswith("1 pod, 33% of one owner's")


def test_one_policy_alone_is_fine_and_an_unknown_one_is_not(simulate: Simulate) -> None:
    ran = simulate([node()], "--compare", "spread")
    assert [row["gpu_policy"] for row in ran.json["compare"]] == ["spread", "spread"]


def test_the_status_is_1_where_a_pod_has_no_place_under_any_policy(simulate: Simulate) -> None:
    assert simulate([node(), waiting("p", 99)], "--compare", "spread").status == 1
