"""The kubelet: its configuration, its credentials, its start and when it counts as ready."""

from __future__ import annotations

import datetime
import json
import math
import time
from typing import Any

from gpushare_testcluster import binaries
from gpushare_testcluster import controlplane as cp
from gpushare_testcluster.api import Api, ApiError, Object
from gpushare_testcluster.node import namespace, runtime
from gpushare_testcluster.node.layout import HEALTHZ_PORT, KUBELET_PORT, Facts, Layout
from gpushare_testcluster.pki import Pki
from gpushare_testcluster.processes import Processes
from gpushare_testcluster.state import StateDir, write_atomically

KUBELET = "kubelet"
# Gates that must be off too when another is, or the kubelet ends with a panic.
_DEPENDENTS = {"ResourceHealthStatus": "ResourceHealthStatusMessage"}
_PREFIXES_OF_KUBELET = ("kubernetes.io/", "beta.kubernetes.io/", "node.kubernetes.io/")


def write_config(state: StateDir, layout: Layout, facts: Facts) -> None:
    """Writes the configuration, a kubeconfig with the node's certificate, and a serving one."""
    gates = dict(facts.feature_gates)
    for gate, dependent in _DEPENDENTS.items():
        if not gates.get(gate, True):
            gates.setdefault(dependent, False)
    pki = Pki(state.pki)
    pki.issue("kubelet", f"system:node:{facts.name}", groups=("system:nodes",))
    pki.issue("kubelet-server", facts.name, names=(facts.name,), addresses=(facts.address,))
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": facts.address,
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzBindAddress": facts.address,
        "healthzPort": HEALTHZ_PORT,
        "tlsCertFile": str(pki.crt("kubelet-server")),
        "tlsPrivateKeyFile": str(pki.key("kubelet-server")),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki.ca)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{runtime.SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{facts.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "maxPods": 500,
        # A full disk of the machine is nobody's concern here.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%"},
        "nodeStatusUpdateFrequency": "1s",  # else a device plugin's units show after up to 10 s
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "featureGates": gates,
        "logging": {"verbosity": facts.verbosity},
        **facts.kubelet_config,
    }
    write_atomically(layout.config / "kubelet.yaml", json.dumps(config, indent=1))
    settings = state.settings()
    files = {
        "client-certificate": str(pki.crt("kubelet")),
        "client-key": str(pki.key("kubelet")),
    }
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "testcluster",
                "cluster": {"server": settings.api_url, "certificate-authority": str(pki.ca)},
            }
        ],
        "users": [{"name": "kubelet", "user": files}],
        "contexts": [
            {"name": "testcluster", "context": {"cluster": "testcluster", "user": "kubelet"}}
        ],
        "current-context": "testcluster",
    }
    write_atomically(layout.config / "kubelet.kubeconfig", json.dumps(kubeconfig, indent=1))


def make_node(api: Api, facts: Facts) -> None:
    """Creates the Node object with its loopback address, if it is not there.

    The kubelet refuses to report a loopback address of its own (`--node-ip`), but keeps one that
    is there already under `--cloud-provider=external`. The API server reaches the kubelet by it.
    """
    labels = {"kubernetes.io/hostname": facts.name, "kubernetes.io/os": "linux", **facts.labels}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": facts.name, "labels": labels}}
    try:
        api.create(node)
    except ApiError as error:
        if error.status != 409:
            raise
    addresses = [{"type": "InternalIP", "address": facts.address}]
    api.patch("nodes", facts.name, {"status": {"addresses": addresses}}, subresource="status")


def clean_node(api: Api, facts: Facts) -> None:
    """Takes from the Node object what a test, an administrator or the plugin has put there."""
    node = api.get("nodes", facts.name)
    meta = node["metadata"]
    labels: dict[str, str | None] = {
        key: None for key in meta.get("labels", {}) if not key.startswith(_PREFIXES_OF_KUBELET)
    }
    notes = {
        key: None
        for key in meta.get("annotations", {})
        if not key.startswith(("node.alpha.kubernetes.io/", "volumes.kubernetes.io/"))
    }
    change = {
        "metadata": {"labels": {**labels, **facts.labels}, "annotations": notes},
        "spec": {"unschedulable": None, "taints": None},
    }
    api.patch("nodes", facts.name, change)
    extended = [key for key in node["status"].get("capacity", {}) if "/" in key]
    if extended:
        gone = dict.fromkeys(extended)
        api.patch(
            "nodes",
            facts.name,
            {"status": {"capacity": gone, "allocatable": gone}},
            subresource="status",
        )


def start(layout: Layout, processes: Processes, facts: Facts) -> None:
    """Starts the kubelet in the node's namespace; does not wait."""
    processes.spawn(
        KUBELET,
        [
            *namespace.enter(layout, processes),
            str(binaries.path_of("kubelet")),
            f"--config={layout.config / 'kubelet.yaml'}",
            f"--kubeconfig={layout.config / 'kubelet.kubeconfig'}",
            f"--hostname-override={facts.name}",
            "--cloud-provider=external",
            "--root-dir=/var/lib/kubelet",
        ],
    )


def wait_ready(
    api: Api, processes: Processes, facts: Facts, since: float, timeout_s: float = 60
) -> None:
    """Waits until the kubelet is healthy and has reported the node Ready since that time.

    since: of time.time(). Raises StartFailed.
    """
    deadline = time.monotonic() + timeout_s
    cp.wait_ready(
        processes,
        KUBELET,
        lambda: cp.http_ok(facts.address, HEALTHZ_PORT, "/healthz"),
        timeout_s,
    )
    cp.wait_ready(
        processes,
        KUBELET,
        lambda: _reported_ready(api.find("nodes", facts.name), since),
        max(1.0, deadline - time.monotonic()),
    )


def _reported_ready(node: Object | None, since: float) -> bool:
    for condition in (node or {}).get("status", {}).get("conditions", []):
        if condition["type"] == "Ready" and condition["status"] == "True":
            beat = datetime.datetime.fromisoformat(condition["lastHeartbeatTime"])
            taints = (node or {})["spec"].get("taints", [])
            return beat.timestamp() >= math.floor(since) and not taints
    return False
