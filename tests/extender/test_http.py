"""The HTTP side: paths, refusals, readiness, and what no request may do to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import ClientSession, web

from gpushare.extender.main import App
from gpushare.extender.server import MAX_BODY_BYTES, NOT_READY, application
from gpushare.kube.config import Config
from gpushare.kube.connection import Connection
from gpushare.kube.credentials import FixedHeader
from tests.extender.conftest import options
from tests.extender.fake_cluster import FakeCluster, Json, allocation, node, pod
from tests.extender.fuzz import Client, requests
from tests.extender.oracle import check
from tests.extender.test_bind import ready


class Http:
    def __init__(self, url: str, session: ClientSession) -> None:
        self.url = url
        self.session = session

    async def post(self, path: str, body: Json | bytes) -> tuple[int, Json]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=data) as answer:
            return answer.status, json.loads(await answer.read())

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as answer:
            return answer.status, await answer.text()


async def serving(app: App) -> AsyncIterator[Http]:
    runner = web.AppRunner(application(app.extender), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with ClientSession() as session:
        yield Http(f"http://127.0.0.1:{runner.addresses[0][1]}", session)
    await runner.cleanup()


@pytest.fixture
async def http(app: App) -> AsyncIterator[Http]:
    async for one in serving(app):
        yield one


@pytest.fixture
async def unready() -> AsyncIterator[Http]:
    """An extender that has not heard of anything yet."""
    config = Config("http://127.0.0.1:9", FixedHeader(None), "the test's configuration")
    async with Connection(config) as away:
        app = App.build(away, options())
        app.pods.last_error = "connection refused"
        async for one in serving(app):
            yield one


def args(manifest: Json, *names: str) -> Json:
    return {"Pod": manifest, "Nodes": None, "NodeNames": list(names)}


@pytest.mark.parametrize("prefix", ["", "/gpushare-scheduler"])
async def test_the_schedulers_verbs(app: App, api: FakeCluster, http: Http, prefix: str) -> None:
    standing = pod("a", 15, nodeName="n2", annotations=allocation(0, units=15))
    await ready(app, api, node("n1", [15, 15]), node("n2", [15]), standing, pod("p", 4))
    status, found = await http.post(f"{prefix}/filter", args(pod("p", 4), "n1", "n2"))
    assert status == 200
    assert found["NodeNames"] == ["n1"]
    assert set(found["FailedAndUnresolvableNodes"]) == {"n2"}
    assert await http.post(f"{prefix}/prioritize", args(pod("p", 4), "n1", "n2")) == (
        200,
        [{"Host": "n1", "Score": 10}, {"Host": "n2", "Score": 0}],
    )
    victims = {"n2": {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 1}}
    body = {"Pod": pod("q", 15), "NodeNameToMetaVictims": victims, "NodeNameToVictims": None}
    assert await http.post(f"{prefix}/preempt", body) == (200, {"NodeNameToMetaVictims": victims})
    whole = {"n2": {"Pods": [standing], "NumPDBViolations": 1}}
    body = {"Pod": pod("q", 15), "NodeNameToMetaVictims": None, "NodeNameToVictims": whole}
    assert await http.post(f"{prefix}/preempt", body) == (200, {"NodeNameToMetaVictims": victims})
    bind = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n1"}
    assert await http.post(f"{prefix}/bind", bind) == (200, {"Error": ""})
    status, refused = await http.post(f"{prefix}/bind", {**bind, "Node": "n2"})
    assert status == 200
    assert refused == {"Error": "gpushare: the pod is on node n1 already"}


async def test_the_old_add_ons_inspection(app: App, api: FakeCluster, http: Http) -> None:
    standing = pod("a", 4, nodeName="n1", annotations=allocation(1))
    await ready(app, api, node("n1", [15, 15]), node("n2", [8]), standing)
    n1 = {
        "name": "n1",
        "totalGPU": 30,
        "usedGPU": 4,
        "devs": [
            {"id": 0, "totalGPU": 15, "usedGPU": 0, "pods": []},
            {
                "id": 1,
                "totalGPU": 15,
                "usedGPU": 4,
                "pods": [{"name": "a", "namespace": "default", "usedGPU": 4}],
            },
        ],
    }
    status, text = await http.get("/gpushare-scheduler/inspect/n1")
    assert (status, json.loads(text)) == (200, {"nodes": [n1]})
    nodes = json.loads((await http.get("/gpushare-scheduler/inspect"))[1])["nodes"]
    assert [n["name"] for n in nodes] == ["n1", "n2"]
    assert (await http.get("/gpushare-scheduler/inspect/nowhere"))[0] == 404


async def test_nothing_is_guessed_before_the_first_lists(unready: Http) -> None:
    assert (await unready.post("/filter", args(pod("p", 4), "n1")))[1]["Error"] == NOT_READY
    assert (await unready.post("/prioritize", args(pod("p", 4), "n1")))[0] == 503
    bind = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n1"}
    assert await unready.post("/bind", bind) == (200, {"Error": NOT_READY})
    body = {"Pod": pod("q", 15), "NodeNameToMetaVictims": {}, "NodeNameToVictims": None}
    assert (await unready.post("/preempt", body))[0] == 503
    assert (await unready.get("/gpushare-scheduler/inspect"))[0] == 503
    status, text = await unready.get("/readyz")
    assert status == 503
    assert "connection refused" in text
    assert await unready.get("/healthz") == (200, "ok\n")


async def test_readiness_and_metrics(app: App, api: FakeCluster, http: Http) -> None:
    await ready(app, api, node("n1", [15]), pod("p", 16))
    await http.post("/filter", args(pod("p", 16), "n1"))
    assert await http.get("/readyz") == (200, "ok\n")
    status, text = await http.get("/metrics")
    assert status == 200
    assert 'gpushare_gpu_capacity_units{node="n1",gpu="0",uuid="GPU-n1-0"} 15' in text
    assert 'gpushare_pods_waiting{reason="node-full"} 1.0' in text
    assert 'gpushare_request_duration_seconds_count{verb="filter"} 1.0' in text


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/filter", b"", 400, "truncated"),
        ("/filter", b"{", 400, "truncated"),
        ("/filter", b"[]", 400, "Expected `object`"),
        ("/filter", b"{}", 400, "missing required field `Pod`"),
        ("/filter", b'{"Pod":{"metadata":{}}}', 400, "neither NodeNames nor Nodes"),
        ("/filter", b'{"Pod":{"metadata":{"labels":{"a":1}}}}', 400, "$.Pod.metadata.labels"),
        ("/filter", b'{"Pod":{"metadata":{}},"NodeNames":[1]}', 400, "$.NodeNames[0]"),
        ("/filter", b'{"x":' + b"[" * 100_000, 400, "recursion"),
        ("/prioritize", b"\xff", 400, "prioritize"),
        ("/preempt", b'{"Pod":{"metadata":{}}}', 400, "neither NodeNameToMetaVictims"),
        ("/bind", b'{"PodName":"a"}', 400, "PodNamespace"),
        ("/nowhere", b"", 404, "nothing at /nowhere"),
        ("/metrics", b"", 405, "takes GET"),
    ],
)
async def test_bad_bodies_are_refused_with_what_is_wrong(
    http: Http, path: str, body: bytes, status: int, says: str
) -> None:
    got, answer = await http.post(path, body)
    assert got == status
    assert says in answer["error"]


async def test_get_is_not_post(http: Http) -> None:
    assert (await http.get("/filter"))[0] == 405


async def test_a_body_beyond_the_limit(http: Http) -> None:
    status, answer = await http.post("/filter", b" " * (MAX_BODY_BYTES + 1))
    assert (status, str(MAX_BODY_BYTES) in answer["error"]) == (413, True)
    assert (await http.get("/healthz"))[0] == 200


async def test_ten_thousand_names(app: App, api: FakeCluster, http: Http) -> None:
    await ready(app, api, node("n1", [15]))
    many = [f"ip-10-0-{i // 256}-{i % 256}.internal" for i in range(10_000)]
    status, found = await http.post("/filter", args(pod("p", 4), *many, "n1"))
    assert status == 200
    assert found["NodeNames"] == ["n1"]
    assert len(found["FailedAndUnresolvableNodes"]) == 10_000


async def test_an_unforeseen_failure_is_a_500_and_the_process_goes_on(
    app: App, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.extender.decider, "filter", lambda *_: 1 / 0)
    status, answer = await http.post("/filter", args(pod("p", 4), "n1"))
    assert status == 500
    assert "log" in answer["error"]
    assert (await http.get("/healthz"))[0] == 200


async def test_hostile_requests_never_get_a_wrong_yes(
    app: App, api: FakeCluster, http: Http, rounds: Callable[..., int]
) -> None:
    standing = [
        pod("a", 8, nodeName="n1", annotations=allocation(0, units=8)),
        pod("b", 8, nodeName="n1", annotations=allocation(1, units=8)),
        pod("c", 3, nodeName="n2"),
    ]
    waiting = [pod("p1", 4), pod("p2", 15)]
    await ready(
        app, api, node("n1", [15, 15]), node("n2", [15, 40]), node("n3", [15]), *standing, *waiting
    )
    client = Client("127.0.0.1", int(http.url.rsplit(":", 1)[1]))
    uids = [(p["metadata"]["name"], p["metadata"]["uid"]) for p in (*standing, *waiting)]
    for sent in requests(7, 400 * rounds(), ["n1", "n2", "n3"], uids):
        check(sent, await client.send(sent), app.extender.state.ledger)
    print(dict(client.statuses))
    assert client.statuses[200] > 300
    assert client.statuses[400] > 100
    assert api.bindings == []
    assert app.extender.state.reservations == {}
    assert (await http.get("/healthz"))[0] == 200
