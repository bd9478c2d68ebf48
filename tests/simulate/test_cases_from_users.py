"""What users of such systems met: each a cluster or manifests, and where the pods must go."""

from __future__ import annotations

import pytest

from gpushare.contract import names
from tests.simulate.conftest import Simulate
from tests.simulate.objects import controller, node, plain_node, pod, waiting


def test_the_documentations_job_under_spread(simulate: Simulate) -> None:
    ran = simulate([node(gpus=[15] * 4), controller("Job", parallelism=3)], output="table")
    assert ran.status == 0
    row = ran.out.splitlines()[1].split()
    assert sorted(row[2:6]) == ["0/15", "4/15", "4/15", "4/15"]
    assert row[6] == "12/60"
    assert ran.out.splitlines()[-1] == "12/60 (20%)"


def test_the_documentations_job_under_binpack(simulate: Simulate) -> None:
    ran = simulate([node(gpus=[15] * 4, placement="binpack"), controller("Job", parallelism=3)])
    assert ran.held("a") == [12, 0, 0, 0]


def test_two_containers_asking_1_and_2_go_together(simulate: Simulate) -> None:
    both = waiting("p", 1)
    both["spec"]["containers"] += waiting("q", 2)["spec"]["containers"]
    assert simulate([node(), both]).held("a") == [3, 0]


def test_an_init_container_that_asks_is_reused_not_added(simulate: Simulate) -> None:
    init = waiting("i", 8)["spec"]["containers"]
    assert simulate([node(), waiting("p", 4, initContainers=init)]).held("a") == [8, 0]


def test_three_12_gib_pods_on_one_24_gib_gpu(simulate: Simulate) -> None:
    ran = simulate([node(gpus=[24]), controller("Job", units=12, parallelism=3)])
    assert ran.status == 1
    assert ran.held("a") == [24]
    assert ran.no_place == {"x-2": "node-full"}


def test_45_and_15_gib_gpus_in_one_node(simulate: Simulate) -> None:
    """The quotient of sum and number would be 30 each."""
    ran = simulate([node(gpus=[45, 15]), waiting("p", 40), waiting("q", 16), waiting("r", 15)])
    assert ran.pods("a") == {"p": [0], "r": [1]}
    assert ran.no_place == {"q": "no-gpu-fits"}


def test_a_6_gib_card_that_offers_5(simulate: Simulate) -> None:
    ran = simulate([node(gpus=[5]), waiting("p", 6), waiting("q", 5)])
    assert ran.no_place == {"p": "node-full"}
    assert ran.held("a") == [5]


@pytest.mark.parametrize(
    ("annotation", "note"),
    [
        (None, "without a readable GPU: 4 units are PENDING"),
        ("{broken", "scheduler.framework.gpushare.allocation"),
        ('{"0":{"7":4}}', "names a GPU the node does not have"),
    ],
    ids=["missing", "garbled", "a GPU that isn't there"],
)
def test_a_pod_whose_annotation_says_no_gpu_counts_on_every_gpu(
    simulate: Simulate, annotation: str | None, note: str
) -> None:
    ran = simulate([node(), pod("lost", 4, annotation), waiting("p", 12), waiting("q", 11)])
    assert ran.no_place == {"p": "no-gpu-fits"}
    (found,) = ran.json["nodes"]
    assert found["pending_pods"] == [{"namespace": "default", "name": "lost", "units": 4}]
    assert sorted(ran.held("a")) == [0, 11]
    assert ran.warned(note)


def test_the_old_add_ons_annotation_is_read(simulate: Simulate) -> None:
    assert simulate([node(), pod("p", 4, old="1")]).held("a") == [0, 4]


def test_a_gpu_already_over_its_total_takes_nothing_and_is_shown_as_it_is(
    simulate: Simulate,
) -> None:
    ran = simulate([node(), pod("p", 10, 0), pod("q", 10, 0), waiting("r", 4), waiting("s", 12)])
    assert ran.pods("a")["r"] == [1]
    assert ran.held("a") == [20, 4]
    assert ran.no_place == {"s": "node-full"}
    assert ran.json["unscheduled"][0]["candidates"] == [{"node": "a", "largest_free": 11}]
    assert ran.warned("GPU 0 (GPU-0) is above its total, 20 of 15 units")


