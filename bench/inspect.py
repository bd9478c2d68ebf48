"""`kubectl inspect cgpu`: from start to table over 10,000 pods, and what a start imports.

Wall-clock seconds of whole processes, the best of several runs: what somebody waits for; beside it
their own processor time, which a busy machine changes less. Objects
are as the API server answers, with status, environment and managed fields (5 KB a pod); kubectl is
a script that prints them, so that no network and no API server is in the figure.

typing_extensions is kept out: nothing that a plain install brings needs it, and where a development
environment has it, msgspec imports it.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

RUNS = 5
NODES = 250
PODS = (1_000, 10_000)

START = "import sys; sys.modules['typing_extensions'] = None; "
PROGRAM = START + "from gpushare.inspect.main import main; sys.exit(main())"

KUBECTL = """\
#!/bin/sh
case "$*" in
  *nodes) exec cat {folder}/nodes ;;
  *) exec cat {folder}/pods ;;
esac
"""


def main() -> None:
    _start()
    with tempfile.TemporaryDirectory() as folder:
        for label, every in (("all pods ask", 1), ("one pod in five asks", 5)):
            seconds = [_cluster(Path(folder), pods, every, label) for pods in PODS]
            factor = seconds[1] / seconds[0]
            print(f"  {PODS[1] // PODS[0]} x the pods: {factor:.1f} x the time", flush=True)


def _start() -> None:
    bare, _ = _best(["-c", "pass"])
    print(f"bare Python {bare * 1000:.0f} ms; over that:", flush=True)
    for label, code in (
        ("argparse", "import argparse"),
        ("msgspec", START + "import msgspec"),
        ("the program, its help", PROGRAM),
        ("the program, all it imports for a table", START + "import gpushare.inspect.output"),
    ):
        arguments = ["-h"] if "help" in label else []
        took, _ = _best(["-c", code, *arguments])
        print(f"  {(took - bare) * 1000:>5.0f} ms  {label}", flush=True)


def _cluster(folder: Path, pods: int, every: int, label: str) -> float:
    nodes = {"kind": "NodeList", "apiVersion": "v1", "items": [_node(i) for i in range(NODES)]}
    items = [_pod(i, asks=i % every == 0) for i in range(pods)]
    (folder / "nodes").write_bytes(msgspec.json.encode(nodes))
    (folder / "pods").write_bytes(
        msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "items": items})
    )
    kubectl = folder / "kubectl"
    kubectl.write_text(KUBECTL.format(folder=folder))
    kubectl.chmod(0o755)
    live, live_cpu = _best(["-c", PROGRAM], {"KUBECTL": str(kubectl)})
    files, files_cpu = _best(
        ["-c", PROGRAM, "-f", str(folder / "nodes"), "-f", str(folder / "pods")]
    )
    size = sum((folder / name).stat().st_size for name in ("nodes", "pods")) / 1e6
    print(
        f"{pods:>6} pods, {label}, {NODES} nodes x 8 GPUs, {size:.0f} MB: "
        f"{live:.2f} s through kubectl ({live_cpu:.2f} s of processor), "
        f"{files:.2f} s from files ({files_cpu:.2f} s)",
        flush=True,
    )
    return live


def _best(arguments: list[str], environ: Mapping[str, str] | None = None) -> tuple[float, float]:
    """(seconds, processor seconds) of the fastest of several runs, by either measure.

    Processor time is the children's, too, where there are some.
    """
    wall: list[float] = []
    cpu: list[float] = []
    for _ in range(RUNS):
        before = os.times()
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **(environ or {})},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        wall.append(time.perf_counter() - start)
        after = os.times()
        cpu.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
    return min(wall), min(cpu)


# --- Objects as the API server has them ---------------------------------------------------------


def _node(number: int) -> dict[str, object]:
    name = f"gpu-{number:04d}"
    devices = [
        {"index": i, "uuid": f"GPU-{number}-{i}", "model": "T4", "memory_mib": 15360, "units": 15}
        for i in range(8)
    ]
    amounts = {"cpu": "64", "aliyun.com/gpu-mem": "120", "aliyun.com/gpu-count": "8"}
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "ack.node.gpu.schedule": "cgpu"},
            "annotations": {
                "gpushare.dev/devices": msgspec.json.encode(devices).decode(),
                "gpushare.dev/node": '{"version":1,"unit":"GiB","attests":true,"injection":"cdi"}',
            },
            "managedFields": _managed_fields(60),
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": f"10.1.0.{number}"}],
            "images": [
                {"names": [f"registry.example/image-{i}@sha256:{'ab' * 32}"], "sizeBytes": 10**8}
                for i in range(50)
            ],
        },
    }


def _pod(number: int, *, asks: bool) -> dict[str, object]:
    app = f"web-{number // 10}"
    limits = {"cpu": "1", "memory": "1Gi"}
    annotations = {"prometheus.io/scrape": "true"}
    if asks:
        limits["aliyun.com/gpu-mem"] = "2"
        annotations |= {
            "scheduler.framework.gpushare.allocation": f'{{"0":{{"{number // NODES % 8}":2}}}}',
            "scheduler.framework.gpushare.assume-time": "1700000000000000000",
            "scheduler.framework.gpushare.assigned": "true",
        }
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{app}-6d4cf56db6"}
    return {
        "metadata": {
            "name": f"{app}-6d4cf56db6-{number:05d}",
            "generateName": f"{app}-6d4cf56db6-",
            "namespace": f"team-{number % 20}",
            "uid": f"{number:08x}-0000-4000-8000-000000000000",
            "labels": {"app": app, "pod-template-hash": "6d4cf56db6"},
            "annotations": annotations,
            "ownerReferences": [{**owner, "uid": "x", "controller": True}],
            "managedFields": _managed_fields(70),
        },
        "spec": {
            "nodeName": f"gpu-{number % NODES:04d}",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/app:v1",
                    "resources": {"limits": limits, "requests": limits},
                    "env": [{"name": f"NAME_{i}", "value": "some value"} for i in range(12)],
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets"}],
                }
            ],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}] * 2,
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2024-01-01T00:00:00Z"}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {"name": "main", "ready": True, "imageID": "sha256:" + "ab" * 32, "restartCount": 0}
            ],
        },
    }


def _managed_fields(size: int) -> list[dict[str, object]]:
    fields: dict[str, object] = {f"f:field{i}": {".": {}, "f:name": {}} for i in range(size)}
    return [{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": fields}]
