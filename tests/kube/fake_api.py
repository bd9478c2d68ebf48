"""A small API server for tests: real HTTP/1.1 over a real socket, behaving as the test says.

Lists come from `pods` (as dicts), page by page; a watch waits for the test to say what it does:

    api.pods = [pod("a", 1)]
    watch = await api.next_watch()          # the client has opened one
    await watch.send("ADDED", pod("b", 2))
    watch.cut()                             # or end(), or nothing at all: silence

`answers` scripts what the next matching requests get instead. `requests` has all that came.
"""

import asyncio
import json
import re
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

Json = dict[str, Any]
PATIENCE_S = 5.0


def pod(name: str, version: int, *, uid: str | None = None, node: str | None = None) -> Json:
    """A pod; its UID is `u-NAME` unless given."""
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"u-{name}",
            "resourceVersion": str(version),
        },
        "spec": {"containers": [{"name": "c"}], **({"nodeName": node} if node else {})},
        "status": {"phase": "Pending"},
    }


def status(code: int, reason: str, message: str = "", **more: Any) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message or reason,
        "reason": reason,
        "code": code,
        **more,
    }


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    """Decoded JSON, None without a body."""
    token: str


class Watch:
    """One open watch stream."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self.query = dict(request.query)
        self._request = request
        self._response = response
        self.over = asyncio.Event()
        """Set when the stream has ended, by whichever side."""

    async def send(self, type_: str, obj: Json) -> None:
        await self.send_raw(json.dumps({"type": type_, "object": obj}).encode() + b"\n")

    async def bookmark(self, version: int) -> None:
        await self.send("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})

    async def send_raw(self, data: bytes) -> None:
        await self._response.write(data)

    async def end(self) -> None:
        """End the answer, as the API server does at timeoutSeconds."""
        await self._response.write_eof()
        self.over.set()

    def cut(self) -> None:
        """Reset the connection in the middle."""
        assert self._request.transport is not None
        self._request.transport.abort()
        self.over.set()


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer(code: int, body: Json | str, **headers: str) -> Answer:
    """A fixed answer; a string is not JSON."""

    async def respond(_: web.Request) -> web.StreamResponse:
        if isinstance(body, str):
            return web.Response(status=code, text=body, content_type="text/html", headers=headers)
        return web.json_response(body, status=code, headers=headers)

    return respond


def refuse(code: int, reason: str, message: str = "", **headers: str) -> Answer:
    return answer(code, status(code, reason, message), **headers)


async def hang(_: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.sleep(3600)
    raise AssertionError


async def drop(request: web.Request) -> web.StreamResponse:
    """Reset the connection instead of answering."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@dataclass
class FakeApi:
    """The server. `async with FakeApi() as api`."""

    tls: ssl.SSLContext | None = None
    pods: list[Json] = field(default_factory=list)
    version: int = 100
    """The resource version of lists."""
    tokens: set[str] | None = None
    """Accepted bearer tokens; None for all."""
    requests: list[Request] = field(default_factory=list)
    objects: dict[str, Json] = field(default_factory=dict)
    """path -> object, for GET."""
    answers: deque[tuple[str, str, Answer]] = field(default_factory=deque)
    """(method, pattern of the path, answer): each is used once, in order of matching."""
    always: list[tuple[str, str, Answer]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._watches: asyncio.Queue[Watch] = asyncio.Queue()
        self._open: list[Watch] = []
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self.tls)
        await self._site.start()
        self.port: int = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        for watch in self._open:
            watch.over.set()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    def once(self, method: str, pattern: str, *answers: Answer) -> None:
        """Answer the next matching requests so."""
        self.answers.extend((method, pattern, a) for a in answers)

    async def next_watch(self) -> Watch:
        """The next watch that a client opens, or has opened and nobody took yet."""
        return await asyncio.wait_for(self._watches.get(), PATIENCE_S)

    def no_watch_waits(self) -> bool:
        return self._watches.empty()

    def seen(self, method: str, pattern: str) -> list[Request]:
        return [r for r in self.requests if r.method == method and re.fullmatch(pattern, r.path)]

    def lists(self) -> list[Request]:
        return [r for r in self.seen("GET", "/api/v1/pods") if "watch" not in r.query]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.requests.append(
            Request(
                request.method,
                request.path,
                dict(request.query),
                dict(request.headers),
                json.loads(raw) if raw else None,
                token,
            )
        )
        if self.tokens is not None and token not in self.tokens:
            return await refuse(401, "Unauthorized")(request)
        for entry in [*self.answers, *self.always]:
            method, pattern, behave = entry
            if method == request.method and re.fullmatch(pattern, request.path):
                if entry in self.answers:
                    self.answers.remove(entry)
                return await behave(request)
        if "watch" in request.query:
            return await self._watch(request)
        if request.method == "GET" and request.path == "/api/v1/pods":
            return self._list(request)
        if request.method == "GET" and request.path in self.objects:
            return web.json_response(self.objects[request.path])
        if request.method == "POST":
            return web.json_response(status(201, "Created"), status=201)
        return await refuse(404, "NotFound", f"{request.path} not found")(request)

    def _list(self, request: web.Request) -> web.StreamResponse:
        limit = int(request.query.get("limit", "0")) or len(self.pods) or 1
        start = int(request.query.get("continue", "0"))
        metadata = {"resourceVersion": str(self.version)}
        if start + limit < len(self.pods):
            metadata["continue"] = str(start + limit)
        return web.json_response(
            {"kind": "PodList", "metadata": metadata, "items": self.pods[start : start + limit]}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "application/json"
        response.enable_chunked_encoding()
        await response.prepare(request)
        watch = Watch(request, response)
        self._open.append(watch)
        self._watches.put_nowait(watch)
        try:
            await watch.over.wait()
        finally:
            watch.over.set()
        return response


async def eventually(true: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Wait until `true()` is; fails the test otherwise."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while not true():
        assert loop.time() < end, f"not within {within_s} s"
        await asyncio.sleep(0.005)
