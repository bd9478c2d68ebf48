"""Scenarios: clusters, pods and where the pods should go, as data in scenarios/*.yaml.

One format for the placement core, the simulator and the real cluster. A file maps a phrase to:

    nodes:                  name -> node
      a:
        gpus: [15, 15]      units each; or {units: 15, index: 3, healthy: false, cordoned: true}
        placement: spread   label ack.node.gpu.placement; left out, the label is too
        mode: cgpu          label ack.node.gpu.schedule (default share); null for no label
        labels: {}          more labels
        inventory: false    publishes only its sum and its number of GPUs
        advertised: 45      aliyun.com/gpu-mem in its status, where that is not the GPUs' sum
        unschedulable: true
    pods:                   name -> pod, in order of arrival
      p:
        gpu-mem: 4          or a list, one entry per container
        init: [8]           init containers; {sidecar: 3} for a native sidecar
        gpu-count: 2
        core: 50            percent of compute, of the first container
        owner: web          pods of one owner are replicas
        node: a             stands on this node already, ...
        gpu: 1              ... on this GPU; or an annotation's text, or null for none
        phase: Succeeded    (default Running for a pod that stands)
        terminating: true
    arrival: burst          all new pods at once (default: one by one)
    node-ranking: spread
    expect:
      p: {a: {1: 4}}        node -> GPU -> units it holds there ...
      q: no-gpu-fits        ... or why it has no place on any node
    shape:                  for bursts: node -> what its GPUs hold in the end, in any order
      a: [4, 4, 4, 0]
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpushare.contract import names

FOLDER = Path(__file__).parent.parent / "scenarios"
NAMESPACE = "default"
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """One scenario. `key` is "file: phrase"."""

    key: str
    nodes: dict[str, dict[str, Any]]
    pods: dict[str, dict[str, Any]]
    expect: dict[str, dict[str, dict[int, int]] | str]
    shape: dict[str, list[int]]
    burst: bool
    node_ranking: str

    def node_manifests(self) -> list[Manifest]:
        return [_node(name, spec) for name, spec in self.nodes.items()]

    def standing_pods(self) -> list[Manifest]:
        """Pods that are on a node when the scenario begins."""
        return [
            _pod(name, spec, position)
            for position, (name, spec) in enumerate(self.pods.items())
            if "node" in spec
        ]

    def new_pods(self) -> list[Manifest]:
        """Pods that arrive, in order."""
        return [
            _pod(name, spec, position)
            for position, (name, spec) in enumerate(self.pods.items())
            if "node" not in spec
        ]


def load() -> list[Scenario]:
    """Every scenario of every file, in order."""
    scenarios = []
    for path in sorted(FOLDER.glob("*.yaml")):
        for phrase, data in yaml.safe_load(path.read_text()).items():
            unknown = set(data) - {"nodes", "pods", "arrival", "node-ranking", "expect", "shape"}
            assert not unknown, f"{path.name}: {phrase}: unknown {unknown}"
            scenario = Scenario(
                key=f"{path.stem}: {phrase}",
                nodes=data["nodes"],
                pods=data["pods"],
                expect=data.get("expect", {}),
                shape=data.get("shape", {}),
                burst=data.get("arrival") == "burst",
                node_ranking=data.get("node-ranking", "binpack"),
            )
            new = {name for name, pod in scenario.pods.items() if "node" not in pod}
            if scenario.burst:
                assert scenario.shape, f"{scenario.key}: a burst needs its shape"
            else:
                assert set(scenario.expect) == new, f"{scenario.key}: expect says other pods"
            scenarios.append(scenario)
    return scenarios


def _node(name: str, spec: dict[str, Any]) -> Manifest:
    gpus = [gpu if isinstance(gpu, dict) else {"units": gpu} for gpu in spec["gpus"]]
    labels = {"kubernetes.io/hostname": name, **spec.get("labels", {})}
    if spec.get("mode", "share") is not None:
        labels[names.LABEL_MODE] = spec.get("mode", "share")
    if "placement" in spec:
        labels[names.LABEL_PLACEMENT] = spec["placement"]
    annotations = {}
    devices = [
        {
            "index": gpu.get("index", position),
            "uuid": f"GPU-{name}-{gpu.get('index', position)}",
            "model": "Tesla T4",
            "memory_mib": gpu["units"] * 1024 + 100,
            "units": gpu["units"],
            "healthy": gpu.get("healthy", True),
        }
        for position, gpu in enumerate(gpus)
    ]
    if spec.get("inventory", True):
        annotations[names.ANNOTATION_DEVICES] = json.dumps(devices)
    cordoned = [str(d["index"]) for d, g in zip(devices, gpus, strict=True) if g.get("cordoned")]
    if cordoned:
        annotations[names.ANNOTATION_CORDONED] = ",".join(cordoned)
    amounts = {
        "cpu": "64",
        "memory": "256Gi",
        "pods": "110",
        names.RESOURCE_MEM: str(spec.get("advertised", sum(gpu["units"] for gpu in gpus))),
        names.RESOURCE_COUNT: str(len(gpus)),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"unschedulable": True} if spec.get("unschedulable") else {},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
        },
    }


def _pod(name: str, spec: dict[str, Any], position: int) -> Manifest:
    asks = spec.get("gpu-mem", 0)
    app = [
        _container(f"app-{i}", units)
        for i, units in enumerate(asks if isinstance(asks, list) else [asks])
    ]
    if "core" in spec:
        app[0]["resources"]["limits"][names.RESOURCE_CORE] = str(spec["core"])
    init = []
    for i, ask in enumerate(spec.get("init", [])):
        sidecar = isinstance(ask, dict)
        container = _container(f"init-{i}", ask["sidecar"] if sidecar else ask)
        if sidecar:
            container["restartPolicy"] = "Always"
        init.append(container)
    metadata: Manifest = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"uid-{name}",
        "labels": {},
        "annotations": {},
        "creationTimestamp": f"2026-01-01T00:00:{position:02}Z",
    }
    if "gpu-count" in spec:
        metadata["labels"][names.LABEL_GPU_COUNT] = str(spec["gpu-count"])
    if "owner" in spec:
        metadata["ownerReferences"] = [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": spec["owner"],
                "uid": f"uid-owner-{spec['owner']}",
                "controller": True,
            }
        ]
    body: Manifest = {"containers": app, "restartPolicy": "Never"}
    if init:
        body["initContainers"] = init
    status: Manifest = {"phase": "Pending"}
    if "node" in spec:
        body["nodeName"] = spec["node"]
        status["phase"] = spec.get("phase", "Running")
        metadata["annotations"] = _allocation(spec, asks if isinstance(asks, list) else [asks])
    if spec.get("terminating"):
        metadata["deletionTimestamp"] = "2026-01-01T00:10:00Z"
        metadata["finalizers"] = ["gpushare.dev/scenario"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body, "status": status}


def _container(name: str, units: int) -> Manifest:
    limits = {names.RESOURCE_MEM: str(units)} if units else {}
    return {"name": name, "image": "pause", "resources": {"limits": limits}}


def _allocation(spec: dict[str, Any], asks: list[int]) -> dict[str, str]:
    gpu = spec.get("gpu")
    if gpu is None:
        return {}
    if isinstance(gpu, str):
        return {names.ANNOTATION_ALLOCATION: gpu}
    gpus = gpu if isinstance(gpu, list) else [gpu]
    allocation = {
        str(i): {str(g): units // len(gpus) for g in gpus} for i, units in enumerate(asks) if units
    }
    return {names.ANNOTATION_ALLOCATION: json.dumps(allocation)}
