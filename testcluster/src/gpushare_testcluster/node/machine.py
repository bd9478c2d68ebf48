"""`Node`: the cluster's one real node, its life and death, and the device plugin on it.

It holds no state of its own: everything is in the cluster's folder, so that `Cluster.attach` in
another process finds the same node.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpushare_testcluster import binaries, ports
from gpushare_testcluster.errors import TestClusterError
from gpushare_testcluster.node import cgroups, kubelet, leftovers, namespace, requirements, runtime
from gpushare_testcluster.node.layout import Facts, Layout
from gpushare_testcluster.node.plugin import PLUGIN, PluginPart
from gpushare_testcluster.node.watching import PodPart
from gpushare_testcluster.processes import MARK
from gpushare_testcluster.say import Say

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

MANY_PODS = 8  # above it a reset by the kubelet takes longer than a new start


class Node(PluginPart, PodPart):
    """Get it from `Cluster.start_node` or `Cluster.node`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._processes = cluster.processes
        self._layout = Layout(cluster.state)
        self._facts = self._layout.facts()

    # -- where things are ----------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._facts.name

    @property
    def address(self) -> str:
        """Its address, one of loopback; pods on the host network have it too."""
        return self._facts.address

    @property
    def layout(self) -> Layout:
        """Every folder of the node."""
        return self._layout

    @property
    def device_plugin_dir(self) -> Path:
        """The node's /var/lib/kubelet/device-plugins."""
        return self._layout.device_plugins

    @property
    def cdi_dirs(self) -> list[Path]:
        """The node's /etc/cdi and /run/cdi."""
        return [self._layout.etc_cdi, self._layout.run_cdi]

    @property
    def pod_resources_socket(self) -> Path:
        return self._layout.pod_resources_socket

    @property
    def gpushare_dir(self) -> Path:
        """The node's /var/lib/gpushare."""
        return self._layout.gpushare

    def kubelet_log(self) -> str:
        return self._cluster.log(kubelet.KUBELET)

    def containerd_log(self) -> str:
        return self._cluster.log(runtime.CONTAINERD)

    # -- kubelet and containerd ----------------------------------------------------------------

    def kill_kubelet(self, *, hard: bool = True) -> None:
        """Ends the kubelet (SIGKILL; not `hard`: SIGTERM); containers run on."""
        self._processes.stop(kubelet.KUBELET, hard=hard)

    def start_kubelet(self, *, wait: bool = True) -> None:
        """Starts the kubelet; `wait`: until it has reported the node Ready."""
        since = time.time()
        kubelet.make_node(self._cluster.admin, self._facts)
        kubelet.start(self._layout, self._processes, self._facts)
        if wait:
            kubelet.wait_ready(self._cluster.admin, self._processes, self._facts, since)

    def restart_kubelet(self, *, hard: bool = True, wait: bool = True) -> None:
        self.kill_kubelet(hard=hard)
        self.start_kubelet(wait=wait)

    def restart_containerd(self, *, hard: bool = True) -> None:
        """Restarts containerd and waits until it answers; containers run on."""
        self._processes.stop(runtime.CONTAINERD, hard=hard)
        runtime.start(self._layout, self._processes)

    # -- the whole node ------------------------------------------------------------------------

    def power_off(self) -> None:
        """As if the plug were pulled: everything on the node ends at once, /run is emptied.

        What is on disk stays: images, /var/lib/kubelet, /var/lib/gpushare, /etc/cdi.
        """
        deadline = time.monotonic() + 20
        self._processes.signal(kubelet.KUBELET, signal.SIGSTOP)  # nobody starts anything new
        self._processes.signal(runtime.CONTAINERD, signal.SIGSTOP)
        anchor = self._processes.record(namespace.ANCHOR)
        while pids := [
            pid
            for pid in (
                *namespace.inhabitants(self._processes),
                *cgroups.processes_in(self._facts.cgroup),
            )
            if anchor is None or pid != anchor.pid
        ]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for name in (PLUGIN, kubelet.KUBELET, runtime.CONTAINERD):
                self._processes.running(name)  # reaps it
            if time.monotonic() > deadline:
                raise TestClusterError(f"processes of the node do not end on SIGKILL: {pids}")
            time.sleep(0.01)
        self._processes.stop(namespace.ANCHOR, hard=True)
        cgroups.remove(self._facts.cgroup)
        _empty(self._layout.run)
        self._layout.fresh_run()

    def power_on(self, *, kubelet: bool = True, wait: bool = True) -> None:
        """Starts containerd and, unless told not to, the kubelet. Not the device plugin."""
        if self._processes.running(namespace.ANCHOR):
            raise TestClusterError(f"the node {self.name} is on already")
        cgroups.create(self._facts.cgroup)
        namespace.start(self._layout, self._processes)
        runtime.start(self._layout, self._processes)
        if kubelet:
            self.start_kubelet(wait=wait)

    def reboot(self, *, wait: bool = True) -> None:
        """`power_off` and `power_on`; the boot id changes, the device plugin is not started."""
        self.power_off()
        self.power_on(wait=wait)

    def stop(self) -> None:
        """Takes the node away: its processes, its cgroup, its files, its Node object."""
        with contextlib.suppress(TestClusterError):
            self.power_off()
        for name in (PLUGIN, kubelet.KUBELET, runtime.CONTAINERD, namespace.ANCHOR):
            self._processes.stop(name, hard=True)
            self._processes.forget(name)
        leftovers.clear(self._cluster.state)
        shutil.rmtree(self._layout.root)
        self._cluster.state.set_real_nodes([])
        for pod in self._cluster.admin.list("pods", fields=f"spec.nodeName={self.name}"):
            meta = pod["metadata"]
            self._cluster.admin.delete("pods", meta["name"], namespace=meta["namespace"], grace_s=0)
        self._cluster.admin.delete("nodes", self.name)

    def before_reset(self) -> None:
        """Pulls the plug if there are many pods: ending them one by one is slow."""
        if len(cgroups.pods_in(self._facts.cgroup)) > MANY_PODS:
            self.power_off()

    def reset(self, timeout_s: float = 5) -> None:
        """Ends the plugin and waits until no container is left; starts what a test has stopped.

        Called after the pods have been deleted (`Cluster.reset` does both). A node that is off,
        or does not finish in timeout_s, is started anew with an empty disk.
        """
        own = (namespace.ANCHOR, kubelet.KUBELET, runtime.CONTAINERD)
        for record in self._processes.records():
            if record.name not in own and namespace.entered(record.argv):
                self._processes.stop(record.name, hard=True)
                self._processes.forget(record.name)
        if self._processes.running(namespace.ANCHOR):
            self._revive()
        else:
            self._reinstall()
        deadline = time.monotonic() + timeout_s
        while cgroups.pods_in(self._facts.cgroup):
            if time.monotonic() > deadline:
                self._reinstall()
                break
            cgroups.kill(self._facts.cgroup)  # so that nobody waits for a grace period
            time.sleep(0.05)
        for folder in (*self.cdi_dirs, self.gpushare_dir):
            _empty(folder)
        kubelet.clean_node(self._cluster.admin, self._facts)

    def _reinstall(self) -> None:
        """The node with an empty disk: two seconds, however much was on it."""
        self.power_off()
        for folder in (self._layout.kubelet, self._layout.containerd, self._layout.log):
            shutil.rmtree(folder)
        self._layout.create(self._facts)
        self.power_on(kubelet=False)
        runtime.import_images(self._layout, self._processes)
        self.start_kubelet()

    def _revive(self) -> None:
        """Brings the node back to life after a test that stopped, paused or deleted it."""
        for name in (kubelet.KUBELET, runtime.CONTAINERD):
            self._processes.signal(name, signal.SIGCONT)
        if not self._processes.running(runtime.CONTAINERD):
            runtime.start(self._layout, self._processes)
        if self._cluster.admin.find("nodes", self.name) is None:
            self.kill_kubelet()  # it makes its Node object only when it starts
        if not self._processes.running(kubelet.KUBELET):
            self.start_kubelet()


