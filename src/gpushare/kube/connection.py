"""One API server: requests, streams, typed errors.

A thin layer over aiohttp's client (docs/decisions/0003-api-client.md says why that one):

* every request asks the credentials for its header, so that a rotated token counts at once; a 401
  makes them look again, and the request is repeated once if that gave another header;
* an answer that is no success becomes a typed ApiError from the Status the API server sent; no
  answer becomes Unreachable or TimedOut (`errors` has the tree). Nothing else is retried here: what
  may be repeated, and for how long, is the caller's knowledge;
* a certificate that is not accepted makes the TLS files be read again for the next attempt.

Redirects are not followed: they would carry the token elsewhere. Answers are asked for
uncompressed: in the same data centre gzip costs the API server more than it saves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, TypeVar

import aiohttp
import msgspec
from yarl import URL

from gpushare.kube.config import Config, load
from gpushare.kube.errors import (
    ConfigError,
    Malformed,
    TimedOut,
    Unreachable,
    WentSilent,
    error_from_answer,
)

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
"""A TCP and TLS handshake within a cluster takes milliseconds; a dead address costs this."""
REQUEST_TIMEOUT_S = 10.0
"""The default for a whole request; lists and bindings bring their own."""
KEEPALIVE_S = 30.0  # the longer idle, the likelier a dead peer behind it
MAX_CONNECTIONS = 64  # watches hold one each, about 8 bindings are in flight, the rest is room
READ_BUFFER_BYTES = 256 * 1024

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


class Connection:
    """Requests to one API server. To be closed, or used as an async context manager."""

    def __init__(
        self,
        config: Config,
        *,
        component: str = "",
        timeout_s: float = REQUEST_TIMEOUT_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """Connect to what `config` names; must be called where an event loop runs.

        `component` ("extender") shows in the API server's audit log.
        """
        self.config = config
        self._timeout_s = timeout_s
        agent = f"gpushare/{version('kube-gpushare')}" + (f" ({component})" if component else "")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=config.tls if config.tls is not None else True,
                limit=max_connections,
                keepalive_timeout=KEEPALIVE_S,
            ),
            headers=[
                ("User-Agent", agent),
                ("Accept", JSON),
                ("Accept-Encoding", "identity"),
                *config.headers,
            ],
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER_BYTES,
        )

    @classmethod
    def open(
        cls,
        kubeconfig: Path | str | None = None,
        context: str | None = None,
        *,
        component: str = "",
    ) -> Connection:
        """The connection for `--kubeconfig FILE [--context NAME]`, or in-cluster without FILE.

        Raises: ConfigError.
        """
        return cls(load(kubeconfig, context), component=component)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = JSON,
        timeout_s: float | None = None,
    ) -> bytes:
        """One request, the bytes of its answer. `body` is encoded as JSON.

        Raises: ApiError (by status), TimedOut after `timeout_s` in all, Unreachable, ConfigError
        when there are no credentials to be had.
        """
        where = f"{method} {path}"
        total = self._timeout_s if timeout_s is None else timeout_s
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                asyncio.timeout(total),
                await self._open(
                    method, path, params, data, content_type, timeout, where
                ) as answer,
            ):
                return await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            self._raise(error, where, total)

    async def get(
        self,
        path: str,
        type_: type[T],
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """GET `path`, decoded as `type_`. Raises: as `request`, and Malformed."""
        answer = await self.request("GET", path, params=params, timeout_s=timeout_s)
        return decoded(answer, type_, f"GET {path}")

    async def post(self, path: str, body: object, *, timeout_s: float | None = None) -> bytes:
        """POST `body`. Raises: as `request`."""
        return await self.request("POST", path, body=body, timeout_s=timeout_s)

    async def patch(
        self,
        path: str,
        body: object,
        type_: type[T],
        *,
        content_type: str = MERGE_PATCH,
        timeout_s: float | None = None,
    ) -> T:
        """PATCH `path`; the object as it is afterwards. Raises: as `request`, and Malformed."""
        answer = await self.request(
            "PATCH", path, body=body, content_type=content_type, timeout_s=timeout_s
        )
        return decoded(answer, type_, f"PATCH {path}")

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], idle_timeout_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """GET `path` as a stream of byte chunks, of whatever size they arrive in.

        Raises, on entering and while iterating: as `request`; WentSilent when no byte has come for
        `idle_timeout_s`; Unreachable when the connection breaks in the middle. The iteration ends
        when the API server ends its answer.
        """
        where = f"GET {path} (watch)"
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=idle_timeout_s
        )
        try:
            response = await self._open("GET", path, params, None, JSON, timeout, where)
        except (aiohttp.ClientError, OSError) as error:
            self._raise(error, where, idle_timeout_s)
        try:
            yield self._chunks(response, where, idle_timeout_s)
        finally:
            response.close()

    async def _chunks(
        self, response: aiohttp.ClientResponse, where: str, idle_timeout_s: float
    ) -> AsyncIterator[bytes]:
        chunks = response.content.iter_any()
        while True:
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise WentSilent(
                    f"{where}: {self.config.server} sent no byte for {idle_timeout_s:g} s; "
                    "the connection is taken for half open"
                ) from error
            except (aiohttp.ClientError, OSError) as error:
                self._raise(error, where, idle_timeout_s)
            yield chunk

    async def _open(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
        where: str,
    ) -> aiohttp.ClientResponse:
        """The response, its status a success and its body unread. Raises: ApiError, aiohttp's."""
        config = self.config
        url = URL(config.server + path)
        if params:
            url = url.with_query(params)
        for last_try in (False, True):
            bearer = await config.credentials.header()
            headers = {} if bearer is None else {"Authorization": bearer}
            if data is not None:
                headers["Content-Type"] = content_type
            response = await self._session.request(
                method,
                url,
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                proxy=config.proxy,
                server_hostname=config.tls_server_name,
            )
            if response.status < 300:
                return response
            answer = await response.read()
            if response.status == 401:
                response.close()
                if not last_try and await config.credentials.renew(bearer):
                    continue
                _reload_tls(config)  # a rotated client certificate counts for new connections
            raise error_from_answer(response.status, answer, where, response.headers)
        raise AssertionError("the last try returns or raises")

    def _raise(self, error: Exception, where: str, timeout_s: float) -> NoReturn:
        """Raise ours for a transport's error."""
        server, origin = self.config.server, self.config.origin
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            raise TimedOut(
                f"{where}: no connection to {server} within {CONNECT_TIMEOUT_S:g} s ({origin})",
                sent=False,
            ) from error
        if isinstance(error, TimeoutError):
            raise TimedOut(f"{where}: {server} gave no answer within {timeout_s:g} s") from error
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
            text = _reload_tls(self.config)
            raise Unreachable(
                f"{where}: TLS with {server} failed: {error}{text} ({origin})", sent=False
            ) from error
        if isinstance(error, aiohttp.ClientConnectorError):
            why = error.os_error.strerror or str(error)
            raise Unreachable(
                f"{where}: {server} cannot be reached: {why} ({origin})", sent=False
            ) from error
        if isinstance(error, aiohttp.ClientPayloadError):
            raise Unreachable(f"{where}: {server} broke off in the middle of its answer") from error
        why = str(error) or type(error).__name__
        raise Unreachable(f"{where}: the connection to {server} broke: {why}") from error


def _reload_tls(config: Config) -> str:
    try:
        config.reload_tls()
    except ConfigError as error:
        return f"; reading the certificates again: {error}"
    return "; CA and certificates were read again for the next attempt"


def decoded(answer: bytes, type_: type[T], where: str) -> T:
    """`answer` as `type_`. Raises: Malformed."""
    try:
        return msgspec.json.decode(answer, type=type_)
    except msgspec.DecodeError as error:
        raise Malformed(f"{where}: the answer cannot be read: {error}") from error
