"""A proxy in front of the API server that delays, freezes, cuts and refuses on demand.

It ends TLS with the cluster's own certificate and sends everything on with the client's own
Authorization header. What happens to real clients on real networks can be made to happen: watches
that lag, connections that are dead without being closed, answers lost after the deed was done.

It runs in a thread of the process that made it. Everything may be set from any thread, at any time.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from gpushare_testcluster.pki import Pki

T = TypeVar("T")

_HOP_BY_HOP = frozenset(
    {"connection", "host", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer"}
)
_TICK_S = 0.01


class Request(NamedTuple):
    """A request the proxy has seen. path: with its query; at: time.monotonic()."""

    method: str
    path: str
    at: float


@dataclass
class Rule:
    """What to do with requests whose method is equal and in whose path `pattern` is found.

    delay_s: wait before sending it on; status: answer with this instead of sending it on;
    lose_answer: send it on, then cut the client's connection instead of answering;
    times: how often, None for always; hits: how often it was so far.
    """

    method: str
    pattern: re.Pattern[str]
    delay_s: float = 0
    status: int | None = None
    lose_answer: bool = False
    times: int | None = None
    hits: int = 0

    def takes(self, request: web.Request) -> bool:
        return (
            (self.times is None or self.hits < self.times)
            and request.method == self.method
            and self.pattern.search(request.path_qs) is not None
        )


@dataclass(eq=False)
class _Watch:
    """One open watch: the client's connection and whether it is to be ended as expired."""

    transport: asyncio.BaseTransport | None
    expired: bool = False


@dataclass
class _Gate:
    """held: nothing gets through; frozen: connections on which nothing moves any more."""

    held: bool = False
    frozen: set[asyncio.BaseTransport] = field(default_factory=set)

    async def passes(self, transport: asyncio.BaseTransport | None) -> None:
        while self.held or transport in self.frozen:  # noqa: ASYNC110 – set from other threads
            await asyncio.sleep(_TICK_S)


