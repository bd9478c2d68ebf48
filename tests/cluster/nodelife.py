"""What happens to a node while pods run on it, and who noticed: for tests of a node's life."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from gpushare.contract import names
from gpushare.contract.inventory import Device, decode_devices
from gpushare_testcluster import wait_for
from gpushare_testcluster.controlplane import http_ok
from gpushare_testcluster.errors import TestClusterError
from gpushare_testcluster.pods import pod
from gpushare_testcluster.ports import free_ports
from tests.cluster import extending, plugging
from tests.cluster.history import History

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

Object = dict[str, Any]

UNITS = 15
"""Of each fake GPU."""


# -- the hardware ---------------------------------------------------------------------------------


def machine(cluster: Cluster, *present: int, failed: Collection[int] = ()) -> float:
    """From now on the machine has these GPUs, in this order; when, by time.monotonic."""
    content = {
        "gpus": [
            {"uuid": f"GPU-{i}", "model": "Tesla T4", "memory_mib": plugging.T4_MIB}
            for i in present
        ],
        "events": [{"after_s": 0, "uuid": f"GPU-{i}", "healthy": False, "xid": 79} for i in failed],
    }
    path = cluster.node.gpushare_dir / "gpus.yaml"
    part = path.with_suffix(".part")
    part.write_text(yaml.safe_dump(content))
    os.replace(part, path)
    return time.monotonic()


def devices(cluster: Cluster) -> dict[str, Device]:
    """UUID -> the GPU, as the node publishes it."""
    annotations = cluster.admin.get("nodes", cluster.node.name)["metadata"].get("annotations") or {}
    return {
        one.uuid: one for one in decode_devices(annotations.get(names.ANNOTATION_DEVICES, "[]"))
    }


def indexes(cluster: Cluster) -> dict[str, int]:
    """UUID -> index of the GPUs that the node publishes."""
    return {uuid: one.index for uuid, one in devices(cluster).items()}


def wait_health(cluster: Cluster, uuid: str, *, healthy: bool, timeout_s: float = 5) -> None:
    word = "well" if healthy else "failed"
    wait_for(
        lambda: devices(cluster)[uuid].healthy is healthy, timeout_s, f"{uuid} published as {word}"
    )


# -- pods -----------------------------------------------------------------------------------------


def settled(cluster: Cluster, *pods: str, timeout_s: float = 30) -> list[Object]:
    """These pods, once each runs and is attested. A pod that has failed is an AssertionError."""
    found: dict[str, Object] = {}

    def all_run() -> bool:
        for name in pods:
            one = found[name] = cluster.admin.get("pods", name)
            if one["status"].get("phase") == "Failed":
                raise RuntimeError(f"{name} failed: {one['status'].get('message')}")
            if not _runs(one):
                return False
        return True

    wait_for(all_run, timeout_s, f"{', '.join(pods)} running and attested")
    return [found[name] for name in pods]


def _runs(one: Object) -> bool:
    statuses = one["status"].get("containerStatuses") or [{}]
    return plugging.assigned(one) and all(status.get("ready") for status in statuses)


def on_gpus(one: Object) -> set[int]:
    """The GPUs a bound pod's annotation names."""
    return set(extending.gpus_of(one))


def hold(cluster: Cluster, *sizes: int, prefix: str = "h") -> dict[str, int]:
    """Pods h0, h1, … of these sizes, bound one after the other, run; name -> its GPU."""
    pods = [f"{prefix}{number}" for number in range(len(sizes))]
    for name, size in zip(pods, sizes, strict=True):
        cluster.admin.create(pod(name, gpu_mem=size))
        cluster.wait_bound(name)
    where: dict[str, int] = {}
    for name, one in zip(pods, settled(cluster, *pods), strict=True):
        (where[name],) = on_gpus(one)
    return where


def lives(cluster: Cluster, pods: Iterable[str]) -> dict[str, str]:
    """Pod -> id of its running container: another one after a restart."""
    wanted = set(pods)
    return {one.pod: one.id for one in cluster.node.containers() if one.pod in wanted}


def lives_of(cluster: Cluster, app: str) -> dict[str, str]:
    """The same of a Deployment's pods."""
    pods = cluster.admin.list("pods", labels=f"app={app}")
    return lives(cluster, [one["metadata"]["name"] for one in pods])


def deployment(name: str, replicas: int, gpu_mem: int) -> Object:
    template = pod("x", gpu_mem=gpu_mem, labels={"app": name}, terminationGracePeriodSeconds=1)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": template["metadata"]["labels"]},
                "spec": template["spec"],
            },
        },
    }


def scale(cluster: Cluster, name: str, replicas: int) -> None:
    cluster.admin.patch("deployments", name, {"spec": {"replicas": replicas}})


def replicas(cluster: Cluster, app: str) -> tuple[list[Object], list[Object]]:
    """A Deployment's pods that run and are attested, and those that failed."""
    pods = cluster.admin.list("pods", labels=f"app={app}")
    alive = [one for one in pods if not one["metadata"].get("deletionTimestamp")]
    return (
        [one for one in alive if one["status"].get("phase") == "Running" and _runs(one)],
        [one for one in pods if one["status"].get("phase") == "Failed"],
    )


def wait_replicas(cluster: Cluster, app: str, count: int, timeout_s: float = 30) -> list[Object]:
    """Exactly so many pods of a Deployment run and are attested."""

    def there() -> list[Object] | None:
        running, _ = replicas(cluster, app)
        return running if len(running) == count else None

    found = wait_for(there, timeout_s, f"{count} pods of {app} running and attested")
    assert found is not None
    return found


