"""Which path of the API each resource lives at; only those that tests touch."""

from __future__ import annotations

from typing import NamedTuple


class Resource(NamedTuple):
    """group_version: as in `apiVersion`; kind: as in `kind`."""

    group_version: str
    kind: str
    namespaced: bool = True


_RBAC = "rbac.authorization.k8s.io/v1"
_ADMISSION = "admissionregistration.k8s.io/v1"

RESOURCES: dict[str, Resource] = {
    "pods": Resource("v1", "Pod"),
    "nodes": Resource("v1", "Node", False),
    "namespaces": Resource("v1", "Namespace", False),
    "events": Resource("v1", "Event"),
    "configmaps": Resource("v1", "ConfigMap"),
    "secrets": Resource("v1", "Secret"),
    "services": Resource("v1", "Service"),
    "serviceaccounts": Resource("v1", "ServiceAccount"),
    "resourcequotas": Resource("v1", "ResourceQuota"),
    "limitranges": Resource("v1", "LimitRange"),
    "replicationcontrollers": Resource("v1", "ReplicationController"),
    "persistentvolumeclaims": Resource("v1", "PersistentVolumeClaim"),
    "persistentvolumes": Resource("v1", "PersistentVolume", False),
    "deployments": Resource("apps/v1", "Deployment"),
    "replicasets": Resource("apps/v1", "ReplicaSet"),
    "statefulsets": Resource("apps/v1", "StatefulSet"),
    "daemonsets": Resource("apps/v1", "DaemonSet"),
    "controllerrevisions": Resource("apps/v1", "ControllerRevision"),
    "jobs": Resource("batch/v1", "Job"),
    "cronjobs": Resource("batch/v1", "CronJob"),
    "poddisruptionbudgets": Resource("policy/v1", "PodDisruptionBudget"),
    "leases": Resource("coordination.k8s.io/v1", "Lease"),
    "priorityclasses": Resource("scheduling.k8s.io/v1", "PriorityClass", False),
    "runtimeclasses": Resource("node.k8s.io/v1", "RuntimeClass", False),
    "roles": Resource(_RBAC, "Role"),
    "rolebindings": Resource(_RBAC, "RoleBinding"),
    "clusterroles": Resource(_RBAC, "ClusterRole", False),
    "clusterrolebindings": Resource(_RBAC, "ClusterRoleBinding", False),
    "mutatingadmissionpolicies": Resource(_ADMISSION, "MutatingAdmissionPolicy", False),
    "mutatingadmissionpolicybindings": Resource(
        _ADMISSION, "MutatingAdmissionPolicyBinding", False
    ),
    "validatingadmissionpolicies": Resource(_ADMISSION, "ValidatingAdmissionPolicy", False),
    "validatingadmissionpolicybindings": Resource(
        _ADMISSION, "ValidatingAdmissionPolicyBinding", False
    ),
}

_BY_KIND = {resource.kind: name for name, resource in RESOURCES.items()}


def resource_of_kind(kind: str) -> str:
    """`Pod` → `pods`. Raises KeyError, naming the file to add it to."""
    try:
        return _BY_KIND[kind]
    except KeyError:
        raise KeyError(f"kind {kind!r} is not listed in resources.py; add it there") from None


def resource_path(resource: str, namespace: str | None = None, name: str = "") -> str:
    """The path of an object, or of the collection. Raises KeyError, naming the file to add it to.

    namespace None: the collection over all namespaces; ignored for resources without one.
    """
    try:
        group_version, _, namespaced = RESOURCES[resource]
    except KeyError:
        raise KeyError(f"resource {resource!r} is not listed in resources.py; add it") from None
    root = "/api/v1" if group_version == "v1" else f"/apis/{group_version}"
    where = f"/namespaces/{namespace}" if namespaced and namespace is not None else ""
    return f"{root}{where}/{resource}" + (f"/{name}" if name else "")
