"""Nodes and pods as `kubectl get -o json` prints them, for tests."""

from __future__ import annotations

import json
from typing import Any

from gpushare.contract import names

Object = dict[str, Any]


def node(
    name: str = "a",
    gpus: list[int] | None = None,
    *,
    address: str | None = "192.0.2.1",
    inventory: bool | list[Object] = True,
    capacity: int | None = None,
    allocatable: int | None = None,
    mode: str | None = "cgpu",
    placement: str | None = "spread",
    unit: str | None = "GiB",
    unhealthy: tuple[int, ...] = (),
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    unschedulable: bool = False,
) -> Object:
    """A node with GPUs of so many units each, as a healthy plugin publishes it.

    inventory   False: only the sum and the number of GPUs; a list: these devices
    """
    units = [15, 15] if gpus is None else gpus
    metadata: Object = {"name": name, "labels": dict(labels or {}), "annotations": {}}
    if mode is not None:
        metadata["labels"][names.LABEL_MODE] = mode
    if placement is not None:
        metadata["labels"][names.LABEL_PLACEMENT] = placement
    if inventory is not False:
        devices = inventory if isinstance(inventory, list) else _devices(units, unhealthy)
        metadata["annotations"][names.ANNOTATION_DEVICES] = json.dumps(devices)
        if unit is not None:
            metadata["annotations"][names.ANNOTATION_NODE] = json.dumps(
                {"version": 1, "unit": unit, "attests": True, "injection": "cdi"}
            )
    metadata["annotations"].update(annotations or {})
    total = sum(units) if capacity is None else capacity
    offered = total if allocatable is None else allocatable
    count = {names.RESOURCE_COUNT: str(len(units))}
    addresses = [{"type": "Hostname", "address": name}]
    if address is not None:
        addresses.append({"type": "InternalIP", "address": address})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {"unschedulable": True} if unschedulable else {},
        "status": {
            "capacity": {"cpu": "64", names.RESOURCE_MEM: str(total), **count},
            "allocatable": {"cpu": "64", names.RESOURCE_MEM: str(offered), **count},
            "addresses": addresses,
        },
    }


def _devices(units: list[int], unhealthy: tuple[int, ...]) -> list[Object]:
    return [
        {
            "index": index,
            "uuid": f"GPU-{index}",
            "model": "Tesla T4",
            "memory_mib": amount * 1024,
            "units": amount,
            "healthy": index not in unhealthy,
        }
        for index, amount in enumerate(units)
    ]


def plain_node(name: str = "cpu-only") -> Object:
    """A node that has nothing to do with GPUs."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}},
    }


def pod(
    name: str,
    units: object = None,
    gpu: int | dict[int, int] | str | None = None,
    *,
    node: str | None = "a",
    namespace: str = "default",
    containers: list[object] | None = None,
    init: list[object] | None = None,
    phase: str = "Running",
    old: str | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    owner: tuple[str, str] | None = None,
    terminating: bool = False,
) -> Object:
    """A pod that asks for `units`, or whose containers ask for that much each.

    gpu   its GPU, or GPU -> units, or the annotation's text; None for no annotation
    old   value of the old add-on's annotation
    """
    asks = [units] if containers is None else containers
    notes = dict(annotations or {})
    if gpu is not None:
        notes[names.ANNOTATION_ALLOCATION] = _allocation(asks, gpu)
    if old is not None:
        notes[names.ANNOTATION_OLD_IDX] = old
    metadata: Object = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{namespace}-{name}",
        "annotations": notes,
        "labels": dict(labels or {}),
    }
    if owner is not None:
        kind, owner_name = owner
        metadata["ownerReferences"] = [{"kind": kind, "name": owner_name, "controller": True}]
    if terminating:
        metadata["deletionTimestamp"] = "2024-01-01T00:00:00Z"
    spec: Object = {"containers": [_container(index, ask) for index, ask in enumerate(asks)]}
    if init is not None:
        spec["initContainers"] = [_container(index, ask) for index, ask in enumerate(init)]
    if node is not None:
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": phase},
    }


def _allocation(asks: list[object], gpu: int | dict[int, int] | str) -> str:
    if isinstance(gpu, str):
        return gpu
    if isinstance(gpu, dict):
        return json.dumps({"0": {str(index): units for index, units in gpu.items()}})
    return json.dumps({str(i): {str(gpu): ask} for i, ask in enumerate(asks) if ask})


def _container(index: int, ask: object) -> Object:
    limits: Object = {"cpu": "1"}
    if ask is not None:
        limits[names.RESOURCE_MEM] = str(ask)
    return {"name": f"c{index}", "resources": {"limits": limits, "requests": dict(limits)}}


def dump(*items: Object) -> str:
    """What `kubectl get nodes,pods -A -o json` prints."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}, indent=4)
