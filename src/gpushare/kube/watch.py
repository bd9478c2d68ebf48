"""What a watch stream is made of: bytes -> lines -> events.

The API server writes one JSON object a line, `{"type":"MODIFIED","object":{…}}`, in chunks cut
anywhere. A chunk mostly ends with a line, so that splitting it is one call; the rest of a cut line
is kept in pieces and joined once, however many chunks it takes.

A line is decoded straight into the Struct of its kind. BOOKMARK and ERROR carry other objects; they
are rare, so that a second look at such a line costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from gpushare.kube.errors import Malformed, Status
from gpushare.kube.objects import ApiStruct, ListMeta
from gpushare.kube.resources import KubeObject

T = TypeVar("T", bound=KubeObject)
Item = TypeVar("Item")

MAX_LINE_BYTES = 32 * 1024 * 1024
"""Objects are limited to a few MB by etcd; a longer line is no watch event."""


class LineSplitter:
    """Cuts a stream of chunks into lines, without their newlines."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._pieces: list[bytes] = []
        self._pending = 0
        self._max = max_line_bytes

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes.

        Raises: Malformed when a line does not end.
        """
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._pieces:
            self._pieces.append(lines[0])
            lines[0] = b"".join(self._pieces)
            self._pieces.clear()
            self._pending = 0
        if rest:
            self._pieces.append(rest)
            self._pending += len(rest)
            if self._pending > self._max:
                raise Malformed(f"a watch line longer than {self._max} bytes")
        return lines


class WatchEvent(ApiStruct, Generic[Item]):
    """One line of a watch."""

    type: str
    object: Item


class _BookmarkObject(ApiStruct):
    metadata: ListMeta


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """ADDED or MODIFIED."""

    object: T


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    """DELETED, or no longer selected: the object's last state."""

    object: T


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Nothing new up to this resource version."""

    resource_version: str


class WatchDecoder(Generic[T]):
    """Decodes the lines of a watch on one kind of object."""

    def __init__(self, type_: type[T], where: str) -> None:
        """`where` names the watch in errors."""
        self._where = where
        self._objects: msgspec.json.Decoder[WatchEvent[T]] = msgspec.json.Decoder(
            WatchEvent[type_]  # type: ignore[valid-type]
        )
        self._raw = msgspec.json.Decoder(WatchEvent[msgspec.Raw])

    def decode(self, line: bytes) -> Changed[T] | Deleted[T] | Bookmark:
        """The event of one line.

        Raises: the ApiError that an ERROR event carries (Gone above all), Malformed.
        """
        try:
            event = self._objects.decode(line)
        except msgspec.DecodeError as error:
            return self._other(line, error)
        if event.type in ("ADDED", "MODIFIED", "DELETED"):
            meta = event.object.metadata
            if not meta.uid or not meta.resource_version:
                raise Malformed(f"{self._where}: an object without uid or resourceVersion")
            return Deleted(event.object) if event.type == "DELETED" else Changed(event.object)
        return self._other(line, None)

    def _other(self, line: bytes, why: msgspec.DecodeError | None) -> Bookmark:
        """A line that carries no object of the kind watched."""
        try:
            event = self._raw.decode(line)
            if event.type == "ERROR":
                raise msgspec.json.decode(event.object, type=Status).error(self._where)
            if event.type == "BOOKMARK":
                bookmark = msgspec.json.decode(event.object, type=_BookmarkObject)
                if bookmark.metadata.resource_version:
                    return Bookmark(bookmark.metadata.resource_version)
        except msgspec.DecodeError as error:
            why = why or error
        text = line[:200].decode("utf-8", "replace")
        raise Malformed(
            f"{self._where}: a line that cannot be read ({why or 'unknown event'}): {text}"
        )
