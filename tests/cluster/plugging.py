"""Running the device plugin of this checkout on the test cluster's real node."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gpushare.contract import names
from gpushare.contract.units import Unit
from gpushare.deviceplugin.core.ids import uuid_of
from gpushare.node.podresources import list_pod_resources
from gpushare_testcluster import wait_for
from gpushare_testcluster.binaries import path_of
from gpushare_testcluster.controlplane import kubeconfig_of
from tests.cluster import extending

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

Object = dict[str, Any]

AFTER_A_START = (
    "no healthy devices present",
    "requested number of devices unavailable",
    "the kubelet still counts",
    "the kubelet has forgotten",
)
"""What a kubelet that has just started refuses pods with: before the plugin is registered again,
while it still counts pods that have ended, and what it forgot."""

T4_MIB = 16130
"""15 units of 1 GiB."""


def write_gpus(
    cluster: Cluster,
    *memory_mib: int,
    events: tuple[Object, ...] = (),
    uuid: str = "GPU-{}",
) -> Path:
    """A file of fake GPUs: GPU-0, GPU-1, …, or as `uuid` makes their UUIDs of their numbers."""
    path = cluster.node.gpushare_dir / "gpus.yaml"
    gpus = [
        {"uuid": uuid.format(i), "model": "Tesla T4", "memory_mib": mib}
        for i, mib in enumerate(memory_mib or (T4_MIB,) * 4)
    ]
    path.write_text(yaml.safe_dump({"gpus": gpus, "events": list(events)}))
    return path


def start(
    cluster: Cluster,
    *memory_mib: int,
    options: tuple[str, ...] = (),
    placement: str = "binpack",
    mode: str = "share",
    extender: bool = True,
    uuid: str = "GPU-{}",
    program: tuple[str, ...] = ("-m", "gpushare", "device-plugin"),
    **keywords: Any,
) -> None:
    """Extender and device plugin, under their ServiceAccounts; the kubelet offers the units."""
    labels = {names.LABEL_PLACEMENT: placement, names.LABEL_MODE: mode}
    cluster.admin.label("nodes", cluster.node.name, **labels)
    if extender:
        extending.start(cluster)
    gpus = write_gpus(cluster, *memory_mib, uuid=uuid)
    where = ["--kubeconfig", "{kubeconfig}", "--node", "{node}", "--listen", "{listen}"]
    cluster.node.start_plugin(
        [sys.executable, *program, *where, "--fake-gpus", str(gpus), *options],
        ready="/readyz",
        **keywords,
    )
    units = sum(Unit.GIB.units_of(mib) for mib in memory_mib or (T4_MIB,) * 4)
    if "--unit" not in options:
        cluster.node.wait_allocatable(names.RESOURCE_MEM, units)


def allocation(pod: Object, *, init: bool = False) -> dict[int, dict[int, int]]:
    """Container index -> GPU index -> units, as the pod's annotation says."""
    name = names.ANNOTATION_INIT_ALLOCATION if init else names.ANNOTATION_ALLOCATION
    text = pod["metadata"].get("annotations", {}).get(name, "{}")
    return {
        int(container): {int(gpu): units for gpu, units in gpus.items()}
        for container, gpus in json.loads(text).items()
    }


def placed(pod: Object) -> dict[str, dict[int, int]]:
    """Container name -> GPU index -> units, init containers too, as the pod's annotations say."""
    return {
        pod["spec"][where][index]["name"]: gpus
        for where, init in (("containers", False), ("initContainers", True))
        for index, gpus in allocation(pod, init=init).items()
    }


def assigned(pod: Object) -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    return bool(annotations.get(names.ANNOTATION_ASSIGNED) == "true")


def kubelets_word(cluster: Cluster) -> dict[tuple[str, str, str], dict[int, int]]:
    """(namespace, pod, container) -> GPU index -> units, by the kubelet's PodResources.

    GPU-0 has index 0, and so on.
    """
    socket = cluster.node.pod_resources_socket
    found: dict[tuple[str, str, str], dict[int, int]] = {}
    for one in asyncio.run(list_pod_resources(socket, names.RESOURCE_MEM)):
        held: dict[int, int] = {}
        for identifier in one.ids:
            index = int((uuid_of(identifier, Unit.GIB) or "").removeprefix("GPU-"))
            held[index] = held.get(index, 0) + 1
        found[one.namespace, one.pod, one.container] = held
    return found


def environments_word(environ: dict[str, str]) -> dict[int, int]:
    """GPU index -> units, by a container's own environment."""
    units = int(environ[names.ENV_MEM_CONTAINER])
    indexes = [int(index) for index in environ[names.ENV_MEM_IDX].split(",")]
    uuids = environ[names.ENV_VISIBLE_DEVICES].split(",")
    assert uuids == [f"GPU-{index}" for index in indexes]
    return dict.fromkeys(indexes, units)


def agree(cluster: Cluster, name: str, namespace: str = "default") -> dict[str, dict[int, int]]:
    """Container -> its GPUs, on which annotation, kubelet and environment agree."""
    pod = cluster.admin.get("pods", name, namespace=namespace)
    word: dict[tuple[str, str, str], dict[int, int]] = {}

    def told() -> bool:  # a kubelet that has just started knows no pods yet
        word.update(kubelets_word(cluster))
        return any(key[:2] == (namespace, name) for key in word)

    wait_for(told, 5, f"the kubelet's word on {name}")
    result: dict[str, dict[int, int]] = {}
    for index, gpus in allocation(pod).items():
        container = pod["spec"]["containers"][index]["name"]
        assert word[namespace, name, container] == gpus
        assert environments_word(cluster.node.env_of(name, container, namespace=namespace)) == gpus
        result[container] = gpus
    return result


def plain_scheduler(cluster: Cluster) -> str:
    """Starts a second stock kube-scheduler, without the extender; its schedulerName."""
    name = "plain-scheduler"
    config = cluster.node.gpushare_dir / f"{name}.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "clientConnection": {
                    "kubeconfig": str(kubeconfig_of(cluster.state, "system:kube-scheduler"))
                },
                "leaderElection": {"leaderElect": False},
                "profiles": [{"schedulerName": name}],
            }
        )
    )
    argv = [str(path_of("kube-scheduler")), f"--config={config}", "--secure-port=0"]
    cluster.processes.spawn(name, argv)
    return name
