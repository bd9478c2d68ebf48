"""What test_hostile_requests.py sends, and a plain second opinion on what may be answered.

`mutated` changes valid JSON bodies in structure: values of other types, missing and foreign fields,
values swapped between fields, deep nesting, endless lists, odd numbers and strings; `garbled`
changes bytes. `refused` says of a pod, as it stands in a body, which of the nodes must not be
answered yes: it is written from the documentation, simpler and more lenient than the extender.
"""

from __future__ import annotations

import copy
import http.client
import json
import random
import re
import socket
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

GPU_MEM = "aliyun.com/gpu-mem"
GPU_CORE = "aliyun.com/gpu-core.percentage"

JSON = {"Content-Type": "application/json"}


class Answer(NamedTuple):
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One kept-alive connection to the extender; opened again when the extender closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: http.client.HTTPConnection | None = None

    def send(
        self, path: str, body: bytes, *, method: str = "POST", headers: Mapping[str, str] = JSON
    ) -> Answer:
        for _ in range(3):
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            try:
                self._connection.request(method, path, body, dict(headers))
                response = self._connection.getresponse()
                answer = Answer(response.status, response.read())
            except (ConnectionError, http.client.HTTPException):
                # A request refused while its body was still on the way ends the connection.
                self.close()
                time.sleep(0.01)
                continue
            if response.will_close:
                self.close()
            return answer
        raise AssertionError(f"{method} {path[:80]} is not answered")

    def ask(self, path: str, body: object) -> Answer:
        return self.send(path, json.dumps(body).encode())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def exchange(port: int, raw: bytes, *, end: bool = True, timeout_s: float = 10) -> bytes:
    """Bytes as they are on a connection of their own; what came back. `end`: no more will come."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        try:
            connection.sendall(raw)
            if end:
                connection.shutdown(socket.SHUT_WR)
            pieces = []
            while piece := connection.recv(65536):
                pieces.append(piece)
                if b"\r\n\r\n" in piece and not end:
                    break
        except ConnectionError:
            pass
    return b"".join(pieces)


def resident_mib(pid: int, which: str = "VmRSS") -> float:
    """The memory of a process that is in RAM; VmHWM: the most that ever was."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{which}:\s+(\d+) kB", status, re.MULTILINE)
    assert found
    return int(found[1]) / 1024


# --- Bodies ---------------------------------------------------------------------------------------


def pod_body(
    uid: str,
    name: str,
    *units: int | str,
    labels: Mapping[str, str] | None = None,
    init: Sequence[int] = (),
) -> dict[str, Any]:
    """A pod as the scheduler sends it: more fields than anybody reads."""

    def container(name: str, amount: int | str) -> dict[str, Any]:
        amounts = {GPU_MEM: str(amount), "cpu": "500m"}
        return {"name": name, "resources": {"limits": amounts, "requests": dict(amounts)}}

    spec: dict[str, Any] = {
        "containers": [container(f"c{i}", amount) for i, amount in enumerate(units)],
        "schedulerName": "nobody",
        "priority": 0,
        "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 300}],
    }
    if init:
        spec["initContainers"] = [container(f"i{i}", amount) for i, amount in enumerate(init)]
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "labels": dict(labels or {}),
            "annotations": {"note": "ordinary"},
            "ownerReferences": [
                {"kind": "ReplicaSet", "name": "rs", "uid": "rs-uid", "controller": True}
            ],
            "creationTimestamp": "2024-01-01T00:00:00Z",
        },
        "spec": spec,
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
    }


# --- Mutations ------------------------------------------------------------------------------------


def odd_values(dice: random.Random) -> list[Any]:
    """Values that stand where something else belongs."""
    return [
        None,
        True,
        0,
        -1,
        2**31,
        2**63,
        2**64 + 1,
        10 ** dice.randint(20, 400),
        1.5,
        -0.0,
        1e308,
        "",
        " ",
        "0",
        "-4",
        "4.0",
        "4e0",
        "1e99",
        "4000m",
        "4Ki",
        "٤",
        "NaN",
        "\x00",
        "\ud800",
        "../../../nodes/n1",
        "n1\nn2",
        "a" * dice.randint(1, 5000),
        "💾" * 50,
        [],
        {},
        [[]],
        {"": {}},
        [None],
        nested(dice.randint(2, 60)),
    ]


def nested(depth: int) -> Any:
    value: Any = "x"
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


Path_ = tuple[str | int, ...]


