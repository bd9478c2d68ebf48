"""Seeded hostile requests for the extender's HTTP side, and what an answer must never be.

`requests(seed, count, nodes, pods)` yields whole HTTP requests as bytes. Some are valid, most are
valid ones spoilt: cut, lengthened, fields of wrong types, deep nesting, other encodings, unknown
nodes, thousands of names. Binds always mean a pod that is not there, or not under that UID, or a
node that is not there: none of them may reach the API.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpushare.contract import names
from gpushare.contract.names import EXTENDER_PREFIX

Json = Any
VERBS = ["filter", "prioritize", "preempt", "bind"]
ALLOWED = {200, 400, 404, 405, 411, 413, 414, 417, 431, 501}
"""An answer, or a clear refusal; of 5xx only "not implemented", for a transfer coding."""

ODD: list[Json] = [
    None, True, -1, 0, 1.5, 10**30, 1e308, "", "x" * 300, "\ud83d\ude00", "\u0000", [], {},
    [[]], [None], {"": ""}, {"a": {"b": [1]}}, "4.5", "-1", "10Gi", "1e99", "１", "NaN",
]  # fmt: skip


@dataclass
class Sent:
    """One request, as it goes over the wire, and what it was made from."""

    raw: bytes
    verb: str
    body: Json | None
    """The JSON, where the body is whole; None where it was spoilt as text."""
    closes: bool
    """The request is not whole: the connection is of no use afterwards."""


def requests(
    seed: int, count: int, nodes: list[str], pods: list[tuple[str, str]]
) -> Iterator[Sent]:
    """`nodes`: names that exist; `pods`: (name, UID) that wait."""
    rng = random.Random(seed)
    for _ in range(count):
        yield _request(rng, nodes, pods)


def _request(rng: random.Random, nodes: list[str], pods: list[tuple[str, str]]) -> Sent:
    verb = rng.choice(VERBS)
    body = {
        "filter": _args,
        "prioritize": _args,
        "preempt": _preemption,
        "bind": _binding,
    }[verb](rng, nodes, pods)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 4])):
        body = _spoilt(rng, body, verb)
    text = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    whole: Json | None = body
    match rng.randrange(12):
        case 0:
            text, whole = text[: rng.randrange(len(text) + 1)], None
        case 1:
            at = rng.randrange(len(text) + 1)
            text, whole = text[:at] + rng.randbytes(rng.randrange(1, 9)) + text[at:], None
        case 2 if rng.random() < 0.3:
            depth = rng.choice([10, 1000, 100_000])
            text, whole = b'{"Pod":' + b"[" * depth + b"]" * depth + b"}", None
    return _on_the_wire(rng, verb, text, whole)


def _on_the_wire(rng: random.Random, verb: str, text: bytes, body: Json | None) -> Sent:
    method = rng.choices(["POST", "GET", "PUT", "DELETE", "BREW"], [94, 2, 2, 1, 1])[0]
    path = rng.choice([f"/{verb}", f"{EXTENDER_PREFIX}/{verb}"])
    if rng.random() < 0.02:
        path = rng.choice(
            ["/", "//", f"{EXTENDER_PREFIX}/inspect/%2e%2e", "/metrics", "/" + "a" * 9000]
        )
    length, closes = len(text), False
    if rng.random() < 0.01:
        length, closes = length + rng.randrange(1, 100), True
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n"
    if rng.random() < 0.01:
        odd = ["Content-Encoding: gzip", "Content-Length: -3", "Transfer-Encoding: odd", "a b: c"]
        head, closes = head + rng.choice(odd) + "\r\n", True
    content_type = rng.choice(["application/json", "text/plain", "x", ""])
    head += f"Content-Type: {content_type}\r\n\r\n"
    if method != "POST" or path[-len(verb) :] != verb:
        body = None
    return Sent(head.encode() + text, verb, body, closes)


def _pod(rng: random.Random) -> Json:
    amounts = [
        rng.choice(["0", "1", "4", "8", 3, "15", "16", "40"]) for _ in range(rng.randrange(4))
    ]
    containers = [
        {"name": f"c{i}", "resources": {"limits": {names.RESOURCE_MEM: amount}}}
        for i, amount in enumerate(amounts)
    ]
    spec: Json = {"containers": containers, "priority": rng.choice([None, 0, 5, -2])}
    if rng.random() < 0.2:
        spec["initContainers"] = containers[:1]
    labels = {names.LABEL_GPU_COUNT: rng.choice(["1", "2", "3", "0", "x"])}
    meta = {
        "name": f"fuzz-{rng.randrange(50)}",
        "namespace": "default",
        "uid": f"fuzz-uid-{rng.randrange(50)}",
        "labels": labels if rng.random() < 0.3 else None,
        "creationTimestamp": None,
    }
    return {"metadata": meta, "spec": spec, "status": {}}


def _names(rng: random.Random, nodes: list[str]) -> list[str]:
    chosen = rng.sample(nodes, rng.randrange(len(nodes) + 1))
    if rng.random() < 0.3:
        chosen.append(f"unknown-{rng.randrange(5)}")
    if rng.random() < 0.005:
        chosen += [f"node-{i}" for i in range(10_000)]
    return chosen


def _args(rng: random.Random, nodes: list[str], _: object) -> Json:
    chosen = _names(rng, nodes)
    if rng.random() < 0.2:
        whole = [{"metadata": {"name": name}, "spec": {"x": 1}} for name in chosen]
        return {"Pod": _pod(rng), "Nodes": {"items": whole}, "NodeNames": None}
    return {"Pod": _pod(rng), "Nodes": None, "NodeNames": chosen}


def _preemption(rng: random.Random, nodes: list[str], pods: list[tuple[str, str]]) -> Json:
    uids = [uid for _, uid in pods]
    victims = {
        name: {"Pods": [{"UID": rng.choice([*uids, "unknown"])}], "NumPDBViolations": 0}
        for name in _names(rng, nodes)
    }
    return {"Pod": _pod(rng), "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}


def _binding(rng: random.Random, nodes: list[str], pods: list[tuple[str, str]]) -> Json:
    name, uid = rng.choice([*pods, ("nobody", "nobodys-uid")])
    node = rng.choice([*nodes, "unknown"])
    if node in nodes and name != "nobody":
        name, uid = rng.choice([("nobody", uid), (name, "another-uid"), ("../../x", "u")])
    return {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}


def _spoilt(rng: random.Random, body: Json, verb: str) -> Json:
    """One value somewhere replaced by an odd one, removed, or added to."""
    copy = json.loads(json.dumps(body))
    where, spots = [((), copy)], []
    while where:
        path, value = where.pop()
        children = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in list(children):
            spots.append((value, key))
            if isinstance(child, dict | list) and len(child) < 100:
                where.append(((*path, key), child))
    if verb == "bind":  # a spoilt bind must not become a right one
        spots = [
            (holder, key) for holder, key in spots if key in ("PodUID", "PodNamespace", "Node")
        ]
    if not spots:
        return copy
    holder, key = rng.choice(spots)
    if rng.random() < 0.2 and isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = rng.choice(ODD)
    return copy


# --- sending --------------------------------------------------------------------------------------


class Client:
    """One connection at a time; a new one after each request that spoils it."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.statuses: Counter[int] = Counter()

    async def send(self, sent: Sent) -> tuple[int, bytes] | None:
        """(status, body), or None where the extender only closed the connection.

        A connection it has closed after an earlier answer is no refusal: as every client does, a
        request that met a closed one is sent again on a new one.
        """
        reused = self._streams is not None
        answer = await self._try(sent)
        return await self._try(sent) if answer is None and reused else answer

    async def _try(self, sent: Sent) -> tuple[int, bytes] | None:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        try:
            writer.write(sent.raw)
            if sent.closes:
                writer.write_eof()
            answer = await asyncio.wait_for(self._read(reader), 20)
        except (asyncio.IncompleteReadError, OSError):
            answer = None
        if answer is None or sent.closes or answer[2]:
            writer.close()
            self._streams = None
        if answer is None:
            return None
        self.statuses[answer[0]] += 1
        return answer[0], answer[1]

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = 0
        for line in head.split("\r\n"):
            if line.startswith("content-length:"):
                length = int(line.split(":")[1])
        body = await reader.readexactly(length)
        return int(head.split()[1]), body, "connection: close" in head
