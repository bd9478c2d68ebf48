"""Putting a cluster back to how it was after its start, in about a second.

Deleting a namespace or a controller's object through the controllers takes many seconds; here
owners go first, then what they own, pods at once, finalizers are struck off.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from gpushare_testcluster.api import Api, ApiError, Object
from gpushare_testcluster.errors import TimedOut
from gpushare_testcluster.resources import RESOURCES, resource_path

KEPT_NAMESPACES = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
_KEPT = {
    "services": {"kubernetes"},
    "configmaps": {
        "kube-root-ca.crt",
        "extension-apiserver-authentication",
        "kube-apiserver-legacy-service-account-token-tracking",
    },
    "serviceaccounts": {"default"},
}
# Owners before what they own, so that nothing is made again meanwhile.
_OWNERS = ("cronjobs", "jobs", "deployments", "statefulsets", "daemonsets")
_OWNED = ("replicasets", "replicationcontrollers", "controllerrevisions")
_CLUSTER_WIDE = (
    "mutatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "persistentvolumes",
    "runtimeclasses",
    "priorityclasses",
    "nodes",
)
_REST = (
    "poddisruptionbudgets",
    "resourcequotas",
    "limitranges",
    "services",
    "configmaps",
    "secrets",
    "persistentvolumeclaims",
    "leases",
    "events",
)


def reset(api: Api, timeout_s: float = 30, *, keep_nodes: Collection[str] = ()) -> None:
    """Deletes everything a test may have made, and waits until it is gone. Raises TimedOut.

    keep_nodes: the real ones; a kubelet makes its Node object only once.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        left = _sweep(api, keep_nodes)
        if not left:
            return
        if time.monotonic() > deadline:
            raise TimedOut(f"reset: still there after {timeout_s:g} s: {', '.join(left[:10])}")
        time.sleep(0.02)


def _sweep(api: Api, keep_nodes: Collection[str]) -> list[str]:
    """Deletes what is there; returns the names of what it had to delete."""
    left: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        for stage in (_CLUSTER_WIDE[:4], _OWNERS, _OWNED, ("pods",), (*_REST, *_CLUSTER_WIDE[4:])):
            for names in pool.map(lambda resource: _clear(api, resource, keep_nodes), stage):
                left += names
    for namespace in api.list("namespaces"):
        name = namespace["metadata"]["name"]
        if name not in KEPT_NAMESPACES:
            left.append(f"namespaces/{name}")
            api.delete("namespaces", name)
            _finalize(api, namespace)
    return left


def _clear(api: Api, resource: str, keep_nodes: Collection[str]) -> list[str]:
    names = []
    leftovers = [
        obj
        for obj in api.list(resource)
        if not _kept(resource, obj)
        and not (resource in ("nodes", "leases") and obj["metadata"]["name"] in keep_nodes)
    ]
    for obj in leftovers:
        meta = obj["metadata"]
        namespace = meta.get("namespace", "")
        if resource not in ("events", "leases"):  # made again behind our back; never waited for
            names.append(f"{resource}/{namespace}/{meta['name']}")
        if meta.get("finalizers"):
            _patch_away(api, resource, meta)
        api.delete(resource, meta["name"], namespace=namespace, grace_s=0)
    return names


def _kept(resource: str, obj: Object) -> bool:
    meta = obj["metadata"]
    if resource == "priorityclasses":
        return bool(meta["name"].startswith("system-"))
    if resource == "leases":
        return bool(meta["namespace"] == "kube-system")
    return meta["name"] in _KEPT.get(resource, ())


def _patch_away(api: Api, resource: str, meta: Object) -> None:
    try:
        api.patch(
            resource,
            meta["name"],
            {"metadata": {"finalizers": None}},
            namespace=meta.get("namespace", "default"),
        )
    except ApiError as error:
        if error.status != 404:
            raise


def _finalize(api: Api, namespace: Object) -> None:
    """Lets an emptied namespace go at once instead of when its controller comes round."""
    name = namespace["metadata"]["name"]
    for resource, (_, _, namespaced) in RESOURCES.items():
        if namespaced and resource not in ("events", "replicationcontrollers"):
            try:
                api.request("DELETE", resource_path(resource, name), {"gracePeriodSeconds": 0})
            except ApiError as error:
                if error.status not in (404, 405):
                    raise
    try:
        api.request(
            "PUT",
            f"/api/v1/namespaces/{name}/finalize",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {}},
        )
    except ApiError as error:
        if error.status not in (404, 409):
            raise
