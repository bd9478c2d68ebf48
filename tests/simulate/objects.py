"""More objects: those that wait for a place, and the controllers that make them."""

from __future__ import annotations

from typing import Any

from gpushare.contract import names
from tests.inspect.objects import Object, dump, node, plain_node, pod

__all__ = ["Object", "controller", "dump", "node", "plain_node", "pod", "template", "waiting"]


def waiting(name: str, units: object = None, **spec: Any) -> Object:
    """A pod without a node; more fields of its spec by their API names."""
    labels = spec.pop("labels", None)
    found = pod(name, units, node=None, phase="Pending", labels=labels)
    found["spec"].update(spec)
    return found


def template(units: object = 4, **spec: Any) -> Object:
    container: Object = {"name": "app"}
    if units is not None:
        container["resources"] = {"limits": {names.RESOURCE_MEM: units}}
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container], **spec}}


def controller(kind: str, name: str = "x", units: object = 4, **spec: Any) -> Object:
    """A workload whose template asks for `units`; more fields of its spec by their API names."""
    group = "batch/v1" if kind in ("Job", "CronJob") else "apps/v1"
    body: Object = {"template": template(units), **spec}
    if kind == "CronJob":
        body = {"schedule": "0 * * * *", "jobTemplate": {"spec": body}}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": body}
