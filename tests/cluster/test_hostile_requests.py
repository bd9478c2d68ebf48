"""Bad input to the HTTP side of the running extender: an answer or a clear 4xx, and nothing else.

Every test ends with the same process, that answers as at first, and with no Binding on the API
server but those that a valid request asked for. The extender reaches the API server through the
test cluster's proxy, which has seen every one. Pods are of a scheduler that does not exist, so that
nobody but these tests asks about them.
"""

from __future__ import annotations

import json
import random
import socket
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.contract import names
from gpushare_testcluster import wait_for
from gpushare_testcluster.pods import pod
from tests.cluster import extending
from tests.cluster.hostile import (
    Answer,
    Client,
    asks,
    exchange,
    garbled,
    mutated,
    pod_body,
    refused,
    resident_mib,
)

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster
    from gpushare_testcluster.proxy import Proxy

pytestmark = pytest.mark.cluster

SEED = 20_000

GPUS = {"n0": [4, 4], "n1": [15, 15], "n2": [8], "n3": [2, 2, 2, 2], "n4": [15] * 8}
"""Node -> units of its GPUs."""
HELD = 3
"""Units held by a pod on n1 that is bound from the beginning, the victim of preemptions."""
FREE = {**GPUS, "n1": [12, 15]}
PLAIN = "plain"
"""A node that shares no GPUs."""
UNKNOWN = ("nowhere", "n5", "N1", "n1 ", "")
CANDIDATES = [*GPUS, PLAIN, "nowhere"]

BINDABLE = ("n0", "n2", "n3")
"""Nodes to which the fuzz binds: what is asked of the others stays the same."""

FILTERS = ("/filter", "/gpushare-scheduler/filter")
SIZES = (1, 2, 3, 4, 5, 8, 9, 15, 16)
"""Units of the pods that wait, in turn."""


@dataclass
class Target:
    """The extender under attack, and what is known to be true of it."""

    cluster: Cluster
    proxy: Proxy
    client: Client
    pid: int
    pods: list[dict[str, Any]] = field(default_factory=list)
    """The pods that wait, as the API server has them."""
    victim: str = ""
    """UID of the one pod that is bound from the beginning."""
    bindings: int = 0
    """Bindings that valid requests asked for."""

    def body(self, which: int, units: int = 4) -> dict[str, Any]:
        meta = self.pods[which]["metadata"]
        return pod_body(meta["uid"], meta["name"], units)

    def filter(self, which: int, units: int, nodes: list[str]) -> Any:
        body = {"Pod": self.body(which, units), "NodeNames": nodes}
        return self.client.ask("/filter", body).json()

    def posted(self) -> int:
        """Bindings that have reached the API server, or the proxy in front of it."""
        return self.proxy.count("POST", "/binding")

    def alive_and_well(self) -> None:
        """The same process, no Binding that nobody asked for, and the answers of the beginning."""
        record = self.cluster.processes.record("extender")
        assert record is not None
        assert (record.pid, self.cluster.processes.running("extender")) == (self.pid, True)
        assert self.posted() == self.bindings
        free = self.cluster.admin.list("pods", fields="spec.nodeName=")
        assert len(free) == len(self.pods) - self.bindings
        answer = self.filter(0, 9, CANDIDATES)
        assert answer["NodeNames"] == ["n1", "n4"]
        assert set(answer["FailedAndUnresolvableNodes"]) == {"n0", "n2", "n3", PLAIN, "nowhere"}
        assert not answer["Error"]
        body = {"Pod": self.body(0, 9), "NodeNames": ["n1", "n4"]}
        ranks = {p["Host"]: p["Score"] for p in self.client.ask("/prioritize", body).json()}
        assert ranks == {"n1": 10, "n4": 9}
        assert extending.get(self.cluster, "/readyz") == "ok\n"


