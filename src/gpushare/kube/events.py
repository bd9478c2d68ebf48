"""Events for people: what `kubectl describe` shows of what we did or found.

`Recorder.event` only notes; `Recorder.run` writes, one request at a time. Events are a courtesy, so
everything here may be lost but nothing may hold the caller up, grow, or flood the API server:

* A **series** is one (object, reason, part of the object). Its first Event is written at once; what
  follows within `interval_s` is counted, and the last message is written when the interval is over,
  as a PATCH of the same Event (count, lastTimestamp, message). An Event that has expired meanwhile
  (after an hour by default) is created anew.
* With too many series the one quiet for longest is forgotten; it would start anew.
* Writes are spaced, at most `max_per_s`.
* What cannot be written is dropped; the first failure in a row is logged. A pod or namespace gone
  meanwhile is no failure.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import NoReturn

import msgspec

from gpushare.kube.connection import STRATEGIC_PATCH, Connection
from gpushare.kube.errors import KubeError, NotFound
from gpushare.kube.moments import set_within
from gpushare.kube.objects import Node, Pod

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
"""One Event a minute per object and reason is enough for a person, and nothing for etcd."""
MAX_SERIES = 4096
MAX_PER_S = 10.0
MAX_MESSAGE_BYTES = 1024
"""The API server's limit for `message`."""


class Severity(StrEnum):
    """An Event's `type`."""

    NORMAL = "Normal"
    WARNING = "Warning"


class About(msgspec.Struct, frozen=True, rename="camel", gc=False, omit_defaults=True):
    """An Event's `involvedObject`."""

    kind: str
    name: str
    uid: str
    namespace: str = ""
    api_version: str = msgspec.field(default="", name="apiVersion")

    @classmethod
    def pod(cls, pod: Pod) -> About:
        meta = pod.metadata
        return cls("Pod", meta.name, meta.uid, meta.namespace, "v1")

    @classmethod
    def node(cls, node: Node) -> About:
        return cls("Node", node.metadata.name, node.metadata.uid, "", "v1")


@dataclass(slots=True)
class _Series:
    about: About
    reason: str
    severity: Severity
    message: str
    first: datetime
    last: datetime
    count: int = 0
    """As written so far."""
    unwritten: int = 0
    name: str | None = None
    """The Event's, once it has been created."""
    next_write: float = 0.0
    """Not before this time of the clock."""


_Key = tuple[str, str, str, str]  # kind, uid (or name), reason, part


@dataclass
class Recorder:
    """Writes Events as `component` ("gpushare-extender"). `run` must be running."""

    connection: Connection
    component: str
    host: str = field(default_factory=lambda: os.environ.get("NODE_NAME") or socket.gethostname())
    interval_s: float = INTERVAL_S
    max_series: int = MAX_SERIES
    max_per_s: float = MAX_PER_S
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    written: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)
    """Notes lost: could not be written, or pushed out by too many others."""

    def __post_init__(self) -> None:
        self._series: OrderedDict[_Key, _Series] = OrderedDict()  # longest untouched first
        self._due: list[tuple[float, _Key]] = []  # heap of (time, series with something unwritten)
        self._wake = asyncio.Event()
        self._failing = False

    def event(
        self, about: About, severity: Severity, reason: str, message: str, part: str = ""
    ) -> None:
        """Note an Event. Never blocks, never raises.

        `reason` is a constant in CamelCase ("GPUMemoryFragmented"); `message` is for a person, cut
        at 1 KiB. `part` is what of the object it tells of, where another part may have the same to
        tell: a GPU of a node.
        """
        key = (about.kind, about.uid or about.name, reason, part)
        now = self.now()
        series = self._series.get(key)
        if series is None:
            series = _Series(about, reason, severity, message, first=now, last=now)
            self._series[key] = series
            self._make_room()
        self._series.move_to_end(key)
        series.severity, series.message, series.last = severity, message, now
        series.unwritten += 1
        if series.unwritten == 1:
            heapq.heappush(self._due, (max(series.next_write, self.clock()), key))
            self._wake.set()

    def _make_room(self) -> None:
        while len(self._series) > self.max_series:
            _, oldest = self._series.popitem(last=False)
            self.dropped += oldest.unwritten

    async def run(self) -> NoReturn:
        """Write what is noted, until cancelled."""
        while True:
            self._wake.clear()
            wait_s = self._due[0][0] - self.clock() if self._due else None
            if wait_s is None or wait_s > 0:
                await set_within(self._wake, wait_s)
                continue
            _, key = heapq.heappop(self._due)
            series = self._series.get(key)
            if series is not None and series.unwritten:
                await self._write(series)
                await asyncio.sleep(1 / self.max_per_s)

    async def _write(self, series: _Series) -> None:
        series.next_write = self.clock() + self.interval_s
        news, series.unwritten = series.unwritten, 0
        series.count += news
        try:
            if series.name is None or not await self._patch(series):
                await self._create(series)
        except KubeError as error:
            self._failed(series, news, error)
        else:
            self._failing = False
            self.written += 1

    def _failed(self, series: _Series, news: int, error: KubeError) -> None:
        self.dropped += news
        gone = isinstance(error, NotFound) or "being terminated" in str(error)
        if not gone and not self._failing:
            self._failing = True
            log.warning(
                "cannot write Events (said once until it works again): %s; this one: %s, %s %s: %s",
                error,
                series.reason,
                series.about.kind,
                series.about.name,
                series.message,
            )

    async def _create(self, series: _Series) -> None:
        about = series.about
        namespace = about.namespace or "default"
        # As client-go names them: the object's name and a time, unique enough for one writer.
        name = f"{about.name[:200]}.{time.time_ns():x}"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": about,
            "reason": series.reason,
            "type": series.severity,
            "source": {"component": self.component, "host": self.host},
            "reportingComponent": self.component,
            "reportingInstance": self.host,
            "firstTimestamp": _rfc3339(series.first),
            **self._news(series),
        }
        await self.connection.post(_path(about), body)
        series.name = name

    async def _patch(self, series: _Series) -> bool:
        """False if the Event is no longer there."""
        try:
            await self.connection.request(
                "PATCH",
                f"{_path(series.about)}/{series.name}",
                body=self._news(series),
                content_type=STRATEGIC_PATCH,
            )
        except NotFound:
            series.name, series.first, series.count = None, series.last, 1
            return False
        return True

    def _news(self, series: _Series) -> dict[str, object]:
        return {
            "message": _cut(series.message),
            "count": series.count,
            "lastTimestamp": _rfc3339(series.last),
        }


def _path(about: About) -> str:
    return f"/api/v1/namespaces/{about.namespace or 'default'}/events"


def _rfc3339(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _cut(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= MAX_MESSAGE_BYTES:
        return message
    return encoded[: MAX_MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "…"
