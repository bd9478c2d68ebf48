"""Following one kind of object: every change in order, and nothing missed for long.

    list, page by page ──► differences to what we know ──► handler: deleted…, changed…, listed
      ▲                                                        │
      │ 410, broken line, too many failures                    ▼
      └─────────────────── watch from the list's resource version ──► handler: changed / deleted
                             ▲        │ end, error, silence
                             └────────┘ resume from the last version seen, with backoff

**Objects are known by UID**, never by name: a StatefulSet pod deleted and created again under its
name is one that vanished and one that is new. Of each object only its UID, name and version are
kept here, not the object.

**Resuming.** Every event and every bookmark (about one a minute, also when nothing happens) moves
the resume point, so that a watch that ends goes on where it was. Ends are normal: we ask for one
after 5 to 10 minutes, drawn at random so that thousands of watches don't end together.

**410 Gone**, as the answer or as an ERROR event: the API server has forgotten our resume point. The
state is listed anew and compared with what we know; only differences reach the handler, vanished
objects first, all in one go: no other coroutine sees a half-done replacement. What such a list
finds is logged, it is what the watch had missed. The same when a line cannot be read, when a
bookmark is older than our resume point (the API server's history was set back, as by restoring a
backup), and when many resumes in a row were answered but brought nothing.

**Silence.** A connection can be half open: the peer is gone, and no packet will ever say so. Since
bookmarks come about each minute, no byte for `idle_timeout_s` (90 s) means that; the watch is begun
again. TCP keep-alive alone would not do: a proxy in between keeps its half alive.

**Failures** are retried for ever, with backoff; `last_error` says what is wrong in the meantime and
`contact_age_s` since when. An exception of the handler is not caught: the state it keeps can no
longer be trusted, so `run` ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, Protocol, TypeVar

from gpushare.kube.backoff import Backoff
from gpushare.kube.connection import Connection
from gpushare.kube.errors import ApiError, Gone, KubeError, Malformed, WentSilent
from gpushare.kube.listing import PAGE_SIZE, list_pages, page_sizes
from gpushare.kube.resources import ALL, KubeObject, Ref, Resource, Selector
from gpushare.kube.watch import Bookmark, Changed, LineSplitter, WatchDecoder

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubeObject)
T_contra = TypeVar("T_contra", bound=KubeObject, contravariant=True)

IDLE_TIMEOUT_S = 90.0
"""Half again the minute between bookmarks."""
WATCH_S = (300, 600)
"""For how long a watch is asked for: drawn between these."""
STEADY_S = 10.0
"""A watch that lived this long, or brought anything, was no failure, however it ended."""
FRUITLESS_UNTIL_LIST = 6
"""So many watches in a row answered without anything, and the resume point itself is in doubt."""


class Handler(Protocol[T_contra]):
    """Who keeps the state. Called synchronously, in order; must not block."""

    def changed(self, obj: T_contra) -> None:
        """`obj` is new, or has a new version; its UID tells which. May be told twice."""

    def deleted(self, ref: Ref) -> None:
        """The object is gone, or is no longer selected."""

    def listed(self) -> None:
        """All changes of a full list have been told: the state is complete."""


@dataclass
class Counters:
    """How often what happened, since the start."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    corrections: int = 0
    """Objects that a list, not the first, found other than the watch had told."""
    idle_timeouts: int = 0
    gone: int = 0
    errors: int = 0


