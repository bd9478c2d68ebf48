"""The small writes: annotations, labels, a nomination, a node's capacity.

Each is one PATCH naming only what it changes, so that writers of other fields are not disturbed. A
UID or a resource version, where given, is a precondition: Conflict is raised if the object is
another one by now, or has changed since. (The API server answers 409 for a version, and 422,
"metadata.uid: field is immutable", for a UID.) A value of None removes the key.

None of them retries; what a failure means, the caller knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from gpushare.kube.connection import MERGE_PATCH, STRATEGIC_PATCH, Connection
from gpushare.kube.errors import ApiError, Conflict
from gpushare.kube.objects import Node, Pod
from gpushare.kube.resources import node_path, pod_path

T = TypeVar("T")

Values = Mapping[str, str | None]
"""key -> its new value, None to remove it."""


def _metadata(
    uid: str | None,
    resource_version: str | None = None,
    annotations: Values | None = None,
    labels: Values | None = None,
) -> dict[str, object]:
    given: dict[str, object | None] = {
        "uid": uid,
        "resourceVersion": resource_version,
        "annotations": annotations or None,
        "labels": labels or None,
    }
    return {key: value for key, value in given.items() if value is not None}


async def _patch(
    connection: Connection,
    path: str,
    body: object,
    type_: type[T],
    content_type: str,
    timeout_s: float | None,
) -> T:
    try:
        return await connection.patch(
            path, body, type_, content_type=content_type, timeout_s=timeout_s
        )
    except ApiError as error:
        if error.status == 422 and "metadata.uid" in error.message:
            raise Conflict(409, "Conflict", error.message, error.where) from error
        raise


async def annotate_pod(
    connection: Connection,
    namespace: str,
    name: str,
    annotations: Values,
    *,
    uid: str | None,
    resource_version: str | None = None,
    timeout_s: float | None = None,
) -> Pod:
    """Set or remove annotations of a pod; the pod afterwards. Needs `patch` on pods/status.

    Through the status subresource, which takes metadata too: whoever nominates pods or reports on
    them needs no right to change their specs.

    Raises: Conflict if the pod has another UID or version, NotFound, and as Connection.request.
    """
    return await _patch(
        connection,
        f"{pod_path(namespace, name)}/status",
        {"metadata": _metadata(uid, resource_version, annotations)},
        Pod,
        MERGE_PATCH,
        timeout_s,
    )


async def nominate(
    connection: Connection,
    namespace: str,
    name: str,
    node: str | None,
    *,
    uid: str | None,
    annotations: Values | None = None,
    timeout_s: float | None = None,
) -> Pod:
    """Set `status.nominatedNodeName` of a waiting pod, or clear it with None; the pod afterwards.

    `annotations` go into the same write: it is one event for who watches. Needs `patch` on
    pods/status. Raises: Conflict if the pod has another UID, NotFound, and as Connection.request.
    """
    return await _patch(
        connection,
        f"{pod_path(namespace, name)}/status",
        {
            "metadata": _metadata(uid, annotations=annotations),
            "status": {"nominatedNodeName": node},
        },
        Pod,
        STRATEGIC_PATCH,
        timeout_s,
    )


async def patch_node(
    connection: Connection,
    name: str,
    *,
    annotations: Values | None = None,
    labels: Values | None = None,
    uid: str | None = None,
    resource_version: str | None = None,
    timeout_s: float | None = None,
) -> Node:
    """Set or remove annotations and labels of a node in one write; the node afterwards.

    Needs `patch` on nodes. Raises: Conflict if the node has another UID or version, NotFound, and
    as Connection.request.
    """
    return await _patch(
        connection,
        node_path(name),
        {"metadata": _metadata(uid, resource_version, annotations, labels)},
        Node,
        MERGE_PATCH,
        timeout_s,
    )


async def patch_node_status(
    connection: Connection,
    name: str,
    *,
    capacity: Values,
    allocatable: Values | None = None,
    uid: str | None = None,
    timeout_s: float | None = None,
) -> Node:
    """Set or remove quantities of a node's capacity and allocatable; the node afterwards.

    `allocatable` is the same as `capacity` if not given. Other resources stay. Needs `patch` on
    nodes/status. Raises: Conflict if the node has another UID, NotFound, and as Connection.request.
    """
    return await _patch(
        connection,
        f"{node_path(name)}/status",
        {
            "metadata": _metadata(uid),
            "status": {
                "capacity": dict(capacity),
                "allocatable": dict(capacity if allocatable is None else allocatable),
            },
        },
        Node,
        STRATEGIC_PATCH,
        timeout_s,
    )
