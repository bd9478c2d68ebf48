"""Pods placed by the real kube-scheduler through the extender: what users see first."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.contract import names
from gpushare.contract.names import Reason
from gpushare.view.reasons import short
from gpushare_testcluster import wait_for
from gpushare_testcluster.pods import job, pod
from tests.cluster import extending

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.cluster

SPREAD = {names.LABEL_PLACEMENT: "spread"}


@pytest.fixture
def cluster(clean_cluster: Cluster) -> Cluster:
    extending.start(clean_cluster)
    return clean_cluster


def bound_pods(cluster: Cluster, app: str, count: int) -> list[dict[str, Any]]:
    """The pods of a Job, once all of them are bound."""

    def all_bound() -> list[dict[str, Any]]:
        pods = cluster.admin.list("pods", namespace="default", labels=f"app={app}")
        ready = len(pods) == count and all(p["spec"].get("nodeName") for p in pods)
        return pods if ready else []

    return wait_for(all_bound, 20, f"{count} pods of {app} bound") or []


@pytest.mark.parametrize(("labels", "held"), [(SPREAD, [4, 4, 4, 0]), ({}, [12, 0, 0, 0])])
def test_three_pods_of_a_job(cluster: Cluster, labels: dict[str, str], held: list[int]) -> None:
    cluster.add_node("n1", gpus=[15] * 4, labels=labels)
    cluster.admin.create(job("binpack", gpu_mem=4, parallelism=3))
    on = Counter[int]()
    for bound in bound_pods(cluster, "binpack", 3):
        on.update(extending.gpus_of(bound))
        annotations = bound["metadata"]["annotations"]
        assert annotations[names.ANNOTATION_ASSIGNED] == "false"
        assert annotations[names.ANNOTATION_OLD_POD] == "4"
        assert annotations[names.ANNOTATION_OLD_DEV] == "15"
        assert int(annotations[names.ANNOTATION_ASSUME_TIME]) > 10**18
    assert sorted((on[gpu] for gpu in range(4)), reverse=True) == held
    assert sorted(extending.used(cluster)["n1"], reverse=True) == held


def test_a_relabelled_node_places_the_next_pods_otherwise(cluster: Cluster) -> None:
    cluster.add_node("n1", gpus=[15, 15])
    for name in ("p1", "p2"):
        cluster.admin.create(pod(name, gpu_mem=2))
        assert extending.gpus_of(cluster.wait_bound(name)) == {0: 2}
    cluster.admin.label("nodes", "n1", **SPREAD)
    cluster.admin.create(pod("p3", gpu_mem=3))
    assert extending.gpus_of(cluster.wait_bound("p3")) == {1: 3}
    cluster.admin.label("nodes", "n1", **{names.LABEL_PLACEMENT: "binpack"})
    cluster.admin.create(pod("p4", gpu_mem=3))
    assert extending.gpus_of(cluster.wait_bound("p4")) == {0: 3}
    assert extending.used(cluster) == {"n1": [7, 3]}


def test_a_pod_on_two_gpus(cluster: Cluster) -> None:
    cluster.add_node("n1", gpus=[15, 15, 15])
    cluster.admin.create(pod("small", gpu_mem=12))
    assert extending.gpus_of(cluster.wait_bound("small")) == {0: 12}
    cluster.admin.create(pod("two", gpu_mem=16, gpu_count=2))
    bound = cluster.wait_bound("two")
    assert extending.gpus_of(bound) == {1: 8, 2: 8}
    assert names.ANNOTATION_OLD_IDX not in bound["metadata"]["annotations"]


def test_a_pod_that_fits_the_sum_but_no_gpu_waits_with_the_reason(cluster: Cluster) -> None:
    cluster.add_node("n1", gpus=[15, 15], labels=SPREAD)
    for name in ("p1", "p2"):
        cluster.admin.create(pod(name, gpu_mem=8))
        cluster.wait_bound(name)
    cluster.admin.create(pod("big", gpu_mem=10))
    theirs = cluster.wait_event("big")
    assert theirs["message"].startswith(f"0/1 nodes are available: 1 {short(Reason.NO_GPU_FITS)}")
    ours = cluster.wait_event("big", "GPUMemoryUnavailable")
    assert "the most any GPU can still take is 7 GiB" in ours["message"]
    assert not cluster.admin.get("pods", "big")["spec"].get("nodeName")
    metrics = extending.get(cluster, "/metrics")
    assert 'gpushare_pods_waiting{reason="no-gpu-fits"} 1.0' in metrics
    assert 'gpushare_gpu_allocated_units{node="n1",gpu="1",uuid="' in metrics
    cluster.admin.delete("pods", "p1", grace_s=0)
    cluster.wait_bound("big", timeout_s=10)


def test_a_forged_annotation_is_replaced(cluster: Cluster) -> None:
    cluster.add_node("n1", gpus=[15, 15])
    forged = {
        names.ANNOTATION_ALLOCATION: json.dumps({"0": {"1": 15}}),
        names.ANNOTATION_OLD_IDX: "1",
        names.ANNOTATION_ASSUME_TIME: "1",
        "users.own/annotation": "kept",
    }
    cluster.admin.create(pod("p", gpu_mem=4, annotations=forged))
    annotations = cluster.wait_bound("p")["metadata"]["annotations"]
    assert json.loads(annotations[names.ANNOTATION_ALLOCATION]) == {"0": {"0": 4}}
    assert annotations[names.ANNOTATION_OLD_IDX] == "0"
    assert int(annotations[names.ANNOTATION_ASSUME_TIME]) > 10**18
    assert annotations["users.own/annotation"] == "kept"


def test_a_pod_bound_by_hand_is_pending_and_never_overcommitted_against(cluster: Cluster) -> None:
    cluster.add_node("n1", gpus=[15, 15])
    cluster.add_node("n2", gpus=[8])
    cluster.admin.create(pod("by-hand", gpu_mem=5, node="n1"))
    warning = cluster.wait_event("by-hand", "GPUUndecided")
    assert "ignorable: false" in warning["message"]
    assert 'gpushare_node_pending_units{node="n1"} 5' in extending.get(cluster, "/metrics")
    cluster.admin.create(pod("other", gpu_mem=8))  # it blocks nothing elsewhere
    assert cluster.wait_bound("other")["spec"]["nodeName"] == "n2"
    for name in ("p1", "p2"):  # 10 of each GPU may be given away, no more
        cluster.admin.create(pod(name, gpu_mem=10))
        cluster.wait_bound(name)
    cluster.admin.create(pod("p3", gpu_mem=1))
    cluster.wait_event("p3")
    assert sorted(extending.used(cluster)["n1"]) == [10, 10]
    listing = cluster.kubectl("inspect", "cgpu", "n1")
    assert "PENDING(Allocated)" in listing
    assert "25/30" in listing
