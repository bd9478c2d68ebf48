"""A node's life on a real kubelet: GPUs fail, vanish and are cordoned, plugins are replaced, labels
change, the node is rebooted. Pods that run stay where they are; nothing new goes where it must not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.contract import names
from gpushare_testcluster import wait_for
from gpushare_testcluster.node.kubelet import make_node
from gpushare_testcluster.pods import pod
from tests.cluster import extending, nodelife, plugging
from tests.cluster.history import History, annotation
from tests.cluster.nodelife import Stream

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.node

Object = dict[str, Any]

ALL = 60
"""Units of four GPUs."""
NOTICED_S = 5.0
"""So soon nothing new lands on a GPU that takes nothing new."""
IN_FLIGHT_S = 1.0
"""A bind that had begun when the node published it."""


def start(cluster: Cluster, *, placement: str = "binpack") -> None:
    """Extender and plugin; the node has the one label that names its mode."""
    cluster.admin.label("nodes", cluster.node.name, **{names.LABEL_OLD_SHARE: None})
    plugging.start(cluster, placement=placement)


def set_labels(cluster: Cluster, **labels: str | None) -> None:
    """mode, placement, old: of the node."""
    keys = {
        "mode": names.LABEL_MODE,
        "placement": names.LABEL_PLACEMENT,
        "old": names.LABEL_OLD_SHARE,
    }
    cluster.admin.label(
        "nodes", cluster.node.name, **{keys[key]: value for key, value in labels.items()}
    )


def cordon(cluster: Cluster, what: str | None) -> float:
    """Names the GPUs that take nothing new; when, by time.monotonic."""
    cluster.admin.annotate("nodes", cluster.node.name, **{names.ANNOTATION_CORDONED: what})
    return time.monotonic()


def offered(cluster: Cluster, amount: int) -> None:
    """The node offers exactly so many units, by a kubelet that lives."""

    def so_many() -> bool:
        if not cluster.processes.running("kubelet"):
            _, _, panic = cluster.node.kubelet_log().rpartition("panic: ")
            raise RuntimeError(f"the kubelet has ended: {panic[:600]}")
        return cluster.node.allocatable(names.RESOURCE_MEM) == amount

    wait_for(so_many, 20, f"{cluster.node.name} offers {amount} of {names.RESOURCE_MEM}")


# -- one GPU takes nothing new --------------------------------------------------------------------


def nothing_lands(cluster: Cluster, since: float, stream: Stream, gpu: int) -> None:
    """Checks a stream that flowed while a GPU, since then, was to take nothing new."""
    last = stream.last_on(gpu) - since
    print(f"the last pod was bound to GPU {gpu} at {last:+.2f} s")
    assert last < NOTICED_S
    assert any(
        one.bound_at is not None and one.bound_at > since + IN_FLIGHT_S for one in stream.passed()
    ), "the stream dried up, so nothing was shown"


def test_a_gpu_fails_and_recovers(clean_node: Cluster, rounds: Callable[..., int]) -> None:
    """12 of 15 are held on it and 36 of 45 elsewhere."""
    cluster, node = clean_node, clean_node.node
    start(cluster)
    held = nodelife.hold(cluster, 12, 12, 12, 12)
    assert sorted(held.values()) == [0, 1, 2, 3]
    before = nodelife.lives(cluster, held)
    for _ in range(rounds(few=1, full=8)):
        with (
            History(cluster) as history,
            Stream(cluster, history, every_s=0.3, kept=2) as stream,
        ):
            wait_for(
                lambda s=stream: 0 in {g for p in s.passed() for g in p.gpus}, 20, "GPU 0 used"
            )
            since = nodelife.machine(cluster, 0, 1, 2, 3, failed=[0])
            nodelife.wait_health(cluster, "GPU-0", healthy=False, timeout_s=NOTICED_S)
            published = time.monotonic()
            cluster.admin.create(pod("fills", gpu_mem=3))
            (filled,) = nodelife.settled(cluster, "fills")
            assert nodelife.on_gpus(filled) < {1, 2, 3}
            time.sleep(max(0.0, since + NOTICED_S - time.monotonic()))
        assert not stream.tell()
        nothing_lands(cluster, since, stream, 0)
        assert stream.last_on(0) < published + IN_FLIGHT_S
        assert not history.over_committed()
        stream.wait_gone()
        offered(cluster, ALL - 3)  # the free ids of the failed GPU
        assert nodelife.lives(cluster, held) == before
        nodelife.machine(cluster, 0, 1, 2, 3)
        nodelife.wait_health(cluster, "GPU-0", healthy=True)
        offered(cluster, ALL)
        more = ["more0", "more1", "more2"]
        for name in more:
            cluster.admin.create(pod(name, gpu_mem=3))
        gpus = [nodelife.on_gpus(one) for one in nodelife.settled(cluster, *more)]
        assert {0} in gpus
        assert extending.used(cluster)[node.name] == [15] * 4
        assert nodelife.lives(cluster, held) == before
        for name in ("fills", *more):
            cluster.admin.delete("pods", name)
    for name in held:
        plugging.agree(cluster, name)


def test_a_gpu_is_cordoned(clean_node: Cluster, rounds: Callable[..., int]) -> None:
    """By index and by UUID; what runs on it stays, over a restart of the kubelet too."""
    cluster, node = clean_node, clean_node.node
    start(cluster)
    held = nodelife.hold(cluster, 12, 12)
    assert sorted(held.values()) == [0, 1]
    before = nodelife.lives(cluster, held)
    for number in range(rounds(few=2, full=8)):
        what = ("0", "GPU-0")[number % 2]
        with (
            History(cluster) as history,
            Stream(cluster, history, every_s=0.3, kept=2, name=f"r{number}n") as stream,
        ):
            wait_for(
                lambda s=stream: 0 in {g for p in s.passed() for g in p.gpus}, 20, "GPU 0 used"
            )
            since = cordon(cluster, what)
            time.sleep(2 * IN_FLIGHT_S)
        assert not stream.tell()
        nothing_lands(cluster, since, stream, 0)
        assert stream.last_on(0) < since + IN_FLIGHT_S
        stream.wait_gone()
        offered(cluster, ALL - 3)
        if number == 0:
            node.restart_kubelet()
            offered(cluster, ALL - 3)
        (anew,) = nodelife.hold(cluster, 3, prefix=f"r{number}h").values()
        assert anew != 0, "binpack would have filled GPU 0"
        _, notes = nodelife.inspect(cluster, "-o", "wide")
        assert (
            f"GPU 0 (GPU-0) is cordoned ({names.ANNOTATION_CORDONED}), takes nothing new; "
            "12 of its 15 units are still held" in notes
        )
        cordon(cluster, None)
        offered(cluster, ALL)
        (again,) = nodelife.hold(cluster, 3, prefix=f"r{number}u").values()
        assert again == 0
        assert nodelife.inspect(cluster, "-o", "wide")[1] == ""
        for name in (f"r{number}h0", f"r{number}u0"):
            cluster.admin.delete("pods", name)
        assert nodelife.lives(cluster, held) == before
    for name in held:
        plugging.agree(cluster, name)


def test_a_gpu_vanishes_while_the_plugin_is_down(clean_node: Cluster) -> None:
    cluster, node = clean_node, clean_node.node
    start(cluster)
    held = nodelife.hold(cluster, 12, 12, 12, 12)
    at = {f"GPU-{i}": i for i in range(4)}
    assert nodelife.indexes(cluster) == at
    (victim,) = (name for name, gpu in held.items() if gpu == 1)
    before = nodelife.lives(cluster, held)

    node.stop_plugin()
    nodelife.machine(cluster, 0, 2, 3)
    node.restart_plugin(ready="/readyz")
    nodelife.wait_health(cluster, "GPU-1", healthy=False)
    assert nodelife.indexes(cluster) == at
    offered(cluster, ALL - 3)
    assert extending.used(cluster)[node.name] == [12] * 4
    table, notes = nodelife.inspect(cluster, "-d")
    assert victim in table
    assert "GPU 1 (GPU-1) is unhealthy and takes nothing new; 12 of its 15" in notes
    new = nodelife.hold(cluster, 3, 3, 3, prefix="n")
    assert sorted(new.values()) == [0, 2, 3]
    cluster.admin.create(pod("waits", gpu_mem=1))
    cluster.wait_event("waits")
    assert "nodeName" not in cluster.admin.get("pods", "waits")["spec"]
    assert nodelife.lives(cluster, held) == before

    cluster.admin.delete("pods", victim)
    without = {uuid: index for uuid, index in at.items() if uuid != "GPU-1"}
    wait_for(lambda: nodelife.indexes(cluster) == without, 10, "gone from the inventory")
    offered(cluster, ALL - 15)
    assert "waits" not in nodelife.lives(cluster, ["waits"])

    nodelife.machine(cluster, 0, 1, 2, 3)
    wait_for(lambda: nodelife.indexes(cluster) == at, 10, "back on its index")
    offered(cluster, ALL)
    (waited,) = nodelife.settled(cluster, "waits")
    assert nodelife.on_gpus(waited) == {1}
    for name in (*new, *(name for name in held if name != victim), "waits"):
        plugging.agree(cluster, name)


# -- the plugin is replaced, the node is rebooted -------------------------------------------------


def new_pod_runs(cluster: Cluster, name: str) -> None:
    """The node is registered: a new pod gets its GPU."""
    offered(cluster, ALL)
    cluster.admin.create(pod(name, gpu_mem=2))
    nodelife.settled(cluster, name)
    plugging.agree(cluster, name)


NOBODY_TO_ASK = (*plugging.AFTER_A_START, "code = Unavailable", "code = Canceled", "endpoint")
"""What a kubelet refuses pods with while no plugin is registered."""


def told(stream: Stream, way: str) -> list[str]:
    """Prints how many pods failed, each because the kubelet had no plugin; why."""
    failed = stream.tell()
    print(f"{way}: {len(failed)} pods failed")
    for why in failed:
        assert any(known in why for known in NOBODY_TO_ASK), why
    return failed


def test_two_plugins_overlap_in_a_rolling_update(
    clean_node: Cluster, rounds: Callable[..., int]
) -> None:
    """As with maxSurge 1: the new instance is ready before the old one ends."""
    cluster, node = clean_node, clean_node.node
    start(cluster)
    plugins = ["device-plugin", nodelife.SECOND]
    with History(cluster) as history, Stream(cluster, history, every_s=0.5) as stream:
        for number in range(rounds(few=1, full=10)):
            old, new = plugins[number % 2], plugins[(number + 1) % 2]
            nodelife.start_second(cluster, new, other=old)
            time.sleep(1.0)
            node.stop_plugin(name=old)
            time.sleep(1.5)
    failed = told(stream, "overlapping")
    assert not history.over_committed()
    new_pod_runs(cluster, "afterwards")
    # A kubelet (1.36.3) that loses one instance closes the connection to the other too. For some
    # 20 ms, until that one has registered again, it refuses whatever it admits.
    assert len(failed) <= 1


def test_one_plugin_ends_before_the_next_starts(
    clean_node: Cluster, rounds: Callable[..., int]
) -> None:
    """As a DaemonSet replaces its pods where it may not overlap them; how many fail is printed."""
    cluster, node = clean_node, clean_node.node
    start(cluster)
    with History(cluster) as history, Stream(cluster, history, every_s=0.5) as stream:
        for _ in range(rounds(few=1, full=10)):
            time.sleep(1.0)
            took = node.restart_plugin(ready="/readyz")
            print(f"ready after {took:.2f} s")
            time.sleep(1.0)
    told(stream, "one after the other")
    assert not history.over_committed()
    new_pod_runs(cluster, "afterwards")


def test_the_node_is_rebooted(clean_node: Cluster, rounds: Callable[..., int]) -> None:
    """Kubelet first, plugin last."""
    cluster, node = clean_node, clean_node.node
    start(cluster, placement="spread")
    cluster.admin.create(nodelife.deployment("app", 6, 4))
    nodelife.wait_replicas(cluster, "app", 6)
    for _ in range(rounds(few=1, full=5)):
        node.reboot()
        up = time.monotonic()
        took = node.restart_plugin(ready="/readyz")
        print(f"plugin ready {took:.2f} s after its start")
        wait_for(lambda: len(nodelife.lives_of(cluster, "app")) == 6, 40, "six containers run")
        pods = nodelife.wait_replicas(cluster, "app", 6)
        seconds = time.monotonic() - up
        _, failed = nodelife.replicas(cluster, "app")
        print(f"rebooted: all pods run {seconds:.1f} s after the plugin's start")
        print(f"{len(failed)} pods failed: {sorted({nodelife.failure(one) for one in failed})}")
        assert seconds - took < 30
        assert len(failed) <= 6, "failed pods pile up"
        for one in pods:
            plugging.agree(cluster, one["metadata"]["name"])
        for one in failed:
            cluster.admin.delete("pods", one["metadata"]["name"], grace_s=0)
    offered(cluster, ALL)


def test_the_node_object_is_created_anew(clean_node: Cluster) -> None:
    """By hand at once, and by a kubelet that starts; the GPUs' indexes are not in PCI order."""
    cluster, node = clean_node, clean_node.node
    cluster.admin.label("nodes", node.name, **{names.LABEL_OLD_SHARE: None})
    plugging.start(cluster, plugging.T4_MIB)
    at = {"GPU-0": 0, "GPU-3": 1, "GPU-1": 2, "GPU-2": 3}
    nodelife.machine(cluster, 0, 3)
    wait_for(lambda: len(nodelife.indexes(cluster)) == 2, 5, "a second GPU published")
    nodelife.machine(cluster, 0, 1, 2, 3)
    wait_for(lambda: len(nodelife.indexes(cluster)) == 4, 5, "all published")
    node.restart_plugin(ready="/readyz")
    offered(cluster, ALL)
    assert nodelife.indexes(cluster) == at
    held = nodelife.hold(cluster, 12, 12, 4)
    before = nodelife.lives(cluster, held)
    # a correction: the pod's annotation is not what the kubelet gave
    cluster.admin.annotate("pods", "h2", **{names.ANNOTATION_ALLOCATION: '{"0":{"0":4}}'})
    uid = cluster.admin.get("pods", "h2")["metadata"]["uid"]

    def published() -> bool:
        found = cluster.admin.get("nodes", node.name)
        corrections = annotation(found, names.ANNOTATION_CORRECTIONS) or {}
        return (
            nodelife.indexes(cluster) == at
            and corrections.get(uid) == {"0": {str(held["h2"]): 4}}
            and annotation(found, names.ANNOTATION_NODE)["attests"]
            and found["metadata"]["labels"].get(names.LABEL_ACCELERATOR_COUNT) == "4"
            and found["metadata"]["labels"].get(names.LABEL_ACCELERATOR_NAME) == "Tesla-T4"
            and found["status"].get("capacity", {}).get(names.RESOURCE_COUNT) == "4"
        )

    wait_for(published, 10, "inventory, labels and a correction published")
    labels = {names.LABEL_MODE: "share", names.LABEL_PLACEMENT: "binpack"}
    for by in ("hand", "kubelet"):
        cluster.admin.delete("nodes", node.name)
        if by == "hand":
            make_node(cluster.admin, node.layout.facts())
        else:
            node.restart_kubelet()
        cluster.admin.label("nodes", node.name, **labels)
        wait_for(published, 10, f"published again on a node created by {by}")
        offered(cluster, ALL)
        assert nodelife.lives(cluster, held) == before
        (one,) = nodelife.settled(cluster, "h2")
        assert nodelife.on_gpus(one) == {held["h2"]}
        (new,) = nodelife.hold(cluster, 3, prefix=by).values()
        (uuid,) = (uuid for uuid, index in at.items() if index == new)
        assert node.env_of(f"{by}0")[names.ENV_VISIBLE_DEVICES] == uuid
    assert extending.used(cluster)[node.name] == [15, 15, 4, 0]


