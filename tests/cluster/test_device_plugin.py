"""The device plugin on a real kubelet: each pod gets the GPU that was decided for it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpushare.contract import names
from gpushare.node.kubelet import socket_identity
from gpushare_testcluster import wait_for
from gpushare_testcluster.pods import pod
from tests.cluster import extending, plugging, speaking

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.node

Object = dict[str, Any]

EXAMPLES = Path(__file__).parents[2] / "examples"


def running(cluster: Cluster, app: str, count: int) -> list[dict[str, Any]]:
    def all_running() -> list[dict[str, Any]]:
        pods = cluster.admin.list("pods", labels=f"app={app}")
        ready = len(pods) == count and all(
            one["status"].get("phase") == "Running" and plugging.assigned(one) for one in pods
        )
        return pods if ready else []

    return wait_for(all_running, 30, f"{count} pods of {app} running and attested") or []


@pytest.mark.parametrize(
    ("placement", "held"), [("spread", [4, 4, 4, 0]), ("binpack", [12, 0, 0, 0])]
)
def test_the_documentations_job(clean_node: Cluster, placement: str, held: list[int]) -> None:
    cluster = clean_node
    plugging.start(cluster, placement=placement)
    manifest = EXAMPLES / "mnist-spread" / "job.yaml"
    app = yaml.safe_load(manifest.read_text())["metadata"]["name"]
    cluster.kubectl("apply", "-f", str(manifest))
    on = Counter[int]()
    for one in running(cluster, app, 3):
        name = one["metadata"]["name"]
        (gpus,) = plugging.agree(cluster, name).values()
        on.update(gpus)
        environ = cluster.node.env_of(name)
        assert environ[names.ENV_MEM_DEV] == "15"
        assert environ[names.ENV_MEM_POD] == "4"
        assert environ[names.ENV_MEM_UNIT] == "GiB"
    assert sorted((on[gpu] for gpu in range(4)), reverse=True) == held
    table = json.loads(cluster.kubectl("get", "node", cluster.node.name, "-o", "json"))
    assert table["status"]["capacity"][names.RESOURCE_COUNT] == "4"
    assert extending.used(cluster)[cluster.node.name] == [on[gpu] for gpu in range(4)]


def wait_attested(cluster: Cluster, name: str) -> Object:
    """The pod, once it runs and its annotation has been attested."""

    def there() -> Object | None:
        one = cluster.admin.get("pods", name)
        done = one["status"].get("phase") == "Running" and plugging.assigned(one)
        return one if done else None

    found = wait_for(there, 20, f"{name} runs and is attested")
    assert found is not None
    return found


def test_a_pod_on_two_gpus_and_one_with_two_containers(clean_node: Cluster) -> None:
    cluster = clean_node
    plugging.start(cluster)
    cluster.admin.create(pod("full", gpu_mem=15))
    wait_attested(cluster, "full")
    assert plugging.agree(cluster, "full") == {"c0": {0: 15}}
    cluster.admin.create(pod("two-gpus", gpu_mem=16, gpu_count=2))
    wait_attested(cluster, "two-gpus")
    assert plugging.agree(cluster, "two-gpus") == {"c0": {1: 8, 2: 8}}
    cluster.admin.create(pod("two-containers", gpu_mem=[4, 10]))
    wait_attested(cluster, "two-containers")
    assert plugging.agree(cluster, "two-containers") == {"c0": {3: 4}, "c1": {3: 10}}


def test_what_the_node_cannot_hold_is_refused_with_a_reason(clean_node: Cluster) -> None:
    cluster = clean_node
    plugging.start(cluster, extender=False)
    cluster.admin.create(pod("too-large", gpu_mem=16, node=cluster.node.name))
    refused = wait_for(
        lambda: (
            (one := cluster.admin.get("pods", "too-large"))["status"]["phase"] == "Failed" and one
        ),
        20,
        "refused",
    )
    assert refused["status"]["reason"] == "UnexpectedAdmissionError"
    assert "no GPU of this node has 16 GiB free" in refused["status"]["message"]
    event = cluster.wait_event("too-large", "GPUMemoryRefused")
    assert "most on one GPU: 15 GiB" in event["message"]
    assert event["type"] == "Warning"
    # bound by hand and small enough, it is given a GPU all the same
    cluster.admin.create(pod("by-hand", gpu_mem=15, node=cluster.node.name))
    wait_attested(cluster, "by-hand")
    assert plugging.agree(cluster, "by-hand") == {"c0": {0: 15}}


def test_a_deployment_left_on_another_scheduler_runs(clean_node: Cluster) -> None:
    cluster = clean_node
    plugging.start(cluster, placement="spread")
    template = pod("x", gpu_mem=4, labels={"app": "left"})
    template["spec"]["schedulerName"] = plugging.plain_scheduler(cluster)
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "left", "namespace": "default"},
        "spec": {
            "replicas": 4,
            "selector": {"matchLabels": {"app": "left"}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }
    del template["metadata"]["name"]
    try:
        cluster.admin.create(deployment)
        on = Counter[int]()
        for one in running(cluster, "left", 4):
            name = one["metadata"]["name"]
            (gpus,) = plugging.agree(cluster, name).values()
            on.update(gpus)
            event = cluster.wait_event(name, "GPUDecidedByNode")
            assert "'plain-scheduler'" in event["message"]
        assert on == {0: 4, 1: 4, 2: 4, 3: 4}
        assert len(cluster.admin.list("pods", labels="app=left")) == 4, "failed pods pile up"
    finally:
        cluster.processes.stop("plain-scheduler", hard=True)


INIT_RELATIONS = {
    "init 4, app 8": ([4], [], [8]),
    "init 8, app 4": ([8], [], [4]),
    "init 8, apps 4 + 4": ([8], [], [4, 4]),
    "init 12, apps 8 + 8": ([12], [], [8, 8]),
    "sidecar 3, app 5": ([], [3], [5]),
    "init 4, sidecar 6": ([4], [6], [0]),
}


def test_init_containers_in_every_relation_of_sizes(clean_node: Cluster, tmp_path: Path) -> None:
    """Each runs on the GPU its annotation names, or is refused before it starts."""
    cluster = clean_node
    plugging.start(cluster, placement="spread")
    outcomes: dict[str, str] = {}
    for number, (relation, (init, sidecar, app)) in enumerate(INIT_RELATIONS.items()):
        name = f"p{number}"
        cluster.admin.create(speaking.pod(name, app, tmp_path, init=init, sidecars=sidecar))
        outcomes[relation] = _outcome(cluster, name, tmp_path)
        cluster.admin.delete("pods", name, grace_s=0)
        wait_for(lambda name=name: cluster.admin.find("pods", name) is None, 10, "gone")
    print(outcomes)
    straddling = outcomes.pop("init 12, apps 8 + 8")
    assert "would have parts of two GPUs" in straddling or "init" in straddling
    assert set(outcomes.values()) == {"runs on the GPU of its annotation"}


def _outcome(cluster: Cluster, name: str, out: Path) -> str:
    def known() -> str:
        one = cluster.admin.get("pods", name)
        phase = one["status"].get("phase")
        if phase == "Running" and plugging.assigned(one):
            for container, gpus in plugging.placed(one).items():
                says = speaking.heard(out, one, container)
                if says is None:
                    return ""
                assert plugging.environments_word(says) == gpus, (container, gpus, says)
            return "runs on the GPU of its annotation"
        if phase == "Failed":
            assert not list(out.glob(f"{one['metadata']['uid']}.*")), "a container started"
            return str(one["status"].get("message"))
        for condition in one["status"].get("conditions") or ():
            if condition.get("reason") == "Unschedulable":
                return str(condition["message"])
        return ""

    return wait_for(known, 20, name) or ""


def test_mixed_classes_at_once(
    clean_node: Cluster, tmp_path: Path, rounds: Callable[..., int]
) -> None:
    """Two-GPU pods of 4 + 4 beside single pods of 8 and two containers of 4 + 8."""
    cluster, node = clean_node, clean_node.node
    plugging.start(cluster, placement="spread")
    shuffled = random.Random(7)
    refused = 0
    for number in range(rounds(few=6, full=100)):
        kinds: list[tuple[list[int], int | None]] = [
            ([8], 2), ([8], None), ([8], None), ([4, 8], None), ([4], None),
        ]  # fmt: skip
        shuffled.shuffle(kinds)
        names = [f"r{number}-{i}" for i in range(len(kinds))]
        for name, (sizes, gpu_count) in zip(names, kinds, strict=True):
            cluster.admin.create(speaking.pod(name, sizes, tmp_path, gpu_count=gpu_count))
        if number % 3 == 1:
            node.restart_kubelet(wait=False)
        for name, (_, gpu_count) in zip(names, kinds, strict=True):
            if _placed_or_refused_by_the_kubelet(cluster, name, tmp_path, gpu_count or 1):
                refused += 1
        for name in names:
            cluster.admin.delete("pods", name, grace_s=0)
    print(f"{refused} pods were refused by a kubelet that had just started")


def _placed_or_refused_by_the_kubelet(
    cluster: Cluster, name: str, out: Path, gpu_count: int
) -> bool:
    """Checks a pod, once it runs; True if the kubelet refused it by itself."""

    def ended() -> Object | None:
        one = cluster.admin.get("pods", name)
        phase = one["status"].get("phase")
        return one if phase == "Failed" or (phase == "Running" and plugging.assigned(one)) else None

    one = wait_for(ended, 30, f"{name} runs or is refused")
    assert one is not None
    if one["status"]["phase"] == "Failed":
        message = one["status"]["message"]
        assert any(known in message for known in plugging.AFTER_A_START), message
        return True
    for container, gpus in plugging.placed(one).items():
        says = wait_for(
            lambda container=container: speaking.heard(out, one, container), 5, container
        )
        assert says is not None
        assert plugging.environments_word(says) == gpus
        assert len(gpus) == gpu_count
    return False


def test_a_restarted_kubelet_has_the_plugin_within_a_second(
    clean_node: Cluster, rounds: Callable[..., int]
) -> None:
    cluster, node = clean_node, clean_node.node
    plugging.start(cluster)
    cluster.admin.create(pod("stays", gpu_mem=12))
    wait_attested(cluster, "stays")
    socket = node.device_plugin_dir / "kubelet.sock"
    for _ in range(rounds(few=2, full=10)):
        before = node.plugin_log().count("registered with the kubelet")
        old = socket_identity(socket)
        node.kill_kubelet(hard=True)
        node.start_kubelet(wait=False)
        wait_for(lambda old=old: socket_identity(socket) not in (None, old), 20, "a kubelet")
        wait_for(
            lambda before=before: node.plugin_log().count("registered with the kubelet") > before,
            1,
            "registered again",
        )
        node.wait_allocatable(names.RESOURCE_MEM, 60)
    assert plugging.agree(cluster, "stays") == {"c0": {0: 12}}


def test_a_restarted_plugin_has_forgotten_nothing(clean_node: Cluster) -> None:
    cluster, node = clean_node, clean_node.node
    plugging.start(cluster, plugging.T4_MIB, plugging.T4_MIB)
    cluster.admin.create(pod("first", gpu_mem=12))
    wait_attested(cluster, "first")
    node.restart_plugin(hard=True, ready="/readyz")
    cluster.admin.create(pod("second", gpu_mem=12))
    cluster.admin.create(pod("third", gpu_mem=3))
    for name in ("second", "third"):
        wait_attested(cluster, name)
    assert plugging.agree(cluster, "first") == {"c0": {0: 12}}
    assert plugging.agree(cluster, "second") == {"c0": {1: 12}}
    assert plugging.agree(cluster, "third") == {"c0": {0: 3}}


def test_without_the_api_server_the_plugin_stays_and_catches_up(clean_node: Cluster) -> None:
    cluster, node = clean_node, clean_node.node
    proxy = cluster.proxy()
    plugging.start(cluster, via=proxy)
    cluster.admin.create(pod("before", gpu_mem=4))
    wait_attested(cluster, "before")
    proxy.hold()
    registered = node.plugin_log().count("registered with the kubelet")
    node.restart_kubelet()
    wait_for(
        lambda: node.plugin_log().count("registered with the kubelet") > registered,
        5,
        "registered without the API server",
    )
    # the kubelet has to be told of a pod that the plugin cannot have heard of
    cluster.admin.create(pod("meanwhile", gpu_mem=4))
    refused = wait_for(
        lambda: cluster.admin.get("pods", "meanwhile")["status"].get("message"), 20, "refused"
    )
    assert "the API server did not tell of the pod in time" in str(refused)
    proxy.release()
    cluster.admin.create(pod("after", gpu_mem=4))
    wait_attested(cluster, "after")
    for name in ("before", "after"):
        assert plugging.agree(cluster, name) == {"c0": {0: 4}}