def on_their_way(cluster: Cluster, app: str) -> list[str]:
    """A Deployment's pods that are bound and do not run yet."""
    pods = cluster.admin.list("pods", labels=f"app={app}")
    return [
        one["metadata"]["name"]
        for one in pods
        if one["spec"].get("nodeName") and one["status"].get("phase") == "Pending"
    ]


def failure(one: Object) -> str:
    return f"{one['status'].get('reason')}: {one['status'].get('message')}"


# -- a stream of pods -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Passed:
    """What became of a pod of a stream."""

    name: str
    bound_at: float | None
    """By time.monotonic."""
    gpus: frozenset[int]
    """Where it was at last."""
    failed: str
    """Why, if it did."""


@dataclass
class Stream:
    """A pod of one unit every `every_s`. When more than `kept` are there, the oldest that ran goes.

    `with History(cluster) as history, Stream(cluster, history) as stream`: on leaving, every pod
    has run or failed, and is being deleted.
    """

    cluster: Cluster
    history: History
    every_s: float = 0.25
    kept: int = 4
    name: str = "new"
    _pods: list[str] = field(default_factory=list)
    _left: list[str] = field(default_factory=list)
    """Those not deleted yet."""

    def __enter__(self) -> Stream:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._flow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        count = len(self._pods)
        wait_for(lambda: not self._trim(0), 30, f"the last of {count} pods of the stream settled")

    def _flow(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            name = f"{self.name}{len(self._pods):03}"
            self.cluster.admin.create(pod(name, gpu_mem=1, terminationGracePeriodSeconds=1))
            self._pods.append(name)
            self._left.append(name)
            self._trim(self.kept)
            due += self.every_s
            self._stop.wait(due - time.monotonic())

    def _trim(self, kept: int) -> list[str]:
        """Deletes pods that have run or failed until `kept` are left; those that are."""
        pods = {one["metadata"]["name"]: one for one in self.cluster.admin.list("pods")}
        for name in list(self._left):
            one = pods[name]
            if len(self._left) > kept and (one["status"].get("phase") == "Failed" or _runs(one)):
                self.cluster.admin.delete("pods", name)
                self._left.remove(name)
        return self._left

    def wait_gone(self) -> None:
        wait_for(
            lambda: (
                not any(
                    one["metadata"]["name"] in self._pods for one in self.cluster.admin.list("pods")
                )
            ),
            20,
            "the stream's pods are gone",
        )

    def passed(self) -> list[Passed]:
        """Its pods, in the order they were created."""
        found: dict[str, Passed] = {}
        for events in self.history.of_pods().values():
            last = events[-1].object
            name = last["metadata"]["name"]
            if name not in self._pods:
                continue
            bound = next((e for e in events if e.object["spec"].get("nodeName")), None)
            annotated = names.ANNOTATION_ALLOCATION in (last["metadata"].get("annotations") or {})
            failed = [e.object for e in events if e.object["status"].get("phase") == "Failed"]
            found[name] = Passed(
                name,
                bound and bound.at,
                frozenset(on_gpus(last)) if annotated else frozenset(),
                failure(failed[-1]) if failed else "",
            )
        return [found[name] for name in self._pods if name in found]

    def last_on(self, gpu: int) -> float:
        """When, by time.monotonic, the last pod was bound to a GPU; -inf: none was."""
        times = [one.bound_at for one in self.passed() if gpu in one.gpus and one.bound_at]
        return max(times, default=float("-inf"))

    def tell(self) -> list[str]:
        """Prints what became of the pods; why those failed that did."""
        passed = self.passed()
        failed = [one.failed for one in passed if one.failed]
        on = {gpu: sum(gpu in one.gpus for one in passed) for gpu in range(4)}
        print(f"{len(passed)} pods created, {len(failed)} failed; on GPU: {on}")
        for why in failed:
            print(f"    {why}")
        return failed


# -- processes, Events, inspect -------------------------------------------------------------------

SECOND = "device-plugin-2"


def start_second(cluster: Cluster, name: str = SECOND, other: str = "device-plugin") -> None:
    """One more instance of the plugin, with the command of `other` on a port of its own."""
    record = cluster.processes.record(other)
    assert record is not None
    argv = record.argv[record.argv.index("--") + 1 :]
    (port,) = free_ports("127.0.0.1", 1)
    argv[argv.index("--listen") + 1] = f"127.0.0.1:{port}"
    cluster.node.start_plugin(
        argv,
        kubeconfig=cluster.kubeconfig,  # filled in already
        name=name,
        ready=lambda: http_ok("127.0.0.1", port, "/readyz"),
    )


def node_event(cluster: Cluster, reason: str, *texts: str, timeout_s: float = 10) -> str:
    """Waits for an Event on the node that says all this; its message."""

    def seen() -> str:
        found = cluster.admin.list("events", fields=f"involvedObject.kind=Node,reason={reason}")
        messages = [
            str(one["message"])
            for one in found
            if one["involvedObject"]["name"] == cluster.node.name
        ]
        return next((m for m in messages if all(text in m for text in texts)), "")

    return wait_for(seen, timeout_s, f"Event {reason} on the node")


def inspect(cluster: Cluster, *arguments: str) -> tuple[str, str]:
    """What `kubectl inspect cgpu` writes to stdout and stderr."""
    done = subprocess.run(
        ["kubectl", "inspect", "cgpu", *arguments],
        env=cluster.environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode:
        raise TestClusterError(done.stderr)
    return done.stdout, done.stderr
