"""Pods and Jobs for tests, as plain dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpushare_testcluster.nodes import GPU_MEM

Object = dict[str, Any]
IMAGE = "registry.k8s.io/pause:3.10"


def pod(
    name: str,
    *,
    gpu_mem: int | Sequence[int] = 0,
    init_gpu_mem: Sequence[int] = (),
    gpu_count: int | None = None,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    node: str = "",
    priority_class: str = "",
    image: str = IMAGE,
    command: Sequence[str] = (),
    **spec: Any,
) -> Object:
    """A pod that asks for GPU memory.

    gpu_mem: units of its one container, or of each; init_gpu_mem: of each init container;
    gpu_count: the label aliyun.com/gpu-count; node: binds it past every scheduler;
    spec: further fields of the pod's spec.
    """
    sizes = [gpu_mem] if isinstance(gpu_mem, int) else list(gpu_mem)
    meta: Object = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    if gpu_count is not None:
        meta["labels"]["aliyun.com/gpu-count"] = str(gpu_count)
    if annotations:
        meta["annotations"] = dict(annotations)
    whole: Object = {
        "containers": [_container(f"c{i}", size, image, command) for i, size in enumerate(sizes)],
        "terminationGracePeriodSeconds": 0,
        **spec,
    }
    if init_gpu_mem:
        whole["initContainers"] = [
            _container(f"i{i}", size, image, command) for i, size in enumerate(init_gpu_mem)
        ]
    if node:
        whole["nodeName"] = node
    if priority_class:
        whole["priorityClassName"] = priority_class
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": whole}


def job(
    name: str,
    *,
    gpu_mem: int,
    parallelism: int = 1,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A Job of equal pods; spec: further fields of the pods' spec."""
    template = pod("x", gpu_mem=gpu_mem, labels={"app": name, **(labels or {})}, **spec)
    template["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "parallelism": parallelism,
            "completions": parallelism,
            "template": {
                "metadata": {"labels": template["metadata"]["labels"]},
                "spec": template["spec"],
            },
        },
    }


def _container(name: str, size: int, image: str, command: Sequence[str]) -> Object:
    container: Object = {"name": name, "image": image}
    if command:
        container["command"] = list(command)
    if size:
        container["resources"] = {"limits": {GPU_MEM: str(size)}}
    return container
