"""What a pod of 80 units costs in its status, with and without the kubelet's ResourceHealthStatus.

The kubelet (1.36) lists every device id of a container in the pod's status, in another order each
time it looks. One pod of 80 units on a real kubelet, watched for three minutes: bytes of its status
as JSON, and how often the kubelet patched it (`watch` events of the pod, to which nothing happens).
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from gpushare_testcluster.cluster import Cluster
from gpushare_testcluster.errors import CannotRun
from gpushare_testcluster.pods import pod
from gpushare_testcluster.waiting import wait_for

UNITS = 80
UUID = "GPU-8b6d0d4e-3a57-4b0e-9d51-0c9a4f2f6f10"  # as long as real ones
WATCH_S = 180
GATE = "ResourceHealthStatus"
SIDE_BY_SIDE = "{:>28} {:>13} {:>13}"


def main() -> None:
    print(f"one pod of {UNITS} units, watched for {WATCH_S} s")
    print(SIDE_BY_SIDE.format("", "default", f"without {GATE[:8]}…"))
    results = []
    for gates in (None, {GATE: False}):
        try:
            results.append(_one(gates))
        except CannotRun as error:
            print(f"left out: {error}")
            return
    for name in results[0]:
        print(SIDE_BY_SIDE.format(name, *(f"{result[name]:,}" for result in results)))


def _one(gates: dict[str, bool] | None) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster.start(Path(folder) / "c")
        try:
            node = cluster.start_node(feature_gates=gates)
            gpus = Path(folder) / "gpus.yaml"
            one = {"uuid": UUID, "model": "Eighty", "memory_mib": UNITS * 1024}
            gpus.write_text(yaml.safe_dump({"gpus": [one]}))
            program = [sys.executable, "-m", "gpushare", "device-plugin", "--fake-gpus", str(gpus)]
            where = ["--kubeconfig", "{kubeconfig}", "--node", "{node}", "--listen", "{listen}"]
            node.start_plugin([*program, *where], ready="/readyz")
            node.wait_allocatable("aliyun.com/gpu-mem", UNITS)
            return _measured(cluster)
        finally:
            cluster.stop()


def _measured(cluster: Cluster) -> dict[str, float]:
    name = "large"
    cluster.admin.create(pod(name, gpu_mem=UNITS, node=cluster.node.name))
    cluster.node.wait_running(name)
    wait_for(lambda: _ids(cluster.admin.get("pods", name)) in (0, UNITS), 20, "the status is full")
    time.sleep(5)
    version = cluster.admin.get("pods", name)["metadata"]["resourceVersion"]
    events = list(cluster.admin.watch("pods", resource_version=version, timeout_s=WATCH_S))
    last = cluster.admin.get("pods", name)
    return {
        "bytes of the status": len(json.dumps(last["status"])),
        "device ids in it": _ids(last),
        "patches per minute": round(len(events) * 60 / WATCH_S),
    }


def _ids(one: dict[str, Any]) -> int:
    return sum(
        len(resource.get("resources", ()))
        for container in one["status"].get("containerStatuses", ())
        for resource in container.get("allocatedResourcesStatus", ())
    )
