"""Controllers make the pods they lack, named and counted as their controllers in Kubernetes do."""

from __future__ import annotations

import pytest

from tests.simulate.conftest import Ran, Simulate
from tests.simulate.objects import Object, controller, node, pod


def names(ran: Ran) -> set[str]:
    """Every pod that a run knows of."""
    placed = {name for n in ran.json["nodes"] for name in ran.pods(n["name"])}
    return placed | set(ran.no_place)


def replica(name: str, kind: str, owner: str = "x", **more: object) -> Object:
    return pod(name, 4, 0, owner=(kind, owner), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (controller("Deployment", replicas=2), {"x-0", "x-1"}),
        (controller("Deployment"), {"x-0"}),
        (controller("Deployment", replicas=0), set()),
        (controller("ReplicaSet", replicas=2), {"x-0", "x-1"}),
        (controller("StatefulSet", replicas=2), {"x-0", "x-1"}),
        (controller("StatefulSet", replicas=2, ordinals={"start": 5}), {"x-5", "x-6"}),
        (controller("DaemonSet"), {"x-a", "x-b"}),
        (controller("Job"), {"x-0"}),
        (controller("Job", parallelism=3), {"x-0", "x-1", "x-2"}),
        (controller("Job", parallelism=3, completions=2), {"x-0", "x-1"}),
        (controller("Job", parallelism=2, completions=9), {"x-0", "x-1"}),
        (
            controller("Job", parallelism=2, completions=9, completionMode="Indexed"),
            {"x-0", "x-1"},
        ),
        (controller("Job", parallelism=3, suspend=True), set()),
        (controller("CronJob", parallelism=2), {"x-0", "x-1"}),
    ],
)
def test_a_workload_makes_its_pods(
    simulate: Simulate, workload: Object, expected: set[str]
) -> None:
    ran = simulate([node("a"), node("b"), workload])
    assert ran.status == 0
    assert names(ran) == expected


def test_a_cron_job_counts_as_one_run_and_says_so(simulate: Simulate) -> None:
    ran = simulate([node(), controller("CronJob", parallelism=2)])
    assert ran.warned("CronJob default/x counts as one run of its Job: 2 pods")


def test_completions_beyond_the_parallelism_are_said_to_come_later(simulate: Simulate) -> None:
    ran = simulate([node(), controller("Job", parallelism=2, completions=9)])
    assert ran.warned("Job default/x: 9 completions to go, 2 at a time; only those count")


def test_a_deployment_adds_only_the_missing_replicas(simulate: Simulate) -> None:
    hashed = {"pod-template-hash": "5d4"}
    there = [
        replica("x-5d4-aaaaa", "ReplicaSet", "x-5d4", labels=hashed),
        replica("x-5d4-bbbbb", "ReplicaSet", "x-5d4", labels=hashed, terminating=True),
        replica("x-5d4-ccccc", "ReplicaSet", "x-5d4", labels=hashed, phase="Failed"),
    ]
    owner = {"kind": "Deployment", "name": "x", "controller": True}
    replicas = controller("ReplicaSet", "x-5d4", replicas=3)
    replicas["metadata"]["ownerReferences"] = [owner]
    ran = simulate([node(gpus=[80]), *there, replicas, controller("Deployment", replicas=3)])
    assert names(ran) == {"x-5d4-aaaaa", "x-5d4-bbbbb", "x-0", "x-1"}


def test_a_replica_set_adds_only_the_missing_replicas(simulate: Simulate) -> None:
    there = [replica("x-0", "ReplicaSet")]
    ran = simulate([node(), *there, controller("ReplicaSet", replicas=2)])
    assert names(ran) == {"x-0", "x-1"}


def test_a_stateful_set_adds_only_the_missing_ordinals(simulate: Simulate) -> None:
    there = [replica("x-1", "StatefulSet", terminating=True)]
    ran = simulate([node(gpus=[80]), *there, controller("StatefulSet", replicas=3)])
    assert names(ran) == {"x-0", "x-1", "x-2"}
    assert ran.held("a") == [12]


