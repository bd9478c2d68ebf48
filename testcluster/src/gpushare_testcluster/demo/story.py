"""The steps of the demo, in order; each says what it does and shows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from gpushare_testcluster import binaries
from gpushare_testcluster.api import Object
from gpushare_testcluster.cache import cache_dir
from gpushare_testcluster.cluster import EXTENDER, EXTENDER_ACCOUNT, Cluster
from gpushare_testcluster.demo.stage import Stage, is_running
from gpushare_testcluster.node.layout import DEFAULT_NAME
from gpushare_testcluster.node.plugin import PLUGIN, PLUGIN_ACCOUNT
from gpushare_testcluster.nodes import GPU_COUNT, GPU_MEM

JOB = "examples/mnist-spread/job.yaml"
JOB_NAME = "tensorflow-mnist-spread"
UNITS = 60
FAILING = 1
"""The index of the GPU that fails; the Job has a pod on it."""
DEVICES = "gpushare.dev/devices"
GPUS_FILE = "/var/lib/gpushare/gpus.yaml"
GPUS = "gpus:\n" + "".join(
    f"- {{uuid: GPU-{index}, model: Tesla T4, memory_mib: 16130}}\n" for index in range(4)
)
FAILURE = f"""cat >> {GPUS_FILE} <<END
events:
- {{after_s: 0, uuid: GPU-{FAILING}, healthy: false, xid: 79}}
END"""
RECOVERY = f"sed -i '/^events:/,$d' {GPUS_FILE}"


def start_cluster(stage: Stage, folder: Path) -> None:
    """Control plane and node."""
    names = [*binaries.CONTROL_PLANE, *binaries.NODE]
    when = "which is now" if binaries.missing(names) else "and here they are already"
    stage.step(
        "A real Kubernetes on this machine: control plane, kubelet, containerd. Its programs are "
        "built from source once (about 9 minutes on two cores, up to 6 GB of Go's caches), "
        f"{when}: {cache_dir() / 'bin'}."
    )
    stage.line(f"$ gpushare-testcluster up --node --no-extender --dir {folder}")
    stage.cluster = Cluster.start(folder, say=stage.say)
    stage.cluster.start_node(labels={}, say=stage.say)
    stage.line(f"$ export KUBECONFIG={stage.cluster.kubeconfig}")
    stage.show("kubectl get nodes")


def pretend_gpus(stage: Stage, folder: Path) -> None:
    """The file of fake GPUs, and the node's labels."""
    stage.step(
        f"Four GPUs of 16130 MiB on node {DEFAULT_NAME}, which only a file says are there. On a "
        "real node there is no file: NVIDIA's driver is asked."
    )
    (stage.node.gpushare_dir / Path(GPUS_FILE).name).write_text(GPUS)
    stage.show(f"cat {GPUS_FILE}", on_node=True)
    stage.tell("Two labels make it a node that shares its GPUs and spreads pods over them.")
    labels = "ack.node.gpu.schedule=share ack.node.gpu.placement=spread"
    stage.show(f"kubectl label node {DEFAULT_NAME} {labels}")


def start_extender(stage: Stage, folder: Path) -> None:
    stage.step(
        "The scheduler extender. The stock kube-scheduler asks it where a pod with GPU memory may "
        "go; it decides node and GPU. Its rights are those of deploy/."
    )
    config = stage.cluster.kubeconfig_for(EXTENDER_ACCOUNT)
    listen = f"127.0.0.1:{stage.cluster.extender_port}"
    argv = ["gpushare", "extender", "--kubeconfig", str(config), "--listen", listen]
    stage.ready(EXTENDER, stage.cluster.start_extender(stage.show_program(argv)))


def start_plugin(stage: Stage, folder: Path) -> None:
    stage.step(
        "The device plugin, on the node, as on a real one. It offers the GPUs' memory to the "
        "kubelet in units of 1 GiB, 15 for each GPU, and gives each pod the GPU that was decided."
    )
    config = stage.cluster.kubeconfig_for(PLUGIN_ACCOUNT)
    argv = ["gpushare", "device-plugin", "--kubeconfig", str(config), "--node", DEFAULT_NAME]
    argv += ["--listen", stage.node.plugin_listen, "--fake-gpus", GPUS_FILE]
    program = stage.show_program(argv, on_node=True)
    stage.ready(PLUGIN, stage.node.start_plugin(program, ready="/readyz"))
    stage.wait(
        f"node {DEFAULT_NAME} offers {UNITS} units of GPU memory on 4 GPUs",
        "nodes",
        lambda nodes: _offered(nodes, GPU_MEM) == UNITS and _offered(nodes, GPU_COUNT) == 4,
    )
    stage.show(
        "kubectl get nodes -o custom-columns='NAME:.metadata.name,"
        r"GPU-MEM:.status.allocatable.aliyun\.com/gpu-mem,"
        r"GPUS:.status.allocatable.aliyun\.com/gpu-count'"
    )


