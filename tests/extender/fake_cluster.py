"""A small API server that behaves like one: nodes, pods, bindings, patches, watches, over HTTP.

async with FakeCluster() as cluster:
    cluster.put_node(node("n1", [15, 15]))
    cluster.put_pod(pod("p", 4))
    cluster.hold()          # watches lag: what happens is told at `release`
    cluster.on_bind = ...   # what a Binding gets instead of the usual answer
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

from gpushare.contract import names
from tests.kube.fake_api import status

Json = dict[str, Any]


def node(
    name: str, gpus: list[int], *, labels: dict[str, str] | None = None, **annotations: str
) -> Json:
    """A node that shares GPUs of these units."""
    devices = [
        {"index": i, "uuid": f"GPU-{name}-{i}", "model": "T4", "memory_mib": u * 1024, "units": u}
        for i, u in enumerate(gpus)
    ]
    amounts = {names.RESOURCE_MEM: str(sum(gpus)), names.RESOURCE_COUNT: str(len(gpus))}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {names.LABEL_MODE: "share", **(labels or {})},
            "annotations": {names.ANNOTATION_DEVICES: json.dumps(devices), **annotations},
        },
        "spec": {},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(name: str, *units: int, uid: str | None = None, **more: Any) -> Json:
    """A waiting pod, one container per amount. `more`: fields of metadata, spec or status."""
    given = {part: dict(more.pop(part, {})) for part in ("metadata", "spec", "status")}
    for key, value in more.items():
        part = "spec" if key in ("nodeName", "priority", "initContainers") else "metadata"
        part = "status" if key in ("phase", "nominatedNodeName", "conditions") else part
        given[part][key] = value
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **given["metadata"],
        },
        "spec": {"containers": [container(u) for u in units], **given["spec"]},
        "status": {"phase": "Pending", **given["status"]},
    }


def container(units: int) -> Json:
    limits = {names.RESOURCE_MEM: str(units)} if units else {}
    return {"name": "c", "resources": {"limits": limits}}


def allocation(*gpus: int, units: int = 4) -> dict[str, str]:
    """The annotation of a pod whose containers are on these GPUs."""
    by_container = {str(i): {str(gpu): units} for i, gpu in enumerate(gpus)}
    return {names.ANNOTATION_ALLOCATION: json.dumps(by_container)}


Bind = Callable[[str, Json], Awaitable[web.StreamResponse | None]]


class FakeCluster:
    """`pods` and `nodes` by name; pods are all in one namespace."""

    def __init__(self) -> None:
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.bindings: list[Json] = []
        """Every Binding that was posted."""
        self.patches: list[tuple[str, Json]] = []
        """(pod's name, body) of every patch."""
        self.events: list[Json] = []
        self.gets: list[str] = []
        self.on_bind: Bind | None = None
        """Called before a Binding is looked at; an answer of its own replaces the usual one."""
        self._version = 100
        self._held: list[tuple[str, str, Json]] | None = None
        self._watches: list[tuple[str, asyncio.Queue[bytes]]] = []
        self.refuse_lists = False

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    # -- what happens in the cluster ---------------------------------------------------------------

    def put_node(self, manifest: Json) -> None:
        self._put("nodes", self.nodes, manifest)

    def put_pod(self, manifest: Json) -> None:
        self._put("pods", self.pods, manifest)

    def change_pod(self, name: str, **parts: Any) -> None:
        """Merge fields into a pod's metadata, spec or status."""
        current = self.pods[name]
        self._put("pods", self.pods, {k: {**v, **parts.get(k, {})} for k, v in current.items()})

    def delete_pod(self, name: str) -> None:
        self._tell("pods", "DELETED", self._stamped(self.pods.pop(name)))

    def delete_node(self, name: str) -> None:
        self._tell("nodes", "DELETED", self._stamped(self.nodes.pop(name)))

    def hold(self) -> None:
        """From now on watches are not told anything."""
        self._held = []

    def release(self) -> None:
        """Tell what was held back."""
        held, self._held = self._held or [], None
        for kind, type_, obj in held:
            self._tell(kind, type_, obj)

    def _put(self, kind: str, store: dict[str, Json], manifest: Json) -> None:
        name = manifest["metadata"]["name"]
        type_ = "MODIFIED" if name in store else "ADDED"
        store[name] = self._stamped(manifest)
        self._tell(kind, type_, store[name])

    def _stamped(self, manifest: Json) -> Json:
        self._version += 1
        metadata = {**manifest["metadata"], "resourceVersion": str(self._version)}
        return {**manifest, "metadata": metadata}

    def _tell(self, kind: str, type_: str, obj: Json) -> None:
        if self._held is not None:
            self._held.append((kind, type_, obj))
            return
        line = json.dumps({"type": type_, "object": obj}).encode() + b"\n"
        for watched, queue in self._watches:
            if watched == kind:
                queue.put_nowait(line)

    # -- HTTP --------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        body = json.loads(raw) if (raw := await request.read()) else None
        match request.method, parts:
            case "GET", ["api", "v1", ("nodes" | "pods") as kind]:
                if "watch" in request.query:
                    return await self._watch(request, kind)
                return self._list(kind)
            case "GET", ["api", "v1", "namespaces", "default", "pods", name]:
                self.gets.append(name)
                if name in self.pods:
                    return web.json_response(self.pods[name])
            case "POST", ["api", "v1", "namespaces", "default", "pods", name, "binding"]:
                self.bindings.append(body)
                return await self._bind(name, body)
            case "PATCH", ["api", "v1", "namespaces", "default", "pods", name, *_]:
                self.patches.append((name, body))
                return self._patch(name, body)
            case (("POST" | "PATCH"), ["api", "v1", "namespaces", _, "events", *_]):
                self.events.append(body)
                return web.json_response(body, status=201)
        return _no(404, "NotFound")

    def _list(self, kind: str) -> web.Response:
        if self.refuse_lists:
            return _no(503, "ServiceUnavailable")
        store = self.nodes if kind == "nodes" else self.pods
        metadata = {"resourceVersion": str(self._version)}
        return web.json_response({"metadata": metadata, "items": list(store.values())})

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watches.append((kind, queue))
        while True:
            await response.write(await queue.get())

    async def _bind(self, name: str, body: Json) -> web.StreamResponse:
        if self.on_bind is not None:
            answer = await self.on_bind(name, body)
            if answer is not None:
                return answer
        return self.bind(name, body)

    def bind(self, name: str, body: Json) -> web.Response:
        """As the API server binds: one write, annotations merged; refused with 409."""
        current = self.pods.get(name)
        if current is None:
            return _no(404, "NotFound")
        metadata = current["metadata"]
        if metadata["uid"] != body["metadata"]["uid"] or "nodeName" in current["spec"]:
            return _no(409, "Conflict")
        annotations = {**metadata.get("annotations", {}), **body["metadata"]["annotations"]}
        where = {"nodeName": body["target"]["name"]}
        self.change_pod(name, metadata={"annotations": annotations}, spec=where)
        return web.json_response(status(201, "Created"), status=201)

    def _patch(self, name: str, body: Json) -> web.Response:
        current = self.pods.get(name)
        if current is None:
            return _no(404, "NotFound")
        metadata, wanted = current["metadata"], body.get("metadata", {})
        if wanted.get("uid", metadata["uid"]) != metadata["uid"]:
            return _no(409, "Conflict")
        annotations = {**metadata.get("annotations", {}), **wanted.get("annotations", {})}
        changed = {**current["status"], **body.get("status", {})}
        self.change_pod(name, metadata={"annotations": annotations}, status=changed)
        return web.json_response(self.pods[name])


def _no(code: int, reason: str) -> web.Response:
    return web.json_response(status(code, reason), status=code)


async def lost(_: str, __: Json) -> web.StreamResponse:
    """Never answer a Binding."""
    await asyncio.sleep(3600)
    raise AssertionError


async def refused(_: str, __: Json) -> web.StreamResponse:
    return _no(403, "Forbidden")
