"""Playing the kubelet on fake nodes, where it is asked to (`Cluster.play_kubelet`).

Bound pods become Running, deleted pods go. Without it a bound pod stays Pending and a deleted one
terminating until the test says otherwise, which is what most tests want.
"""

from __future__ import annotations

import http.client
import time
from typing import Any

from gpushare_testcluster.api import Api, ApiError, Object
from gpushare_testcluster.nodes import now
from gpushare_testcluster.state import StateDir


def play(state: StateDir, api: Api) -> None:
    """Follows all pods while the cluster's folder holds the file `play-kubelet`. Never returns."""
    switch = state.play_kubelet
    while True:
        while not switch.exists():
            time.sleep(0.3)
        try:
            for event in api.watch("pods", timeout_s=20):
                if not switch.exists():
                    break
                if event["type"] in ("ADDED", "MODIFIED"):
                    _act(state, api, event["object"])
        except (OSError, ApiError, http.client.HTTPException, ValueError):
            time.sleep(0.5)  # the API server is away, or cut a slow watch


def _act(state: StateDir, api: Api, pod: Object) -> None:
    meta, spec = pod["metadata"], pod["spec"]
    if not spec.get("nodeName") or spec["nodeName"] in state.real_nodes():
        return
    try:
        if meta.get("deletionTimestamp"):
            api.delete("pods", meta["name"], namespace=meta["namespace"], grace_s=0)
        elif pod["status"].get("phase") == "Pending":
            api.patch(
                "pods",
                meta["name"],
                {"status": running_status(pod)},
                namespace=meta["namespace"],
                subresource="status",
            )
    except ApiError as error:
        if error.status not in (404, 409):
            raise


def running_status(pod: Object) -> Object:
    """The status a kubelet reports once all containers of the pod run."""
    started = now()
    kinds = ("Initialized", "PodReadyToStartContainers", "ContainersReady", "Ready")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": started} for kind in kinds]
    kept = [
        condition
        for condition in pod["status"].get("conditions", [])
        if condition["type"] not in kinds
    ]
    return {
        "phase": "Running",
        "startTime": started,
        "conditions": [*kept, *conditions],
        "containerStatuses": [
            _container_status(container, started) for container in pod["spec"]["containers"]
        ],
    }


def _container_status(container: dict[str, Any], started: str) -> Object:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "fake",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": started}},
    }