# -- labels ---------------------------------------------------------------------------------------


def test_the_mode_switches_back_and_forth_under_load(
    clean_node: Cluster, rounds: Callable[..., int]
) -> None:
    cluster = clean_node
    start(cluster)
    stays = nodelife.hold(cluster, 4, 4)
    before = nodelife.lives(cluster, stays)
    cluster.admin.create(nodelife.deployment("app", 4, 2))
    nodelife.wait_replicas(cluster, "app", 4)
    with History(cluster) as history:
        for number in range(rounds(few=2, full=12)):
            nodelife.scale(cluster, "app", 8)
            wait_for(lambda: nodelife.on_their_way(cluster, "app"), 10, "pods are being started")
            set_labels(cluster, mode="default")
            offered(cluster, 0)
            assert nodelife.lives(cluster, stays) == before
            nodelife.scale(cluster, "app", 3 + number % 3)
            set_labels(cluster, mode="share")
            offered(cluster, ALL)
            nodelife.scale(cluster, "app", 6)
            nodelife.wait_replicas(cluster, "app", 6)
        nodelife.scale(cluster, "app", 5)
    pods = nodelife.wait_replicas(cluster, "app", 5)
    _, failed = nodelife.replicas(cluster, "app")
    print(f"{len(failed)} pods failed: {sorted({nodelife.failure(one) for one in failed})}")
    for one in failed:  # bound before, admitted after the label was there
        assert any(known in nodelife.failure(one) for known in NOBODY_TO_ASK), one["status"]
    assert not history.over_committed()
    assert nodelife.lives(cluster, stays) == before
    for name in (*stays, *(one["metadata"]["name"] for one in pods)):
        plugging.agree(cluster, name)


