"""The real node: pods run on it, a device plugin is seen, it reboots, and nothing is left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from gpushare_testcluster import wait_for
from gpushare_testcluster.lifecycle import take_down
from gpushare_testcluster.node import images
from gpushare_testcluster.pods import pod
from gpushare_testcluster.processes import MARK
from gpushare_testcluster.procfs import marked, start_time
from gpushare_testcluster.say import Say
from gpushare_testcluster.state import StateDir

pytestmark = pytest.mark.node

CLONE = Path(__file__).parents[2]
STUB = [sys.executable, str(Path(__file__).with_name("stub_device_plugin.py"))]
SYSCTLS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")


def start_stub(cluster, *args, **options):
    """With the administrator's kubeconfig: the stub talks to the kubelet alone."""
    return cluster.node.start_plugin([*STUB, *args], kubeconfig=cluster.kubeconfig, **options)


def asking(name, amount, resource="example.com/thing"):
    wish = pod(name)
    wish["spec"]["containers"][0]["resources"] = {"limits": {resource: str(amount)}}
    return wish


def test_a_pod_runs_and_its_logs_come_through_kubectl(clean_node):
    cluster = clean_node
    talk = pod("talk", image=images.BUSYBOX, command=["sh", "-c", "echo hello; sleep 1000"])
    talk["spec"]["containers"][0]["env"] = [{"name": "COLOUR", "value": "green"}]
    cluster.admin.create(talk)
    cluster.node.wait_running("talk")
    wait_for(lambda: cluster.kubectl("logs", "talk") == "hello\n", 5, "logs")
    assert "green" in cluster.kubectl("exec", "talk", "--", "sh", "-c", "echo $COLOUR")
    assert cluster.node.env_of("talk")["COLOUR"] == "green"
    (container,) = cluster.node.containers()
    assert (container.pod, container.name) == ("talk", "c0")


def test_the_jobs_own_image_and_command_run(clean_node):
    cluster = clean_node
    job = yaml.safe_load((CLONE / "examples/mnist-spread/job.yaml").read_text())
    spec = job["spec"]["template"]["spec"]
    del spec["containers"][0]["resources"]  # what needs the device plugin is not asked here
    cluster.admin.create({**job, "metadata": {**job["metadata"], "namespace": "default"}})

    def running():
        pods = cluster.admin.list("pods", labels="app=tensorflow-mnist-spread")
        return len(pods) == 3 and all(one["status"]["phase"] == "Running" for one in pods)

    wait_for(running, 20, "the Job's three pods running")
    assert len(cluster.node.containers()) == 3
    text = cluster.kubectl("logs", "job/tensorflow-mnist-spread")
    assert "stands in" in text
    assert "--max_steps=100000" in text


def test_a_device_plugin_is_seen_and_its_devices_reach_the_container(clean_node):
    cluster, node = clean_node, clean_node.node
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "example.com/thing",
        "devices": [{"name": "one", "containerEdits": {"env": ["BY_CDI=yes"]}}],
    }
    (node.cdi_dirs[1] / "thing.json").write_text(json.dumps(spec))
    start_stub(cluster, "example.com/thing", "8", "example.com/thing=one")
    node.wait_allocatable("example.com/thing", 8)
    cluster.admin.create(asking("taker", 3))
    node.wait_running("taker")
    given = node.env_of("taker")
    assert len(given["STUB_DEVICES"].split(",")) == 3
    assert given["BY_CDI"] == "yes"
    assert node.pod_resources_socket.is_socket()
    assert (node.device_plugin_dir / "kubelet.sock").is_socket()
    before = node.plugin_log().count("registered")
    node.restart_plugin(hard=True)
    wait_for(lambda: node.plugin_log().count("registered") > before, 10, "registered again")


def test_containers_outlive_kubelet_and_containerd(clean_node):
    cluster, node = clean_node, clean_node.node
    cluster.admin.create(pod("stays"))
    node.wait_running("stays")
    before = node.containers()
    node.restart_kubelet()
    node.restart_containerd()
    node.restart_kubelet(hard=False)
    time.sleep(1)
    assert node.containers() == before


