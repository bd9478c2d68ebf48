"""Every scenario of scenarios/*.yaml, placed by the real kube-scheduler through the extender.

The same files run on the placement core and in the simulator. Pods that arrive one by one get the
same node and the same GPUs here; a burst gets the same shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpushare.contract import names
from gpushare.contract.names import Reason
from gpushare.kube import objects
from gpushare.kube.reading import read_bound_pod, read_node
from gpushare.model.holding import placement_of
from gpushare.policy import GPU_POLICIES
from gpushare.view.reasons import short
from gpushare_testcluster import wait_for
from tests.cluster import extending
from tests.scenario import NAMESPACE, Scenario, load

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.cluster

SCENARIOS = load()
Object = dict[str, Any]


@pytest.fixture(scope="module")
def extended(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with one extender that lives through all scenarios."""
    cluster.reset()
    cluster.stop_extender()
    extending.start(cluster)
    yield cluster
    cluster.reset()
    cluster.stop_extender()


def test_no_scenario_is_left_out() -> None:
    print(f"{len(SCENARIOS)} scenarios run on the real cluster, none is skipped")
    assert {scenario.node_ranking for scenario in SCENARIOS} == {"binpack"}  # the extender's here


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.key for s in SCENARIOS])
def test_scenario(extended: Cluster, scenario: Scenario) -> None:
    extended.reset()
    for node in scenario.node_manifests():
        extended.add_node_object(node)
    for pod in scenario.standing_pods():
        stand(extended, pod)
    ledger_is_ready(extended, scenario)
    arrivals = [adopted(extended, pod) for pod in scenario.new_pods()]
    if scenario.burst:
        for pod in arrivals:
            extended.admin.create(fresh(pod))
        for pod in arrivals:
            extended.wait_bound(pod["metadata"]["name"])
        used = extending.used(extended)
        assert {node: sorted(used[node]) for node in scenario.shape} == {
            node: sorted(amounts) for node, amounts in scenario.shape.items()
        }
        return
    for pod in arrivals:
        name = pod["metadata"]["name"]
        extended.admin.create(fresh(pod))
        expected = scenario.expect[name]
        if isinstance(expected, str):
            message = extended.wait_event(name)["message"]
            assert is_why(Reason(expected), message), message
        else:
            assert where(extended, extended.wait_bound(name)) == expected


def stand(cluster: Cluster, pod: Object) -> None:
    """Makes a pod that is on its node when the scenario begins, in the phase it says."""
    pod = adopted(cluster, pod)
    meta = pod["metadata"]
    terminating = meta.pop("deletionTimestamp", None)
    cluster.admin.create(fresh(pod))
    status = {"status": {"phase": pod["status"]["phase"]}}
    cluster.admin.patch("pods", meta["name"], status, subresource="status")
    if terminating:
        cluster.admin.delete("pods", meta["name"])


def adopted(cluster: Cluster, pod: Object) -> Object:
    """The pod with its owner made, under the UID that the owner got."""
    for reference in pod["metadata"].get("ownerReferences", []):
        owner = cluster.admin.find("configmaps", reference["name"])
        if owner is None:
            owner = cluster.admin.create(
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": reference["name"], "namespace": NAMESPACE},
                }
            )
        reference["uid"] = owner["metadata"]["uid"]
    return pod


def fresh(pod: Object) -> Object:
    """A manifest without what the API server sets itself."""
    ignored = ("uid", "creationTimestamp")
    meta = {key: value for key, value in pod["metadata"].items() if key not in ignored}
    spec = {**pod["spec"], "automountServiceAccountToken": False}
    return {**pod, "metadata": meta, "spec": spec}


def ledger_is_ready(cluster: Cluster, scenario: Scenario) -> None:
    """Waits until the extender has every standing pod on its books."""
    asked = sum(
        int(container["resources"]["limits"].get(names.RESOURCE_MEM, 0))
        for pod in scenario.standing_pods()
        if pod["status"]["phase"] == "Running"
        for container in pod["spec"]["containers"]
    )

    sharing = {name for name, node in scenario.nodes.items() if node.get("mode") != "default"}

    def on_the_books() -> bool:
        pending = sum(
            float(line.rsplit(" ", 1)[1])
            for line in extending.get(cluster, "/metrics").splitlines()
            if line.startswith(names.Metric.NODE_PENDING)
        )
        used = extending.used(cluster)
        held = sum(sum(amounts) for amounts in used.values())
        return set(used) >= sharing and held + pending == asked

    wait_for(on_the_books, 10, "the standing pods on the extender's books")


def where(cluster: Cluster, bound: Object) -> dict[str, dict[int, int]]:
    """Node -> GPU -> units that a bound pod holds there."""
    pod = msgspec.convert(bound, objects.Pod, strict=False)
    node = msgspec.convert(
        cluster.admin.get("nodes", bound["spec"]["nodeName"]), objects.Node, strict=False
    )
    record, error = read_bound_pod(pod)
    assert error is None
    assert record is not None
    assert record.assignment is not None
    placement = placement_of(record.request, record.assignment, read_node(node, GPU_POLICIES).node)
    assert placement is not None
    return {record.node: {gpu: units for gpu, (units, _) in placement.held(record.request).items()}}


def is_why(reason: Reason, message: str) -> bool:
    """Whether FailedScheduling says the reason; a sum too small is kube-scheduler's own finding."""
    if reason is Reason.NODE_FULL and f"Insufficient {names.RESOURCE_MEM}" in message:
        return True
    return short(reason) in message
