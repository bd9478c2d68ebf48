"""The part of `Node` that runs the device plugin, where every path is as in production."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare_testcluster import controlplane as cp
from gpushare_testcluster.errors import TestClusterError
from gpushare_testcluster.node import namespace
from gpushare_testcluster.node.layout import Facts, Layout
from gpushare_testcluster.processes import Processes
from gpushare_testcluster.waiting import wait_for

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster
    from gpushare_testcluster.proxy import Proxy

PLUGIN = "device-plugin"
PLUGIN_ACCOUNT = "gpushare-device-plugin"


class PluginPart:
    """Starting and ending a device plugin, and what the node offers by it."""

    _cluster: Cluster
    _processes: Processes
    _layout: Layout
    _facts: Facts

    @property
    def plugin_listen(self) -> str:
        """127.0.0.1:PORT, kept free for the plugin's metrics (`{listen}`)."""
        return f"127.0.0.1:{self._facts.plugin_port}"

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
            "{node}": self._facts.name,
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
            raise TestClusterError(f"{name} was never started on {self._facts.name}")
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
        node = self._cluster.admin.get("nodes", self._facts.name)
        return int(node["status"].get("allocatable", {}).get(resource, 0))

    def wait_allocatable(self, resource: str, amount: int, timeout_s: float = 20) -> None:
        """Waits until the node offers exactly so much. Raises TimedOut."""
        wait_for(
            lambda: self.allocatable(resource) == amount,
            timeout_s,
            f"{self._facts.name} offers {amount} of {resource}",
        )


def _filled(text: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        text = text.replace(key, value)
    return text
