"""Every right of the device plugin's role in deploy/ is needed, on a real kubelet.

As test_permissions.py for the extender: `PLUGIN_NEEDS` says for each rule what stops working. All
behaviours are checked with the role as it stands, then each without its rule, where it must fail
and the refusal of the API server must be seen in the plugin's log.

No extender runs: pods are put on the node as it binds them. The plugin pauses one second between
repeated Events instead of sixty.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.contract import names
from gpushare_testcluster import wait_for
from gpushare_testcluster.errors import TimedOut
from gpushare_testcluster.pods import pod
from tests.cluster import plugging
from tests.cluster.permissions import Rule, take_away

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.node

Object = dict[str, Any]

PLUGIN = """\
import functools, sys
from gpushare.deviceplugin import main
main.Recorder = functools.partial(main.Recorder, interval_s=1.0)
sys.exit(main.main())
"""

GPUS = (plugging.T4_MIB, plugging.T4_MIB)
UNITS = 30


@dataclass
class Scene:
    """A node with a device plugin; `patience_s`: how long a behaviour is waited for."""

    cluster: Cluster
    patience_s: float

    def wait(self, predicate: Callable[[], object], what: str) -> None:
        wait_for(predicate, self.patience_s, what)

    def given(self, predicate: Callable[[], object], what: str) -> None:
        """What a behaviour starts from. If that fails, nothing is said about the behaviour."""
        try:
            wait_for(predicate, 20, what)
        except TimedOut as error:
            raise AssertionError(f"the check itself cannot begin: {error}") from error

    @property
    def node(self) -> Object:
        return self.cluster.admin.get("nodes", self.cluster.node.name)

    def label(self, **labels: str) -> None:
        self.cluster.admin.label("nodes", self.cluster.node.name, **labels)

    def get(self, path: str) -> str:
        """A page of the plugin; empty while it answers that it is not ready."""
        url = f"http://{self.cluster.node.plugin_listen}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def place(self, name: str, gpu_mem: int, gpu: int) -> None:
        """A pod on the node, decided for a GPU."""
        annotation = {names.ANNOTATION_ALLOCATION: json.dumps({"0": {str(gpu): gpu_mem}})}
        node = self.cluster.node.name
        self.cluster.admin.create(pod(name, gpu_mem=gpu_mem, node=node, annotations=annotation))

    def told(self, about: str, reason: str) -> list[Object]:
        """Events about a pod or the node."""
        return self.cluster.admin.list(
            "events", fields=f"involvedObject.name={about},reason={reason}"
        )

    def told_of_placement(self, word: str) -> list[Object]:
        """Events about the node's placement label, with this value."""
        events = self.told(self.cluster.node.name, "UnknownPlacement")
        return [event for event in events if word in event["message"]]


# --- Behaviours -----------------------------------------------------------------------------------


def becomes_ready(scene: Scene) -> None:
    """The first lists come in, and it registers with the kubelet."""
    scene.wait(lambda: scene.get("/readyz") == "ok\n", "ready")


def publishes_its_gpus(scene: Scene) -> None:
    """The inventory, in the node's annotation."""

    def published() -> bool:
        value = scene.node["metadata"].get("annotations", {}).get(names.ANNOTATION_DEVICES, "")
        return all(f"GPU-{i}" in value for i in range(len(GPUS)))

    scene.wait(published, "the inventory published")


def publishes_their_number(scene: Scene) -> None:
    """aliyun.com/gpu-count, in the node's status."""
    scene.wait(lambda: counted(scene), "the number of GPUs published")


def counted(scene: Scene) -> bool:
    status = scene.node["status"]
    return all(
        status[which].get(names.RESOURCE_COUNT) == str(len(GPUS))
        for which in ("capacity", "allocatable")
    )


def follows_its_node(scene: Scene) -> None:
    """A label is read when it changes: of a wrong one there is an Event."""
    # Until then the answers to its own writes tell it of the node, too.
    scene.given(lambda: counted(scene), "everything published")
    scene.label(**{names.LABEL_PLACEMENT: "sideways"})
    scene.wait(lambda: scene.told_of_placement("sideways"), "the label noticed")


def follows_its_pods(scene: Scene) -> None:
    """What a pod had is off the books when it is gone. (A pod that is new is found without: the
    kubelet asks for it, and an unknown pod is looked up by a list.)"""
    scene.place("leaving", 4, gpu=0)
    held = 'pod="leaving"'
    scene.given(lambda: held in scene.get("/metrics"), "the pod on the books")
    scene.cluster.admin.delete("pods", "leaving", grace_s=0)
    metric = str(names.Metric.CONTAINER_ALLOCATED)

    def gone() -> bool:
        page = scene.get("/metrics")
        return metric in page and held not in page

    scene.wait(gone, "the pod off the books")


