"""What the processes of a container use: the region file they share.

The layout (native/interposer/region.h) is an interface between versions. The plugin makes the file
and reads it; the container's processes write it. It is the tenant's to write, so nothing read from
it is trusted: it is read by `pread` into a buffer of known size, never mapped (a truncated mapping
kills the reader), and amounts are taken as amounts only.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.isolation.limits import MAX_GPUS, GpuLimit

MAGIC: Final = 0x4552414853555047  # "GPUSHARE"
VERSION: Final = 1
HEADER_SIZE: Final = 4096
SLOT_SIZE: Final = 1024
SLOTS: Final = 256
SIZE: Final = HEADER_SIZE + SLOTS * SLOT_SIZE
LOCKS_AT: Final = 1 << 30
"""Byte LOCKS_AT + slot is locked while the slot's process lives."""

_HEADER: Final = struct.Struct("<QIIIIII")
_GPUS_AT: Final = 64
_GPU: Final = struct.Struct("<16sQQQQQQ")
_SLOT: Final = struct.Struct("<IIQ")
_USES_AT: Final = 64
_USE: Final = struct.Struct("<QQQQQQ")

_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# statfs magics of file systems where a lock is lost or not the kernel's own.
_OVERLAYFS: Final = 0x794C7630
_NETWORK: Final = frozenset({0x6969, 0xFF534D42, 0x517B, 0x65735546, 0x00C36400, 0x01021997})


class RegionError(Exception):
    """A region that cannot be read or made; the text says why."""


@dataclass(frozen=True, slots=True)
class Use:
    """What one process uses of one GPU, in bytes."""

    used: int
    peak: int
    refused: int
    """Allocations."""
    contexts: int
    """Of `used`, for contexts."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process with a place in the region; `uses` in the order of the limits file."""

    slot: int
    pid: int
    """As it sees itself in its container."""
    started_ns: int
    uses: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What a container uses of one GPU, in bytes."""

    uuid: str
    limit: int
    used: int
    peak: int
    refused: int


@dataclass(frozen=True, slots=True)
class Region:
    """A region as it was read; a process may have died since it wrote its part."""

    gpus: tuple[GpuUse, ...]
    processes: tuple[Process, ...]


def new_region(limits: Sequence[GpuLimit]) -> bytes:
    """The contents of a region in which no process has a place yet."""
    region = bytearray(SIZE)
    _HEADER.pack_into(region, 0, MAGIC, VERSION, SIZE, HEADER_SIZE, SLOT_SIZE, SLOTS, len(limits))
    for index, gpu in enumerate(limits):
        uuid = bytes.fromhex(gpu.uuid[4:].replace("-", ""))
        _GPU.pack_into(region, _GPUS_AT + index * _GPU.size, uuid, gpu.limit_bytes, 0, 0, 0, 0, 0)
    return bytes(region)


def decode_region(data: bytes, limits: Sequence[GpuLimit]) -> Region:
    """The region in `data`. Limits and names come from `limits`, never from the tenant's file.

    Raises RegionError for a version this program does not know, or for no region at all.
    """
    if len(data) < SIZE:
        raise RegionError(f"{len(data)} bytes, a region has {SIZE}")
    magic, version, size, *_ = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or size != SIZE:
        raise RegionError(f"no region of version {VERSION}")
    count = min(len(limits), MAX_GPUS)
    processes = tuple(
        process for slot in range(SLOTS) if (process := _process(data, slot, count)) is not None
    )
    gpus = []
    for index in range(count):
        _, _, _, peak, refused, extra, _ = _GPU.unpack_from(data, _GPUS_AT + index * _GPU.size)
        used = sum(process.uses[index].used for process in processes) + extra
        gpus.append(
            GpuUse(limits[index].uuid, limits[index].limit_bytes, used, max(peak, used), refused)
        )
    return Region(tuple(gpus), processes)


def _process(data: bytes, slot: int, count: int) -> Process | None:
    at = HEADER_SIZE + slot * SLOT_SIZE
    pid, _, started_ns = _SLOT.unpack_from(data, at)
    if not pid:
        return None
    uses = []
    for index in range(count):
        used, peak, refused, contexts, _, _ = _USE.unpack_from(
            data, at + _USES_AT + index * _USE.size
        )
        uses.append(Use(used, peak, refused, contexts))
    return Process(slot, pid, started_ns, tuple(uses))


def read_region(fd: int, limits: Sequence[GpuLimit]) -> Region:
    """The region behind a file descriptor kept from when it was made.

    Raises RegionError; a tenant can bring that about, by truncating the file for one.
    """
    try:
        data = os.pread(fd, SIZE, 0)
    except OSError as error:
        raise RegionError(f"the region cannot be read: {error.strerror}") from None
    return decode_region(data, limits)


def open_region(path: str | os.PathLike[str]) -> int:
    """A descriptor to read a region with. Never follows a link, never blocks on a pipe.

    Raises RegionError. The caller closes it.
    """
    try:
        fd = os.open(path, _READ_FLAGS)
    except OSError as error:
        raise RegionError(f"{os.fspath(path)} cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RegionError(f"{os.fspath(path)} is no regular file")
    return fd


def create_region(path: str | os.PathLike[str], limits: Sequence[GpuLimit]) -> None:
    """Makes a region that a container's processes may write, whoever they are.

    Raises RegionError, also where the file system loses the locks that say who lives.
    """
    directory = os.path.dirname(os.fspath(path)) or "."
    refuse_file_system(directory)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(fd, new_region(limits))
            os.fchmod(fd, 0o666)
        finally:
            os.close(fd)
    except OSError as error:
        raise RegionError(f"{os.fspath(path)} cannot be made: {error.strerror}") from None


def refuse_file_system(directory: str) -> None:
    """Raises RegionError where a region must not lie: overlayfs loses its locks."""
    kind = file_system(directory)
    if kind == _OVERLAYFS:
        raise RegionError(f"{directory} lies on overlayfs, which loses locks; use a tmpfs")
    if kind in _NETWORK:
        raise RegionError(f"{directory} lies on a network file system; use a tmpfs")


def file_system(directory: str | os.PathLike[str]) -> int:
    """statfs's f_type, which Python's own statvfs does not tell. Raises RegionError."""
    buffer = (ctypes.c_long * 32)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(directory), ctypes.byref(buffer)):
        number = ctypes.get_errno()
        raise RegionError(f"{os.fspath(directory)}: {os.strerror(number)}")
    return int(buffer[0]) & 0xFFFFFFFF
