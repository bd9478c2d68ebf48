"""The GPU reaches the container, and no other does; the hook tells who got it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.contract import names
from gpushare_testcluster import wait_for
from gpushare_testcluster.pods import job, pod
from tests.cluster import extending, injecting, plugging

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.node

Object = dict[str, Any]

FOUR = {f"GPU-{i}": f"/dev/nvidia{i}" for i in range(4)}


def start(cluster: Cluster, *options: str, **keywords: Any) -> None:
    plugging.start(cluster, options=("--hook", str(injecting.hook()), *options), **keywords)


def wait_attested(cluster: Cluster, *pods: str) -> None:
    def attested() -> bool:
        found = [cluster.admin.get("pods", name) for name in pods]
        return all(o["status"].get("phase") == "Running" and plugging.assigned(o) for o in found)

    wait_for(attested, 20, f"{', '.join(pods)} running and attested")


def with_all_gpus(one: Object) -> Object:
    """A pod whose author has pasted what is found everywhere."""
    one["spec"]["containers"][0]["env"] = [{"name": names.ENV_VISIBLE_DEVICES, "value": "all"}]
    return one


def published(cluster: Cluster) -> str | None:
    node = cluster.admin.get("nodes", cluster.node.name)
    value = node["metadata"].get("annotations", {}).get(names.ANNOTATION_NODE)
    return json.loads(value)["injection"] if value else None


def test_each_container_has_the_device_files_of_its_gpus_and_no_other(clean_node: Cluster) -> None:
    cluster = clean_node
    injecting.specify(cluster, FOUR)
    start(cluster)
    cluster.admin.create(with_all_gpus(pod("part", gpu_mem=[4, 8])))
    wait_attested(cluster, "part")
    cluster.admin.create(pod("whole", gpu_mem=15))
    wait_attested(cluster, "whole")
    cluster.admin.create(pod("two", gpu_mem=8, gpu_count=2))
    wait_attested(cluster, "two")
    assert plugging.agree(cluster, "part") == {"c0": {0: 4}, "c1": {0: 8}}
    assert plugging.agree(cluster, "whole") == {"c0": {1: 15}}
    assert plugging.agree(cluster, "two") == {"c0": {2: 4, 3: 4}}
    assert injecting.device_files(cluster, "part", "c0") == ["nvidia0"]
    assert injecting.device_files(cluster, "part", "c1") == ["nvidia0"]
    assert injecting.device_files(cluster, "whole") == ["nvidia1"]
    assert injecting.device_files(cluster, "two") == ["nvidia2", "nvidia3"]
    assert published(cluster) == "fake"
    specs, directories = injecting.allocations(cluster)
    assert specs == directories
    assert len(specs) == 4


def test_a_pasted_variable_gives_no_other_gpu_without_device_files_either(
    clean_node: Cluster,
) -> None:
    cluster = clean_node
    start(cluster)
    cluster.admin.create(with_all_gpus(pod("all", gpu_mem=4)))
    wait_attested(cluster, "all")
    assert cluster.node.env_of("all")[names.ENV_VISIBLE_DEVICES] == "GPU-0"


def test_the_hook_alone_tells_which_pod_has_which_gpu(clean_node: Cluster) -> None:
    cluster = clean_node
    start(cluster, "--attest-by", "hook", placement="spread")
    cluster.admin.create(job("three", gpu_mem=4, parallelism=3))
    running: list[Object] = []

    def attested() -> bool:
        running[:] = cluster.admin.list("pods", labels="job-name=three")
        return len(running) == 3 and all(map(plugging.assigned, running))

    wait_for(attested, 20, "the Job's pods attested")
    found = [plugging.agree(cluster, one["metadata"]["name"])["c0"] for one in running]
    assert sorted(found, key=str) == [{0: 4}, {1: 4}, {2: 4}]
    # and a plugin that has just started learns it from what the hook wrote
    cluster.node.restart_plugin(hard=True, ready="/readyz")
    cluster.admin.create(pod("fourth", gpu_mem=15))
    wait_attested(cluster, "fourth")
    assert plugging.agree(cluster, "fourth") == {"c0": {3: 15}}


def test_the_hook_refuses_a_container_that_would_have_another_gpu(clean_node: Cluster) -> None:
    """As a specification from before a reboot that gave the GPUs other numbers."""
    cluster = clean_node
    injecting.specify(cluster, {**FOUR, "GPU-0": "/dev/nvidia1", "GPU-1": "/dev/nvidia0"})
    start(cluster)
    cluster.admin.create(pod("wrong", gpu_mem=4))

    def refused() -> str | None:
        status = cluster.admin.get("pods", "wrong")["status"]
        for container in status.get("containerStatuses") or ():
            state = container["state"].get("terminated") or container["state"].get("waiting") or {}
            if "refused" in state.get("message", ""):
                return str(state["message"])
        return None

    message = wait_for(refused, 20, "refused")
    assert "gpushare-hook: container refused: it holds another GPU, /dev/nvidia1" in str(message)
    assert not cluster.node.containers()


def test_without_a_specification_nothing_is_offered_and_the_node_says_why(
    clean_node: Cluster, tmp_path: Path
) -> None:
    """The GPUs are the driver's own, as far as the plugin can tell."""
    cluster, node = clean_node, clean_node.node
    fake, state = injecting.fake_driver(), tmp_path / "gpus"
    uuids = [f"GPU-00000000-0000-4000-8000-{i:012x}" for i in (1, 2)]
    gpus = [f"{uuid},Tesla T4,16384,254" for uuid in uuids]
    subprocess.run([fake / "fakegpu", "create", state, *gpus], check=True, capture_output=True)
    cluster.admin.label("nodes", node.name, **{names.LABEL_MODE: "share"})
    extending.start(cluster)
    node.start_plugin(
        [
            *(sys.executable, "-m", "gpushare", "device-plugin", "--kubeconfig", "{kubeconfig}"),
            *("--node", "{node}", "--listen", "{listen}", "--hook", str(injecting.hook())),
        ],
        environ={**os.environ, "LD_LIBRARY_PATH": str(fake), "FAKE_GPU_STATE": str(state)},
        ready="/readyz",
    )
    event = cluster.wait_event(node.name, "GPUMemoryNotOffered")
    assert "nvidia-ctk cdi generate" in event["message"]
    assert node.allocatable(names.RESOURCE_MEM) == 0
    files = {uuid: f"/dev/nvidia{i}" for i, uuid in enumerate(uuids)}
    injecting.specify(cluster, files)
    node.wait_allocatable(names.RESOURCE_MEM, 30)
    assert published(cluster) == "cdi"
    cluster.admin.create(pod("real", gpu_mem=4))
    wait_attested(cluster, "real")
    assert injecting.device_files(cluster, "real") == ["nvidia0"]
    injecting.specification(cluster).unlink()
    node.wait_allocatable(names.RESOURCE_MEM, 0)
    assert cluster.node.env_of("real")[names.ENV_VISIBLE_DEVICES] == uuids[0]


