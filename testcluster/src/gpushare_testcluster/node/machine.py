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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpushare_testcluster import binaries, ports
from gpushare_testcluster import controlplane as cp
from gpushare_testcluster.errors import TestClusterError
from gpushare_testcluster.node import cgroups, kubelet, leftovers, namespace, requirements, runtime
from gpushare_testcluster.node.layout import Facts, Layout
from gpushare_testcluster.node.runtime import Container
from gpushare_testcluster.say import Say
from gpushare_testcluster.waiting import wait_for

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster
    from gpushare_testcluster.proxy import Proxy

PLUGIN = "device-plugin"
PLUGIN_ACCOUNT = "gpushare-device-plugin"


class Node:
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

    @property
    def plugin_listen(self) -> str:
        """127.0.0.1:PORT, kept free for the plugin's metrics (`{listen}`)."""
        return f"127.0.0.1:{self._facts.plugin_port}"

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
        shutil.rmtree(self._layout.run)
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

    def reset(self, timeout_s: float = 20) -> None:
        """Ends the plugin and waits until no container is left; powers on what is off.

        Called after the pods have been deleted (`Cluster.reset` does both).
        """
        self.stop_plugin(hard=True)
        if not self._processes.running(namespace.ANCHOR):
            self.power_on(kubelet=False)
        if not self._processes.running(runtime.CONTAINERD):
            runtime.start(self._layout, self._processes)
        if not self._processes.running(kubelet.KUBELET):
            self.start_kubelet()
        deadline = time.monotonic() + timeout_s
        while left := cgroups.pods_in(self._facts.cgroup):
            cgroups.kill(self._facts.cgroup)  # so that nobody waits for a grace period
            if time.monotonic() > deadline:
                raise TestClusterError(
                    f"the kubelet has not cleaned up these pods in {timeout_s:g} s: {left}; see "
                    f"{self._processes.log_of(kubelet.KUBELET)}"
                )
            time.sleep(0.05)
        for folder in self.cdi_dirs:
            for file in folder.iterdir():
                file.unlink()
        kubelet.clean_node(self._cluster.admin, self._facts)

    # -- processes on the node -----------------------------------------------------------------

    def enter(self) -> list[str]:
        """What to put before a command so that it sees the node's file system."""
        return namespace.enter(self._layout, self._processes)

    def start_plugin(
        self,
        argv: Sequence[str],
        *,
        kubeconfig: Path | None = None,
        via: Proxy | None = None,
        environ: Mapping[str, str] | None = None,
        ready: Callable[[], object] | str | None = None,
        timeout_s: float = 30,
        name: str = PLUGIN,
    ) -> float:
        """Starts a device plugin on the node, where every path is as in production.

        argv: `{kubeconfig}`, `{node}`, `{listen}` (for its metrics) are filled in. kubeconfig: that
        of the ServiceAccount gpushare-device-plugin in deploy/ if not given; via: through a proxy.
        ready: a path that answers 200 on `{listen}`, or a function that answers true, waited for.
        name: of the process and its log, for a second instance. Returns the seconds it took.
        """
        config = kubeconfig or self._cluster.kubeconfig_for(PLUGIN_ACCOUNT, via=via)
        values = {
            "{kubeconfig}": str(config),
            "{node}": self.name,
            "{listen}": self.plugin_listen,
        }
        started = time.monotonic()
        command = [_filled(arg, values) for arg in argv]
        self._processes.spawn(name, [*self.enter(), *command], environ)
        if isinstance(ready, str):
            port, path = self._facts.plugin_port, ready
            probe: Callable[[], object] = lambda: cp.http_ok("127.0.0.1", port, path)  # noqa: E731
        else:
            probe = ready or (lambda: True)
        cp.wait_ready(self._processes, name, lambda: bool(probe()), timeout_s)
        return time.monotonic() - started

    def stop_plugin(self, *, hard: bool = False, name: str = PLUGIN) -> None:
        """Ends the plugin (SIGTERM; `hard`: SIGKILL). Does nothing when none runs."""
        self._processes.stop(name, hard=hard)

    def restart_plugin(
        self,
        *,
        hard: bool = False,
        ready: Callable[[], object] | str | None = None,
        timeout_s: float = 30,
        name: str = PLUGIN,
    ) -> float:
        """Ends the plugin, if it runs, and starts it with the command it had."""
        record = self._processes.record(name)
        if record is None:
            raise TestClusterError(f"{name} was never started on {self.name}")
        self.stop_plugin(hard=hard, name=name)
        command = record.argv[record.argv.index("--") + 1 :]  # after what entered the namespace
        return self.start_plugin(
            command,
            kubeconfig=self._cluster.kubeconfig,  # filled in already
            environ=record.environ,
            ready=ready,
            timeout_s=timeout_s,
            name=name,
        )

    def plugin_log(self, name: str = PLUGIN) -> str:
        return self._cluster.log(name)

    def allocatable(self, resource: str) -> int:
        """What the node's status offers of a resource now."""
        node = self._cluster.admin.get("nodes", self.name)
        return int(node["status"].get("allocatable", {}).get(resource, 0))

    def wait_allocatable(self, resource: str, amount: int, timeout_s: float = 20) -> None:
        """Waits until the node offers exactly so much. Raises TimedOut."""
        wait_for(
            lambda: self.allocatable(resource) == amount,
            timeout_s,
            f"{self.name} offers {amount} of {resource}",
        )

    # -- containers ----------------------------------------------------------------------------

    def containers(self) -> list[Container]:
        """The containers that run now, without the pods' sandboxes."""
        return runtime.containers(self._layout)

    def container(self, pod: str, container: str = "", *, namespace: str = "default") -> Container:
        """A running container of a pod (its first by name). Raises TestClusterError."""
        for found in sorted(self.containers()):
            if (found.namespace, found.pod) == (namespace, pod) and container in ("", found.name):
                return found
        raise TestClusterError(f"no container {container!r} of {namespace}/{pod} runs")

    def env_of(
        self, pod: str, container: str = "", *, namespace: str = "default"
    ) -> dict[str, str]:
        """The environment inside a running container. Raises TestClusterError: none runs."""
        try:
            return runtime.environment(self.container(pod, container, namespace=namespace).pid)
        except OSError as error:
            raise TestClusterError(f"a container of {namespace}/{pod} ended: {error}") from error

    def ctr(self, *args: str) -> str:
        """Runs ctr on the kubelet's containers; returns its output."""
        return runtime.ctr(self._layout, self._processes, *args)

    def add_images(self, *names: str) -> None:
        """Makes these image names known, each a busybox."""
        runtime.import_images(self._layout, self._processes, names)

    def wait_running(self, pod: str, *, namespace: str = "default", timeout_s: float = 20) -> Any:
        """Waits until a pod is Running with all containers ready. Raises TimedOut."""

        def running() -> Any:
            found = self._cluster.admin.find("pods", pod, namespace=namespace)
            statuses = (found or {}).get("status", {}).get("containerStatuses") or [{}]
            return found if all(status.get("ready") for status in statuses) else None

        return wait_for(running, timeout_s, f"pod {namespace}/{pod} running")


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
    binaries.ensure(binaries.NODE, say)
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


def _filled(text: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        text = text.replace(key, value)
    return text