def test_succeeded_and_failed_pods_hold_nothing_and_terminating_ones_do(
    simulate: Simulate,
) -> None:
    there = [
        pod("done", 15, 0, phase="Succeeded"),
        pod("failed", 15, 0, phase="Failed"),
        pod("going", 15, 1, terminating=True),
    ]
    ran = simulate([node(), *there, waiting("p", 15), waiting("q", 15)])
    assert ran.pods("a") == {"going": [1], "p": [0]}
    assert list(ran.no_place) == ["q"]


def test_a_pod_deleted_before_it_got_a_node_needs_none(simulate: Simulate) -> None:
    gone = waiting("p", 4)
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert simulate([node(), gone]).held("a") == [0, 0]


def test_a_node_without_internal_ip(simulate: Simulate) -> None:
    assert simulate([node(address=None)]).json["nodes"][0]["address"] is None
    assert simulate([node(address=None)], output="table").out.splitlines()[1].split()[1] == (
        "unknown"
    )


def test_a_cordoned_node_keeps_what_it_has_and_takes_nothing(simulate: Simulate) -> None:
    ran = simulate([node(unschedulable=True), pod("p", 4, 0), waiting("q", 4)])
    assert ran.pods("a") == {"p": [0]}
    assert "1 cordoned" in ran.message("q")
    assert ran.warned("node a: cordoned (kubectl cordon)")


def test_an_unhealthy_gpu_keeps_what_it_has_and_takes_nothing(simulate: Simulate) -> None:
    ran = simulate([node(unhealthy=(0,)), pod("p", 4, 0), waiting("q", 4), waiting("r", 12)])
    assert ran.pods("a") == {"p": [0], "q": [1]}
    assert ran.no_place == {"r": "node-full"}
    assert ran.warned("GPU 0 (GPU-0) is unhealthy")


def test_a_cordoned_gpu_takes_nothing(simulate: Simulate) -> None:
    cordon = {names.ANNOTATION_CORDONED: "0"}
    assert simulate([node(annotations=cordon), waiting("p", 4)]).held("a") == [0, 4]


@pytest.mark.parametrize(("count", "units"), [("3", 4), ("0", 4), ("two", 4), ("65", 130)])
def test_a_gpu_count_that_does_not_divide_or_is_none(
    simulate: Simulate, count: str, units: int
) -> None:
    """The API server takes such a pod: it is no unusable input, but it has no place."""
    ran = simulate([node(), waiting("p", units, labels={names.LABEL_GPU_COUNT: count})])
    assert ran.status == 1
    assert ran.no_place == {"p": "gpu-count"}
    assert names.LABEL_GPU_COUNT in ran.message("p")


def test_a_pod_over_two_gpus_gets_half_on_each(simulate: Simulate) -> None:
    ran = simulate([node(), waiting("p", 8, labels={names.LABEL_GPU_COUNT: "2"})])
    assert ran.pods("a") == {"p": [0, 1]}
    assert ran.held("a") == [4, 4]


def test_a_policy_label_with_a_typo_falls_back_to_binpack_and_is_said_to(
    simulate: Simulate,
) -> None:
    ran = simulate([node(placement="spred"), controller("Job", parallelism=2)])
    assert ran.held("a") == [8, 0]
    assert ran.warned("ack.node.gpu.placement='spred' is not known; binpack is used")


def test_a_mode_label_with_a_typo_is_no_sharing_node_and_is_said_to(simulate: Simulate) -> None:
    ran = simulate([plain_node("b"), node("a", mode="cgup"), waiting("p", 4)])
    assert ran.no_place == {"p": "not-sharing"}
    assert ran.warned("ack.node.gpu.schedule='cgup' is not known")


def test_a_141_gib_gpu_is_still_counted_in_gib(simulate: Simulate) -> None:
    ran = simulate([node(gpus=[141, 141]), waiting("p", 100)])
    assert ran.json["unit"] == "GiB"
    assert ran.held("a") == [100, 0]


def test_the_128_mib_unit(simulate: Simulate) -> None:
    """32 units are 4 GiB; what the node publishes wins over the option."""
    published = simulate([node(gpus=[120], unit="128MiB"), waiting("p", 32)])
    assert published.json["unit"] == "128MiB"
    told = simulate([node(gpus=[120], inventory=False), waiting("p", 32)], "--unit", "128MiB")
    assert told.json["unit"] == "128MiB"
    table = simulate([node(gpus=[120], unit="128MiB")], output="table")
    assert "GPU Memory(128MiB)" in table.out