class Proxy:
    """See the module's docstring; make one with `Cluster.proxy()`.

    watch_delay_s: every piece of a watch's answer is passed on that long after it arrived.
    requests: everything asked so far, in order.
    """

    def __init__(self, server: str, pki: Pki) -> None:
        self.watch_delay_s = 0.0
        self.requests: list[Request] = []
        self.port = 0
        self._server = server
        self._pki = pki
        self._gate = _Gate()
        self._rules: list[Rule] = []
        self._refusals = 0
        self._watches: set[_Watch] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._start())

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    # -- what tests do -------------------------------------------------------------------------

    def freeze(self) -> None:
        """The connections now open stay open, but nothing moves on them: half-open, as after a
        router forgot them. New connections work.
        """

        async def freeze() -> None:
            self._gate.frozen |= self._transports()

        self._call(freeze())

    def hold(self) -> None:
        """Nothing gets through, on no connection, until `release`."""
        self._gate.held = True

    def release(self) -> None:
        """Ends `hold` and `freeze`; what was kept back arrives now."""
        self._gate.held = False
        self._gate.frozen = set()

    def cut(self, *, watches_only: bool = False) -> int:
        """Resets the open connections; returns how many."""

        async def cut() -> int:
            doomed = (
                {watch.transport for watch in self._watches if watch.transport}
                if watches_only
                else self._transports()
            )
            for transport in doomed:
                _abort(transport)
            return len(doomed)

        return self._call(cut())

    def expire_watches(self) -> int:
        """Ends each open watch with an ERROR event of code 410, as the API server does when the
        client is too far behind; returns how many.
        """

        async def expire() -> int:
            for watch in self._watches:
                watch.expired = True
            return len(self._watches)

        return self._call(expire())

    def refuse_watches(self, times: int = 1) -> None:
        """The next `times` watches that resume at a resourceVersion are answered 410."""
        self._refusals = times

    def on(
        self,
        method: str,
        pattern: str,
        *,
        delay_s: float = 0,
        status: int | None = None,
        lose_answer: bool = False,
        times: int | None = None,
    ) -> Rule:
        """Treats some requests specially; see `Rule`. The first rule that takes one decides."""
        rule = Rule(method, re.compile(pattern), delay_s, status, lose_answer, times)
        self._rules.append(rule)
        return rule

    def forget(self, rule: Rule) -> None:
        """Takes a rule back."""
        if rule in self._rules:
            self._rules.remove(rule)

    def count(self, method: str, pattern: str) -> int:
        """How many requests so far had this method and a path in which `pattern` is found."""
        wanted = re.compile(pattern)
        return sum(
            1 for seen in self.requests if seen.method == method and wanted.search(seen.path)
        )

    def open_watches(self) -> int:
        """How many watches are open through the proxy."""
        return len(self._watches)

    def close(self) -> None:
        """Ends the proxy and all its connections."""
        if not self._thread.is_alive():
            return
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    # -- inside the loop -----------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def _transports(self) -> set[asyncio.BaseTransport]:
        server = self._runner.server
        assert server is not None
        return {handler.transport for handler in server.connections if handler.transport}

    async def _start(self) -> None:
        upstream = ssl.create_default_context(cafile=str(self._pki.ca))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=upstream),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            trust_env=False,
        )
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self._pki.crt("server"), self._pki.key("server"))
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        self.release()
        for transport in self._transports():
            _abort(transport)
        await self._session.close()
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(Request(request.method, request.path_qs, time.monotonic()))
        body = await request.read()
        await self._gate.passes(request.transport)
        watch = request.query.get("watch") in ("true", "1")
        if watch and self._refusals and request.query.get("resourceVersion", "0") != "0":
            self._refusals -= 1
            return _status(410, "Expired", "too old resource version")
        rule = next((rule for rule in self._rules if rule.takes(request)), None)
        if rule is not None:
            rule.hits += 1
            await asyncio.sleep(rule.delay_s)
            if rule.status is not None:
                return _status(rule.status, "TestCluster", "answered by the test cluster's proxy")
        try:
            async with self._session.request(
                request.method,
                self._server + request.path_qs,
                headers=_passed_on(request.headers.items()),
                data=body or None,
                allow_redirects=False,
            ) as answer:
                if rule is not None and rule.lose_answer:
                    await answer.read()
                    _abort(request.transport)
                    return _status(502, "Lost", "nobody reads this: the connection is gone")
                response = web.StreamResponse(
                    status=answer.status,
                    reason=answer.reason,
                    headers=_passed_on(answer.headers.items()),
                )
                await response.prepare(request)
                if watch and answer.status == 200:
                    await self._pass_watch(request, answer, response)
                else:
                    async for piece in answer.content.iter_any():
                        await self._gate.passes(request.transport)
                        await response.write(piece)
                await response.write_eof()
                return response
        except aiohttp.ClientError:
            # The API server is away: the client sees what it would see without us.
            _abort(request.transport)
            return _status(502, "Gone", "nobody reads this: the connection is gone")

    async def _pass_watch(
        self, request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse
    ) -> None:
        watch = _Watch(request.transport)
        self._watches.add(watch)
        arrived: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        reader = asyncio.create_task(_read(answer, arrived))
        try:
            while True:
                at, piece = await _next(arrived, lambda: watch.expired)
                while (left := at + self.watch_delay_s - time.monotonic()) > 0:  # noqa: ASYNC110
                    await asyncio.sleep(min(left, 2 * _TICK_S))
                await self._gate.passes(request.transport)
                if watch.expired:
                    await response.write(_EXPIRED)
                    return
                if not piece:
                    return
                await response.write(piece)
        finally:
            self._watches.discard(watch)
            reader.cancel()


async def _read(
    answer: aiohttp.ClientResponse, arrived: asyncio.Queue[tuple[float, bytes]]
) -> None:
    """Notes when each piece arrived; an empty one is the end."""
    try:
        async for piece in answer.content.iter_any():
            arrived.put_nowait((time.monotonic(), piece))
    except aiohttp.ClientError:
        pass
    arrived.put_nowait((time.monotonic(), b""))


async def _next(
    arrived: asyncio.Queue[tuple[float, bytes]], ended: Callable[[], bool]
) -> tuple[float, bytes]:
    """The next piece, or an empty one as soon as `ended` is true."""
    while not ended():
        try:
            return await asyncio.wait_for(arrived.get(), 5 * _TICK_S)
        except TimeoutError:
            continue
    return 0.0, b""


def _abort(transport: asyncio.BaseTransport | None) -> None:
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()


def _passed_on(headers: Any) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP)


def _status(code: int, reason: str, message: str) -> web.Response:
    headers = {"Retry-After": "1"} if code in (429, 503) else {}
    return web.json_response(_status_object(code, reason, message), status=code, headers=headers)


def _status_object(code: int, reason: str, message: str) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


_EXPIRED = (
    json.dumps(
        {"type": "ERROR", "object": _status_object(410, "Expired", "too old resource version")}
    ).encode()
    + b"\n"
)
