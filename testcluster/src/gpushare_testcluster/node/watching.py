"""The part of `Node` that looks at pods and containers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpushare_testcluster.errors import TestClusterError
from gpushare_testcluster.node import runtime
from gpushare_testcluster.node.images import Image
from gpushare_testcluster.node.layout import Layout
from gpushare_testcluster.node.runtime import Container
from gpushare_testcluster.processes import Processes
from gpushare_testcluster.waiting import wait_for

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster


class PodPart:
    """What runs on the node, and what it was given."""

    _cluster: Cluster
    _processes: Processes
    _layout: Layout

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

    def import_images(self, *images: Image) -> None:
        """Puts images of a test's own into containerd; a name that is there stays what it is.

        They go with the node's disk (`Node.reset` after much has gone wrong).
        """
        runtime.import_missing(self._layout, self._processes, images)

    def wait_running(self, pod: str, *, namespace: str = "default", timeout_s: float = 20) -> Any:
        """Waits until a pod is Running with all containers ready. Raises TimedOut."""

        def running() -> Any:
            found = self._cluster.admin.find("pods", pod, namespace=namespace)
            statuses = (found or {}).get("status", {}).get("containerStatuses") or [{}]
            return found if all(status.get("ready") for status in statuses) else None

        return wait_for(running, timeout_s, f"pod {namespace}/{pod} running")
