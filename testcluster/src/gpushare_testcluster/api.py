"""A small client for the API server: plain dicts in and out, a kept-alive connection per thread.

For tests, as the administrator. Objects are what `kubectl -o json` shows; nothing is modelled.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from gpushare_testcluster.errors import TestClusterError
from gpushare_testcluster.resources import resource_of_kind, resource_path

Object = dict[str, Any]

PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


IDLE_S = 30.0
"""A kept-alive connection that rested longer may have been closed by the server meanwhile."""


class ApiError(TestClusterError):
    """The API server said no.

    status: the HTTP status; reason: Kubernetes' own word for it (`NotFound`, `Conflict`, …).
    """

    def __init__(self, status: int, reason: str, message: str, request: str) -> None:
        super().__init__(f"{request}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Api:
    """Talks to one API server with one token. Safe to use from several threads."""

    def __init__(self, server: str, ca: Path, token: str, *, timeout_s: float = 30) -> None:
        url = urlsplit(server)
        self._host = url.hostname or ""
        self._port = url.port or 443
        self._token = token
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._local = threading.local()

    # -- requests ------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: dict[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """One request; returns the decoded JSON (the text where it is not JSON).

        Raises ApiError for an answer of 400 or more, OSError when the server cannot be reached.
        A GET is tried again once when the kept-alive connection turns out to be closed.
        """
        if query := _query(params):
            path = f"{path}?{query}"
        data = None if body is None else json.dumps(body).encode()
        fresh = getattr(self._local, "connection", None) is None
        try:
            status, raw = self._exchange(method, path, data, content_type)
        except (http.client.HTTPException, ConnectionError, ssl.SSLError):
            self.close()
            if fresh or method != "GET":
                raise
            status, raw = self._exchange(method, path, data, content_type)
        except OSError:
            self.close()
            raise
        answer = _decode(raw)
        if status >= 400:
            raise _error(status, answer, f"{method} {path}")
        return answer

    def get(self, resource: str, name: str, *, namespace: str = "default") -> Object:
        """One object. Raises ApiError (status 404) when there is none."""
        answer: Object = self.request("GET", resource_path(resource, namespace, name))
        return answer

    def find(self, resource: str, name: str, *, namespace: str = "default") -> Object | None:
        """One object, or None when there is none."""
        try:
            return self.get(resource, name, namespace=namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(
        self,
        resource: str,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
    ) -> list[Object]:
        """The objects of a resource in one namespace, or in all (None).

        labels, fields: selectors as kubectl writes them (`app=x`, `spec.nodeName=n1`).
        """
        answer = self.request(
            "GET",
            resource_path(resource, namespace),
            params={"labelSelector": labels, "fieldSelector": fields},
        )
        items: list[Object] = answer.get("items") or []
        return items

    def create(self, obj: Object, *, namespace: str = "") -> Object:
        """Creates an object from its `kind` and `metadata`; returns it as stored.

        namespace: used where the object names none (default: `default`).
        """
        resource = resource_of_kind(obj["kind"])
        where = obj["metadata"].get("namespace") or namespace or "default"
        answer: Object = self.request("POST", resource_path(resource, where), obj)
        return answer

    def replace(self, obj: Object, *, subresource: str = "") -> Object:
        """PUTs a whole object, as read before and changed. Raises ApiError 409 on a conflict."""
        meta = obj["metadata"]
        path = resource_path(
            resource_of_kind(obj["kind"]), meta.get("namespace", "default"), meta["name"]
        )
        answer: Object = self.request("PUT", _sub(path, subresource), obj)
        return answer

    def patch(
        self,
        resource: str,
        name: str,
        body: Any,
        *,
        namespace: str = "default",
        subresource: str = "",
        type: str = "merge",
        params: dict[str, Any] | None = None,
    ) -> Object:
        """Patches an object; type: merge, strategic, json or apply."""
        answer: Object = self.request(
            "PATCH",
            _sub(resource_path(resource, namespace, name), subresource),
            body,
            params=params,
            content_type=PATCH_TYPES[type],
        )
        return answer

    def annotate(
        self, resource: str, name: str, namespace: str = "default", **annotations: str | None
    ) -> Object:
        """Sets annotations (None removes one). Names with dots: `**{"gpushare.dev/x": "1"}`."""
        return self.patch(
            resource, name, {"metadata": {"annotations": annotations}}, namespace=namespace
        )

    def label(
        self, resource: str, name: str, namespace: str = "default", **labels: str | None
    ) -> Object:
        """Sets labels (None removes one)."""
        return self.patch(resource, name, {"metadata": {"labels": labels}}, namespace=namespace)

    def delete(
        self,
        resource: str,
        name: str,
        *,
        namespace: str = "default",
        grace_s: int | None = None,
        propagation: str = "Background",
        missing_ok: bool = True,
    ) -> None:
        """Deletes an object; grace_s 0 removes a pod from the API at once."""
        options: Object = {"propagationPolicy": propagation}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self.request("DELETE", resource_path(resource, namespace, name), options)
        except ApiError as error:
            if not (missing_ok and error.status == 404):
                raise

    def watch(
        self,
        resource: str,
        *,
        namespace: str | None = None,
        resource_version: str | None = None,
        timeout_s: float = 3600,
        labels: str = "",
        fields: str = "",
    ) -> Iterator[Object]:
        """Yields events (`{"type": "ADDED", "object": {…}}`) on a connection of its own.

        Without resource_version it begins with an ADDED for each object that exists. Ends when
        the server ends it, after timeout_s at the latest, or when the generator is closed.
        """
        params = {
            "watch": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": max(1, int(timeout_s)),
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        path = f"{resource_path(resource, namespace)}?{_query(params)}"
        connection = self._connect()
        try:
            connection.request("GET", path, headers=self._headers())
            response = connection.getresponse()
            if response.status >= 400:
                raise _error(response.status, _decode(response.read()), f"GET {path}")
            connection.sock.settimeout(timeout_s + self._timeout_s)  # nothing may happen for long
            while line := response.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def close(self) -> None:
        """Closes this thread's connection; the next request opens another."""
        connection = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            connection.close()

    def ready(self) -> bool:
        """True when the API server answers /readyz with ok."""
        try:
            return bool(self.request("GET", "/readyz") == "ok")
        except (OSError, ApiError, http.client.HTTPException):
            return False

    # -- the wire ------------------------------------------------------------------------------

    def _connect(self) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(
            self._host, self._port, context=self._tls, timeout=self._timeout_s
        )
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _headers(self, content_type: str = "") -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if content_type:
            headers["Content-Type"] = content_type
        return headers

    def _exchange(
        self, method: str, path: str, data: bytes | None, content_type: str
    ) -> tuple[int, bytes]:
        if time.monotonic() - getattr(self._local, "used_at", 0.0) > IDLE_S:
            self.close()
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
        self._local.used_at = time.monotonic()
        headers = self._headers(content_type if data is not None else "")
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        raw = response.read()
        if response.status == 429:  # the server's own flow control: it says when to come back
            time.sleep(float(response.headers.get("Retry-After", "1")))
            return self._exchange(method, path, data, content_type)
        return response.status, raw


def _query(params: dict[str, Any] | None) -> str:
    kept = {key: value for key, value in (params or {}).items() if value not in (None, "")}
    return urlencode(kept, quote_via=quote)


def _sub(path: str, subresource: str) -> str:
    return f"{path}/{subresource}" if subresource else path


def _decode(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


def _error(status: int, answer: Any, request: str) -> ApiError:
    if isinstance(answer, dict):
        return ApiError(status, answer.get("reason", ""), answer.get("message", ""), request)
    return ApiError(status, "", str(answer), request)