@pytest.fixture
def target(clean_cluster: Cluster) -> Iterator[Target]:
    cluster = clean_cluster
    proxy = cluster.proxy()
    # Without the nudge, which answers rejections by promises: the answers stay the same.
    config = cluster.kubeconfig_for("gpushare-extender", via=proxy)
    extending.start(cluster, "--no-nudge", kubeconfig=config)
    for name, gpus in GPUS.items():
        cluster.add_node(name, gpus=gpus)
    cluster.add_node(PLAIN)
    held = {names.ANNOTATION_ALLOCATION: json.dumps({"0": {"0": HELD}})}
    victim = cluster.admin.create(pod("victim", gpu_mem=HELD, node="n1", annotations=held))
    pods = [
        cluster.admin.create(pod(f"p{i}", gpu_mem=SIZES[i % len(SIZES)], schedulerName="nobody"))
        for i in range(30)
    ]
    wait_for(
        lambda: sum(extending.used(cluster).get("n1", [])) == HELD, 10, "the extender knows all"
    )
    record = cluster.processes.record("extender")
    assert record is not None
    client = Client(cluster.extender_port)
    yield Target(cluster, proxy, client, record.pid, pods, victim["metadata"]["uid"])
    client.close()
    cluster.stop_extender(hard=True)
    proxy.close()


def is_clear(answer: Answer) -> None:
    """An answer, or a 4xx that says in words what is wrong."""
    assert answer.status == 200 or 400 <= answer.status < 500, answer
    if answer.status != 200 and answer.body.startswith(b"{"):
        assert len(answer.json()["error"]) > 10
    assert len(answer.body) < 4000 or answer.status == 200


def rejected(answer: Answer, status: int, text: str) -> None:
    assert (answer.status, answer.status == status) == (status, True), answer
    assert text in answer.json()["error"], answer


# --- Bodies, one by one ---------------------------------------------------------------------------