def run_job(stage: Stage, folder: Path) -> None:
    stage.step("The documentation's Job: three pods that ask for 4 GiB of GPU memory each.")
    stage.show(f"kubectl apply -f {JOB}")
    _running(stage, JOB_NAME)
    stage.show("kubectl get pods")


def inspect(stage: Stage, folder: Path) -> None:
    stage.step(
        "Who holds what. The node spreads: three GPUs have one pod each, so that one failing GPU "
        "hits one of the three."
    )
    stage.show("kubectl inspect cgpu")
    stage.show("kubectl inspect cgpu -d")


def look_inside(stage: Stage, folder: Path) -> None:
    pod = _running(stage, JOB_NAME)[0]
    stage.step(
        "What a container was told: the one GPU it sees, and its share of it. Nothing holds it to "
        "that share yet."
    )
    stage.show(f"kubectl exec {pod['metadata']['name']} -- env | grep -e NVIDIA -e ALIYUN | sort")


def fail_gpu(stage: Stage, folder: Path) -> None:
    stage.step(
        f"GPU {FAILING} fails: a line in the file; on a real node the driver's Xid 79 (fallen off "
        "the bus). What its pod holds stays on the books, its free units are withdrawn."
    )
    stage.show(FAILURE, on_node=True)
    stage.wait(
        f"GPU {FAILING} is published as unhealthy and its free units are withdrawn",
        "nodes",
        lambda nodes: not _healthy(nodes) and _offered(nodes, GPU_MEM) < UNITS,
    )
    stage.wait(
        "an Event names the pods on it",
        "events",
        lambda events: any(event.get("reason") == "GPUFailed" for event in events),
    )
    stage.show(
        "kubectl get events --field-selector reason=GPUFailed "
        "-o custom-columns=REASON:.reason,MESSAGE:.message"
    )
    stage.show("kubectl inspect cgpu")
    stage.tell(
        "Three more pods, by the same Job under another name: they go to the healthy GPUs, the "
        "failed one takes nothing."
    )
    _apply_again(stage, "during-the-failure")
    stage.show("kubectl inspect cgpu -d")


def recover(stage: Stage, folder: Path) -> None:
    stage.step(f"GPU {FAILING} is repaired, and takes pods again.")
    stage.show(RECOVERY, on_node=True)
    stage.wait(
        f"GPU {FAILING} is published as healthy and all units are offered again",
        "nodes",
        lambda nodes: _healthy(nodes) and _offered(nodes, GPU_MEM) == UNITS,
    )
    stage.show("kubectl inspect cgpu")


def pack(stage: Stage, folder: Path) -> None:
    stage.step(
        "Another policy, from the next pod on: binpack fills one GPU before it opens the next. The "
        "pods of the failure end first; the documentation's Job runs on where it is, and beside "
        f"it two new pods fill GPU 0, the third goes to the repaired GPU {FAILING}."
    )
    stage.show("kubectl delete job during-the-failure --cascade=foreground")
    stage.show(f"kubectl label node {DEFAULT_NAME} ack.node.gpu.placement=binpack --overwrite")
    _apply_again(stage, "packed")
    stage.show("kubectl inspect cgpu -d")


STEPS: Sequence[Callable[[Stage, Path], None]] = (
    start_cluster,
    pretend_gpus,
    start_extender,
    start_plugin,
    run_job,
    inspect,
    look_inside,
    fail_gpu,
    recover,
    pack,
)


def _apply_again(stage: Stage, name: str) -> None:
    stage.show(f"sed s/{JOB_NAME}/{name}/ {JOB} | kubectl apply -f -")
    _running(stage, name)


def _running(stage: Stage, job: str) -> list[Object]:
    """Waits for the three pods of a Job; returns them by name."""
    pods = stage.wait(
        f"the three pods of {job} are Running",
        "pods",
        lambda pods: len(pods) == 3 and all(map(is_running, pods)),
        labels=f"app={job}",
    )
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


def _offered(nodes: list[Object], resource: str) -> int:
    return sum(int(node["status"].get("allocatable", {}).get(resource, 0)) for node in nodes)


def _healthy(nodes: list[Object]) -> bool:
    """Whether the GPU that fails in this story is healthy, by what the device plugin publishes."""
    published = [node["metadata"].get("annotations", {}).get(DEVICES, "[]") for node in nodes]
    gpus = [gpu for text in published for gpu in json.loads(text)]
    return all(gpu["healthy"] for gpu in gpus if gpu["index"] == FAILING)