class Reflector(Generic[T]):
    """Keeps a handler up to date with one kind of object. `run` does it; the rest can be asked.

    `synced` is set once the first full list has reached the handler; `resource_version` is the
    resume point, "" before the first list.
    """

    def __init__(
        self,
        connection: Connection,
        resource: Resource[T],
        handler: Handler[T],
        selector: Selector = ALL,
        *,
        page_size: int = PAGE_SIZE,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        watch_s: tuple[int, int] = WATCH_S,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.resource = resource
        self.selector = selector
        self.synced = asyncio.Event()
        self.resource_version = ""
        self.counters = Counters()
        self.last_error: str | None = None
        self._connection = connection
        self._handler = handler
        self._page_size = page_size
        self._idle_timeout_s = idle_timeout_s
        self._watch_s = watch_s
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._last_contact = clock()
        self._known: dict[str, Ref] = {}  # uid -> what we know of it
        self._decoder = WatchDecoder(resource.type, f"watch of {resource.name}{selector}")
        self._progress = False
        self._fruitless = 0  # rounds in a row
        self._was_gone = False  # since the last progress

    def contact_age_s(self) -> float:
        """Seconds since the API server was last heard; from the start, if never."""
        return self._clock() - self._last_contact

    def count(self) -> int:
        """How many objects are known."""
        return len(self._known)

    async def run(self) -> NoReturn:
        """List and watch until cancelled.

        Raises: only what the handler raises.
        """
        while True:
            delay_s = await self._follow()
            if delay_s:
                await asyncio.sleep(delay_s)

    async def _follow(self) -> float:
        """One list if needed, one watch. The delay before the next."""
        self._progress = False
        opened = self._clock()
        error: KubeError | None = None
        try:
            if not self.resource_version:
                await self._list()
                opened = self._clock()
            await self._watch()
        except (Gone, Malformed) as distrusted:
            error = distrusted
            self.resource_version = ""
        except KubeError as other:
            error = other
        if self._progress or self._clock() - opened >= STEADY_S:
            self._backoff.reset()
            self._fruitless = 0
            self._was_gone = False
            if error is None:
                return 0.0
        return self._after(error)

    def _after(self, error: KubeError | None) -> float:
        """What a round that went wrong leaves behind. The delay before the next."""
        delay_s = self._backoff.next_s()
        if isinstance(error, Gone):
            self.counters.gone += 1
            if not self._was_gone:
                delay_s = 0.0  # we were away too long, or the API server was; a list mends it
            self._was_gone = True
        elif error is None or type(error) is ApiError:
            # Answered, and yet nothing came: 5xx, 400, or an end at once.
            self._fruitless += 1
            if self._fruitless >= FRUITLESS_UNTIL_LIST:
                self._fruitless = 0
                self.resource_version = ""
        if isinstance(error, ApiError) and error.retry_after_s:
            delay_s = max(delay_s, error.retry_after_s)
        if isinstance(error, WentSilent):
            self.counters.idle_timeouts += 1
        if error is not None:
            self.counters.errors += 1
            self.last_error = str(error)
            again = "watching" if self.resource_version else "listing"
            level = logging.INFO if isinstance(error, Gone) else logging.WARNING
            self._say(level, f"{error}; {again} again in {delay_s:.1f} s")
        return delay_s

    def _say(self, level: int, text: str) -> None:
        log.log(level, "%s%s: %s", self.resource.name, self.selector, text)

    def _contact(self) -> None:
        self._last_contact = self._clock()

    async def _list(self) -> None:
        for size in page_sizes(self._page_size):
            seen: dict[str, Ref] = {}
            differing: list[T] = []
            try:
                async for page in list_pages(
                    self._connection, self.resource, self.selector, page_size=size
                ):
                    self._contact()
                    for obj in page.items or ():
                        ref = Ref.of(obj.metadata)
                        known = self._known.get(ref.uid)
                        if known is None or known.resource_version != ref.resource_version:
                            differing.append(obj)
                            known = ref
                        seen[ref.uid] = known
            except Gone as gone:
                if not size:
                    raise
                self._say(logging.INFO, f"{gone}; listing in one piece")
            else:
                self._replace(seen, differing, page.metadata.resource_version)
                return

    def _replace(self, seen: dict[str, Ref], differing: list[T], version: str) -> None:
        vanished = [ref for uid, ref in self._known.items() if uid not in seen]
        if self.synced.is_set() and (vanished or differing):
            self.counters.corrections += len(vanished) + len(differing)
            self._say(logging.INFO, _corrections(vanished, differing))
        self._known = seen
        self.resource_version = version
        for ref in vanished:
            self._handler.deleted(ref)
        for obj in differing:
            self._handler.changed(obj)
        self._handler.listed()
        self.counters.lists += 1
        self.synced.set()

    async def _watch(self) -> None:
        params = {
            **self.selector.params(),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.resource_version,
            "timeoutSeconds": str(random.randint(*self._watch_s)),
        }
        splitter = LineSplitter()
        async with self._connection.stream(
            self.resource.path, params=params, idle_timeout_s=self._idle_timeout_s
        ) as chunks:
            self.counters.watches += 1
            self._contact()
            self.last_error = None
            async for chunk in chunks:
                self._contact()
                for line in splitter.feed(chunk):
                    if line:
                        self._event(line)

    def _event(self, line: bytes) -> None:
        event = self._decoder.decode(line)
        if isinstance(event, Bookmark):
            self._bookmark(event)
        else:
            ref = Ref.of(event.object.metadata)
            self.counters.events += 1
            self.resource_version = ref.resource_version
            if isinstance(event, Changed):
                self._known[ref.uid] = ref
                self._handler.changed(event.object)
            elif self._known.pop(ref.uid, None) is not None:
                self._handler.deleted(ref)
        self._progress = True

    def _bookmark(self, bookmark: Bookmark) -> None:
        new, old = bookmark.resource_version, self.resource_version
        if new.isdigit() and old.isdigit() and int(new) < int(old):
            raise Malformed(
                f"a bookmark at {new}, before our {old}: the API server's history was set back"
            )
        self.counters.bookmarks += 1
        self.resource_version = new


def _corrections(vanished: list[Ref], differing: list[T]) -> str:
    """What a list found that the watch had not told, with a few names."""
    found = {"gone": vanished, "new or changed": [Ref.of(obj.metadata) for obj in differing]}
    parts = [
        f"{len(refs)} {what} ({', '.join(map(str, refs[:5]))}{', …' if len(refs) > 5 else ''})"
        for what, refs in found.items()
        if refs
    ]
    return "the list found what the watch had missed: " + "; ".join(parts)
