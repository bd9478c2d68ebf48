"""What must stay true: restarts, names used again, GPUs that vanish, evictions, quotas."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpushare.contract import names
from gpushare_testcluster import wait_for
from gpushare_testcluster.nodes import devices
from gpushare_testcluster.pods import job, pod
from tests.cluster import extending

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
SPREAD = {names.LABEL_PLACEMENT: "spread"}


@pytest.fixture
def cluster(clean_cluster: Cluster) -> Cluster:
    extending.start(clean_cluster)
    return clean_cluster


def bound(cluster: Cluster, count: int) -> list[dict[str, Any]]:
    """All pods of the namespace, once `count` of them have a node."""

    def enough() -> list[dict[str, Any]]:
        pods = cluster.admin.list("pods", namespace="default")
        on_nodes = [p for p in pods if p["spec"].get("nodeName")]
        return on_nodes if len(on_nodes) == count else []

    return wait_for(enough, 20, f"{count} pods bound")


@pytest.mark.parametrize(
    ("placement", "held"), [("spread", [4, 4, 4, 0]), ("binpack", [12, 0, 0, 0])]
)
def test_the_documentations_job_by_kubectl(
    cluster: Cluster, placement: str, held: list[int]
) -> None:
    node = yaml.safe_load((EXAMPLES / f"mnist-{placement}" / "node.yaml").read_text())
    cluster.add_node_object(node)
    cluster.kubectl("apply", "-f", str(EXAMPLES / "mnist-spread" / "job.yaml"))
    pods = bound(cluster, 3)
    on = [0] * 4
    for one in pods:
        for gpu, units in extending.gpus_of(one).items():
            on[gpu] += units
    assert sorted(on, reverse=True) == held


def test_a_restarted_extender_decides_like_one_that_never_stopped(cluster: Cluster) -> None:
    def pinned(name: str, rng: random.Random) -> dict[str, Any]:
        """Nodes of equal rank are told apart by chance, which is not the extender's."""
        node = {"kubernetes.io/hostname": f"n{rng.randrange(2)}"}
        return pod(name, gpu_mem=rng.randint(1, 6), nodeSelector=node)

    def fifty(*, restart: bool) -> list[tuple[str, dict[int, int]]]:
        cluster.reset()
        for number in range(2):
            cluster.add_node(f"n{number}", gpus=[40] * 4, labels=SPREAD if number else {})
        rng = random.Random(5)
        for number in range(20):
            cluster.admin.create(pinned(f"before-{number}", rng))
            cluster.wait_bound(f"before-{number}")
        for number in range(0, 20, 3):
            cluster.admin.delete("pods", f"before-{number}", grace_s=0)
        wait_for(lambda: _pods_on_books(cluster) == 13, 10)
        if restart:
            cluster.restart_extender(hard=True)
        found = []
        for number in range(50):
            cluster.admin.create(pinned(f"after-{number}", rng))
            one = cluster.wait_bound(f"after-{number}")
            found.append((one["spec"]["nodeName"], extending.gpus_of(one)))
        return found

    assert fifty(restart=True) == fifty(restart=False)


def _pods_on_books(cluster: Cluster) -> int:
    nodes = json.loads(extending.get(cluster, "/gpushare-scheduler/inspect"))["nodes"]
    return sum(len(gpu["pods"]) for node in nodes for gpu in node["devs"])


def test_a_statefulset_pod_deleted_and_recreated_leaks_nothing(
    cluster: Cluster, rounds: Callable[..., int]
) -> None:
    cluster.add_node("n1", gpus=[15, 15])
    template = pod("x", gpu_mem=8, labels={"app": "web"})
    template["spec"].pop("terminationGracePeriodSeconds")
    cluster.admin.create(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "replicas": 1,
                "serviceName": "web",
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": template["spec"],
                },
            },
        }
    )
    uids = set()
    for _ in range(5 * rounds(few=3, full=20)):
        uid = wait_for(lambda: _bound_uid(cluster, "web-0", uids), 20, quiet=True)
        uids.add(uid)
        assert sum(extending.used(cluster)["n1"]) in (8, 16)  # the old one may just be leaving
        cluster.admin.delete("pods", "web-0", grace_s=0)
    wait_for(lambda: _bound_uid(cluster, "web-0", uids), 20)
    wait_for(lambda: extending.used(cluster)["n1"] in ([8, 0], [0, 8]), 5)
    cluster.admin.delete("statefulsets", "web")
    cluster.admin.delete("pods", "web-0", grace_s=0)
    wait_for(lambda: extending.used(cluster)["n1"] == [0, 0], 10, "nothing is held any more")


