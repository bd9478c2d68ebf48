"""What users of such systems met: each a cluster, and what its table must say."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare.contract import names
from tests.inspect.conftest import Inspect
from tests.inspect.objects import Object, node, plain_node, pod


def test_two_containers_asking_1_and_2_hold_3(inspect: Inspect) -> None:
    printed = inspect([node(), pod("p", containers=[1, 2], gpu=1)])
    assert printed.rows == [["a", "192.0.2.1", "0/15", "3/15", "3/30"]]
    assert printed.last == "3/30 (10%)"


def test_two_containers_on_two_gpus_hold_their_own_part_on_each(inspect: Inspect) -> None:
    annotation = '{"0":{"0":1},"1":{"1":2}}'
    printed = inspect([node(), pod("p", containers=[1, 2], gpu=annotation)])
    assert printed.rows == [["a", "192.0.2.1", "1/15", "2/15", "3/30"]]


def test_an_init_container_that_asks_is_reused_not_added(inspect: Inspect) -> None:
    init = {names.ANNOTATION_INIT_ALLOCATION: '{"0":{"1":8}}'}
    printed = inspect([node(), pod("p", 4, gpu=1, init=[8], annotations=init)])
    assert printed.rows == [["a", "192.0.2.1", "0/15", "8/15", "8/30"]]


def test_three_12_gib_pods_on_one_24_gib_gpu(inspect: Inspect) -> None:
    """Somebody bound the third by hand: it is on the books, and on no GPU that is known."""
    pods = [pod("p1", 12, gpu=0), pod("p2", 12, gpu=0), pod("p3", 12)]
    printed = inspect([node(gpus=[24]), *pods])
    assert "PENDING(Allocated)" in printed.header
    assert printed.rows == [["a", "192.0.2.1", "24/24", "12", "36/24"]]
    assert printed.last == "36/24 (150%)"
    assert "1 pod (default/p3) without a readable GPU: 12 units are PENDING" in printed.err


def test_45_and_15_gib_gpus_in_one_node(inspect: Inspect) -> None:
    printed = inspect([node(gpus=[45, 15]), pod("p", 20, gpu=0)])
    assert printed.rows == [["a", "192.0.2.1", "20/45", "0/15", "20/60"]]


def test_nodes_with_different_numbers_of_gpus_print_0_of_0(inspect: Inspect) -> None:
    printed = inspect([node("b", [15]), node("a", [15, 15, 15])])
    assert printed.rows == [
        ["a", "192.0.2.1", "0/15", "0/15", "0/15", "0/45"],
        ["b", "192.0.2.1", "0/15", "0/0", "0/0", "0/15"],
    ]


def test_a_gap_in_the_indexes_prints_0_of_0_there(inspect: Inspect) -> None:
    """The inventory lost index 0; the pod on GPU 1 stays there."""
    device = {"index": 1, "uuid": "GPU-1", "model": "T4", "memory_mib": 15360, "units": 15}
    printed = inspect([node(gpus=[15], inventory=[device]), pod("p", 4, gpu=1)])
    assert printed.rows == [["a", "192.0.2.1", "0/0", "4/15", "4/15"]]
    details = inspect([node(gpus=[15], inventory=[device]), pod("p", 4, gpu=1)], "-d")
    assert "p            default    0                4\n" in details.out


def test_a_6_gib_card_that_offers_5(inspect: Inspect) -> None:
    device = {"index": 0, "uuid": "GPU-0", "model": "P2000", "memory_mib": 6041, "units": 5}
    printed = inspect([node(gpus=[5], inventory=[device]), pod("p", 5, gpu=0)])
    assert printed.rows == [["a", "192.0.2.1", "5/5", "5/5"]]
    assert printed.last == "5/5 (100%)"


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (None, "without a readable GPU"),
        ("{garbled", "is not like"),
        ('{"0":{"7":4}}', "names a GPU the node does not have"),
        ('{"0":{"-1":4}}', "is not an index"),
        ('{"0":{"1":0}}', "is no amount"),
        ('{"1":{"1":4}}', "does not match what the pod asks for"),
    ],
    ids=["missing", "garbled", "gpu-not-there", "negative-index", "zero", "other-container"],
)
def test_a_pod_whose_gpu_cannot_be_told_is_pending(
    inspect: Inspect, annotation: str | None, said: str
) -> None:
    printed = inspect([node(), pod("p", 4, gpu=annotation), pod("q", 2, gpu=1)])
    assert printed.header.split()[-3] == "PENDING(Allocated)"
    assert printed.rows == [["a", "192.0.2.1", "0/15", "2/15", "4", "6/30"]]
    assert said in printed.err
    assert printed.last == "6/30 (20%)"


def test_pending_pods_in_the_details(inspect: Inspect) -> None:
    printed = inspect([node(), pod("p", 4), pod("q", 2, gpu=1)], "-d")
    assert printed.out.splitlines()[3:8] == [
        "NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  Pending(Allocated)",
        "p            default    0                0                4",
        "q            default    0                2                0",
        "Allocated :  6 (20%)",
        "Total :      30",
    ]


def test_what_an_annotation_says_of_amounts_does_not_count(inspect: Inspect) -> None:
    """The spec is what the kubelet charged; a pod can write what it likes into its annotation."""
    printed = inspect([node(), pod("p", 4, gpu='{"0":{"1":1}}')])
    assert printed.rows == [["a", "192.0.2.1", "0/15", "4/15", "4/30"]]


def test_a_gpu_above_its_total_is_shown_as_it_is(inspect: Inspect) -> None:
    pods = [pod("p", 10, gpu=0), pod("q", 10, gpu=0)]
    printed = inspect([node(), *pods], "-o", "wide")
    assert printed.rows == [
        ["a", "192.0.2.1", "20/15", "0/15", "20/30", "cgpu", "spread", "-", "15"]
    ]
    assert "GPU 0 (GPU-0) is above its total, 20 of 15 units" in printed.err


def test_finished_pods_hold_nothing_and_terminating_ones_do(inspect: Inspect) -> None:
    pods = [
        pod("done", 4, gpu=0, phase="Succeeded"),
        pod("failed", 4, gpu=0, phase="Failed"),
        pod("leaving", 4, gpu=0, terminating=True),
        pod("starting", 4, gpu=1, phase="Pending"),
        pod("unknown", 1, gpu=1, phase="Unknown"),
    ]
    printed = inspect([node(), *pods])
    assert printed.rows == [["a", "192.0.2.1", "4/15", "5/15", "9/30"]]
    details = inspect([node(), *pods], "-d")
    assert [name for name in ("done", "failed", "leaving", "starting") if name in details.out] == [
        "leaving",
        "starting",
    ]


def test_a_pod_on_no_node_holds_nothing_and_is_not_listed(inspect: Inspect) -> None:
    printed = inspect([node(), pod("waiting", 4, node=None)], "-d")
    assert "waiting" not in printed.out + printed.err
    assert printed.last == "Allocated/Total GPU Memory In Cluster:  0/30 (0%)"


def test_a_node_without_internal_ip(inspect: Inspect) -> None:
    printed = inspect([node(address=None)])
    assert printed.rows == [["a", "unknown", "0/15", "0/15", "0/30"]]
    assert inspect([node(address=None)], "-o", "json").json["nodes"][0]["address"] is None


def test_a_cordoned_node_stays_in_the_table(inspect: Inspect) -> None:
    printed = inspect([node(unschedulable=True), pod("p", 4, gpu=0)])
    assert printed.rows == [["a", "192.0.2.1", "4/15", "0/15", "4/30"]]
    assert "note: node a: cordoned (kubectl cordon)" in printed.err


def test_an_unhealthy_gpu_keeps_what_it_holds(inspect: Inspect) -> None:
    printed = inspect([node(unhealthy=(0,), allocatable=19), pod("p", 4, gpu=0)])
    assert printed.rows == [["a", "192.0.2.1", "4/15", "0/15", "4/30"]]
    assert "GPU 0 (GPU-0) is unhealthy and takes nothing new; 4 of its 15" in printed.err
    assert "its status says" not in printed.err


def test_a_cordoned_gpu_gets_a_note(inspect: Inspect) -> None:
    printed = inspect([node(annotations={names.ANNOTATION_CORDONED: "GPU-1, 5"})])
    assert "GPU 1 (GPU-1) is cordoned" in printed.err
    assert "names 5, which is no GPU" in printed.err
    gpus = inspect([node(annotations={names.ANNOTATION_CORDONED: "GPU-1"})], "-o", "json").json[
        "nodes"
    ][0]["gpus"]
    assert [gpu["cordoned"] for gpu in gpus] == [False, True]


def test_a_multi_gpu_pod_shows_its_part_on_each(inspect: Inspect) -> None:
    labels = {names.LABEL_GPU_COUNT: "2"}
    printed = inspect([node(), pod("p", 8, gpu={0: 4, 1: 4}, labels=labels)], "-d")
    assert "p            default    4                4\n" in printed.out
    assert "Allocated :  8 (26%)\n" in printed.out


def test_a_gpu_count_that_does_not_divide_is_charged_by_its_sum(inspect: Inspect) -> None:
    printed = inspect([node(), pod("p", 5, labels={names.LABEL_GPU_COUNT: "2"})])
    assert printed.rows == [["a", "192.0.2.1", "0/15", "0/15", "5", "5/30"]]
    assert "do not divide by" in printed.err


@pytest.mark.parametrize("amount", ["4.5", "-1", "99999999999999999999", "many"])
def test_an_amount_nobody_can_serve_stops_nothing(inspect: Inspect, amount: str) -> None:
    printed = inspect([node(), pod("bad", amount), pod("good", 4, gpu=0)])
    assert printed.status == 0
    assert printed.rows == [["a", "192.0.2.1", "4/15", "0/15", "4/30"]]
    assert "pod default/bad: spec.containers[0].resources.limits[aliyun.com/gpu-mem]" in printed.err
    assert "in no sum" in printed.err


def test_an_amount_of_0_holds_nothing(inspect: Inspect) -> None:
    printed = inspect([node(), pod("p", 0)], "-d")
    assert "\np " not in printed.out


def test_10gi_is_so_many_units_and_shown_as_they_are(inspect: Inspect) -> None:
    """To the API server 10Gi is a whole number, ten times 2^30, and no node has that many."""
    printed = inspect([node(), pod("p", "10Gi")])
    assert printed.rows[0][-2] == str(10 * 2**30)


def test_a_policy_label_with_a_typo_is_binpack_with_a_note(inspect: Inspect) -> None:
    printed = inspect([node(placement="spred")], "-o", "wide")
    assert printed.rows[0][-3] == "binpack"
    assert "ack.node.gpu.placement='spred' is not known; binpack is used" in printed.err


def test_a_mode_label_with_a_typo_gets_a_note_though_the_node_offers_nothing(
    inspect: Inspect,
) -> None:
    hidden = plain_node("b")
    hidden["metadata"]["labels"] = {names.LABEL_MODE: "cpgu"}
    printed = inspect([node(), hidden])
    assert len(printed.rows) == 1
    assert "note: node b: label ack.node.gpu.schedule='cpgu' is not known" in printed.err


def test_a_141_gib_gpu_is_still_gib(inspect: Inspect) -> None:
    printed = inspect([node(gpus=[141]), pod("p", 100, gpu=0)])
    assert printed.header.endswith("GPU Memory(GiB)")
    assert printed.rows == [["a", "192.0.2.1", "100/141", "100/141"]]


def test_the_128_mib_unit_is_what_the_nodes_publish(inspect: Inspect) -> None:
    printed = inspect([node(gpus=[120, 120], unit="128MiB"), pod("p", 32, gpu=1)])
    assert printed.header.endswith("GPU Memory(128MiB)")
    assert printed.last == "32/240 (13%)"
    assert inspect([node(unit="128MiB")], "-o", "json").json["unit"] == "128MiB"


def test_the_unit_of_nodes_that_publish_none_can_be_said(inspect: Inspect) -> None:
    printed = inspect([node(gpus=[120], inventory=False)], "--unit", "128MiB")
    assert printed.header.endswith("GPU Memory(128MiB)")


def test_nodes_of_different_units_get_a_note_and_keep_theirs(inspect: Inspect) -> None:
    printed = inspect([node("a"), node("b"), node("c", [120], unit="128MiB")])
    assert printed.header.endswith("GPU Memory(GiB)")
    assert printed.rows[2] == ["c", "192.0.2.1", "0/120", "0/0", "0/120"]
    assert "node c: its amounts are units of 128MiB, others' are GiB" in printed.err


def test_a_node_whose_sums_disagree_with_its_inventory(inspect: Inspect) -> None:
    printed = inspect([node(capacity=28)])
    assert printed.rows == [["a", "192.0.2.1", "0/15", "0/15", "0/30"]]
    assert "its status says 28 units of aliyun.com/gpu-mem, its inventory 30" in printed.err


def test_hundreds_of_pods_that_have_nothing_to_do_with_gpus(inspect: Inspect) -> None:
    others = [pod(f"web-{i}", node=f"cpu-{i % 5}", namespace="web") for i in range(400)]
    nodes = [plain_node(f"cpu-{i}") for i in range(5)]
    printed = inspect([*nodes, *others, node(), pod("p", 4, gpu=0)])
    assert printed.rows == [["a", "192.0.2.1", "4/15", "0/15", "4/30"]]
    assert printed.err == ""


def test_the_older_add_ons_nodes_and_pods(inspect: Inspect) -> None:
    old = node(inventory=False, mode=None, placement=None, labels={names.LABEL_OLD_SHARE: "true"})
    printed = inspect([old, pod("p", 4, old="1"), pod("q", 3, old="0")])
    assert printed.rows == [["a", "192.0.2.1", "3/15", "4/15", "7/30"]]
    assert printed.err == ""


def test_the_newer_generation_of_annotations_takes_precedence(inspect: Inspect) -> None:
    printed = inspect([node(), pod("p", 4, gpu=1, old="0"), pod("q", 2, gpu="garbled", old="0")])
    assert printed.rows == [["a", "192.0.2.1", "2/15", "4/15", "6/30"]]


def test_a_node_whose_device_plugin_is_down_does_not_vanish(inspect: Inspect) -> None:
    gone = node(capacity=0, allocatable=0)
    printed = inspect([gone, pod("p", 4, gpu=0)])
    assert printed.rows == [["a", "192.0.2.1", "4/15", "0/15", "4/30"]]
    assert "its device plugin is down (allocatable aliyun.com/gpu-mem is 0)" in printed.err


def test_a_node_that_only_has_a_live_pod_that_asks_is_shown(inspect: Inspect) -> None:
    printed = inspect([plain_node("a"), node("b"), pod("p", 4, gpu=0)])
    assert printed.rows[0] == ["a", "unknown", "0/0", "0/0", "4", "4/0"]
    assert "node a: offers no aliyun.com/gpu-mem" in printed.err


def test_a_pod_on_a_node_that_is_not_there_is_in_no_sum(inspect: Inspect) -> None:
    printed = inspect([node(), pod("lost", 4, gpu=0, node="gone")])
    assert printed.last == "0/30 (0%)"
    assert "1 pod (default/lost) on a node that is not there (gone): 4 units" in printed.err


def test_an_unprotected_container_gets_a_note(inspect: Inspect) -> None:
    annotations = {names.ANNOTATION_UNPROTECTED: "static binary"}
    printed = inspect([node(), pod("p", 4, gpu=0, annotations=annotations)])
    assert "pod default/p runs without its memory limit: static binary" in printed.err


def isolating(backend: str = "interposer", **more: Any) -> Object:
    """A node with two T4 of 15 units and 16130 MiB, held to shares by `backend`."""
    device = {"model": "Tesla T4", "memory_mib": 16130, "units": 15}
    devices = [{"index": i, "uuid": f"GPU-{i}", **device} for i in range(2)]
    return node(inventory=devices, labels={names.LABEL_ISOLATION: backend}, **more)


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        (pod("p", 3, gpu=0), "3226"),
        (pod("p", 4, gpu=1), "4301"),
        (pod("p", containers=[2, 3], gpu=0), "2150,3226"),
        (pod("p", containers=[2, 3], gpu='{"0":{"0":2},"1":{"1":3}}'), "2150;3226"),
        (pod("p", containers=[None, 2], gpu=0), "2150"),
        (pod("p", 8, gpu={0: 4, 1: 4}, labels={names.LABEL_GPU_COUNT: "2"}), "4301;4301"),
        (pod("p", 4, gpu=0, init=[8]), "8602,4301"),
        (pod("p", 4, old="1"), "4301"),
        (pod("p", 4), "-"),
        (pod("p", 4, gpu='{"0":{"7":4}}'), "-"),
    ],
)
def test_wide_details_show_what_each_container_is_held_to(
    inspect: Inspect, asked: Object, limits: str
) -> None:
    lines = inspect([isolating(), asked], "-d", "-o", "wide").out.splitlines()
    assert "ISOLATION:     interposer" in lines
    header = next(line for line in lines if line.startswith("NAME "))
    (row,) = [line.split() for line in lines if line.startswith("p ")]
    assert header.split()[-1] == "LIMIT(MiB)"
    assert (len(row), row[-1]) == (len(header.split()), limits)


def test_a_correction_says_which_gpus_part_it_is(inspect: Inspect) -> None:
    corrections = {names.ANNOTATION_CORRECTIONS: '{"uid-default-p":{"0":{"1":4}}}'}
    printed = inspect([isolating(annotations=corrections), pod("p", 4, gpu=0)], "-o", "json")
    first, second = printed.json["nodes"][0]["gpus"]
    assert first["pods"] == []
    assert second["pods"][0]["containers"] == [{"index": 0, "units": 4, "limit_mib": 4301}]


def test_json_has_the_limit_of_each_container(inspect: Inspect) -> None:
    pods = [pod("p", containers=[3, 1], gpu=0, init=[8]), pod("q", 4, gpu=1)]
    found = inspect([isolating("driver"), *pods], "-o", "json").json["nodes"][0]
    assert found["isolation"] == "driver"
    assert found["gpus"][0]["pods"][0]["containers"] == [
        {"index": 0, "units": 8, "limit_mib": 8602, "init": True},
        {"index": 0, "units": 3, "limit_mib": 3226},
        {"index": 1, "units": 1, "limit_mib": 1075},
    ]
    assert found["gpus"][1]["pods"][0]["containers"][0]["limit_mib"] == 4301


@pytest.mark.parametrize(
    "where",
    [
        node(),
        isolating("none"),
        isolating("something-new"),
        node(labels={names.LABEL_ISOLATION: "interposer"}, inventory=False),
    ],
    ids=["no-label", "none", "unknown", "no-inventory"],
)
def test_where_nothing_is_known_to_hold_a_container_no_limit_is_shown(
    inspect: Inspect, where: Object
) -> None:
    objects = [where, pod("p", 4, gpu=0)]
    shown = inspect(objects, "-o", "json").json["nodes"][0]["gpus"][0]["pods"]
    assert shown == [{"namespace": "default", "name": "p", "units": 4}]
    assert inspect(objects, "-d", "-o", "wide").out.splitlines()[8].split()[-1] == "-"


@pytest.mark.parametrize("arguments", [[], ["-d"], ["-o", "wide"], ["--by", "owner"]])
def test_isolation_changes_no_table_but_the_wide_details(
    inspect: Inspect, arguments: list[str]
) -> None:
    reason = {names.ANNOTATION_UNPROTECTED: "static binary"}
    pods = [pod("p", 4, gpu=0, annotations=reason), pod("q", 4), pod("r", 8, gpu={0: 4, 1: 4})]
    held = inspect([isolating(), *pods], *arguments).out
    free = inspect([isolating("driver"), *pods], *arguments).out
    assert held.replace("interposer", "-").split() == free.replace("driver", "-").split()
    assert "LIMIT" not in held
    assert "MiB" not in held


def test_json_says_why_a_pod_is_unprotected(inspect: Inspect) -> None:
    pods = [
        pod("on-a-gpu", 4, gpu=0, annotations={names.ANNOTATION_UNPROTECTED: "static binary"}),
        pod("pending", 4, annotations={names.ANNOTATION_UNPROTECTED: ""}),
        pod("protected", 4, gpu=1),
    ]
    found = inspect([isolating(), *pods], "-o", "json").json["nodes"][0]
    assert found["gpus"][0]["pods"][0]["unprotected"] == "static binary"
    assert found["pending_pods"][0]["unprotected"] == ""
    assert "unprotected" not in found["gpus"][1]["pods"][0]


def test_a_node_that_promises_isolation_and_has_none_gets_a_note(inspect: Inspect) -> None:
    printed = inspect([node(labels={names.LABEL_ISOLATION: "none"})], "-o", "wide")
    assert printed.rows[0][-2] == "none"
    assert "its mode is cgpu, but nothing holds containers to their share" in printed.err


def test_a_pod_that_is_gone_but_still_charged(inspect: Inspect) -> None:
    corrections = {names.ANNOTATION_CORRECTIONS: '{"uid-x":{"0":{"1":4}}}'}
    printed = inspect([node(annotations=corrections)], "-d")
    assert "uid-x        -          0                4\n" in printed.out
    assert "1 pod is gone but still charged with 4 units (UID uid-x)" in printed.err


def test_a_correction_wins_over_the_pods_own_annotation(inspect: Inspect) -> None:
    corrections = {names.ANNOTATION_CORRECTIONS: '{"uid-default-p":{"0":{"1":4}}}'}
    printed = inspect([node(annotations=corrections), pod("p", 4, gpu=0)])
    assert printed.rows == [["a", "192.0.2.1", "0/15", "4/15", "4/30"]]
