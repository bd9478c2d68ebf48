"""The API client against a real API server, as the identity it has in a cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.kube.binding import (
    Bound,
    BoundOtherwise,
    Outcome,
    PodGone,
    PodReplaced,
    Rejected,
    Undecided,
    bind,
)
from gpushare.kube.connection import Connection
from gpushare.kube.errors import Conflict, Forbidden, NotFound, Unauthorized
from gpushare.kube.events import About, Recorder, Severity
from gpushare.kube.listing import list_all
from gpushare.kube.objects import Pod
from gpushare.kube.patches import annotate_pod, nominate, patch_node, patch_node_status
from gpushare.kube.reflector import Reflector
from gpushare.kube.resources import ALL, PODS, Ref, Selector, pod_path

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.cluster

DECISION = {"scheduler.framework.gpushare.allocation": '{"0":{"1":4}}', "time": "17"}
KEYS = frozenset({"scheduler.framework.gpushare.allocation"})


@pytest.fixture
async def connection(clean_cluster: Cluster) -> AsyncIterator[Connection]:
    """As the extender."""
    kubeconfig = clean_cluster.kubeconfig_for("gpushare-extender")
    async with Connection.open(kubeconfig, component="test") as opened:
        yield opened


@pytest.fixture
async def admin(clean_cluster: Cluster) -> AsyncIterator[Connection]:
    async with Connection.open(clean_cluster.kubeconfig, component="test") as opened:
        yield opened


def waiting_pod(cluster: Cluster, name: str = "a", **spec: Any) -> dict[str, Any]:
    """A pod that no scheduler cares for."""
    from gpushare_testcluster.pods import pod

    return cluster.admin.create(pod(name, schedulerName="nobody", **spec))


class Versions:
    """Every version of every pod, as told."""

    def __init__(self) -> None:
        self.told: list[Pod] = []
        self.state: dict[str, Pod] = {}  # uid -> last version
        self.deletions: list[Ref] = []

    def changed(self, obj: Pod) -> None:
        self.told.append(obj)
        self.state[obj.metadata.uid] = obj

    def deleted(self, ref: Ref) -> None:
        self.deletions.append(ref)
        del self.state[ref.uid]

    def listed(self) -> None:
        pass

    def names(self) -> set[str]:
        return {p.metadata.name for p in self.state.values()}


@asynccontextmanager
async def following(
    connection: Connection, versions: Versions, selector: Selector = ALL, **options: Any
) -> AsyncIterator[Reflector[Pod]]:
    reflector = Reflector(connection, PODS, versions, selector, **options)
    task = asyncio.create_task(reflector.run())
    try:
        await asyncio.wait_for(reflector.synced.wait(), 10)
        yield reflector
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def eventually(true: Callable[[], object], within_s: float = 10.0) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while not true():
        assert loop.time() < end, f"not within {within_s} s"
        await asyncio.sleep(0.01)


async def try_to_bind(
    connection: Connection, pod: dict[str, Any], node: str = "n1", **changes: Any
) -> Outcome:
    meta = pod["metadata"]
    return await bind(
        connection,
        meta["namespace"],
        meta["name"],
        changes.pop("uid", meta["uid"]),
        node,
        changes.pop("annotations", DECISION),
        decision_keys=KEYS,
        deadline_s=changes.pop("deadline_s", 4.5),
    )


# --- binding ------------------------------------------------------------------------------------


async def test_bound_and_annotated_is_one_event(
    clean_cluster: Cluster, connection: Connection
) -> None:
    versions = Versions()
    async with following(connection, versions):
        forged = {"scheduler.framework.gpushare.allocation": "forged", "theirs": "kept"}
        pod = waiting_pod(clean_cluster, annotations=forged)
        await eventually(lambda: versions.told)
        assert await try_to_bind(connection, pod) == Bound()
        await eventually(lambda: len(versions.told) >= 2)
    before, after = versions.told[:2]
    assert (before.spec.node_name, before.metadata.annotations) == (None, forged)
    assert after.spec.node_name == "n1"
    assert after.metadata.annotations == {**forged, **DECISION}


async def test_bind_again_and_elsewhere(clean_cluster: Cluster, connection: Connection) -> None:
    pod = waiting_pod(clean_cluster)
    assert await try_to_bind(connection, pod) == Bound()
    later = {**DECISION, "time": "18"}
    assert await try_to_bind(connection, pod, annotations=later) == Bound(before=True)
    assert await try_to_bind(connection, pod, node="n2") == BoundOtherwise("n1", DECISION)
    other = {next(iter(KEYS)): '{"0":{"0":4}}'}
    assert await try_to_bind(connection, pod, annotations=other) == BoundOtherwise("n1", DECISION)


async def test_bind_with_the_uid_of_a_predecessor(
    clean_cluster: Cluster, connection: Connection
) -> None:
    pod = waiting_pod(clean_cluster)
    outcome = await try_to_bind(connection, pod, uid="00000000-0000-0000-0000-000000000000")
    assert outcome == PodReplaced(pod["metadata"]["uid"])
    read = await connection.get(pod_path("default", "a"), Pod)
    assert (read.spec.node_name, read.metadata.annotations) == (None, None)


async def test_bind_of_deleted_terminating_and_gated_pods(
    clean_cluster: Cluster, connection: Connection
) -> None:
    pod = waiting_pod(clean_cluster)
    clean_cluster.admin.delete("pods", "a", grace_s=0)
    assert await try_to_bind(connection, pod) == PodGone()

    pod = waiting_pod(clean_cluster, "t")
    finalizers = {"metadata": {"finalizers": ["gpushare.dev/test"]}}
    clean_cluster.admin.patch("pods", "t", finalizers)
    clean_cluster.admin.delete("pods", "t", grace_s=0)
    assert await try_to_bind(connection, pod) == PodGone(terminating=True)
    clean_cluster.admin.patch("pods", "t", {"metadata": {"finalizers": None}})

    pod = waiting_pod(clean_cluster, "g", schedulingGates=[{"name": "gpushare.dev/test"}])
    outcome = await try_to_bind(connection, pod)
    assert isinstance(outcome, Rejected)
    assert "schedulingGates" in str(outcome.error)


async def test_bind_whose_answer_is_lost_is_success(clean_cluster: Cluster) -> None:
    pod = waiting_pod(clean_cluster)
    proxy = clean_cluster.proxy()
    kubeconfig = clean_cluster.kubeconfig_for("gpushare-extender", via=proxy)
    async with Connection.open(kubeconfig) as connection:
        proxy.on("POST", r"/binding$", lose_answer=True, times=1)
        assert await try_to_bind(connection, pod) == Bound(before=True)
        proxy.on("POST", r"/binding$", delay_s=5)
        pod = waiting_pod(clean_cluster, "b")
        assert isinstance(await try_to_bind(connection, pod, deadline_s=0.5), Undecided)


# --- the small writes ---------------------------------------------------------------------------


async def test_nomination_and_annotation_are_one_event(
    clean_cluster: Cluster, connection: Connection
) -> None:
    pod = waiting_pod(clean_cluster)
    uid = pod["metadata"]["uid"]
    versions = Versions()
    async with following(connection, versions):
        await nominate(connection, "default", "a", "n1", uid=uid, annotations={"nudge": "7"})
        await eventually(lambda: len(versions.told) >= 2)
        after = versions.told[1]
        assert after.metadata.annotations == {"nudge": "7"}
        assert after.status is not None
        assert after.status.nominated_node_name == "n1"
        await nominate(connection, "default", "a", None, uid=uid)
        await eventually(lambda: len(versions.told) >= 3)
        assert versions.told[2].status is not None
        assert not versions.told[2].status.nominated_node_name


async def test_preconditions_of_patches(clean_cluster: Cluster, connection: Connection) -> None:
    pod = waiting_pod(clean_cluster)
    uid, version = pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]
    other = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(Conflict):
        await annotate_pod(connection, "default", "a", {"x": "1"}, uid=other)
    with pytest.raises(Conflict):
        await nominate(connection, "default", "a", "n1", uid=other)
    first = await annotate_pod(
        connection, "default", "a", {"x": "1", "y": "2"}, uid=uid, resource_version=version
    )
    assert first.metadata.annotations == {"x": "1", "y": "2"}
    with pytest.raises(Conflict):
        await annotate_pod(
            connection, "default", "a", {"x": "3"}, uid=uid, resource_version=version
        )
    second = await annotate_pod(connection, "default", "a", {"y": None}, uid=uid)
    assert second.metadata.annotations == {"x": "1"}
    with pytest.raises(NotFound):
        await annotate_pod(connection, "default", "b", {"x": "1"}, uid=None)


async def test_node_metadata_and_status(clean_cluster: Cluster, admin: Connection) -> None:
    clean_cluster.add_node("n1", allocatable={"cpu": "4"}, labels={"gone": "soon"})
    node = await patch_node(admin, "n1", annotations={"a": "1"}, labels={"l": "1", "gone": None})
    assert (node.metadata.annotations or {})["a"] == "1"
    assert (node.metadata.labels or {})["l"] == "1"
    assert "gone" not in (node.metadata.labels or {})
    node = await patch_node_status(admin, "n1", capacity={"aliyun.com/gpu-count": "4"})
    assert node.status is not None
    assert node.status.capacity is not None
    assert node.status.allocatable is not None
    assert str(node.status.capacity["aliyun.com/gpu-count"]) == "4"
    assert str(node.status.allocatable["aliyun.com/gpu-count"]) == "4"
    assert str(node.status.allocatable["cpu"]) == "4"
    with pytest.raises(Conflict):
        await patch_node(
            admin, "n1", annotations={"a": "2"}, resource_version=_older(node.metadata)
        )


def _older(meta: Any) -> str:
    return str(int(meta.resource_version) - 1)


async def test_missing_permission_is_named(clean_cluster: Cluster, connection: Connection) -> None:
    clean_cluster.add_node("n1")
    with pytest.raises(Forbidden) as caught:
        await patch_node(connection, "n1", annotations={"a": "1"})
    text = str(caught.value)
    assert 'User "system:serviceaccount:kube-system:gpushare-extender"' in text
    assert 'cannot patch resource "nodes"' in text
    assert "deploy/" in text


async def test_events_are_counted_up(clean_cluster: Cluster, connection: Connection) -> None:
    pod = await connection.get(
        pod_path("default", waiting_pod(clean_cluster)["metadata"]["name"]), Pod
    )
    recorder = Recorder(connection, "gpushare-test", interval_s=0.3)
    task = asyncio.create_task(recorder.run())
    for i in range(5):
        recorder.event(About.pod(pod), Severity.WARNING, "NoSingleGPUFits", f"try {i}")
        await asyncio.sleep(0.05)
    await eventually(lambda: recorder.written == 2)
    task.cancel()
    assert recorder.dropped == 0
    about = f"involvedObject.uid={pod.metadata.uid}"
    (event,) = clean_cluster.admin.list("events", namespace="default", fields=about)
    assert (event["count"], event["message"], event["type"]) == (5, "try 4", "Warning")
    assert "NoSingleGPUFits" in clean_cluster.kubectl("describe", "pod", "a")


# --- list and watch -----------------------------------------------------------------------------


@pytest.fixture
def many_pods(clean_cluster: Cluster) -> int:
    """1,200 pods."""
    count = 1200
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda i: waiting_pod(clean_cluster, f"p{i}"), range(count)))
    return count


async def test_paging_names_each_pod_once(connection: Connection, many_pods: int) -> None:
    expected = {f"p{i}" for i in range(many_pods)}
    for page_size in (500, 7, 0):
        listing = await list_all(connection, PODS, page_size=page_size)
        names = [p.metadata.name for p in listing.items]
        assert len(names) == many_pods
        assert set(names) == expected
    versions = Versions()
    async with following(connection, versions) as reflector:
        assert versions.names() == expected
        assert reflector.count() == many_pods


async def test_selector_of_one_nodes_pods(clean_cluster: Cluster, connection: Connection) -> None:
    versions = Versions()
    async with following(connection, versions, Selector(fields="spec.nodeName=n1")):
        here, elsewhere = waiting_pod(clean_cluster, "a"), waiting_pod(clean_cluster, "b")
        await try_to_bind(connection, here, "n1")
        await try_to_bind(connection, elsewhere, "n2")
        await eventually(lambda: versions.names() == {"a"})
        listing = await list_all(connection, PODS, Selector(fields="spec.nodeName=n1"), timeout_s=2)
        assert [p.metadata.name for p in listing.items] == ["a"]
        clean_cluster.admin.delete("pods", "a", grace_s=0)
        await eventually(lambda: not versions.state)


async def test_bookmarks_move_the_resume_point(
    clean_cluster: Cluster, connection: Connection
) -> None:
    # The API server sends one each minute, and one shortly before a watch's time is over.
    versions = Versions()
    selector = Selector(fields="metadata.name=never")
    async with following(connection, versions, selector, watch_s=(5, 5)) as reflector:
        start = int(reflector.resource_version)
        for i in range(20):
            waiting_pod(clean_cluster, f"p{i}")
        await eventually(lambda: reflector.counters.watches >= 2, 20)
        assert reflector.counters.bookmarks >= 1
        assert reflector.counters.events == 0
        assert int(reflector.resource_version) >= start + 20
        assert (reflector.counters.lists, reflector.counters.errors) == (1, 0)


async def test_recreated_at_once_under_the_same_name(
    clean_cluster: Cluster, connection: Connection
) -> None:
    versions = Versions()
    async with following(connection, versions):
        first = waiting_pod(clean_cluster)["metadata"]["uid"]
        clean_cluster.admin.delete("pods", "a", grace_s=0)
        second = waiting_pod(clean_cluster)["metadata"]["uid"]
        await eventually(lambda: set(versions.state) == {second})
    assert [ref.uid for ref in versions.deletions] == [first]


async def test_forgotten_resume_point_relists(
    clean_cluster: Cluster, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    proxy = clean_cluster.proxy()
    kubeconfig = clean_cluster.kubeconfig_for("gpushare-extender", via=proxy)
    waiting_pod(clean_cluster, "vanishing")
    versions = Versions()
    async with (
        Connection.open(kubeconfig) as connection,
        following(connection, versions) as reflector,
    ):
        await eventually(lambda: reflector.counters.watches == 1)
        proxy.watch_delay_s = 3600  # what happens now is never told
        clean_cluster.admin.delete("pods", "vanishing", grace_s=0)
        waiting_pod(clean_cluster, "new")
        await asyncio.sleep(0.3)
        assert versions.names() == {"vanishing"}
        proxy.watch_delay_s = 0
        proxy.refuse_watches(1)
        proxy.cut(watches_only=True)
        await eventually(lambda: versions.names() == {"new"})
        assert reflector.counters.gone == 1
        assert reflector.counters.corrections == 2
    assert "1 gone (default/vanishing)" in caplog.text


async def test_half_open_connection_is_noticed(clean_cluster: Cluster) -> None:
    proxy = clean_cluster.proxy()
    kubeconfig = clean_cluster.kubeconfig_for("gpushare-extender", via=proxy)
    versions = Versions()
    async with (
        Connection.open(kubeconfig) as connection,
        following(connection, versions, idle_timeout_s=1.0) as reflector,
    ):
        await eventually(lambda: reflector.counters.watches == 1)
        proxy.freeze()
        waiting_pod(clean_cluster)
        await eventually(lambda: versions.names() == {"a"})
        assert reflector.counters.idle_timeouts >= 1
        assert reflector.counters.lists == 1


async def test_api_server_that_restarts_is_caught_up_with(
    clean_cluster: Cluster, connection: Connection
) -> None:
    waiting_pod(clean_cluster, "kept")
    waiting_pod(clean_cluster, "deleted")
    versions = Versions()
    async with following(connection, versions) as reflector:
        await asyncio.to_thread(clean_cluster.restart_component, "kube-apiserver", hard=True)
        with suppress(OSError):  # the admin's kept-alive connection is a dead one
            clean_cluster.admin.list("nodes")
        clean_cluster.admin.delete("pods", "deleted", grace_s=0)
        waiting_pod(clean_cluster, "new")
        await eventually(lambda: versions.names() == {"kept", "new"}, 30)
        assert reflector.counters.errors >= 1
        assert reflector.last_error is None
        assert reflector.contact_age_s() < 30


async def test_revoked_token_is_replaced_from_its_file(
    clean_cluster: Cluster, connection: Connection
) -> None:
    await connection.get("/api/v1/pods", dict)
    old = await connection.config.credentials.header()
    await asyncio.to_thread(clean_cluster.revoke_tokens, "gpushare-extender")
    await connection.get("/api/v1/pods", dict)
    assert await connection.config.credentials.header() != old


async def test_token_that_is_not_replaced_ends_unauthorized(
    clean_cluster: Cluster, tmp_path: Any
) -> None:
    kubeconfig = clean_cluster.kubeconfig_for("gpushare-extender")
    # A copy of the kubeconfig whose token file nobody renews.
    from gpushare.kube.config import load
    from gpushare.kube.credentials import TokenFile

    config = load(kubeconfig)
    assert isinstance(config.credentials, TokenFile)
    copy = tmp_path / "token"
    copy.write_text(config.credentials.path.read_text())
    object.__setattr__(config, "credentials", TokenFile(copy))
    async with Connection(config) as connection:
        await connection.get("/api/v1/pods", dict)
        await asyncio.to_thread(clean_cluster.revoke_tokens, "gpushare-extender")

        async def refused() -> None:
            with pytest.raises(Unauthorized, match="read again"):
                await connection.get("/api/v1/pods", dict)

        # The API server remembers a token it has seen for ten seconds.
        for _ in range(30):
            try:
                await connection.get("/api/v1/pods", dict)
            except Unauthorized:
                break
            await asyncio.sleep(0.5)
        await refused()
        copy.write_text(load(kubeconfig).credentials.path.read_text())  # type: ignore[attr-defined]
        await connection.get("/api/v1/pods", dict)
