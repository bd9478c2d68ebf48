"""Whether a container that runs is really held to its limits, as seen from the host.

Where CDI works, a hook has seen the container's files before its first instruction. Elsewhere the
pod's own mounts win over ours; and no file makes a program load a library that does not care. So it
is looked at while it runs, in /proc/<pid>. A container is **unprotected** if

1. its files are not in place, as its first process sees them: /etc/ld.so.preload does not begin
   with the library, the library is not the node's, the limits are not those it was given or can be
   written to; or
2. any of its processes uses the GPU without the library: it has libcuda mapped, or a GPU's device
   file mapped or open, and the library not.

A program that is static or for musl loads nothing of ours, and that alone is no fault: containers
are often started by one. It is one as soon as it uses the GPU, and no sooner can it be told. What
uses nothing at the moments it is looked at is not found.

The first process is the one that has run for longest. Processes that end meanwhile do not count.
Everything read here is the tenant's: paths are resolved within its root, only regular files are
read, and no more than they may hold.
"""

import ctypes
import errno
import itertools
import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.isolation.backend import (
    LIBRARY_IN_CONTAINER,
    LIMITS_IN_CONTAINER,
    PRELOAD_IN_CONTAINER,
)
from gpushare.isolation.limits import GpuLimit, LimitsError, decode_limits

MAX_FILES: Final = 4096
"""Open files of a process that are looked at; a GPU's are among the first."""
MAX_FILE_BYTES: Final = 64 << 10
"""Of a list of libraries, or limits."""

_SYS_OPENAT2: Final = 437  # on every architecture
_RESOLVE: Final = 0x10 | 0x02  # RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
_libc: Final = ctypes.CDLL(None, use_errno=True)

_GONE: Final = (FileNotFoundError, ProcessLookupError)
_DEVICE: Final = re.compile(r"/dev/nvidia([0-9]+|-uvm(-tools)?)")


class CannotTell(Exception):
    """Whether a container is protected cannot be told."""


class Ended(CannotTell):
    """None of its processes is there any more."""


class NotAllowed(CannotTell):
    """We may not look; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Given:
    """What holds a container."""

    limits: tuple[GpuLimit, ...]
    library: Path | None
    """On the host; None: not known which."""


def why_unprotected(proc: Path, pids: Sequence[int], given: Given) -> str | None:
    """Why a container is not held to its limits; None: it is, as far as can be seen.

    Raises Ended, NotAllowed, OSError.

    pids   its processes, by their numbers in `proc`
    """
    why = _of_files(proc, pids, given)
    if why is not None:
        return why
    refused: NotAllowed | None = None
    for pid in pids:
        try:
            with suppress(*_GONE):
                if uses_gpu_unheld(proc, pid):
                    return (
                        f"its program {_name(proc, pid)!r} uses the GPU without the library: it "
                        "is linked statically or for musl, or does without /etc/ld.so.preload"
                    )
        except PermissionError as error:
            refused = refused or _not_allowed(error)
    if refused is not None:
        raise refused
    return None


def uses_gpu_unheld(proc: Path, pid: int) -> bool:
    """Whether a process uses a GPU, and not through the library. Raises OSError."""
    uses = False
    for mapped in _mapped_files(proc, pid):
        path = mapped.removesuffix(" (deleted)")
        if path == LIBRARY_IN_CONTAINER:
            return False
        uses = uses or _of_gpu(path)
    return uses or any(map(_of_gpu, _open_files(proc, pid)))


def files_problem(root: int, given: Given) -> str | None:
    """What is not in place below a container's root, an open directory. Raises CannotTell."""
    list_ = PRELOAD_IN_CONTAINER
    try:
        with _opened(root, list_) as file:
            entries = _text(file).replace(":", " ").split()
    except FileNotFoundError:
        return f"it has no {list_}"
    except OSError as error:
        return f"its {list_} cannot be read: {error.strerror}"
    if entries[:1] != [LIBRARY_IN_CONTAINER]:
        return f"its {list_} is another, of the pod's or its image's own, and without the library"
    try:
        with _opened(root, LIBRARY_IN_CONTAINER) as file:
            if not _may_be(file, given.library):
                return f"its {LIBRARY_IN_CONTAINER} is not the node's"
    except OSError as error:
        return f"the library {LIBRARY_IN_CONTAINER} is missing: {error.strerror}"
    return _limits_problem(root, given.limits)


