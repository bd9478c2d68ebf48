"""Every right that deploy/ grants is needed: taken away, one behaviour of the table below fails.

`EXTENDER_NEEDS`, `VIEWER_NEEDS` and `PLUGIN_NEEDS` (test_plugin_permissions.py, on the real node)
say for each rule what stops working. The behaviours are checked twice: all of them with the roles
as they stand, then each without its rule, where the check must fail and the refusal of the API
server must be seen. A rule that nothing needs has no entry, and the first test fails.

The extender runs behind the test cluster's proxy, whose delay of watches makes the moments in which
some of the rights matter, and with a pause of one second between repeated Events instead of sixty.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpushare.contract import names
from gpushare_testcluster import deploying, wait_for
from gpushare_testcluster.errors import TimedOut
from gpushare_testcluster.pods import pod
from tests.cluster import extending
from tests.cluster.permissions import Rule, roles, rules_of, take_away
from tests.cluster.test_plugin_permissions import PLUGIN_NEEDS

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster
    from gpushare_testcluster.proxy import Proxy

Object = dict[str, Any]

EXTENDER = """\
import functools, sys
from gpushare.extender import main
main.Recorder = functools.partial(main.Recorder, interval_s=1.0)
sys.exit(main.main())
"""

LATE_S = 1.2
"""So long the extender's watches are behind, where a behaviour is about that."""


@dataclass
class Scene:
    """A cluster with an extender; `patience_s`: how long a behaviour is waited for."""

    cluster: Cluster
    proxy: Proxy
    patience_s: float

    def wait(self, predicate: Callable[[], object], what: str) -> None:
        wait_for(predicate, self.patience_s, what)

    def place(self, name: str, node: str, gpu_mem: int, gpu: int = 0) -> None:
        """A pod that is on a node, as the extender binds it; the extender knows it."""
        before = sum(extending.used(self.cluster).get(node, [0]))
        annotation = {names.ANNOTATION_ALLOCATION: json.dumps({"0": {str(gpu): gpu_mem}})}
        self.cluster.admin.create(pod(name, gpu_mem=gpu_mem, node=node, annotations=annotation))
        wait_for(lambda: sum(extending.used(self.cluster)[node]) == before + gpu_mem, 5)

    def node(self, name: str, *units: int, **labels: str) -> str:
        """A node with GPUs of these units, for the pods of `waiting`; the extender knows it."""
        self.cluster.add_node(name, gpus=units, labels={"for": name, **labels})
        wait_for(lambda: name in extending.used(self.cluster), 5)
        return name

    def full_node(self, name: str) -> str:
        """A node whose sum has room for 10 units more, and none of whose GPUs has."""
        self.node(name, 15, 15)
        for gpu in (0, 1):
            self.place(f"{name}-{gpu}", name, 10, gpu)
        return name

    def rejections(self) -> float:
        """How often the extender has told the scheduler that a pod has no place."""
        lines = extending.get(self.cluster, "/metrics").splitlines()
        told = [line for line in lines if line.startswith(str(names.Metric.DECISIONS))]
        return sum(float(line.split()[-1]) for line in told if 'outcome="rejected"' in line)

    def rejected(self, name: str, node: str, gpu_mem: int, **more: Any) -> None:
        """A pod that looks for a node where it has no room, and has been told so."""
        before = self.rejections()
        self.waiting(name, node, gpu_mem, **more)
        wait_for(lambda: self.rejections() > before, 10, f"{name} rejected")

    def waiting(self, name: str, node: str, gpu_mem: int, **more: Any) -> None:
        """A pod that looks for this node only."""
        self.cluster.admin.create(pod(name, gpu_mem=gpu_mem, nodeSelector={"for": node}, **more))


# --- Behaviours -----------------------------------------------------------------------------------


def becomes_ready(scene: Scene) -> None:
    """The first lists come in, /readyz answers ok."""

    def ready() -> bool:
        try:
            return extending.get(scene.cluster, "/readyz") == "ok\n"
        except OSError:
            return False

    scene.wait(ready, "ready")


def sees_new_nodes(scene: Scene) -> None:
    """A node added while the extender runs is on its books at once."""
    scene.cluster.add_node("later", gpus=[15])
    scene.wait(lambda: "later" in extending.used(scene.cluster), "the new node on the books")


def sees_new_pods(scene: Scene) -> None:
    """A pod that somebody else binds is on the books at once."""
    node = scene.node("for-hand", 15)
    scene.cluster.admin.create(pod("by-hand", gpu_mem=3, node=node))
    pending = f'gpushare_node_pending_units{{node="{node}"}} 3'
    scene.wait(
        lambda: pending in extending.get(scene.cluster, "/metrics"), "its units on the books"
    )


