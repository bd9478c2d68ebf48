"""The real control plane: the scheduler calls the extender, under the rights of deploy/."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from gpushare_testcluster import ApiError, wait_for
from gpushare_testcluster.nodes import node_object
from gpushare_testcluster.pods import job, pod

pytestmark = pytest.mark.cluster

STUB = [
    sys.executable,
    str(Path(__file__).with_name("stub_extender.py")),
    "{kubeconfig}",
    "{listen}",
]


def test_the_default_scheduler_binds_through_the_extender(clean_cluster):
    cluster = clean_cluster
    cluster.start_extender(STUB)
    cluster.add_node("n1", gpus=[15, 15])
    cluster.add_node("n2", gpus=[15])
    cluster.admin.create(pod("p1", gpu_mem=4))
    cluster.admin.create(pod("plain"))
    bound = cluster.wait_bound("p1")
    assert bound["metadata"]["annotations"]["stub"] == "bound"
    assert sorted(eval(cluster.log("extender").split("filter ", 1)[1].splitlines()[0])) == [
        "n1",
        "n2",
    ]
    assert "annotations" not in cluster.wait_bound("plain")["metadata"]


def test_without_an_extender_gpu_pods_wait_and_others_do_not(clean_cluster):
    cluster = clean_cluster
    cluster.add_node("n1", gpus=[15])
    cluster.admin.create(pod("gpu", gpu_mem=4))
    cluster.admin.create(pod("plain"))
    cluster.wait_bound("plain")
    event = cluster.wait_event("gpu")
    assert "connection refused" in event["message"]
    assert not cluster.admin.get("pods", "gpu")["spec"].get("nodeName")
    cluster.start_extender(STUB)
    cluster.wait_bound("gpu", timeout_s=15)


def test_the_extender_may_do_what_deploy_says_and_nothing_else(clean_cluster):
    cluster = clean_cluster
    cluster.add_node("n1", gpus=[15])
    cluster.admin.create(pod("p1", gpu_mem=4))
    api = cluster.api_as("gpushare-extender")
    assert [node["metadata"]["name"] for node in api.list("nodes")] == ["n1"]
    nudge = {"metadata": {"annotations": {"gpushare.dev/nudge": "1"}}}
    api.patch("pods", "p1", nudge, subresource="status")
    for forbidden in (
        lambda: api.patch("pods", "p1", nudge),
        lambda: api.delete("pods", "p1"),
        lambda: api.label("nodes", "n1", x="y"),
        lambda: api.list("secrets"),
    ):
        with pytest.raises(ApiError) as caught:
            forbidden()
        assert caught.value.status == 403


def test_a_revoked_token_is_refused_and_the_file_has_a_new_one(clean_cluster):
    cluster = clean_cluster
    config = json.loads(cluster.kubeconfig_for("gpushare-extender").read_text())
    token = Path(config["users"][0]["user"]["tokenFile"])
    old_api, old = cluster.api_as("gpushare-extender"), token.read_text()
    cluster.revoke_tokens("gpushare-extender")
    assert token.read_text() != old

    def refused() -> bool:
        try:
            old_api.list("nodes")
        except ApiError as error:
            return error.status == 401
        return False

    wait_for(refused, 15, "old token refused")
    kubeconfig = cluster.kubeconfig_for("gpushare-extender")
    assert "No resources" in cluster.kubectl("get", "nodes", kubeconfig=kubeconfig, check=False)


def test_the_keeper_replaces_tokens(clean_cluster):
    cluster = clean_cluster
    config = json.loads(cluster.kubeconfig_for("gpushare-extender").read_text())
    token = Path(config["users"][0]["user"]["tokenFile"])
    old = token.read_text()
    aged = time.time() - 61
    os.utime(token, (aged, aged))
    wait_for(lambda: token.read_text() != old, 5, "token renewed")
    assert oct(token.stat().st_mode & 0o777) == "0o600"


def test_reset_takes_away_whatever_a_test_made(clean_cluster, capsys):
    cluster = clean_cluster
    admin = cluster.admin
    for i in range(20):
        cluster.add_node(f"n{i}", gpus=[15])
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
    wait_for(lambda: admin.find("serviceaccounts", "default", namespace="team-a"), 10)
    stuck = pod("stuck", node="n1")
    stuck["metadata"]["finalizers"] = ["example.com/hold"]
    admin.create(stuck)
    admin.delete("pods", "stuck")
    admin.create(pod("other", namespace="team-a"))
    admin.create(job("j", gpu_mem=0, parallelism=20))
    admin.create(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "high"},
            "value": 10,
        }
    )
    admin.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q", "namespace": "team-a"},
            "spec": {"hard": {"requests.aliyun.com/gpu-mem": "4"}},
        }
    )
    wait_for(lambda: len(admin.list("pods")) == 22, 10)
    start = time.monotonic()
    cluster.reset()
    print(f"reset: {time.monotonic() - start:.2f} s")
    assert time.monotonic() - start < 5
    for resource in ("pods", "nodes", "jobs", "resourcequotas", "events"):
        assert admin.list(resource) == [], resource
    assert admin.find("namespaces", "team-a") is None
    assert admin.find("priorityclasses", "high") is None
    assert admin.find("serviceaccounts", "gpushare-extender", namespace="kube-system")
    # and the same namespace can be made again at once
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
    wait_for(lambda: admin.find("serviceaccounts", "default", namespace="team-a"), 10)
    admin.create(pod("other", namespace="team-a"))


def test_play_kubelet_makes_jobs_behave(clean_cluster):
    cluster = clean_cluster
    cluster.add_node("n1")
    cluster.play_kubelet()
    cluster.kubectl("create", "job", "j", "--image=x")
    (found,) = wait_for(lambda: cluster.admin.list("pods"), 5)
    name = found["metadata"]["name"]
    wait_for(lambda: cluster.admin.get("pods", name)["status"]["phase"] == "Running", 5, "running")
    cluster.finish_pod(name)
    wait_for(lambda: cluster.admin.get("jobs", "j")["status"].get("succeeded") == 1, 10, "job done")
    cluster.kubectl("delete", "job", "j")
    wait_for(lambda: not cluster.admin.list("pods"), 10, "its pod is gone")


def test_a_node_object_from_a_manifest_becomes_ready_and_keeps_its_taints(clean_cluster):
    cluster = clean_cluster
    cluster.add_node_object(
        {
            "metadata": {"name": "n1", "labels": {"ack.node.gpu.placement": "spread"}},
            "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"aliyun.com/gpu-mem": 60}},
        }
    )
    node = cluster.admin.get("nodes", "n1")
    assert node["status"]["allocatable"]["aliyun.com/gpu-mem"] == "60"
    assert node["status"]["allocatable"]["pods"] == "500"
    time.sleep(1)
    assert [taint["key"] for taint in cluster.admin.get("nodes", "n1")["spec"]["taints"]] == ["gpu"]
    cluster.set_ready("n1", False)

    def keys() -> set[str]:
        taints = cluster.admin.get("nodes", "n1")["spec"]["taints"]
        return {taint["key"] for taint in taints}

    wait_for(lambda: "node.kubernetes.io/not-ready" in keys(), 10, "taint set")
    cluster.set_ready("n1", True)
    wait_for(lambda: keys() == {"gpu"}, 10, "taint gone")


def test_fake_nodes_are_kept_ready_by_their_leases(clean_cluster, rounds):
    cluster = clean_cluster
    cluster.add_node("n1")

    def renewed() -> str:
        lease = cluster.admin.get("leases", "n1", namespace="kube-node-lease")
        return str(lease["spec"]["renewTime"])

    first = renewed()
    wait_for(lambda: renewed() != first, 15, "lease renewed")
    time.sleep(rounds(few=0, full=1) and 70)  # longer than the controller's patience
    conditions = cluster.admin.get("nodes", "n1")["status"]["conditions"]
    assert [c["status"] for c in conditions if c["type"] == "Ready"] == ["True"]


def test_components_can_be_ended_and_started(clean_cluster):
    cluster = clean_cluster
    cluster.add_node("n1")
    cluster.stop_component("kube-apiserver", hard=True)
    assert not cluster.admin.ready()
    cluster.start_component("kube-apiserver")
    assert cluster.admin.get("nodes", "n1")
    cluster.restart_component("kube-scheduler")
    cluster.admin.create(pod("p1"))
    cluster.wait_bound("p1", timeout_s=20)


def test_many_nodes_are_made_at_once(clean_cluster):
    cluster = clean_cluster
    start = time.monotonic()
    cluster.add_nodes([node_object(f"n{i}", gpus=[15] * 4) for i in range(100)])
    print(f"100 nodes: {time.monotonic() - start:.2f} s")
    nodes = cluster.admin.list("nodes")
    assert len(nodes) == 100
    assert not any(node["spec"].get("taints") for node in nodes)
