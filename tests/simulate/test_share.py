"""`--share`: a cluster that does not share its GPUs yet, as if it did."""

from __future__ import annotations

import pytest

from gpushare.contract import names
from tests.simulate.conftest import Simulate
from tests.simulate.objects import Object, controller, node, plain_node, pod, waiting


def whole(name: str = "a", count: str = "4", memory: str = "15360") -> Object:
    """A node as NVIDIA's operator leaves it."""
    found = plain_node(name)
    found["metadata"]["labels"] = {
        "pool": "gpu",
        names.LABEL_NVIDIA_COUNT: count,
        names.LABEL_NVIDIA_MEMORY: memory,
        names.LABEL_NVIDIA_PRODUCT: "Tesla-T4",
    }
    for which in ("capacity", "allocatable"):
        found["status"][which]["nvidia.com/gpu"] = count
    return found


def holder(name: str, count: int, node: str = "a") -> Object:
    found = pod(name, None, node=node)
    found["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = str(count)
    return found


def test_nodes_that_match_share(simulate: Simulate) -> None:
    job = controller("Job", parallelism=3)
    ran = simulate([whole("a"), whole("b"), job], "--share", "pool=gpu")
    assert ran.status == 0
    assert [n["mode"] for n in ran.json["nodes"]] == ["share", "share"]
    assert ran.held("a") == [12, 0, 0, 0]
    assert ran.warned("2 nodes are treated as sharing")
    assert ran.warned("a GPU may offer one unit less")
    assert simulate([whole(), job]).no_place.keys() == {"x-0", "x-1", "x-2"}


def test_a_policy_can_be_tried_at_once(simulate: Simulate) -> None:
    job = controller("Job", parallelism=3)
    ran = simulate([whole(), job], "--share", "pool", "--gpu-policy", "spread")
    assert ran.held("a") == [4, 4, 4, 0]


def test_labels_of_ack_are_read_too(simulate: Simulate) -> None:
    found = plain_node("a")
    found["metadata"]["labels"] = {
        names.LABEL_ACCELERATOR_COUNT: "2",
        names.LABEL_ACCELERATOR_MEM: "15109MiB",
        names.LABEL_ACCELERATOR_NAME: "Tesla-T4",
    }
    ran = simulate([found], "--share", names.LABEL_ACCELERATOR_NAME)
    assert [gpu["total"] for gpu in ran.json["nodes"][0]["gpus"]] == [14, 14]


def test_the_unit_of_the_labels_can_be_chosen(simulate: Simulate) -> None:
    ran = simulate([whole()], "--share", "pool=gpu", "--unit", "128MiB")
    assert ran.json["nodes"][0]["gpus"][0]["total"] == 120


def test_pods_that_hold_whole_gpus_go_on_holding_them(simulate: Simulate) -> None:
    """Nobody says which GPUs: those of the highest index."""
    there = [holder("train", 2), holder("infer", 1)]
    ran = simulate([whole(), *there, waiting("p", 15), waiting("q", 1)], "--share", "pool=gpu")
    assert ran.pods("a") == {"train": [2, 3], "infer": [1], "p": [0]}
    assert ran.no_place == {"q": "node-full"}
    assert ran.warned("pod default/train holds 2 whole GPUs of node a; taken to be GPU 2, GPU 3")
    assert ran.warned("pod default/infer holds 1 whole GPU of node a; taken to be GPU 1")


def test_more_whole_gpus_than_there_are(simulate: Simulate) -> None:
    ran = simulate([whole(), holder("x", 4), holder("y", 1)], "--share", "pool=gpu")
    assert ran.pods("a") == {"x": [0, 1, 2, 3]}
    assert ran.warned("pod default/y holds 1 whole GPUs of node a, which has none left")


def test_a_node_that_shares_already_stays_as_it_is(simulate: Simulate) -> None:
    sharing = node("b", labels={"pool": "gpu", names.LABEL_NVIDIA_COUNT: "8"})
    ran = simulate([whole(), sharing], "--share", "pool=gpu")
    assert [len(n["gpus"]) for n in ran.json["nodes"]] == [4, 2]


def test_a_labelled_node_without_plugin_takes_its_gpus_from_labels(simulate: Simulate) -> None:
    bare = whole()
    bare["metadata"]["labels"] |= {names.LABEL_MODE: "cgpu", names.LABEL_PLACEMENT: "spread"}
    ran = simulate([bare, controller("Job", parallelism=2)], "--share", "pool=gpu")
    assert ran.json["nodes"][0]["mode"] == "cgpu"
    assert ran.held("a") == [4, 4, 0, 0]


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ("pool=cpu", "--share selects none of the nodes; there are: a, b"),
        ("pool in (", "--share 'pool in (' is no label selector"),
        ("pool=none", "the labels of b do not say what GPUs there are"),
        ("pool=bad", "label nvidia.com/gpu.memory is 'lots'; a whole number is needed"),
        ("pool=many", "label nvidia.com/gpu.count is 1000; a node has at most 64 GPUs"),
    ],
)
def test_a_selector_that_selects_nothing_usable(
    simulate: Simulate, selector: str, said: str
) -> None:
    other = plain_node("b")
    other["metadata"]["labels"] = {"pool": "none"}
    nodes = [whole("a"), other]
    if selector == "pool=bad":
        nodes.append(whole("c", memory="lots"))
        nodes[-1]["metadata"]["labels"]["pool"] = "bad"
    if selector == "pool=many":
        nodes.append(whole("c", count="1000"))
        nodes[-1]["metadata"]["labels"]["pool"] = "many"
    ran = simulate(nodes, "--share", selector)
    assert ran.status == 2
    assert said in ran.err


def test_one_node_without_labels_among_others_is_named(simulate: Simulate) -> None:
    other = plain_node("b")
    other["metadata"]["labels"] = {"pool": "gpu"}
    ran = simulate([whole("a"), other], "--share", "pool=gpu")
    assert ran.status == 0
    assert ran.warned("the labels of b do not say what GPUs there are")