def binds(scene: Scene) -> None:
    """A pod is bound."""
    node = scene.node("for-bind", 15)
    scene.waiting("simple", node, 4)
    scene.cluster.wait_bound("simple", timeout_s=scene.patience_s)


def binds_before_the_watch_shows(scene: Scene) -> None:
    """A pod that the scheduler hands over before our watch has shown it is looked up and bound."""
    node = scene.node("for-young", 15)
    scene.proxy.watch_delay_s = scene.patience_s + LATE_S
    scene.waiting("young", node, 4)
    scene.cluster.wait_bound("young", timeout_s=scene.patience_s)


def names_the_node_with_room(scene: Scene) -> None:
    """The scheduler asks about a waiting pod before our watch shows the room, and not again; the
    nomination makes it."""
    node = scene.full_node("for-nudge")
    scene.rejected("nudged", node, 10)
    scene.proxy.watch_delay_s = LATE_S
    scene.cluster.admin.delete("pods", f"{node}-0", grace_s=0)
    scene.cluster.wait_bound("nudged", timeout_s=scene.patience_s + LATE_S)


def tells_why_a_pod_waits(scene: Scene) -> None:
    """Our own Event, with the amounts, beside the scheduler's."""
    node = scene.node("for-event", 4, 4)
    scene.waiting("told", node, 8)
    scene.cluster.wait_event("told", "GPUMemoryUnavailable", timeout_s=scene.patience_s)


def counts_up_an_event(scene: Scene) -> None:
    """What is told again in other words is the same Event, counted up."""
    node = scene.node("for-count", 4, **{names.LABEL_PLACEMENT: "sideways"})
    scene.cluster.admin.label("nodes", node, **{names.LABEL_PLACEMENT: "upwards"})

    def told() -> list[Object]:
        events = scene.cluster.admin.list("events", fields=f"involvedObject.name={node}")
        return [e for e in events if e.get("count", 1) > 1 and "upwards" in e["message"]]

    scene.wait(told, "the Event counted up")


EXTENDER_NEEDS: dict[Rule, Callable[[Scene], None]] = {
    Rule("gpushare-extender", "", "nodes", "list"): becomes_ready,
    Rule("gpushare-extender", "", "nodes", "watch"): sees_new_nodes,
    Rule("gpushare-extender", "", "pods", "list"): becomes_ready,
    Rule("gpushare-extender", "", "pods", "watch"): sees_new_pods,
    Rule("gpushare-extender", "", "pods", "get"): binds_before_the_watch_shows,
    Rule("gpushare-extender", "", "pods/status", "patch"): names_the_node_with_room,
    Rule("gpushare-extender", "", "pods/binding", "create"): binds,
    Rule("gpushare-extender", "", "events", "create"): tells_why_a_pod_waits,
    Rule("gpushare-extender", "", "events", "patch"): counts_up_an_event,
}