def test_bodies_that_cannot_be_read(target: Target) -> None:
    good = json.dumps({"Pod": target.body(0), "NodeNames": list(GPUS)})
    deep = json.dumps({"Pod": target.body(0), "NodeNames": [], "X": 0})[:-2]
    for verb in ("filter", "prioritize", "preempt", "bind"):
        for body in (
            "",
            "null",
            "[]",
            "7",
            '"text"',
            "{}",
            good[: len(good) // 2],
            good[:-1],
            good + "}",
            good.replace("{", "[", 1),
            '{"Pod": null, "NodeNames": []}',
            '{"Pod": {}, "NodeNames": []}',
            '{"Pod": {"metadata": null}, "NodeNames": []}',
            '{"Pod": {"metadata": {"name": 7}}, "NodeNames": []}',
            '{"Pod": {"metadata": {"name": "p", "labels": [1]}}, "NodeNames": []}',
            '{"Pod": {"metadata": {"name": "p"}, "spec": {"containers": {}}}, "NodeNames": []}',
            '{"Pod": {"metadata": {"name": "p"}}, "NodeNames": "n1"}',
            '{"Pod": {"metadata": {"name": "p"}}, "NodeNames": [1]}',
            '{"Pod": {"metadata": {"name": "p"}}, "NodeNames": [null]}',
            '{"Pod": {"metadata": {"name": "p"}}}',
            '{"Pod": {"metadata": {"name": "p"}}, "Nodes": {"items": [{}]}}',
            '{"Pod": {"metadata": {"name": "p"}}, "Nodes": {"items": [7]}}',
            '{"Pod": {"metadata": {"name": "p"}}, "NodeNameToMetaVictims": []}',
            '{"Pod": {"metadata": {"name": "p"}}, "NodeNameToMetaVictims": {"n1": 7}}',
            '{"PodName": "p0", "PodNamespace": "default", "Node": "n1"}',
            '{"PodName": null, "PodNamespace": null, "PodUID": null, "Node": null}',
            deep + "[" * 100_000,
            deep + "[" * 100_000 + "]" * 100_000 + "}",
            deep + '{"a":' * 100_000 + "0" + "}" * 100_000 + "}",
        ):
            answer = target.client.send(f"/{verb}", body.encode())
            rejected(answer, 400, f"the body of {verb} cannot be read: ")
        for data in (b"\xff\xfe", good.encode("utf-16"), b'{"Pod": "\xed\xa0\x80"}', bytes(1000)):
            rejected(target.client.send(f"/{verb}", data), 400, "cannot be read: ")
    target.alive_and_well()


def test_odd_values_in_readable_bodies(target: Target) -> None:
    for units in ("-4", "4.5", "x", "", "1e99", "9" * 18, "9" * 19, "9" * 5000, "4Gi", "16"):
        answer = target.filter(0, units, ["n1", PLAIN, "nowhere"])  # type: ignore[arg-type]
        assert answer["NodeNames"] == [], units
    for count in ("0", "-1", "x", "3", "65", "9" * 5000, ""):
        body = pod_body("u", "p", 4, labels={names.LABEL_GPU_COUNT: count})
        answer = target.client.ask("/filter", {"Pod": body, "NodeNames": ["n1"]}).json()
        assert answer["NodeNames"] == [], count
    for node in UNKNOWN:
        assert target.filter(0, 1, [node])["NodeNames"] == []
    for key in ("uid", "name", "namespace"):  # of a size that no API server lets through
        body = target.body(0)
        body["metadata"][key] = "u" * 1_000_000
        is_clear(target.client.ask("/filter", {"Pod": body, "NodeNames": ["n1"]}))
    for text in ("\x00", "\ud800", "💾", "\u202e", "\r\nX: y"):
        body = target.body(0)
        body["metadata"] |= {"uid": text, "name": text, "annotations": {text: text}}
        is_clear(target.client.ask("/filter", {"Pod": body, "NodeNames": [text]}))
        is_clear(target.client.ask("/prioritize", {"Pod": body, "NodeNames": [text]}))
    target.alive_and_well()


def test_a_pod_that_asks_for_nothing_of_ours_passes_everywhere(target: Target) -> None:
    """It is none of our business: the scheduler may know a node before we do."""
    body = {"Pod": pod_body("u", "p"), "NodeNames": CANDIDATES}
    answer = target.client.ask("/filter", body).json()
    assert answer["NodeNames"] == CANDIDATES
    scores = target.client.ask("/prioritize", body).json()
    assert [(score["Host"], score["Score"]) for score in scores] == [(n, 0) for n in CANDIDATES]
    target.alive_and_well()


def test_ten_thousand_names(target: Target) -> None:
    many = [f"nowhere-{i}" for i in range(10_000)]
    assert target.filter(0, 9, many)["NodeNames"] == []
    answer = target.filter(0, 9, [*many, "n1", *many, "n4", "n1"])
    assert answer["NodeNames"] == ["n1", "n4", "n1"]
    assert len(answer["FailedAndUnresolvableNodes"]) == 10_000
    body = {"Pod": target.body(0, 9), "NodeNames": [*many, "n1"]}
    scores = target.client.ask("/prioritize", body).json()
    assert [score["Host"] for score in scores if score["Score"]] == ["n1"]
    whole = [{"metadata": {"name": name}, "status": {"x": ["y"]}} for name in [*many, "n1"]]
    body = {"Pod": target.body(0, 9), "Nodes": {"items": whole}}
    assert target.client.ask("/filter", body).json()["Nodes"]["items"] == [whole[-1]]
    victims = {name: {"Pods": [{"UID": "nobody"}]} for name in many}
    body = {"Pod": target.body(0, 9), "NodeNameToMetaVictims": victims}
    assert target.client.ask("/preempt", body).json() == {"NodeNameToMetaVictims": {}}
    target.alive_and_well()


def test_huge_bodies(target: Target) -> None:
    before = resident_mib(target.pid)
    rejected(target.client.send("/filter", bytes(70 << 20)), 413, "larger than")
    exchange(
        target.cluster.extender_port,
        b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + bytes(1 << 20),
    )
    for coding, window in (("deflate", 15), ("gzip", 31), ("br", 15), ("nonsense", 15)):
        headers = {"Content-Type": "application/json", "Content-Encoding": coding}
        is_clear(target.client.send("/filter", bomb(1 << 30, window), headers=headers))
    answer = target.client.ask("/filter", {"Pod": target.body(0), "X": "a" * (60 << 20)})
    rejected(answer, 400, "neither NodeNames nor Nodes")
    assert resident_mib(target.pid, "VmHWM") < before + 400, "at its highest"
    target.alive_and_well()


def bomb(size: int, window: int) -> bytes:
    """So many zeros, compressed; `window` as zlib has it: with a header of its own or gzip's."""
    compressor, piece = zlib.compressobj(1, zlib.DEFLATED, window), bytes(1 << 24)
    pieces = [compressor.compress(piece) for _ in range(size // len(piece))]
    return b"".join([*pieces, compressor.flush()])


def test_binds_that_nothing_may_come_of(target: Target) -> None:
    meta = target.pods[0]["metadata"]
    valid = {
        "PodName": meta["name"],
        "PodNamespace": "default",
        "PodUID": meta["uid"],
        "Node": "n1",
    }
    plain = target.cluster.admin.create(pod("not-ours", schedulerName="nobody"))["metadata"]
    target.pods.append({"metadata": plain})
    foreign = {**valid, "PodName": plain["name"], "PodUID": plain["uid"]}
    for change in (
        {"Node": "nowhere"},
        {"Node": PLAIN},
        {"Node": ""},
        {"Node": "N1"},
        {"Node": "n1/../n1"},
        {"Node": "n1\x00"},
        {"PodUID": ""},
        {"PodUID": "another"},
        {"PodUID": target.pods[1]["metadata"]["uid"]},
        {"PodName": ""},
        {"PodName": "p1"},
        {"PodName": "../../../nodes/n1"},
        {"PodName": "p0/binding?x="},
        {"PodName": "p0\r\nX: y"},
        {"PodNamespace": "kube-system"},
        {"PodNamespace": ""},
        {"PodNamespace": "a" * 100_000},
        {"PodName": "gone", "PodUID": "gone"},
        {"PodName": "../p0", "PodUID": "gone"},
        {"PodName": "p8", "PodUID": target.pods[8]["metadata"]["uid"]},  # 16 units: fits nowhere
        {**foreign, "Node": "nowhere"},
        {**foreign, "Node": "../n1"},
    ):
        answer = target.client.ask("/bind", {**valid, **change})
        assert answer.status == 200, change
        assert answer.json()["Error"].startswith("gpushare: "), change
    target.alive_and_well()


# --- HTTP, one by one -----------------------------------------------------------------------------


def test_methods_paths_and_content_types(target: Target) -> None:
    send, good = target.client.send, json.dumps({"Pod": target.body(0), "NodeNames": ["n1"]})
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONSENSE"):
        for path in (*FILTERS, "/bind"):
            assert send(path, good.encode(), method=method).status in (400, 405)
    for method in ("POST", "PUT", "DELETE", "NONSENSE"):
        for path in ("/metrics", "/readyz", "/healthz", "/gpushare-scheduler/inspect"):
            assert send(path, b"", method=method).status in (400, 405)
    for path in (
        "/",
        "//filter",
        "/filter/",
        "/Filter",
        "/filter/../bind",
        "/%66ilter%00",
        "/%zz",
        "/gpushare-scheduler",
        "/gpushare-scheduler/filter/x",
        "/" + "a" * 5000,
        "/%F0%9F%92%BE",
        "/gpushare-scheduler/version",
    ):
        assert send(path, good.encode()).status in (400, 404), path
    for path in ("/gpushare-scheduler/inspect/nowhere", "/gpushare-scheduler/inspect/%2e%2e%2fx"):
        assert send(path, b"", method="GET").status == 404
    for content_type in ("", "text/plain", "application/x-www-form-urlencoded", "a/b; charset=x"):
        is_clear(send("/filter", good.encode(), headers={"Content-Type": content_type}))
    is_clear(send("/filter", good.encode(), headers={"X-Long": "a" * 100_000}))
    is_clear(send("/filter", good.encode(), headers={f"X-{i}": "a" for i in range(90)}))
    target.alive_and_well()


def test_bytes_that_are_no_http(target: Target) -> None:
    port = target.cluster.extender_port
    body = json.dumps({"Pod": target.body(0), "NodeNames": ["n1"]}).encode()
    head = b"POST /filter HTTP/1.1\r\nHost: x\r\n"
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    for raw in (
        b"",
        b"\x00" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST\r\n\r\n",
        b"POST /filter\r\n\r\n",
        b"POST /filter HTTP/9.9\r\n\r\n",
        head,
        head + length,
        head + length + body[:-1],
        head + b"Content-Length: -1\r\n\r\n" + body,
        head + b"Content-Length: x\r\n\r\n" + body,
        head + b"Content-Length: 3\r\n" + length + body,
        head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + body,
        head + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + body,
        head + b"Transfer-Encoding: chunked\r\n" + length + body,
        head + b"Transfer-Encoding: nonsense\r\n\r\n" + body,
        head + b"Expect: nonsense\r\n" + length + body,
        head + b" folded: x\r\n" + length + body,
        head + b"\x00: x\r\n" + length + body,
        b"POST http://elsewhere/filter HTTP/1.1\r\n" + length + body,
        b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: elsewhere\r\n\r\n",
        head + b"Upgrade: websocket\r\nConnection: upgrade\r\n" + length + body,
    ):
        answer = exchange(port, raw)
        status = int(answer.split(b" ", 2)[1]) if answer else 400
        assert status < 500, (raw, answer)
    target.alive_and_well()


def test_connections_that_are_never_finished(target: Target) -> None:
    port = target.cluster.extender_port
    head = b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"
    slow = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(200)]
    try:
        for number, connection in enumerate(slow):
            connection.sendall((b"P", head[:30], head)[number % 3])
        target.alive_and_well()
    finally:
        for connection in slow:
            connection.close()
    target.alive_and_well()


# --- Fuzz -----------------------------------------------------------------------------------------


def bodies(target: Target) -> dict[str, Callable[[random.Random], Any]]:
    """Verb -> a maker of valid bodies."""

    def ask(dice: random.Random) -> Any:
        which = dice.randrange(len(target.pods))
        labels = {names.LABEL_GPU_COUNT: "2"} if dice.random() < 0.2 else {}
        meta = target.pods[which]["metadata"]
        uid = meta["uid"] if dice.random() < 0.7 else f"{dice.getrandbits(64):x}"
        units = [dice.choice(SIZES) for _ in range(dice.choice((1, 1, 1, 2)))]
        init = [dice.choice(SIZES)] if dice.random() < 0.1 else []
        body = pod_body(uid, meta["name"], *units, labels=labels, init=init)
        nodes = dice.sample(CANDIDATES, dice.randint(1, len(CANDIDATES)))
        if dice.random() < 0.2:
            return {"Pod": body, "Nodes": {"items": [{"metadata": {"name": n}} for n in nodes]}}
        return {"Pod": body, "NodeNames": nodes}

    def preempt(dice: random.Random) -> Any:
        victim = target.victim
        nodes = dice.sample(CANDIDATES, dice.randint(1, 4))
        body = pod_body("u", "p", dice.choice(SIZES))
        if dice.random() < 0.3:
            whole = {"Pods": [pod_body(victim, "victim", HELD)], "NumPDBViolations": 0}
            return {"Pod": body, "NodeNameToVictims": dict.fromkeys(nodes, whole)}
        meta = {"Pods": [{"UID": victim}], "NumPDBViolations": 0}
        return {"Pod": body, "NodeNameToMetaVictims": dict.fromkeys(nodes, meta)}

    def bind(dice: random.Random) -> Any:
        meta = dice.choice(target.pods[1:])["metadata"]
        return {
            "PodName": meta["name"],
            "PodNamespace": "default",
            "PodUID": meta["uid"],
            "Node": dice.choice(("nowhere", PLAIN, "n5", "N0", "", *BINDABLE)),
        }

    return {"filter": ask, "prioritize": ask, "preempt": preempt, "bind": bind}


class Judge:
    """Whether an answer to a body is allowed; `free` follows the binds that went through."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.bound: dict[str, str] = {}
        """UID of a pod of ours -> the node it was bound to by a valid request."""
        self._names = {p["metadata"]["uid"]: p["metadata"]["name"] for p in target.pods}

    def filter(self, body: Any, answer: Any) -> None:
        pod = body["Pod"]
        passed = answer["NodeNames"]
        if passed is None:
            passed = [
                node["metadata"]["name"] for node in (answer["Nodes"] or {"items": ()})["items"]
            ]
        if not asks(pod):
            return
        assert set(passed) <= set(GPUS), (body, answer)
        uid = pod["metadata"].get("uid", "")
        if uid in self.bound:
            assert set(passed) <= {self.bound[uid]}
            return
        impossible = refused(pod, FREE)
        if impossible is None:
            assert not passed, (body, answer)
        else:
            assert not impossible.intersection(passed), (body, answer)

    def prioritize(self, body: Any, answer: Any) -> None:
        assert all(0 <= score["Score"] <= 10 for score in answer)
        if asks(body["Pod"]):
            assert {score["Host"] for score in answer if score["Score"]} <= set(GPUS)

    def preempt(self, body: Any, answer: Any) -> None:
        helped = answer["NodeNameToMetaVictims"]
        asked = body.get("NodeNameToMetaVictims") or body.get("NodeNameToVictims") or {}
        assert set(helped) <= set(asked)
        if asks(body["Pod"]):  # the only pod that anybody could evict is on n1
            impossible = refused(body["Pod"], GPUS if self.target.victim in str(asked) else FREE)
            assert impossible is not None or not helped, (body, answer)
            assert set(helped) <= set(GPUS) - (impossible or set()), (body, answer)

    def bind(self, body: Any, answer: Any) -> None:
        """Only what names a pod that waits, by name and UID, and a node of ours, may be done."""
        uid, node = body.get("PodUID"), body.get("Node")
        valid = (
            self._names.get(uid) == body.get("PodName")
            and body.get("PodNamespace") == "default"
            and node in GPUS
        )
        if valid and not answer["Error"]:
            assert self.bound.setdefault(uid, node) == node
        elif not answer["Error"]:
            raise AssertionError(f"a wrong yes: {body}")


def test_fuzz(target: Target, rounds: Callable[..., int]) -> None:
    """Changed in structure or in bytes: seeded, so that a failure comes again."""
    dice = random.Random(SEED)
    judge, makers, statuses = Judge(target), bodies(target), Counter[tuple[str, int]]()
    count = 500 * rounds(few=3, full=40)
    settled_mib = 0.0
    for number in range(count):
        verb = dice.choice(list(makers))
        valid = makers[verb](dice)
        data = json.dumps(mutated(valid, dice) if dice.random() < 0.85 else valid).encode()
        if dice.random() < 0.15:
            data = garbled(data, dice)
        prefix = dice.choice(("", names.EXTENDER_PREFIX))
        answer = target.client.send(f"{prefix}/{verb}", data)
        statuses[verb, answer.status] += 1
        assert answer.status in (200, 400), (number, data, answer)
        is_clear(answer)
        if answer.status == 200:
            getattr(judge, verb)(understood(data), answer.json())
        if number == count // 4:
            settled_mib = resident_mib(target.pid)
    grown_mib = resident_mib(target.pid) - settled_mib
    outcomes = ", ".join(f"{verb} {status}: {n}" for (verb, status), n in sorted(statuses.items()))
    print(f"{count} requests: {outcomes}; {len(judge.bound)} bound; {grown_mib:+.1f} MiB")
    assert grown_mib < 48
    assert judge.bound, "no valid request was among them"
    assert all(statuses[verb, status] > count / 40 for verb in makers for status in (200, 400))
    target.bindings = len(judge.bound)
    target.alive_and_well()
    nothing_given_twice(target, judge)


def understood(data: bytes) -> Any:
    """A body that was answered, as leniently as can be."""
    return json.loads(data.decode(errors="replace"), strict=False)


def nothing_given_twice(target: Target, judge: Judge) -> None:
    """The API server has exactly the pods bound that valid requests asked for, within its GPUs."""
    held = {name: [0] * len(gpus) for name, gpus in GPUS.items()}
    bound = {}
    for found in target.cluster.admin.list("pods"):
        if found["spec"].get("nodeName"):
            bound[found["metadata"]["uid"]] = found["spec"]["nodeName"]
            for gpu, units in extending.gpus_of(found).items():
                held[found["spec"]["nodeName"]][gpu] += units
    assert bound.pop(target.victim) == "n1"
    assert bound == judge.bound
    assert held == extending.used(target.cluster)
    for name, gpus in GPUS.items():
        assert all(h <= u for h, u in zip(held[name], gpus, strict=True)), name