def _bound_uid(cluster: Cluster, name: str, known: set[str]) -> str | None:
    found = cluster.admin.find("pods", name)
    if found and found["spec"].get("nodeName") and found["metadata"]["uid"] not in known:
        return str(found["metadata"]["uid"])
    return None


def test_an_inventory_that_loses_index_0_keeps_the_pod_on_1(cluster: Cluster) -> None:
    cluster.add_node("n1", gpus=[15, 15])
    for name in ("p0", "p1"):
        cluster.admin.create(pod(name, gpu_mem=10))
        cluster.wait_bound(name)
    cluster.admin.delete("pods", "p0", grace_s=0)
    left = json.dumps(devices("n1", [15, 15])[1:])
    cluster.admin.annotate("nodes", "n1", **{names.ANNOTATION_DEVICES: left})
    metric = 'gpushare_gpu_allocated_units{node="n1",gpu="1",uuid="GPU-n1-1"} 10'
    wait_for(lambda: metric in extending.get(cluster, "/metrics"), 5)
    row = cluster.kubectl("inspect", "cgpu").splitlines()[1]
    assert row.split()[2:4] == ["0/0", "10/15"]
    cluster.admin.create(pod("p2", gpu_mem=5))
    assert extending.gpus_of(cluster.wait_bound("p2")) == {1: 5}


def priority(cluster: Cluster, name: str, value: int) -> None:
    cluster.admin.create(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
    )


def test_eviction_that_frees_no_gpu_evicts_nobody(cluster: Cluster) -> None:
    """10 + 10 of 2 × 15 are held: 16 for one pod can be freed in the sum, on a GPU never."""
    priority(cluster, "gpushare-test-high", 1000)
    cluster.add_node("n1", gpus=[15, 15])
    for name in ("p0", "p1"):
        cluster.admin.create(pod(name, gpu_mem=10))
        cluster.wait_bound(name)
    cluster.admin.create(pod("high", gpu_mem=16, priority_class="gpushare-test-high"))
    cluster.wait_event("high")
    log = wait_for(
        lambda: "preemption for default/high: helps on 0 of the 1" in cluster.log("extender"), 10
    )
    assert log
    time.sleep(1)
    for name in ("p0", "p1"):
        assert "deletionTimestamp" not in cluster.admin.get("pods", name)["metadata"]
    assert not cluster.admin.get("pods", "high")["spec"].get("nodeName")


def test_eviction_that_helps_makes_room_for_the_important_pod(cluster: Cluster) -> None:
    priority(cluster, "gpushare-test-high", 1000)
    cluster.play_kubelet()
    cluster.add_node("n1", gpus=[15])
    cluster.admin.create(pod("low", gpu_mem=10))
    cluster.wait_bound("low")
    cluster.admin.create(pod("high", gpu_mem=12, priority_class="gpushare-test-high"))
    assert extending.gpus_of(cluster.wait_bound("high", timeout_s=20)) == {0: 12}
    assert cluster.admin.find("pods", "low") is None


def test_a_quota_holds_and_its_message_reaches_the_jobs_events(cluster: Cluster) -> None:
    cluster.add_node("n1", gpus=[15] * 4)
    quota = f"requests.{names.RESOURCE_MEM}"
    cluster.admin.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "gpu", "namespace": "default"},
            "spec": {"hard": {quota: "8"}},
        }
    )
    wait_for(
        lambda: (
            (cluster.admin.get("resourcequotas", "gpu").get("status") or {})
            .get("hard", {})
            .get(quota)
        ),
        10,
    )
    cluster.admin.create(job("greedy", gpu_mem=4, parallelism=3))
    bound(cluster, 2)
    message = cluster.wait_event("greedy", "FailedCreate")["message"]
    assert "exceeded quota: gpu" in message
    assert quota in message
    assert sum(extending.used(cluster)["n1"]) == 8
    assert len(cluster.admin.list("pods", namespace="default")) == 2
