"""The directory of each allocation: what was handed out, and what the hook wrote there.

    <home>/<id>/ids                       what was handed out, by us
    <home>/<id>/<uid>_<container>.json    a letter of the hook: who really got it

`<id>` is a hash of the device ids, so both sides know it without asking. The directories are root's
and on disk: they outlive the plugin and a reboot. No container can reach them. Their contents are
read as if one could: regular files only, of a bounded size, and what has another form is left out.
"""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

RECORD: Final = "ids"

MAX_LETTER_BYTES: Final = 16 << 10
MAX_LETTERS: Final = 64
"""In one directory: one for each container of a pod that was given these ids."""
MAX_RECORD_BYTES: Final = 4 << 20
MAX_TEXT: Final = 253
"""Of a UID or a container's name."""

_NAME: Final = re.compile(r"[0-9a-f]{32}")
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def allocation_id(ids: Iterable[str]) -> str:
    """The name of an allocation: a hash of its device ids, in whatever order they come."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:32]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What was handed out to one container."""

    version: int = 1
    ids: tuple[str, ...]
    env: dict[str, str]
    devices: tuple[str, ...] = ()
    """CDI devices of its GPUs that the kubelet was told to use; not our own."""
    owner: str = ""
    """UID of the pod it is taken to be for; the kubelet does not say."""
    chunk: int = 0
    """Of that pod, and the position of the call in it."""
    position: int = 0
    cdi: bool = True
    """The kubelet was told of our own CDI device."""
    limits: tuple[tuple[str, int, int], ...] = ()
    """(UUID, limit, reserve for each context) of its GPUs, in bytes. Empty: it is held to none."""
    library: str = ""
    """The interposer that holds it, on the host; a restarted container goes on with its own."""

    @property
    def id(self) -> str:
        return allocation_id(self.ids)


class _Letter(msgspec.Struct, frozen=True, rename="camel"):
    """As the hook writes it (native/hook/main.c); what later versions add is let pass."""

    version: int
    pod_uid: str
    container: str


@dataclass(frozen=True, slots=True)
class Letter:
    """A container was about to start with an allocation."""

    uid: str
    """Of its pod."""
    container: str
    written_ns: int
    """Unix ns."""


_records: Final = msgspec.json.Decoder(Record)
_letters: Final = msgspec.json.Decoder(_Letter)


@dataclass(frozen=True)
class Mailboxes:
    """The directories below `home`."""

    home: Path

    def path(self, name: str) -> Path:
        return self.home / name

    def names(self) -> list[str]:
        """The allocations that have a directory. Raises OSError."""
        try:
            with os.scandir(self.home) as entries:
                return sorted(
                    entry.name
                    for entry in entries
                    if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                )
        except FileNotFoundError:
            return []

    def renew(self, record: Record) -> Path:
        """Makes the directory of an allocation, without any letters. Raises OSError."""
        self.remove(record.id)
        return self.keep(record)

    def keep(self, record: Record) -> Path:
        """Makes the directory of an allocation if it is not there. Raises OSError."""
        path = self.path(record.id)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.record(record.id) is None:
            descriptor, temporary = tempfile.mkstemp(prefix=".new-", dir=path)
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(record))
            os.replace(temporary, path / RECORD)
        return path

    def remove(self, name: str) -> None:
        """Removes a directory and all that is in it. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path(name))

    def record(self, name: str) -> Record | None:
        """What was handed out; None where that cannot be read."""
        found = _read(self.path(name) / RECORD, MAX_RECORD_BYTES)
        try:
            record = _records.decode(found[0]) if found else None
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
        return record if record is not None and record.id == name else None

    def letters(self, name: str) -> Iterator[Letter]:
        """The letters in one directory."""
        try:
            with os.scandir(self.path(name)) as entries:
                files = sorted(entry.name for entry in entries if entry.name.endswith(".json"))
        except OSError:
            return
        for file in files[:MAX_LETTERS]:
            found = _read(self.path(name) / file, MAX_LETTER_BYTES)
            if found is None:
                continue
            try:
                letter = _letters.decode(found[0])
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                continue
            if letter.version == 1 and _plain(letter.pod_uid) and _plain(letter.container):
                yield Letter(letter.pod_uid, letter.container, found[1])

    def changed_ns(self, name: str) -> int | None:
        """When something last came into a directory, Unix ns; None where there is none."""
        try:
            return os.stat(self.path(name), follow_symlinks=False).st_mtime_ns
        except OSError:
            return None


def _plain(text: str) -> bool:
    return 0 < len(text) <= MAX_TEXT


def _read(path: Path, limit: int) -> tuple[bytes, int] | None:
    """A file's contents and when they were written, Unix ns; None for anything out of order."""
    try:
        descriptor = os.open(path, _READ_FLAGS)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return (data, status.st_mtime_ns) if len(data) <= limit else None