def tells_who_has_a_gpu(scene: Scene) -> None:
    """The pod's annotation `assigned` becomes "true"."""
    scene.place("attested", 3, gpu=1)
    scene.given(lambda: 'pod="attested"' in scene.get("/metrics"), "it was given a GPU")
    scene.wait(
        lambda: plugging.assigned(scene.cluster.admin.get("pods", "attested")), "it is assigned"
    )


def tells_why_a_pod_was_refused(scene: Scene) -> None:
    """An Event on a pod that no GPU has room for."""
    node = scene.cluster.node.name
    scene.cluster.admin.create(pod("refused", gpu_mem=16, node=node))
    # Not the pod's status: the kubelet, busy with other pods, may write it seconds later.
    scene.given(lambda: 'outcome="no-room"' in scene.get("/metrics"), "the pod was refused")
    scene.wait(lambda: scene.told("refused", "GPUMemoryRefused"), "told why")


def counts_up_an_event(scene: Scene) -> None:
    """What is told again in other words is the same Event, counted up."""
    scene.given(lambda: counted(scene), "everything published")
    scene.label(**{names.LABEL_PLACEMENT: "downwards"})
    scene.given(lambda: scene.told_of_placement("downwards"), "told once")
    scene.label(**{names.LABEL_PLACEMENT: "upwards"})
    scene.wait(
        lambda: [event for event in scene.told_of_placement("upwards") if event["count"] > 1],
        "the Event counted up",
    )


PLUGIN_NEEDS: dict[Rule, Callable[[Scene], None]] = {
    Rule("gpushare-device-plugin", "", "nodes", "list"): becomes_ready,
    Rule("gpushare-device-plugin", "", "nodes", "watch"): follows_its_node,
    Rule("gpushare-device-plugin", "", "nodes", "patch"): publishes_its_gpus,
    Rule("gpushare-device-plugin", "", "nodes/status", "patch"): publishes_their_number,
    Rule("gpushare-device-plugin", "", "pods", "list"): becomes_ready,
    Rule("gpushare-device-plugin", "", "pods", "watch"): follows_its_pods,
    Rule("gpushare-device-plugin", "", "pods/status", "patch"): tells_who_has_a_gpu,
    Rule("gpushare-device-plugin", "", "events", "create"): tells_why_a_pod_was_refused,
    Rule("gpushare-device-plugin", "", "events", "patch"): counts_up_an_event,
}

# --- With all of them, and without each -----------------------------------------------------------


@pytest.fixture
def cluster_of_plugin(clean_node: Cluster) -> Iterator[Cluster]:
    """Afterwards the plugin is stopped and the roles are those of deploy/."""
    yield clean_node
    clean_node.node.stop_plugin(hard=True)
    clean_node.restore_identities()


def start(cluster: Cluster, *, wait: bool = True) -> None:
    """`wait`: until it is ready, and the kubelet gives its devices to pods."""
    taken = f'resourceName="{names.RESOURCE_MEM}" totalCount={UNITS} healthyCount={UNITS}'
    already = cluster.node.kubelet_log().count(taken)
    where = ["--kubeconfig", "{kubeconfig}", "--node", "{node}", "--listen", "{listen}"]
    gpus = str(plugging.write_gpus(cluster, *GPUS))
    cluster.node.start_plugin(
        [sys.executable, "-c", PLUGIN, *where, "--fake-gpus", gpus],
        ready="/readyz" if wait else "/healthz",
    )
    if wait:
        # Not the node's status, which the kubelet writes every ten seconds.
        wait_for(lambda: cluster.node.kubelet_log().count(taken) > already, 20, "devices taken")


def test_with_its_rules_the_plugin_does_all_that(cluster_of_plugin: Cluster) -> None:
    cluster = cluster_of_plugin
    already = cluster.node.plugin_log().count("is forbidden")
    start(cluster)
    for behaviour in dict.fromkeys(PLUGIN_NEEDS.values()):
        behaviour(Scene(cluster, patience_s=10))
    assert cluster.node.plugin_log().count("is forbidden") == already


@pytest.mark.parametrize("rule", PLUGIN_NEEDS, ids=str)
def test_without_the_rule_it_does_not(cluster_of_plugin: Cluster, rule: Rule) -> None:
    cluster, behaviour = cluster_of_plugin, PLUGIN_NEEDS[rule]
    take_away(cluster, rule)
    already = cluster.node.plugin_log().count(rule.refusal)
    start(cluster, wait=behaviour is not becomes_ready)
    with pytest.raises(TimedOut):
        behaviour(Scene(cluster, patience_s=2.5))
    wait_for(lambda: cluster.node.plugin_log().count(rule.refusal) > already, 10, "the refusal")