def _limits_problem(root: int, given: Sequence[GpuLimit]) -> str | None:
    try:
        with _opened(root, LIMITS_IN_CONTAINER) as file:
            read_only = os.fstatvfs(file).f_flag & os.ST_RDONLY
            told = decode_limits(_text(file))
    except LimitsError:
        return f"its {LIMITS_IN_CONTAINER} says something else than it was given"
    except OSError as error:
        return f"its {LIMITS_IN_CONTAINER} cannot be read: {error.strerror}"
    if set(told) != set(given):
        return f"its {LIMITS_IN_CONTAINER} says something else than it was given"
    return None if read_only else f"its {LIMITS_IN_CONTAINER} is not mounted read-only"


def _of_files(proc: Path, pids: Sequence[int], given: Given) -> str | None:
    """What is not in place, as the first process sees it. Raises CannotTell."""
    for pid in sorted(pids, key=lambda pid: (_started(proc, pid), pid)):
        try:
            root = os.open(proc / str(pid) / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except _GONE:
            continue
        except PermissionError as error:
            raise _not_allowed(error) from error
        try:
            return files_problem(root, given)
        finally:
            os.close(root)
    raise Ended


def _may_be(file: int, library: Path | None) -> bool:
    """Whether an opened file is that of the host, or like it: installed anew, it is another file.

    Where the host's has gone, nobody can tell. Raises OSError.
    """
    found = os.fstat(file)
    try:
        if library is None or os.path.samestat(found, library.stat()):
            return found.st_size > 0
        genuine = library.read_bytes()
    except FileNotFoundError:
        return found.st_size > 0
    return _content(file, len(genuine) + 1) == genuine


def _started(proc: Path, pid: int) -> int:
    """When a process started, in ticks since boot; of one that has gone, nothing of use."""
    try:
        text = (proc / str(pid) / "stat").read_bytes()
        return int(text.rpartition(b")")[2].split()[19])  # a name may hold anything, ")" too
    except (OSError, ValueError, IndexError):
        return 0


def _name(proc: Path, pid: int) -> str:
    """A program's name, which is its own to choose."""
    try:
        text = (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "?"
    return "".join(letter if letter.isprintable() else "?" for letter in text[:32])


def _of_gpu(path: str) -> bool:
    return path.rpartition("/")[2].startswith("libcuda.so") or bool(_DEVICE.fullmatch(path))


def _mapped_files(proc: Path, pid: int) -> set[str]:
    with open(proc / str(pid) / "maps", "rb") as file:
        lines = file.read().split(b"\n")
    return {os.fsdecode(line.split(None, 5)[5]) for line in lines if b" /" in line}


def _open_files(proc: Path, pid: int) -> Iterator[str]:
    with os.scandir(proc / str(pid) / "fd") as entries:
        for entry in itertools.islice(entries, MAX_FILES):
            with suppress(*_GONE):
                yield os.readlink(entry.path)


@contextmanager
def _opened(root: int, path: str) -> Iterator[int]:
    """A regular file as the container sees it, links within its root; not for reading yet.

    Raises OSError, NotAllowed.
    """
    how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE)
    file: int = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2), root, path.encode(), how, ctypes.c_size_t(len(how))
    )
    if file < 0:
        error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if error.errno in (errno.ENOSYS, errno.EPERM):  # a file of another's is EACCES
            raise NotAllowed(f"openat2, of Linux 5.6 and later, is refused: {error.strerror}")
        raise error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        yield file
    finally:
        os.close(file)


def _content(file: int, limit: int) -> bytes:
    """The beginning of an opened file. Raises OSError."""
    with open(f"/proc/self/fd/{file}", "rb") as readable:
        return readable.read(limit)


def _text(file: int) -> str:
    return _content(file, MAX_FILE_BYTES).decode("utf-8", "replace")


def _not_allowed(error: PermissionError) -> NotAllowed:
    return NotAllowed(
        f"their processes may not be looked at ({error.strerror}); it takes the capabilities "
        "SYS_PTRACE and DAC_READ_SEARCH"
    )
