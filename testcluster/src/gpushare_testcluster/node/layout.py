"""What a node is on disk: the folder DIR/node, and where the node itself sees its parts.

The node's processes live in a mount namespace of their own (namespace.py), in which the left
column appears as the right one. Outside it nothing of this machine is covered or changed.

    DIR/node/node.json      the facts below
    DIR/node/run            /run: sockets, containerd's state, /run/cdi; emptied by a reboot
    DIR/node/kubelet        /var/lib/kubelet: pods, device-plugins/, pod-resources/
    DIR/node/gpushare       /var/lib/gpushare: what the device plugin installs
    DIR/node/log            /var/log: pods/, containers/
    DIR/node/etc-cdi        /etc/cdi
    DIR/node/overlay        what is written to the rest of /etc and /var/lib
    DIR/node/containerd     containerd's root (images, snapshots), not covered
    DIR/node/config         configuration files, certificates, CNI plugins
"""

from __future__ import annotations

from typing import Any

import msgspec

from gpushare_testcluster.errors import TestClusterError
from gpushare_testcluster.state import StateDir, write_atomically

DEFAULT_NAME = "gpu-node-1"  # as in examples/mnist-spread
KUBELET_PORT = 10250
HEALTHZ_PORT = 10248


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A node's fixed facts.

    address: its loopback address, beside the API server's; labels: of the fresh Node object;
    plugin_port: a free port of 127.0.0.1 for the device plugin's metrics;
    kubelet_config: merged over the kubelet's configuration.
    """

    name: str
    address: str
    cgroup: str
    plugin_port: int
    labels: dict[str, str] = {}
    feature_gates: dict[str, bool] = {}
    kubelet_config: dict[str, Any] = {}
    cdi: bool = True
    verbosity: int = 2


class Layout:
    """The paths of a cluster's node, as seen from outside its mount namespace."""

    def __init__(self, state: StateDir) -> None:
        self.cluster = state.path
        self.root = state.path / "node"
        self.run = self.root / "run"
        self.kubelet = self.root / "kubelet"
        self.gpushare = self.root / "gpushare"
        self.log = self.root / "log"
        self.etc_cdi = self.root / "etc-cdi"
        self.overlay = self.root / "overlay"
        self.containerd = self.root / "containerd"
        self.config = self.root / "config"
        self.facts_file = self.root / "node.json"
        self.device_plugins = self.kubelet / "device-plugins"
        self.pod_resources_socket = self.kubelet / "pod-resources" / "kubelet.sock"
        self.run_cdi = self.run / "cdi"
        self.containerd_socket = self.run / "containerd" / "containerd.sock"
        self.bundles = self.run / "containerd" / "io.containerd.runtime.v2.task" / "k8s.io"

    def create(self, facts: Facts) -> None:
        """Makes the folders and writes the facts."""
        for folder in (self.gpushare, self.etc_cdi, self.containerd, self.config):
            folder.mkdir(parents=True, exist_ok=True)
        self.device_plugins.mkdir(parents=True, exist_ok=True)
        (self.log / "pods").mkdir(parents=True, exist_ok=True)
        self.fresh_run()
        write_atomically(self.facts_file, msgspec.json.encode(facts))

    def fresh_run(self) -> None:
        """The folders of /run that a machine has when it starts."""
        for name in ("lock", "cdi", "user"):
            (self.run / name).mkdir(parents=True, exist_ok=True)

    def exists(self) -> bool:
        return self.facts_file.exists()

    def facts(self) -> Facts:
        """Raises TestClusterError where the cluster has no node."""
        try:
            return msgspec.json.decode(self.facts_file.read_bytes(), type=Facts)
        except FileNotFoundError:
            raise TestClusterError(
                f"the cluster in {self.cluster} has no real node; start one with "
                "Cluster.start_node() or 'gpushare-testcluster up --node'"
            ) from None