def test_a_container_that_restarts_finds_its_devices_rebuilt(clean_node: Cluster) -> None:
    """The kubelet does not ask again: it names the devices it was once told."""
    cluster, node = clean_node, clean_node.node
    injecting.specify(cluster, FOUR)
    start(cluster)
    cluster.admin.create(with_all_gpus(pod("again", gpu_mem=4)))
    wait_attested(cluster, "again")
    before = node.container("again")
    node.stop_plugin(hard=True)
    for path in node.layout.run_cdi.glob("gpushare.dev-*"):
        path.unlink()
    node.restart_plugin(ready="/readyz")
    os.kill(before.pid, signal.SIGKILL)

    def restarted() -> bool:
        (container,) = cluster.admin.get("pods", "again")["status"]["containerStatuses"]
        return container["restartCount"] == 1 and "running" in container["state"]

    wait_for(restarted, 20, "another container runs")
    assert injecting.device_files(cluster, "again") == ["nvidia0"]
    assert plugging.agree(cluster, "again") == {"c0": {0: 4}}


def test_after_a_reboot_a_deployments_pods_run_again(clean_node: Cluster) -> None:
    cluster, node = clean_node, clean_node.node
    injecting.specify(cluster, FOUR)
    start(cluster, placement="spread")
    template = pod("x", gpu_mem=4, labels={"app": "web"})
    del template["metadata"]["name"]
    spec = {
        "replicas": 3,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": template["metadata"], "spec": template["spec"]},
    }
    meta = {"name": "web", "namespace": "default"}
    cluster.admin.create(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
    )

    def up() -> list[str]:
        run = {container.pod for container in node.containers()}
        names_ = [
            one["metadata"]["name"]
            for one in cluster.admin.list("pods", labels="app=web")
            if one["status"].get("phase") == "Running" and plugging.assigned(one)
        ]
        return names_ if len(names_) == 3 and run.issuperset(names_) else []

    wait_for(up, 30, "three pods run")
    node.power_off()
    specs, directories = injecting.allocations(cluster)
    assert specs == []
    assert len(directories) == 3
    node.power_on()
    injecting.specify(cluster, FOUR)
    node.restart_plugin(ready="/readyz")
    specs, _ = injecting.allocations(cluster)
    assert set(specs) >= set(directories)
    pods = wait_for(up, 30, "three pods run again")
    for name in pods or ():
        (gpus,) = plugging.agree(cluster, name).values()
        assert injecting.device_files(cluster, name) == [f"nvidia{gpu}" for gpu in gpus]
    failed = [
        one["status"].get("message")
        for one in cluster.admin.list("pods", labels="app=web")
        if one["status"].get("phase") == "Failed"
    ]
    print(f"{len(failed)} pods failed in the reboot: {set(failed)}")