def lists(cluster: Cluster, viewer: Path) -> None:
    """`kubectl inspect cgpu` prints the table."""
    printed = subprocess.run(
        ["kubectl", "inspect", "cgpu"],
        env=cluster.environ(viewer),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.endswith("0/15 (0%)\n")


VIEWER_NEEDS: dict[Rule, Callable[[Cluster, Path], None]] = {
    Rule("gpushare-viewer", "", "nodes", "list"): lists,
    Rule("gpushare-viewer", "", "pods", "list"): lists,
}

# --- What deploy/ holds ---------------------------------------------------------------------------


def test_every_rule_of_deploy_has_its_need_and_the_other_way_round() -> None:
    granted = [rule for role in roles() for rule in rules_of(role)]
    assert len(granted) == len(set(granted)), "granted twice"
    needed = {*EXTENDER_NEEDS, *VIEWER_NEEDS, *PLUGIN_NEEDS}
    assert set(granted) - needed == set(), "what needs these? say so above, or take them away"
    assert needed - set(granted) == set(), "these are needed, but deploy/ does not grant them"


def test_no_wildcard_and_nothing_that_gives_more_rights() -> None:
    for role in roles():
        for rule in role["rules"]:
            assert set(rule) == {"apiGroups", "resources", "verbs"}, "no resourceNames, no URLs"
            for values in rule.values():
                assert values, "an empty list grants nothing"
                assert not any("*" in value for value in values), rule
            assert not {"escalate", "bind", "impersonate"}.intersection(rule["verbs"])
            assert "secrets" not in rule["resources"]


def test_no_wildcard_in_any_list_of_any_manifest() -> None:
    for path in sorted(deploying.find_deploy_dir().rglob("*.yaml")):
        for obj in yaml.safe_load_all(path.read_text()):
            assert "*" not in set(texts(obj)), path


def texts(value: object) -> Iterator[str]:
    """Every string in a manifest, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, held in value.items():
            yield str(key)
            yield from texts(held)
    elif isinstance(value, list):
        for held in value:
            yield from texts(held)


def test_roles_are_bound_to_our_own_accounts_only() -> None:
    for obj in deploying.manifests(deploying.find_deploy_dir()):
        if obj["kind"] in ("ClusterRoleBinding", "RoleBinding"):
            assert [subject["kind"] for subject in obj["subjects"]] == ["ServiceAccount"]
            assert all(s["name"].startswith("gpushare-") for s in obj["subjects"])
            assert obj["roleRef"]["name"].startswith("gpushare-"), "none of the cluster's own roles"


# --- With all of them, and without each -----------------------------------------------------------


@pytest.fixture
def roles_restored(clean_cluster: Cluster) -> Iterator[Cluster]:
    yield clean_cluster
    clean_cluster.restore_identities()


@pytest.fixture
def proxy(clean_cluster: Cluster) -> Iterator[Proxy]:
    proxy = clean_cluster.proxy()
    yield proxy
    clean_cluster.stop_extender(hard=True)
    proxy.close()


def start(cluster: Cluster, proxy: Proxy, ready_path: str) -> None:
    cluster.start_extender(
        [sys.executable, "-c", EXTENDER, "--kubeconfig", "{kubeconfig}", "--listen", "{listen}"],
        kubeconfig=cluster.kubeconfig_for("gpushare-extender", via=proxy),
        ready_path=ready_path,
    )


def events(cluster: Cluster) -> str:
    """What all Events say."""
    messages = [event.get("message") or "" for event in cluster.admin.list("events")]
    return "\n".join(messages).replace("\\", "")


def told(cluster: Cluster) -> str:
    """All that a person could read: the extender's log, and the Events."""
    return cluster.log("extender") + events(cluster)


@pytest.mark.cluster
def test_with_its_rules_the_extender_does_all_that(clean_cluster: Cluster, proxy: Proxy) -> None:
    already = told(clean_cluster).count("is forbidden")
    start(clean_cluster, proxy, "/healthz")
    for behaviour in dict.fromkeys(EXTENDER_NEEDS.values()):
        proxy.watch_delay_s = 0
        behaviour(Scene(clean_cluster, proxy, patience_s=10))
    assert told(clean_cluster).count("is forbidden") == already


@pytest.mark.cluster
@pytest.mark.parametrize("rule", EXTENDER_NEEDS, ids=str)
def test_without_the_rule_it_does_not(roles_restored: Cluster, proxy: Proxy, rule: Rule) -> None:
    cluster, behaviour = roles_restored, EXTENDER_NEEDS[rule]
    take_away(cluster, rule)
    already = told(cluster).count(rule.refusal)
    start(cluster, proxy, "/healthz" if behaviour is becomes_ready else "/readyz")
    with pytest.raises(TimedOut):
        behaviour(Scene(cluster, proxy, patience_s=2.5))
    assert told(cluster).count(rule.refusal) > already
    if behaviour in (binds, binds_before_the_watch_shows):
        assert rule.refusal in events(cluster), "the pod's own Event says why"


@pytest.fixture
def viewer(clean_cluster: Cluster) -> Iterator[Path]:
    """A kubeconfig of somebody bound to gpushare-viewer and to nothing else."""
    admin, rbac = clean_cluster.admin, "rbac.authorization.k8s.io"
    name = "permissions-viewer"
    account = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "gpushare-viewer"},
        "subjects": [account],
    }
    metadata = {"name": name, "namespace": "default"}
    admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    admin.create(binding)
    clean_cluster.api_as(name, namespace="default")  # a token of this account
    yield clean_cluster.kubeconfig_for(name, namespace="default")
    admin.delete("clusterrolebindings", name)
    admin.delete("serviceaccounts", name)


@pytest.mark.cluster
def test_with_its_rules_a_viewer_sees_the_table(clean_cluster: Cluster, viewer: Path) -> None:
    clean_cluster.add_node("n1", gpus=[15])
    lists(clean_cluster, viewer)


@pytest.mark.cluster
@pytest.mark.parametrize("rule", VIEWER_NEEDS, ids=str)
def test_without_the_rule_a_viewer_does_not(
    roles_restored: Cluster, viewer: Path, rule: Rule
) -> None:
    roles_restored.add_node("n1", gpus=[15])
    take_away(roles_restored, rule)
    with pytest.raises(AssertionError, match=f"not allowed to {rule.verb} {rule.resource}"):
        VIEWER_NEEDS[rule](roles_restored, viewer)