def test_a_reboot_empties_run_and_a_deployment_comes_back(clean_node):
    cluster, node = clean_node, clean_node.node
    template = pod("x", labels={"app": "web"})
    cluster.admin.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {**template["spec"], "terminationGracePeriodSeconds": 1},
                },
            },
        }
    )
    wait_for(lambda: len(node.containers()) == 2, 20, "both run")
    before = {container.pid for container in node.containers()}
    boot_id = cluster.admin.get("nodes", node.name)["status"]["nodeInfo"]["bootID"]
    (node.cdi_dirs[1] / "left.json").write_text("{}")
    start_stub(cluster, "example.com/thing", "8")
    node.power_off()
    assert node.containers() == []
    assert not any(start_time(pid) for pid in before)
    assert not cluster.processes.running("device-plugin")
    assert list(node.cdi_dirs[1].iterdir()) == []
    assert not node.layout.containerd_socket.exists()
    node.power_on()
    wait_for(
        lambda: cluster.admin.get("nodes", node.name)["status"]["nodeInfo"]["bootID"] != boot_id,
        10,
        "another boot",
    )
    wait_for(lambda: len(node.containers()) == 2, 30, "both run again")
    assert not before & {container.pid for container in node.containers()}


def test_reset_brings_back_a_node_that_was_off_or_deleted(clean_node):
    cluster, node = clean_node, clean_node.node
    cluster.admin.patch("nodes", node.name, {"metadata": {"labels": {"a.test/label": "x"}}})
    cluster.admin.create(pod("p"))
    node.wait_running("p")
    node.power_off()
    cluster.admin.delete("nodes", node.name)
    cluster.reset()
    labels = cluster.admin.get("nodes", node.name)["metadata"]["labels"]
    assert labels["gpushare"] == "true"
    assert "a.test/label" not in labels
    cluster.admin.create(pod("q"))
    node.wait_running("q")


def test_a_reset_of_many_pods_starts_the_node_anew_with_its_images(clean_node):
    cluster, node = clean_node, clean_node.node
    node.add_images("example.com/own:1")
    for i in range(10):
        cluster.admin.create(pod(f"p{i}"))
    wait_for(lambda: len(node.containers()) == 10, 30, "ten containers")
    (node.device_plugin_dir / "left").touch()
    (node.gpushare_dir / "left").mkdir()
    cluster.reset()
    assert node.containers() == []
    assert not (node.device_plugin_dir / "left").exists()
    assert list(node.gpushare_dir.iterdir()) == []
    cluster.admin.create(pod("own", image="example.com/own:1", command=["sleep", "60"]))
    node.wait_running("own")


def machine():
    """What a node must leave as it was: mounts, sysctls, cgroups, the fixed paths."""
    cgroups = [
        folder for folder, _, _ in os.walk("/sys/fs/cgroup") if "gpushare-tc-" in Path(folder).name
    ]
    return (
        sorted(line.split(" ", 5)[4] for line in Path("/proc/self/mountinfo").open()),
        [Path("/proc/sys", name).read_text() for name in SYSCTLS],
        len(cgroups),
        [Path(path).exists() for path in ("/var/lib/kubelet", "/run/containerd", "/etc/cdi")],
    )


STARTER = """
import sys, time
from gpushare_testcluster import Cluster
from gpushare_testcluster.pods import pod
cluster = Cluster.start(sys.argv[1], owned=False)
node = cluster.start_node()
cluster.admin.create(pod("p"))
node.wait_running("p")
print("pid", node.container("p").pid, flush=True)
time.sleep(600)
"""


def test_down_leaves_nothing_after_its_starter_was_killed(tmp_path):
    before = machine()
    folder = tmp_path / "c"
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    lines = iter(starter.stdout.readline, "")
    pid = next(int(line.split()[1]) for line in lines if line.startswith("pid "))
    assert machine()[:2] == before[:2]
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    assert start_time(pid)
    started = time.monotonic()
    assert take_down(StateDir(folder), Say(quiet=True))
    print(f"down: {time.monotonic() - started:.2f} s")
    assert start_time(pid) is None
    assert marked(f"{MARK}={folder}") == []
    assert machine() == before
    assert not folder.exists()
