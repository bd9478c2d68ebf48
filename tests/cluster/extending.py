"""Running the extender of this checkout on the test cluster, and reading what it did."""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

from gpushare.contract import names

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

Object = dict[str, Any]


def start(cluster: Cluster, *options: str, **keywords: Any) -> None:
    """The extender, under its ServiceAccount, answering the cluster's kube-scheduler."""
    command = [sys.executable, "-m", "gpushare", "extender"]
    where = ["--kubeconfig", "{kubeconfig}", "--listen", "{listen}"]
    cluster.start_extender([*command, *where, *options], **keywords)


def gpus_of(pod: Object) -> dict[int, int]:
    """GPU -> units of a bound pod, as its annotation says."""
    allocation = json.loads(pod["metadata"]["annotations"][names.ANNOTATION_ALLOCATION])
    held: dict[int, int] = {}
    for gpus in allocation.values():
        for gpu, units in gpus.items():
            held[int(gpu)] = held.get(int(gpu), 0) + units
    return held


def get(cluster: Cluster, path: str) -> str:
    """A page of the extender."""
    url = f"http://127.0.0.1:{cluster.extender_port}{path}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def used(cluster: Cluster) -> dict[str, list[int]]:
    """Node -> units held on each of its GPUs, as the extender has it."""
    nodes = json.loads(get(cluster, "/gpushare-scheduler/inspect"))["nodes"]
    return {node["name"]: [gpu["usedGPU"] for gpu in node["devs"]] for node in nodes}
