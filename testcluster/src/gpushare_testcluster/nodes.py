"""Fake nodes: Node objects without a kubelet, made and kept Ready.

Their Leases are renewed by the keeper process every ten seconds, as a kubelet would; in a large
cluster (`large=True`) nobody renews them and the controller waits for ten hours instead.
"""

from __future__ import annotations

import copy
import datetime
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpushare_testcluster.api import Api, ApiError, Object

LEASE_NAMESPACE = "kube-node-lease"
LEASE_S = 40
MOST_LEASES = 100

GPU_MEM = "aliyun.com/gpu-mem"
GPU_COUNT = "aliyun.com/gpu-count"


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node_object(
    name: str,
    *,
    gpus: Sequence[int] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str | int] | None = None,
    inventory: bool = True,
    ip: str = "",
) -> Object:
    """A Ready node with GPUs, as our device plugin would publish it.

    gpus: units of each GPU, by index; with them the node gets the label `gpushare: "true"` (unless
    `labels` has it or ACK's), `aliyun.com/gpu-mem` and `-count`, and, if `inventory`, the
    annotation gpushare.dev/devices (1,024 MiB a unit). allocatable: added to or replacing
    the defaults (64 CPUs, 256 GiB, 500 pods).
    """
    all_labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})}
    all_annotations = dict(annotations or {})
    amounts: dict[str, str | int] = {"cpu": "64", "memory": "256Gi", "pods": "500"}
    if gpus:
        if "ack.node.gpu.schedule" not in all_labels:
            all_labels.setdefault("gpushare", "true")
        amounts |= {GPU_MEM: sum(gpus), GPU_COUNT: len(gpus)}
        if inventory:
            all_annotations.setdefault("gpushare.dev/devices", json.dumps(devices(name, gpus)))
    amounts |= allocatable or {}
    quantities = {key: str(value) for key, value in amounts.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": all_labels, "annotations": all_annotations},
        "spec": {},
        "status": {
            "capacity": quantities,
            "allocatable": quantities,
            "conditions": conditions(True),
            "addresses": [
                {"type": "InternalIP", "address": ip or _address(name)},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": _node_info(name),
        },
    }


def devices(node: str, gpus: Sequence[int], healthy: Sequence[bool] = ()) -> list[Object]:
    """The list in gpushare.dev/devices (CONTRACT.md section 10) for GPUs of these units."""
    return [
        {
            "index": index,
            "uuid": f"GPU-{node}-{index}",
            "model": "Tesla T4",
            "memory_mib": units * 1024,
            "units": units,
            "healthy": healthy[index] if index < len(healthy) else True,
        }
        for index, units in enumerate(gpus)
    ]


def conditions(ready: bool) -> list[Object]:
    """The node's conditions; a node that is not ready gets the controller's taint."""
    times = {"lastHeartbeatTime": now(), "lastTransitionTime": now()}
    return [
        {
            "type": "Ready",
            "status": "True" if ready else "False",
            "reason": "KubeletReady" if ready else "KubeletNotReady",
            "message": "a fake node of the test cluster",
            **times,
        }
    ]


def create(api: Api, node: Object, *, lease: bool) -> Object:
    """Creates a node, replacing one of that name; returns it Ready and without the taint
    that the API server puts on every new node. lease: make its Lease too.
    """
    node = _complete(node)
    name = node["metadata"]["name"]
    try:
        api.create(node)
    except ApiError as error:
        if error.status != 409:
            raise
        api.delete("nodes", name)
        api.create(node)
    if lease:
        renew_lease(api, name)
    return api.patch("nodes", name, {"spec": {"taints": node["spec"].get("taints")}})


def create_many(api: Api, nodes: Sequence[Object], *, lease: bool, threads: int = 8) -> None:
    """Creates many nodes at once."""
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda node: create(api, node, lease=lease), nodes):
            pass


def renew_lease(api: Api, node: str) -> None:
    """Renews a node's Lease, making it if there is none."""
    renewed = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": node, "leaseDurationSeconds": LEASE_S, "renewTime": renewed}
    try:
        api.patch("leases", node, {"spec": spec}, namespace=LEASE_NAMESPACE)
    except ApiError as error:
        if error.status != 404:
            raise
        api.create(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": node, "namespace": LEASE_NAMESPACE},
                "spec": spec,
            }
        )


def _complete(node: Object) -> Object:
    """Adds what a manifest leaves out: kind, conditions, capacity, room for pods."""
    whole = copy.deepcopy(node)
    whole.setdefault("apiVersion", "v1")
    whole.setdefault("kind", "Node")
    name = whole["metadata"]["name"]
    whole["metadata"] = {
        key: whole["metadata"][key]
        for key in ("name", "labels", "annotations")
        if whole["metadata"].get(key) is not None
    }
    whole["metadata"].setdefault("labels", {}).setdefault("kubernetes.io/hostname", name)
    whole.setdefault("spec", {})
    status: dict[str, Any] = whole.setdefault("status", {})
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "500"}
    amounts |= status.get("allocatable") or status.get("capacity") or {}
    status["allocatable"] = {key: str(value) for key, value in amounts.items()}
    status["capacity"] = {
        key: str(value) for key, value in {**amounts, **(status.get("capacity") or {})}.items()
    }
    status.setdefault("conditions", conditions(True))
    status.setdefault("nodeInfo", _node_info(name))
    return whole


def _node_info(name: str) -> Object:
    fields = ("machineID", "systemUUID", "bootID")
    return {
        **dict.fromkeys(fields, name),
        "kernelVersion": "0",
        "osImage": "fake",
        "containerRuntimeVersion": "containerd://2.4.2",
        "kubeletVersion": "v1.36.3",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }


def _address(name: str) -> str:
    """An address of the documentation's ranges, the same for the same name."""
    number = sum(name.encode()) * 7919 + len(name)
    return f"192.0.2.{number % 254 + 1}"
