"""A small API server as a device plugin sees it: one node, its pods, patches, Events, watches.

async with FakeNodeApi() as api:
    api.put_node(node("n1"))
    api.put_pod(pod("p", 4, gpu=1))
    api.hold()              # watches lag: what happens is told at `release`
    api.away = True         # nobody is answered any more, and watches break

`writes` has every patch in the order in which it came.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web

from gpushare.contract import names
from tests.kube.fake_api import status

Json = dict[str, Any]

NODE = "n1"
BOUND_NS = 1_767_225_600_000_000_000


def node(
    *,
    labels: dict[str, str] | None = None,
    uid: str = "uid-n1",
    runtime: str = "",
    **annotations: str,
) -> Json:
    """A node that shares its GPUs and of which no plugin has told anything yet."""
    return {
        "metadata": {
            "name": NODE,
            "uid": uid,
            "labels": {names.LABEL_MODE: "share", **(labels or {})},
            "annotations": {**annotations},
        },
        "spec": {},
        "status": {
            "capacity": {"cpu": "4"},
            "allocatable": {"cpu": "4"},
            "nodeInfo": {"containerRuntimeVersion": runtime},
        },
    }


def container(name: str, units: int) -> Json:
    return {"name": name, "resources": {"limits": {names.RESOURCE_MEM: str(units)}}}


def pod(
    name: str,
    *units: int,
    gpu: int | None = None,
    gpus: tuple[int, ...] = (),
    age: int = 0,
    where: str | None = NODE,
    uid: str | None = None,
) -> Json:
    """A pod bound to the node, containers c0, c1, … one per amount.

    gpu, gpus   the GPUs that were decided for it, each with an equal part; none: nobody decided
    age         it was bound so many seconds after the others
    """
    decided = gpus or (() if gpu is None else (gpu,))
    annotations, labels = {}, {}
    if decided:
        parts = {str(i): {str(g): u // len(decided) for g in decided} for i, u in enumerate(units)}
        annotations[names.ANNOTATION_ALLOCATION] = json.dumps(parts)
        annotations[names.ANNOTATION_ASSUME_TIME] = str(BOUND_NS + age * 10**9)
        annotations[names.ANNOTATION_ASSIGNED] = "false"
        if len(decided) == 1:
            annotations[names.ANNOTATION_OLD_IDX] = str(decided[0])
            annotations[names.ANNOTATION_OLD_ASSIGNED] = "false"
    if len(gpus) > 1:
        labels[names.LABEL_GPU_COUNT] = str(len(gpus))
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "containers": [container(f"c{i}", u) for i, u in enumerate(units)],
            "schedulerName": "default-scheduler",
            **({"nodeName": where} if where else {}),
        },
        "status": {"phase": "Pending"},
    }


@dataclass(frozen=True)
class Write:
    """One patch."""

    kind: str
    name: str
    sub: str
    """The subresource, "" for the object itself."""
    body: Json

    @property
    def annotations(self) -> dict[str, str | None]:
        return self.body.get("metadata", {}).get("annotations", {})


class FakeNodeApi:
    """`pods` and `nodes` by name; pods are all in one namespace."""

    def __init__(self) -> None:
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.writes: list[Write] = []
        self.events: list[Json] = []
        self.on_patch: Callable[[Write], Awaitable[None]] | None = None
        """Awaited before a patch is made."""
        self.lists: list[str] = []
        """Kinds that were listed."""
        self.refuse_lists: set[str] = set()
        """Kinds that cannot be listed."""
        self._version = 100
        self._history: list[tuple[int, str, str, Json]] = []
        self._away = False
        self._told: int | None = None
        """While watches lag: how much of the history they get."""
        self._streams: dict[asyncio.Event, web.Request] = {}
        """What wakes an open watch -> its request."""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.away = True
        await self._runner.cleanup()

    # -- what happens -----------------------------------------------------------------------------

    @property
    def away(self) -> bool:
        return self._away

    @away.setter
    def away(self, value: bool) -> None:
        self._away = value
        if value:
            for request in self._streams.values():
                if request.transport is not None:
                    request.transport.abort()
            self._wake()

    def hold(self) -> None:
        """From now on watches are not told anything."""
        self._told = len(self._history)

    def release(self) -> None:
        """Tell what was held back."""
        self._told = None
        self._wake()

    def put_node(self, manifest: Json) -> None:
        self._put("nodes", self.nodes, manifest)

    def put_pod(self, manifest: Json) -> Json:
        return self._put("pods", self.pods, manifest)

    def change_node(self, *, labels: Json | None = None, annotations: Json | None = None) -> None:
        """Merge labels and annotations; None removes one."""
        meta = {"labels": labels or {}, "annotations": annotations or {}}
        self.put_node(_merged(self.nodes[NODE], {"metadata": meta}))

    def change_capacity(self, **amounts: str) -> None:
        """Merge amounts into the node's capacity; "nvidia.com/gpu" is one."""
        self.put_node(_merged(self.nodes[NODE], {"status": {"capacity": amounts}}))

    def change_pod(self, name: str, **parts: Json) -> None:
        """Merge into a pod's metadata, spec or status."""
        self.put_pod(_merged(self.pods[name], parts))

    def delete_pod(self, name: str) -> None:
        self._tell("pods", "DELETED", self._stamped(self.pods.pop(name)))

    def delete_node(self) -> None:
        self._tell("nodes", "DELETED", self._stamped(self.nodes.pop(NODE)))

    def annotation(self, name: str, *, pod: str | None = None) -> str | None:
        """Of the node, or of `pod`."""
        obj = self.nodes[NODE] if pod is None else self.pods[pod]
        value = obj["metadata"]["annotations"].get(name)
        assert value is None or isinstance(value, str)
        return value

    def reasons(self, kind: str, name: str) -> list[str]:
        """Reasons of the Events on an object."""
        return [e["reason"] for e in self._about(kind, name)]

    def messages(self, kind: str, name: str) -> list[str]:
        """What the Events on an object say."""
        return [e["message"] for e in self._about(kind, name)]

    def _about(self, kind: str, name: str) -> list[Json]:
        about = [e for e in self.events if "involvedObject" in e]
        return [
            e
            for e in about
            if (e["involvedObject"]["kind"], e["involvedObject"]["name"]) == (kind, name)
        ]

    def _put(self, kind: str, store: dict[str, Json], manifest: Json) -> Json:
        name = manifest["metadata"]["name"]
        type_ = "MODIFIED" if name in store else "ADDED"
        store[name] = self._stamped(manifest)
        self._tell(kind, type_, store[name])
        return store[name]

    def _stamped(self, manifest: Json) -> Json:
        self._version += 1
        return _merged(manifest, {"metadata": {"resourceVersion": str(self._version)}})

    def _tell(self, kind: str, type_: str, obj: Json) -> None:
        self._history.append((self._version, kind, type_, obj))
        self._wake()

    def _wake(self) -> None:
        for news in self._streams:
            news.set()

    # -- HTTP -------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self._away:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        parts = request.path.strip("/").split("/")
        body = json.loads(raw) if (raw := await request.read()) else None
        match request.method, parts:
            case "GET", ["api", "v1", ("nodes" | "pods") as kind]:
                if "watch" in request.query:
                    return await self._watch(request, kind)
                return self._list(request, kind)
            case "PATCH", ["api", "v1", "nodes", name, *sub]:
                return await self._patch("nodes", self.nodes, name, sub, body)
            case "PATCH", ["api", "v1", "namespaces", "default", "pods", name, *sub]:
                return await self._patch("pods", self.pods, name, sub, body)
            case (("POST" | "PATCH"), ["api", "v1", "namespaces", _, "events", *_]):
                self.events.append(body)
                return web.json_response(body, status=201)
        return _no(404, "NotFound")

    def _list(self, request: web.Request, kind: str) -> web.Response:
        self.lists.append(kind)
        if kind in self.refuse_lists:
            return _no(503, "ServiceUnavailable")
        store = self.nodes if kind == "nodes" else self.pods
        metadata = {"resourceVersion": str(self._version)}
        items = [obj for obj in store.values() if _selected(request, kind, obj)]
        return web.json_response({"metadata": metadata, "items": items})

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        response = web.StreamResponse()
        news = asyncio.Event()
        self._streams[news] = request
        since = int(request.query["resourceVersion"])
        told = 0
        try:
            await response.prepare(request)
            while not self._away:
                news.clear()
                end = len(self._history) if self._told is None else self._told
                for version, of, type_, obj in self._history[told:end]:
                    if of == kind and version > since and _selected(request, kind, obj):
                        line = json.dumps({"type": type_, "object": obj}).encode() + b"\n"
                        await response.write(line)
                told = max(told, end)
                await news.wait()
        except ConnectionError:
            pass
        finally:
            del self._streams[news]
        return response

    async def _patch(
        self, kind: str, store: dict[str, Json], name: str, sub: list[str], body: Json
    ) -> web.Response:
        write = Write(kind, name, "/".join(sub), body)
        self.writes.append(write)
        if self.on_patch is not None:
            await self.on_patch(write)
        current = store.get(name)
        if current is None:
            return _no(404, "NotFound")
        if (
            body.get("metadata", {}).get("uid", current["metadata"]["uid"])
            != (current["metadata"]["uid"])
        ):
            return _no(422, "Invalid", "metadata.uid: field is immutable")
        changed = _merged(current, body)
        if changed != current:  # a patch that changes nothing makes no new version
            self._put(kind, store, changed)
        return web.json_response(store[name])


def _selected(request: web.Request, kind: str, obj: Json) -> bool:
    field, _, value = request.query.get("fieldSelector", "").partition("=")
    if field == "spec.nodeName":
        return bool(obj["spec"].get("nodeName") == value)
    if field == "metadata.name":
        return bool(obj["metadata"]["name"] == value)
    return True


def _merged(base: Json, patch: Json) -> Json:
    """RFC 7396."""
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            below = result.get(key)
            result[key] = _merged(below if isinstance(below, dict) else {}, value)
        else:
            result[key] = value
    return result


def _no(code: int, reason: str, message: str = "") -> web.Response:
    return web.json_response(status(code, reason, message), status=code)


async def never(true: Any, for_s: float) -> None:
    """Fails the test if `true()` becomes so within `for_s`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(for_s):
            while True:
                assert not true()
                await asyncio.sleep(0.01)