def places(value: Any, at: Path_ = ()) -> list[Path_]:
    """The path of everything inside a value."""
    inside: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
    found: list[Path_] = []
    for key, held in inside:
        found.append((*at, key))
        found += places(held, (*at, key))
    return found


def parent(value: Any, path: Path_) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


def mutated(body: Any, dice: random.Random) -> Any:
    """The body with one to four changes."""
    body = copy.deepcopy(body)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 4))):
        found = places(body)
        if not found:
            break
        path = dice.choice(found)
        holder, key = parent(body, path), path[-1]
        match dice.randrange(8):
            case 0 | 1 | 2:
                holder[key] = dice.choice(odd_values(dice))
            case 3:
                del holder[key]
            case 4:
                other = dice.choice(found)
                holder[key] = copy.deepcopy(parent(body, other)[other[-1]])
            case 5 if isinstance(holder, dict):
                name = str(key)
                changed = (name.lower(), name.upper(), name + "s", name[:-1], "\u0130" + name)
                holder[dice.choice(changed)] = holder.pop(key)
            case 6 if isinstance(holder, list) and isinstance(key, int):
                holder[key:key] = [copy.deepcopy(holder[key])] * dice.choice((1, 3, 50))
            case _ if isinstance(holder, dict):
                holder[f"x{dice.randrange(9)}"] = dice.choice(odd_values(dice))
    return body


def garbled(data: bytes, dice: random.Random) -> bytes:
    """The bytes with some of them changed, cut out, doubled, or the end missing."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, 6)):
        if not changed:
            break
        at = dice.randrange(len(changed))
        match dice.randrange(5):
            case 0:
                changed[at] = dice.randrange(256)
            case 1:
                del changed[at : at + dice.randint(1, 40)]
            case 2:
                changed[at:at] = changed[at : at + dice.randint(1, 40)]
            case 3:
                del changed[at:]
            case _:
                changed[at:at] = dice.choice(
                    (b"\xff\xfe", b"\xed\xa0\x80", b"[", b'{"', b'"', b",")
                )
    return bytes(changed)


# --- The second opinion ---------------------------------------------------------------------------

_QUANTITY = re.compile(r"([+-]?[0-9.]+)([a-zA-Z]*)(?:([+-]?[0-9]+))?")
_SUFFIX = {
    "": Fraction(1),
    **{suffix: Fraction(1, 1000**p) for p, suffix in enumerate("mun", 1)},
    **{suffix: Fraction(1000**p) for p, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**p) for p, suffix in enumerate("KMGTPE", 1)},
}


def amount(value: object) -> Fraction | None:
    """What a quantity is worth; None where it is none."""
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool):
        return None
    number, suffix, exponent = match.groups()
    try:
        if suffix in ("e", "E") and exponent:
            return Fraction(number) * Fraction(10) ** int(exponent)
        return Fraction(number) * _SUFFIX[suffix] if suffix in _SUFFIX else None
    except ValueError:
        return None


def asked(container: Any) -> Fraction | None:
    """What a container asks for; 0 for nothing, None for what nobody can read."""
    resources = container.get("resources") or {}
    for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
        if GPU_MEM in amounts:
            return amount(amounts[GPU_MEM])
    return Fraction(0)


def asks(pod: Any) -> bool:
    """Whether the pod names a resource of ours with anything but a clear zero."""
    for kind in ("containers", "initContainers"):
        for container in pod.get("spec", {}).get(kind) or ():
            resources = container.get("resources") or {}
            for resource in (GPU_MEM, GPU_CORE):
                # Limits count where they are given: the API server takes no other requests.
                amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
                if resource in amounts and amount(amounts[resource]) != 0:
                    return True
    return False


def refused(pod: Any, free: Mapping[str, Sequence[int]]) -> set[str] | None:
    """The nodes that have certainly no room for a pod of a body that was read.

    `free`: node -> units free on each of its GPUs. None: no node may be answered yes.
    """
    units = [asked(container) for container in pod.get("spec", {}).get("containers") or ()]
    known = [size for size in units if size is not None]
    if len(known) < len(units) or any(size < 0 or size.denominator != 1 for size in known):
        return None
    if not known:
        return set()
    whole = "aliyun.com/gpu-count" not in (pod["metadata"].get("labels") or {})
    return {
        node
        for node, gpus in free.items()
        if sum(known) > sum(gpus) or (whole and max(known) > max(gpus, default=0))
    }