def test_the_placement_is_followed_live(clean_node: Cluster) -> None:
    cluster = clean_node
    start(cluster)
    by: dict[str, list[int]] = {}
    for number, placement in enumerate(("binpack", "spread", "binpack", "spraed")):
        set_labels(cluster, placement=placement)
        by[f"{number} {placement}"] = list(
            nodelife.hold(cluster, 1, 1, 1, prefix=f"r{number}").values()
        )
    assert by == {
        "0 binpack": [0, 0, 0],
        "1 spread": [1, 2, 3],
        "2 binpack": [0, 0, 0],
        "3 spraed": [0, 0, 0],
    }
    message = nodelife.node_event(cluster, "UnknownPlacement", "'spraed'")
    assert "binpack is used" in message
    assert "binpack, spread" in message


def test_labels_that_offer_nothing_say_why(clean_node: Cluster) -> None:
    cluster = clean_node
    start(cluster)
    held = nodelife.hold(cluster, 4)
    before = nodelife.lives(cluster, held)

    set_labels(cluster, mode="core_mem")
    offered(cluster, 0)
    message = nodelife.node_event(cluster, "GPUMemoryNotOffered", "core_mem")
    assert "is not supported yet" in message

    set_labels(cluster, mode="share")
    offered(cluster, ALL)
    set_labels(cluster, mode="default", old="true")
    offered(cluster, 0)
    message = nodelife.node_event(cluster, "ContradictingLabels")
    assert "the latter counts" in message

    set_labels(cluster, mode=None)
    offered(cluster, ALL)  # by the old label
    set_labels(cluster, mode="shrae", old=None)
    offered(cluster, 0)
    message = nodelife.node_event(cluster, "UnknownMode", "'shrae'")
    assert "share" in message

    set_labels(cluster, mode="share")
    offered(cluster, ALL)
    assert nodelife.lives(cluster, held) == before
    new_pod_runs(cluster, "afterwards")
