"""Another device plugin on the node gives away the same GPUs whole, on a real kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpushare.contract.names import RESOURCE_MEM, RESOURCE_WHOLE_GPU
from gpushare.node.checkpoint import read_checkpoint
from gpushare_testcluster import wait_for
from tests.cluster import nodelife, plugging, whole_gpus
from tests.cluster.history import History

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.node

ALL = 60
"""Units of four GPUs of 15."""
FOUR = tuple(f"GPU-{i}" for i in range(4))
NOTICED_S = 5.0


def written_down(cluster: Cluster) -> set[str]:
    """GPUs that somebody has whole, by the kubelet's checkpoint."""
    shown = read_checkpoint(cluster.node.device_plugin_dir, RESOURCE_WHOLE_GPU)
    return {uuid for one in shown for uuid in one.ids}


def most_offered(history: History) -> int:
    """The most units that the node offered meanwhile."""
    allocatable = [
        event.object["status"].get("allocatable", {})
        for event in history.events
        if not event.is_pod
    ]
    return max(int(amounts.get(RESOURCE_MEM, 0)) for amounts in allocatable)


def test_a_gpu_that_a_pod_has_whole_takes_nothing_new(clean_node: Cluster) -> None:
    """The other plugin does not know that a pod of ours is on it."""
    cluster, node = clean_node, clean_node.node
    plugging.start(cluster, options=("--beside-whole-gpus",))
    with whole_gpus.offered(cluster, *FOUR):
        held = nodelife.hold(cluster, 4)
        assert held == {"h0": 0}
        before = nodelife.lives(cluster, held)
        cluster.admin.create(whole_gpus.whole_pod("whole"))
        node.wait_running("whole")
        nodelife.wait_health(cluster, "GPU-0", healthy=False, timeout_s=NOTICED_S)
        node.wait_allocatable(RESOURCE_MEM, ALL - 11)  # the free ids of that GPU
        message = nodelife.node_event(cluster, "GPUClosed", "GPU 0 ")
        assert "takes nothing new: pod default/whole has it whole (nvidia.com/gpu)" in message
        assert "On it: default/h0." in message
        (new,) = nodelife.hold(cluster, 4, prefix="new").values()
        assert new != 0
        assert nodelife.lives(cluster, held) == before

        cluster.admin.delete("pods", "whole")
        nodelife.wait_health(cluster, "GPU-0", healthy=True, timeout_s=NOTICED_S)
        assert written_down(cluster) == {"GPU-0"}, "the kubelet writes it down until it allocates"
        node.wait_allocatable(RESOURCE_MEM, ALL)
        assert nodelife.lives(cluster, held) == before
        assert set(nodelife.hold(cluster, 11, prefix="last").values()) <= {0, new}
    plugging.agree(cluster, "h0")


def test_the_other_plugin_leaves_and_its_pods_keep_their_gpus(clean_node: Cluster) -> None:
    cluster, node = clean_node, clean_node.node
    plugging.start(cluster)
    with whole_gpus.offered(cluster, *FOUR):
        node.wait_allocatable(RESOURCE_MEM, 0)
        for name in ("w0", "w1"):
            cluster.admin.create(whole_gpus.whole_pod(name))
            node.wait_running(name)
    with History(cluster) as history:
        node.wait_allocatable(RESOURCE_MEM, 30)
        assert {one.healthy for one in nodelife.devices(cluster).values()} == {True, False}
        node.restart_plugin(ready="/readyz")
        node.restart_kubelet()
        node.wait_allocatable(RESOURCE_MEM, 30)
        assert set(nodelife.hold(cluster, 4, 15).values()) == {2, 3}
    assert most_offered(history) == 30
    cluster.admin.delete("pods", "w0")
    node.wait_allocatable(RESOURCE_MEM, 45)
    cluster.admin.delete("pods", "w1")
    node.wait_allocatable(RESOURCE_MEM, ALL)


def test_what_the_kubelet_wrote_down_of_a_pod_that_ended_closes_no_gpu_for_ever(
    clean_node: Cluster,
) -> None:
    """Nobody is left to make it allocate: all GPUs had been taken, and the plugin starts anew."""
    cluster, node = clean_node, clean_node.node
    plugging.start(cluster)
    pods = [f"w{i}" for i in range(4)]
    with whole_gpus.offered(cluster, *FOUR):
        for name in pods:
            cluster.admin.create(whole_gpus.whole_pod(name))
        for name in pods:
            node.wait_running(name)
    node.stop_plugin()
    for name in pods:
        cluster.admin.delete("pods", name)
    wait_for(lambda: not cluster.admin.list("pods"), 20, "the pods are gone")
    assert written_down(cluster) == set(FOUR)
    node.restart_plugin(ready="/readyz")
    node.wait_allocatable(RESOURCE_MEM, ALL)
    assert written_down(cluster) == set(FOUR)
    nodelife.hold(cluster, 15)
    assert not written_down(cluster)