def start_node(
    cluster: Cluster,
    *,
    name: str,
    labels: Mapping[str, str],
    feature_gates: Mapping[str, bool],
    kubelet_config: Mapping[str, Any],
    cdi: bool,
    verbosity: int,
    say: Say,
) -> Node:
    """What `Cluster.start_node` does. On failure nothing of the node is left but its logs."""
    requirements.require(say)
    layout = Layout(cluster.state)
    if layout.exists():
        raise TestClusterError(f"the cluster in {cluster.dir} has a node already: Cluster.node")
    binaries.ensure(binaries.NODE, say, {MARK: str(cluster.state.path)})
    (plugin_port,) = ports.free_ports("127.0.0.1", 1)
    facts = Facts(
        name=name,
        address=cluster.settings.address.removesuffix(".1") + ".2",
        cgroup=cgroups.name_of(cluster.settings.id),
        plugin_port=plugin_port,
        labels=dict(labels),
        feature_gates=dict(feature_gates),
        kubelet_config=dict(kubelet_config),
        cdi=cdi,
        verbosity=verbosity,
    )
    layout.create(facts)
    cluster.state.set_real_nodes([name])
    node = Node(cluster)
    try:
        kubelet.write_config(cluster.state, layout, facts)
        runtime.write_config(layout, facts)
        with say.step("containerd, with its images"):
            node.power_on(kubelet=False)
            runtime.import_images(layout, cluster.processes)
        with say.step("kubelet"):
            node.start_kubelet()
    except BaseException:
        node.stop()
        raise
    return node


def _empty(folder: Path) -> None:
    """Removes what is in a folder; the folder itself is mounted into the node."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
