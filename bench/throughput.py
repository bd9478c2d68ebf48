"""Pods per second through the real kube-scheduler, with and without the extender.

500 fake nodes of 8 GPUs, 1,000 pods of 1 and 2 GiB. The pods are made while the scheduler is
stopped; timed is from the first to the last bind, as a watch tells. "Without" is the same
kube-scheduler with the same configuration but for its `extenders`. All of it runs on this machine:
CPU seconds per process say where the time goes.
"""

import contextlib
import http.client
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from gpushare_testcluster.cluster import EXTENDER, Cluster
from gpushare_testcluster.controlplane import APISERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER
from gpushare_testcluster.nodes import node_object
from gpushare_testcluster.pods import pod
from gpushare_testcluster.waiting import wait_for

NODES, GPUS, UNITS = 500, 8, 15
PODS = 1_000
PATIENCE_S = 60
TICKS = os.sysconf("SC_CLK_TCK")
PROCESSES = (APISERVER, SCHEDULER, ETCD, CONTROLLER_MANAGER, EXTENDER)


@dataclass
class Outcome:
    """One run. `cpu_s`: process -> CPU seconds between the scheduler's start and the last bind."""

    seconds: float
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        return (PODS - 1) / self.seconds


def main() -> None:
    print(f"{NODES} nodes x {GPUS} GPUs, {PODS} pods, {os.cpu_count()} cores for everything")
    with (
        tempfile.TemporaryDirectory(prefix="gpushare-tc-") as folder,
        Cluster.start(Path(folder) / "c", large=True) as cluster,
    ):
        cluster.add_nodes([node_object(f"n{i:04d}", gpus=[UNITS] * GPUS) for i in range(NODES)])
        with _without_extenders(cluster):
            bare = _run(cluster, "without")
        command = [sys.executable, "-m", "gpushare", "extender"]
        where = ["--kubeconfig", "{kubeconfig}", "--listen", "{listen}"]
        cluster.start_extender([*command, *where, "--log-level", "warning"])
        ours = _run(cluster, "with")
    print(f"with the extender {ours.rate / bare.rate:.2f} x the rate without")


@contextmanager
def _without_extenders(cluster: Cluster) -> Iterator[None]:
    """The scheduler's configuration has no extenders from its next start on."""
    path = cluster.dir / "kube-scheduler.yaml"
    text = path.read_text()
    config = yaml.safe_load(text)
    del config["extenders"]
    path.write_text(yaml.safe_dump(config))
    try:
        yield
    finally:
        path.write_text(text)


def _run(cluster: Cluster, label: str) -> Outcome:
    cluster.stop_component(SCHEDULER)
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda i: cluster.admin.create(_pod(i)), range(PODS)):
            pass
    binds = _Binds(cluster)
    before = _cpu(cluster)
    cluster.start_component(SCHEDULER)
    wait_for(lambda: len(binds.at) == PODS, PATIENCE_S, quiet=True, every_s=0.2)
    # The scheduler is a new process: all its CPU time is of this run.
    after = _cpu(cluster)
    spent = {n: s - (0.0 if n == SCHEDULER else before.get(n, 0.0)) for n, s in after.items()}
    times = sorted(binds.at.values())
    outcome = Outcome(times[-1] - times[0], spent)
    whole = sum(spent.values())
    parts = ", ".join(f"{n} {s:.1f} s ({s / whole:.0%})" for n, s in spent.items() if s >= 0.1)
    print(
        f"{label:>8}: {outcome.rate:>4.0f} pods/s ({outcome.seconds:.1f} s); "
        f"{whole / PODS * 1000:.1f} ms CPU a pod: {parts}",
        flush=True,
    )
    for found in cluster.admin.list("pods", namespace="default"):
        cluster.admin.delete("pods", found["metadata"]["name"], grace_s=0)
    return outcome


@dataclass
class _Binds:
    """Notes when a watch shows each pod on a node, in a thread of its own."""

    cluster: Cluster
    at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        while len(self.at) < PODS:  # the API server cuts watches that lag behind
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                self._watch()

    def _watch(self) -> None:
        for event in self.cluster.admin.watch(
            "pods", namespace="default", fields="spec.nodeName!=", timeout_s=PATIENCE_S
        ):
            if event["type"] in ("ADDED", "MODIFIED"):
                self.at.setdefault(event["object"]["metadata"]["name"], time.monotonic())
                if len(self.at) == PODS:
                    return


def _pod(number: int) -> dict[str, object]:
    return pod(f"pod-{number:04d}", gpu_mem=1 + number % 2)


def _cpu(cluster: Cluster) -> dict[str, float]:
    """Process -> CPU seconds of its life so far, from /proc."""
    seconds: dict[str, float] = {}
    for name in PROCESSES:
        record = cluster.processes.record(name)
        if record is not None and cluster.processes.running(name):
            stat = Path(f"/proc/{record.pid}/stat").read_text().rpartition(")")[2].split()
            seconds[name] = (int(stat[11]) + int(stat[12])) / TICKS
    return seconds


if __name__ == "__main__":
    main()
