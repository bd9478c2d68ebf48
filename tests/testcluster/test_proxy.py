"""The proxy does to a real watch what real networks do."""

import http.client
import threading
import time

import pytest

from gpushare_testcluster import ApiError, wait_for
from gpushare_testcluster.api import Api
from gpushare_testcluster.pki import Pki

pytestmark = pytest.mark.cluster


@pytest.fixture
def proxy(clean_cluster):
    proxy = clean_cluster.proxy()
    yield proxy
    proxy.close()


@pytest.fixture
def api(clean_cluster, proxy):
    token = clean_cluster.settings.tokens["admin"]
    return Api(proxy.url, Pki(clean_cluster.state.pki).ca, token, timeout_s=20)


class Watcher:
    """Follows nodes in a thread: each event with the time it came; how it ended."""

    def __init__(self, api: Api, resource_version: str | None = None) -> None:
        self.events: list[tuple[float, dict]] = []
        self.end: object = None
        self._thread = threading.Thread(target=self._run, args=(api, resource_version))
        self._thread.daemon = True
        self._thread.start()

    def _run(self, api: Api, resource_version: str | None) -> None:
        try:
            for event in api.watch("nodes", resource_version=resource_version):
                self.events.append((time.monotonic(), event))
            self.end = "ended"
        except Exception as error:
            self.end = error

    def names(self) -> list[str]:
        return [event["object"]["metadata"].get("name", "") for _, event in self.events]


def test_requests_pass_with_the_clients_own_rights(clean_cluster, proxy, api):
    clean_cluster.add_node("n1")
    assert [node["metadata"]["name"] for node in api.list("nodes")] == ["n1"]
    kubeconfig = clean_cluster.kubeconfig_for("gpushare-extender", via=proxy)
    assert "n1" in clean_cluster.kubectl("get", "nodes", kubeconfig=kubeconfig)
    refused = clean_cluster.kubectl("get", "secrets", kubeconfig=kubeconfig, check=False)
    assert "Forbidden" in refused
    assert proxy.count("GET", "^/api/v1/nodes") == 2
    with pytest.raises(ApiError) as caught:
        api.get("pods", "none")
    assert caught.value.status == 404


def test_only_watches_are_delayed_and_order_is_kept(clean_cluster, proxy, api):
    undelayed = Watcher(clean_cluster.admin)
    proxy.watch_delay_s = 0.5
    delayed = Watcher(api)
    wait_for(lambda: proxy.open_watches() == 1, 5)
    for i in range(10):
        clean_cluster.add_node(f"n{i}")
    start = time.monotonic()
    assert len(api.list("nodes")) == 10
    assert time.monotonic() - start < 0.4
    wait_for(lambda: undelayed.names() and delayed.names() == undelayed.names(), 5)
    pairs = zip(delayed.events, undelayed.events, strict=True)
    lags = [late - at for (late, _), (at, _) in pairs]
    print("lags", [f"{lag:.2f}" for lag in lags])
    assert min(lags) > 0.45
    assert max(lags) < 1
    proxy.watch_delay_s = 0
    clean_cluster.add_node("late")
    wait_for(lambda: "late" in delayed.names(), 0.4)


def test_a_frozen_connection_is_silent_but_open_while_new_ones_work(clean_cluster, proxy, api):
    watcher = Watcher(api)
    wait_for(lambda: proxy.open_watches() == 1, 5)
    api.list("nodes")
    proxy.freeze()
    clean_cluster.add_node("n1")
    api._local.connection.sock.settimeout(0.5)
    with pytest.raises(TimeoutError):  # the kept-alive connection of this thread is frozen too
        api.list("nodes")
    assert len(api.list("nodes")) == 1  # on a new one
    assert watcher.events == []
    assert watcher.end is None
    proxy.release()
    wait_for(lambda: "n1" in watcher.names(), 2)


def test_held_traffic_arrives_after_the_release(clean_cluster, proxy, api):
    proxy.hold()
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(len(api.list("nodes"))), daemon=True)
    thread.start()
    time.sleep(0.3)
    assert answers == []
    proxy.release()
    thread.join(5)
    assert answers == [0]


def test_cut_connections_end_at_once(clean_cluster, proxy, api):
    watcher = Watcher(api)
    wait_for(lambda: proxy.open_watches() == 1, 5)
    api.list("nodes")
    assert proxy.cut(watches_only=True) == 1
    wait_for(lambda: watcher.end is not None, 2)
    assert api._local.connection is not None
    assert proxy.cut() == 1
    wait_for(lambda: proxy.open_watches() == 0, 2)


def test_an_expired_watch_says_410_and_ends(clean_cluster, proxy, api):
    watcher = Watcher(api)
    wait_for(lambda: proxy.open_watches() == 1, 5)
    assert proxy.expire_watches() == 1
    wait_for(lambda: watcher.end == "ended", 2)
    (_, event) = watcher.events[-1]
    assert event["type"] == "ERROR"
    assert event["object"]["code"] == 410


def test_a_resumed_watch_is_refused_when_asked_to(clean_cluster, proxy, api):
    proxy.refuse_watches(1)
    version = clean_cluster.add_node("n1")["metadata"]["resourceVersion"]
    with pytest.raises(ApiError) as caught:
        next(api.watch("nodes", resource_version=version))
    assert caught.value.status == 410
    clean_cluster.admin.label("nodes", "n1", x="y")
    assert next(api.watch("nodes", resource_version=version))["type"] == "MODIFIED"


def test_rules_refuse_delay_and_lose_answers(clean_cluster, proxy, api):
    busy = proxy.on("PATCH", "/nodes/", status=503, times=1)
    clean_cluster.add_node("n1")
    with pytest.raises(ApiError) as caught:
        api.label("nodes", "n1", a="1")
    assert caught.value.status == 503
    assert busy.hits == 1
    api.label("nodes", "n1", a="2")
    slow = proxy.on("GET", "/nodes/n1$", delay_s=0.3)
    start = time.monotonic()
    api.get("nodes", "n1")
    assert time.monotonic() - start > 0.3
    proxy.forget(slow)
    proxy.on("PATCH", "/nodes/", lose_answer=True, times=1)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        api.label("nodes", "n1", a="3")
    assert clean_cluster.admin.get("nodes", "n1")["metadata"]["labels"]["a"] == "3"


def test_the_api_server_away_looks_like_the_api_server_away(clean_cluster, proxy, api):
    watcher = Watcher(api)
    wait_for(lambda: proxy.open_watches() == 1, 5)
    clean_cluster.stop_component("kube-apiserver", hard=True)
    wait_for(lambda: watcher.end is not None, 5)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        api.create({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "x"}})
    clean_cluster.start_component("kube-apiserver")
    assert api.list("nodes") == []
    assert api.ready()