def test_a_job_counts_what_runs_and_what_has_succeeded(simulate: Simulate) -> None:
    there = [
        replica("x-run", "Job"),
        replica("x-done", "Job", phase="Succeeded"),
        replica("x-failed", "Job", phase="Failed"),
    ]
    job = controller("Job", parallelism=3, completions=3)
    assert names(simulate([node(), *there, job])) == {"x-run", "x-0"}
    job["status"] = {"succeeded": 2}
    assert names(simulate([node(), *there, job])) == {"x-run"}
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert names(simulate([node(), *there, job])) == {"x-run"}


def test_an_indexed_job_takes_the_indexes_that_are_missing(simulate: Simulate) -> None:
    index = "batch.kubernetes.io/job-completion-index"
    there = [
        replica("x-0-aaaaa", "Job", annotations={index: "0"}, phase="Succeeded"),
        replica("x-2-bbbbb", "Job", annotations={index: "2"}),
    ]
    job = controller("Job", parallelism=3, completions=5, completionMode="Indexed")
    assert names(simulate([node(), *there, job])) == {"x-2-bbbbb", "x-1", "x-3"}


def test_a_cron_job_counts_the_pods_of_its_run(simulate: Simulate) -> None:
    there = [replica("x-29380000-abcde", "Job", "x-29380000"), replica("other", "Job", "x-other")]
    ran = simulate([node(), *there, controller("CronJob", parallelism=2)])
    assert names(ran) == {"x-29380000-abcde", "other", "x-0"}


def test_a_daemon_set_goes_where_its_rules_allow(simulate: Simulate) -> None:
    tainted, cordoned = node("tainted"), node("cordoned", unschedulable=True)
    tainted["spec"]["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    nodes = [node("a", labels={"gpu": "yes"}), node("b"), tainted, cordoned]
    there = [replica("x-there", "DaemonSet", node="b")]
    assert names(simulate([*nodes, *there, controller("DaemonSet")])) == {
        "x-there",
        "x-a",
        "x-cordoned",
    }
    chosen = controller("DaemonSet")
    chosen["spec"]["template"]["spec"]["nodeSelector"] = {"gpu": "yes"}
    assert names(simulate([*nodes, chosen])) == {"x-a"}


def test_a_daemon_pod_that_does_not_fit_its_node_goes_to_no_other(simulate: Simulate) -> None:
    ran = simulate([node("a", [3]), node("b", [15]), controller("DaemonSet")])
    assert ran.no_place == {"x-a": "node-full"}
    assert ran.held("b") == [4]


def test_names_of_pods_that_are_there_are_not_used_again(simulate: Simulate) -> None:
    ran = simulate([node(), pod("x-0", 1, 0), controller("Job", parallelism=2)])
    assert names(ran) == {"x-0", "x-1", "x-2"}


def test_replicas_are_one_owner(simulate: Simulate) -> None:
    """Four replicas on two GPUs that hold one bare pod each: two and two."""
    ran = simulate([node(), pod("a", 1, 0), pod("b", 1, 1), controller("Job", parallelism=4)])
    gpus = [gpu for name, (gpu,) in ran.pods("a").items() if name.startswith("x-")]
    assert sorted(gpus) == [0, 0, 1, 1]


def test_kinds_that_are_not_known_are_named_if_they_ask_for_gpu_memory(simulate: Simulate) -> None:
    job = controller("Job", "train")
    job |= {"kind": "PyTorchJob", "apiVersion": "kubeflow.org/v1"}
    volcano = controller("Job", "v") | {"apiVersion": "batch.volcano.sh/v1alpha1"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    ran = simulate([node(), job, volcano, service])
    assert ran.status == 0
    assert ran.warned("1 PyTorchJob (kubeflow.org/v1) asks for GPU memory")
    assert ran.warned("1 Job (batch.volcano.sh/v1alpha1) asks for GPU memory")
    assert not ran.warned("Service")