def test_a_node_that_advertises_less_than_its_inventory_is_held_to_that(
    simulate: Simulate,
) -> None:
    ran = simulate([node(capacity=10), waiting("p", 8), waiting("q", 8)])
    assert ran.no_place == {"q": "node-full"}
    assert ran.warned("its status says 10 units of aliyun.com/gpu-mem, its inventory 30")


def test_a_node_whose_plugin_is_down_takes_nothing_and_is_shown(simulate: Simulate) -> None:
    ran = simulate([node(allocatable=0), pod("p", 4, 0), waiting("q", 4)])
    assert ran.held("a") == [4, 0]
    assert ran.no_place == {"q": "not-ready"}
    assert ran.warned("its device plugin is down")


def test_a_dump_with_hundreds_of_pods_that_have_nothing_to_do_with_gpus(
    simulate: Simulate,
) -> None:
    others = [pod(f"web-{i}", None, node="cpu-only", namespace=f"ns-{i % 9}") for i in range(400)]
    queued = [pod(f"queued-{i}", None, node=None, phase="Pending") for i in range(3)]
    job = controller("Job", parallelism=3)
    ran = simulate([plain_node(), node(gpus=[15] * 4), *others, *queued, job])
    assert ran.status == 0
    assert [n["name"] for n in ran.json["nodes"]] == ["a"]
    assert ran.held("a") == [4, 4, 4, 0]
    assert ran.json["warnings"] == ["3 pods without GPU memory and without a node: left out"]


def test_a_sum_that_fits_and_no_gpu_that_does(simulate: Simulate) -> None:
    ran = simulate([node(), pod("p", 9, 0), pod("q", 9, 1), waiting("r", 8)])
    assert ran.no_place == {"r": "no-gpu-fits"}
    assert "1 with no single GPU that has enough (largest free 6 on node a)" in ran.message("r")


def test_spread_on_a_node_with_one_gpu_has_no_effect_and_is_said_to(simulate: Simulate) -> None:
    ran = simulate([node("one", [15]), node("two", [15, 15]), waiting("p", 4)])
    assert ran.warned("node one has one GPU: spread chooses among the GPUs of a node")
    assert not simulate([node("one", [15], placement="binpack")]).warned("one GPU")


def test_pods_on_a_node_that_is_not_in_the_input(simulate: Simulate) -> None:
    ran = simulate([node(), pod("p", 4, 0, node="gone"), waiting("q", 4)])
    assert ran.status == 0
    assert ran.warned("1 pod stands on nodes that are not in the input (gone): left out")


def test_a_copied_manifest_that_carries_another_pods_uid(simulate: Simulate) -> None:
    copy = waiting("copy", 4)
    copy["metadata"]["uid"] = "uid-default-p"
    ran = simulate([node(), pod("p", 4, 0), copy])
    assert ran.pods("a") == {"p": [0], "copy": [1]}
    assert ran.warned("carry a UID of another")


def test_a_labelled_node_without_a_device_plugin(simulate: Simulate) -> None:
    bare = plain_node("new")
    bare["metadata"]["labels"] = {names.LABEL_MODE: "cgpu"}
    ran = simulate([bare, waiting("p", 4)])
    assert ran.no_place == {"p": "not-ready"}
    assert ran.warned("node new is labelled as sharing, but offers no aliyun.com/gpu-mem")


def test_core_percentage_goes_to_core_mem_nodes_only(simulate: Simulate) -> None:
    def compute(name: str) -> dict[str, object]:
        found = waiting(name, 4)
        found["spec"]["containers"][0]["resources"]["limits"][names.RESOURCE_CORE] = "60"
        return found

    nodes = [node("a"), node("b", mode="core_mem")]
    ran = simulate([*nodes, compute("p"), compute("q"), compute("r")])
    assert sorted(ran.pods("b")) == ["p", "q"]
    assert ran.no_place == {"r": "no-gpu-fits"}
    assert simulate([node("a"), compute("p")]).no_place == {"p": "mode-mix"}


def test_whole_gpus_offered_beside_their_memory(simulate: Simulate) -> None:
    twice = node()
    twice["status"]["allocatable"]["nvidia.com/gpu"] = "2"
    assert simulate([twice]).warned("the same GPUs are given out twice")
