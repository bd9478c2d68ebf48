"""`kubectl inspect cgpu` on a live cluster, by people who have the role `gpushare-viewer` only."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.contract import names

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.cluster

SPREAD = {names.LABEL_MODE: "cgpu", names.LABEL_PLACEMENT: "spread"}
PEOPLE = "people"
"""Namespace of the accounts that look."""

Run = subprocess.CompletedProcess[str]


@pytest.fixture
def viewer(clean_cluster: Cluster) -> Iterator[Path]:
    """A kubeconfig of somebody bound to gpushare-viewer and to nothing else."""
    with account(clean_cluster, "viewer", "gpushare-viewer") as kubeconfig:
        yield kubeconfig


@contextmanager
def account(cluster: Cluster, name: str, role: str | None) -> Iterator[Path]:
    admin = cluster.admin
    if admin.find("namespaces", PEOPLE) is None:
        admin.create(meta("v1", "Namespace", PEOPLE))
    admin.create(meta("v1", "ServiceAccount", name, namespace=PEOPLE))
    if role is not None:
        rbac = "rbac.authorization.k8s.io"
        binding = meta(f"{rbac}/v1", "ClusterRoleBinding", f"test-{name}")
        binding["roleRef"] = {"apiGroup": rbac, "kind": "ClusterRole", "name": role}
        binding["subjects"] = [{"kind": "ServiceAccount", "name": name, "namespace": PEOPLE}]
        admin.create(binding)
    try:
        cluster.api_as(name, namespace=PEOPLE)  # a token of this account, not of an earlier one
        yield cluster.kubeconfig_for(name, namespace=PEOPLE)
    finally:
        if role is not None:
            admin.delete("clusterrolebindings", f"test-{name}")
        admin.delete("serviceaccounts", name, namespace=PEOPLE)


def meta(api_version: str, kind: str, name: str, **metadata: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **metadata}}


def inspect(cluster: Cluster, kubeconfig: Path, *arguments: str, check: bool = True) -> Run:
    """As people run it: kubectl finds the plugin in the PATH."""
    printed = subprocess.run(
        ["kubectl", "inspect", "cgpu", *arguments],
        env=cluster.environ(kubeconfig),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not check or printed.returncode == 0, printed.stderr
    return printed


def hold(cluster: Cluster, name: str, units: int, gpu: int, node: str = "n1") -> None:
    """A pod that is bound with its decision, as the extender binds it."""
    from gpushare_testcluster.pods import pod

    annotation = {names.ANNOTATION_ALLOCATION: json.dumps({"0": {str(gpu): units}})}
    cluster.admin.create(pod(name, gpu_mem=units, node=node, annotations=annotation))


def rows(text: str) -> list[list[str]]:
    lines = text.splitlines()
    return [line.split() for line in lines[1 : lines.index("-" * 86)]]


# --- The table ----------------------------------------------------------------------------------


def test_a_viewer_sees_the_documentations_table(clean_cluster: Cluster, viewer: Path) -> None:
    cluster = clean_cluster
    cluster.add_node("n1", gpus=[15] * 4, labels=SPREAD)
    for name, gpu in (("m-0", 0), ("m-1", 1), ("m-2", 3)):
        hold(cluster, name, 4, gpu)
    printed = inspect(cluster, viewer)
    assert [row[2:] for row in rows(printed.stdout)] == [["4/15", "4/15", "0/15", "4/15", "12/60"]]
    assert printed.stdout.endswith("\nAllocated/Total GPU Memory In Cluster:\n12/60 (20%)\n")
    assert printed.stderr == ""


def test_the_live_table_is_that_of_the_dump(
    clean_cluster: Cluster, viewer: Path, tmp_path: Path
) -> None:
    cluster = clean_cluster
    cluster.add_node("n1", gpus=[15, 45], labels=SPREAD)
    cluster.add_node("n2", gpus=[15, 15], inventory=False)
    hold(cluster, "p", 4, 1)
    hold(cluster, "q", 4, 7, "n2")  # on a GPU that is not there
    dump = tmp_path / "dump.json"
    dump.write_text(cluster.kubectl("get", "nodes,pods", "-A", "-o", "json"))
    for arguments in ((), ("-d",), ("-o", "json"), ("-o", "wide"), ("--by", "owner")):
        live = inspect(cluster, viewer, *arguments)
        dumped = inspect(cluster, viewer, *arguments, "-f", str(dump))
        assert (live.stdout, live.stderr) == (dumped.stdout, dumped.stderr)
    assert "PENDING(Allocated)" in inspect(cluster, viewer).stdout


def test_finished_pods_leave_and_terminating_ones_stay(
    clean_cluster: Cluster, viewer: Path
) -> None:
    cluster = clean_cluster
    cluster.add_node("n1", gpus=[15], labels=SPREAD)
    hold(cluster, "done", 4, 0)
    hold(cluster, "leaving", 3, 0)
    assert inspect(cluster, viewer).stdout.endswith("\n7/15 (46%)\n")
    cluster.finish_pod("done")
    cluster.admin.delete("pods", "leaving", grace_s=30)
    assert inspect(cluster, viewer).stdout.endswith("\n3/15 (20%)\n")
    cluster.admin.delete("pods", "leaving", grace_s=0)
    assert inspect(cluster, viewer).stdout.endswith("\n0/15 (0%)\n")


def test_a_pod_bound_by_hand_is_pending(clean_cluster: Cluster, viewer: Path) -> None:
    from gpushare_testcluster.pods import pod

    cluster = clean_cluster
    cluster.add_node("n1", gpus=[15, 15], labels=SPREAD)
    cluster.admin.create(pod("by-hand", gpu_mem=4, node="n1"))
    cluster.admin.create(pod("waiting", gpu_mem=4, schedulerName="nobody"))
    printed = inspect(cluster, viewer, "-d")
    assert "by-hand      default    0                0                4\n" in printed.stdout
    assert "waiting" not in printed.stdout
    assert "1 pod (default/by-hand) without a readable GPU" in printed.stderr


def test_a_node_whose_plugin_is_gone_stays_in_the_table(
    clean_cluster: Cluster, viewer: Path
) -> None:
    cluster = clean_cluster
    cluster.add_node("n1", gpus=[15, 15], labels=SPREAD, allocatable={names.RESOURCE_MEM: 0})
    hold(cluster, "p", 4, 1)
    printed = inspect(cluster, viewer)
    assert [row[2:] for row in rows(printed.stdout)] == [["0/15", "4/15", "4/30"]]
    assert "node n1: its device plugin is down" in printed.stderr


def test_nodes_of_the_older_add_on(clean_cluster: Cluster, viewer: Path) -> None:
    from gpushare_testcluster.pods import pod

    cluster = clean_cluster
    labels = {names.LABEL_OLD_SHARE: "true"}
    cluster.add_node("n1", gpus=[15, 15], labels=labels, inventory=False)
    old = {names.ANNOTATION_OLD_IDX: "1", names.ANNOTATION_OLD_POD: "4"}
    cluster.admin.create(pod("p", gpu_mem=4, node="n1", annotations=old))
    assert [row[2:] for row in rows(inspect(cluster, viewer).stdout)] == [["0/15", "4/15", "4/30"]]


def test_the_old_name_is_the_same_program(clean_cluster: Cluster, viewer: Path) -> None:
    cluster = clean_cluster
    cluster.add_node("n1", gpus=[15], labels=SPREAD)
    printed = subprocess.run(
        ["kubectl", "inspect", "gpushare"],
        env=cluster.environ(viewer),
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == inspect(cluster, viewer).stdout


# --- Logins and what is not allowed -------------------------------------------------------------


def test_kubectls_own_options_say_which_cluster(clean_cluster: Cluster, viewer: Path) -> None:
    cluster = clean_cluster
    cluster.add_node("n1", gpus=[15], labels=SPREAD)
    environ = {**cluster.environ(), "KUBECONFIG": "/dev/null"}
    command = ["kubectl", "inspect", "cgpu", "--kubeconfig", str(viewer)]
    printed = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert printed.stdout.endswith("\n0/15 (0%)\n")
    without = inspect(cluster, viewer, "--context", "nowhere", check=False)
    assert without.returncode == 1
    assert 'context "nowhere" does not exist' in without.stderr


@pytest.mark.parametrize(
    ("resources", "missing"), [(None, "nodes"), (["nodes"], "pods"), (["pods"], "nodes")]
)
def test_without_the_role_it_names_what_is_missing(
    clean_cluster: Cluster, resources: list[str] | None, missing: str
) -> None:
    cluster = clean_cluster
    role = None
    if resources is not None:
        role = "test-partly"
        cluster.admin.create(
            {
                **meta("rbac.authorization.k8s.io/v1", "ClusterRole", role),
                "rules": [{"apiGroups": [""], "resources": resources, "verbs": ["list"]}],
            }
        )
    try:
        with account(cluster, "stranger", role) as kubeconfig:
            printed = inspect(cluster, kubeconfig, check=False)
    finally:
        if role is not None:
            cluster.admin.delete("clusterroles", role)
    assert (printed.returncode, printed.stdout) == (1, "")
    assert f"not allowed to list {missing} in all namespaces" in printed.stderr
    assert 'User "system:serviceaccount:people:stranger" cannot list' in printed.stderr
    assert "ClusterRole gpushare-viewer" in printed.stderr


def test_a_token_that_is_not_accepted_is_said(
    clean_cluster: Cluster, viewer: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("nonsense")
    config = tmp_path / "kubeconfig"
    config.write_text(
        re.sub(r'("?tokenFile"?: *)[^,}\n]+', rf'\1"{tmp_path}/token"', viewer.read_text())
    )
    printed = inspect(clean_cluster, config, check=False)
    assert printed.returncode == 1
    assert "log in again" in printed.stderr


def test_a_server_that_does_not_answer_is_said(clean_cluster: Cluster, viewer: Path) -> None:
    refused = inspect(clean_cluster, viewer, "-s", "https://127.0.0.1:1", check=False)
    assert refused.returncode == 1
    assert "is this the cluster you mean" in refused.stderr
    proxy = clean_cluster.proxy()
    slow = clean_cluster.kubeconfig_for("viewer", namespace=PEOPLE, via=proxy)
    proxy.hold()
    try:
        late = inspect(clean_cluster, slow, "--request-timeout", "1s", check=False)
    finally:
        proxy.release()
    assert late.returncode == 1
    assert "did not answer in time" in late.stderr


# --- Live ---------------------------------------------------------------------------------------


def test_it_follows_the_cluster_until_ctrl_c(
    clean_cluster: Cluster, viewer: Path, tmp_path: Path
) -> None:
    cluster = clean_cluster
    cluster.add_node("n1", gpus=[15, 15], labels=SPREAD)
    out = tmp_path / "out"
    with out.open("wb") as stdout:
        process = subprocess.Popen(
            ["kubectl", "inspect", "cgpu", "-w", "--interval", "0.3"],
            env=cluster.environ(viewer),
            stdout=stdout,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches kubectl and the plugin, and not the tests
        )
    try:
        wait_for_end(out, "\n0/30 (0%)\n")
        hold(cluster, "p", 4, 1)
        wait_for_end(out, "\n4/30 (13%)\n")
        cluster.admin.label("nodes", "n1", **{names.LABEL_PLACEMENT: "binpack"})
        cluster.finish_pod("p")
        wait_for_end(out, "\n0/30 (0%)\n")
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert b"Traceback" not in err
    assert out.read_text().count("Allocated/Total GPU Memory In Cluster:") == 3


def wait_for_end(file: Path, end: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not file.read_text().endswith(end):
        assert time.monotonic() < deadline, file.read_text()
        time.sleep(0.05)
