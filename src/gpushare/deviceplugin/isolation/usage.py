"""What each container uses of its GPUs: read from the region of its allocation.

A container that is held to a limit counts what it takes in a file that it shares with us
(isolation.region). The file is the tenant's to write, so it is read through a descriptor that is
kept while the allocation lives, and what cannot be true is not passed on: the figures are then
missing, which is not the same as zero, and a line of the debug log says why.

A file without a name any more is an earlier allocation's of the same ids, if there is a new file
under the name. A process that was killed leaves its part in the file until the next one comes; what
the kernel no longer holds a lock for is left out here.
"""

import fcntl
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from gpushare.deviceplugin.core.books import Books
from gpushare.isolation.limits import GpuLimit
from gpushare.isolation.region import LOCKS_AT, RegionError, open_region, read_region
from gpushare.node.mailbox import Record, allocation_id

log = logging.getLogger(__name__)

PATH: Final = "/usage"
"""Where a plugin tells of it, by HTTP."""
VERSION: Final = 1
"""Of what it answers there."""

IMPLAUSIBLE: Final = 1 << 53
"""Bytes, or allocations: more than there can be, and as far as a float counts by ones."""

_LOCK: Final = struct.Struct("hhqqi4x")
"""struct flock on 64 bit: kind, whence, start, length, pid."""


class ContainerUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one container has of one GPU and uses there. What is not known is None, never 0."""

    namespace: str
    pod: str
    container: str
    gpu: int
    """Index."""
    uuid: str
    units: int
    """On this GPU."""
    limit_bytes: int | None = None
    """None: it is held to none."""
    used_bytes: int | None = None
    """What it is charged with."""
    real_bytes: int | None = None
    """What the driver says that it uses, some seconds ago."""
    unaccounted_bytes: int | None = None
    """How much more that was than what it was charged with then."""
    peak_bytes: int | None = None
    refused: int | None = None
    """Allocations, since the first process of this allocation."""
    unprotected: str | None = None
    """Why nothing holds it to its limit."""
    missing: str | None = None
    """Why it has a limit, and yet nobody knows what it uses."""


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `/usage` answers."""

    version: int = VERSION
    node: str
    unit: str
    containers: list[ContainerUse]


@dataclass(frozen=True, slots=True)
class Holder:
    """A container that was given device ids."""

    uid: str
    """Of its pod."""
    namespace: str
    pod: str
    container: str
    gpus: tuple[tuple[int, str], ...]
    """(index, UUID)"""
    units: int
    """On each of them."""
    allocation: str | None
    """None where only the kubelet knows which ids these are."""


def holders(books: Books) -> Iterator[Holder]:
    """Each container that was given ids; those of a pod in the order in which they start."""
    uuids = {gpu.index: gpu.uuid or "" for gpu in books.node.gpus}
    for pod in books.pods.values():
        record, facts = pod.facts.record, pod.facts
        if not pod.live:
            continue
        for piece in pod.pieces:
            if piece.grant is None or piece.place is None:
                continue
            for position, call in enumerate(piece.calls):
                ids = piece.grant.handed.get(position)
                if ids is None and not call.reused:
                    continue
                names = facts.init_names if call.ask.init else facts.app_names
                yield Holder(
                    record.uid,
                    record.namespace,
                    record.name,
                    names[call.ask.index],
                    tuple((index, uuids.get(index, "")) for index in piece.place),
                    call.ask.units // len(piece.place),
                    allocation_id(ids) if ids is not None else None,
                )


@dataclass(frozen=True, slots=True)
class _Figures:
    """Of one GPU, in bytes."""

    used: int
    peak: int
    refused: int


@dataclass(slots=True)
class _Kept:
    """A region that was opened."""

    fd: int
    refused: dict[str, int] = field(default_factory=dict)
    """GPU UUID -> the most that was ever read: a counter does not go backwards."""


class Usage:
    """Reads the regions when somebody asks.

    books        None until the plugin may serve
    records      name of an allocation -> what was handed out
    region_path  name of an allocation -> where its region lies; may raise RegionError
    unprotected  (UID of a pod, name of a container) -> why its limit does not hold
    real         the same and a GPU's UUID -> what the driver says it uses, and how much of that is
                 not accounted for (deviceplugin.truth)
    """

    def __init__(
        self,
        books: Callable[[], Books | None],
        records: Callable[[str], Record | None],
        region_path: Callable[[str], Path],
        unprotected: Callable[[], Mapping[tuple[str, str], str]] = dict,
        real: Callable[[], Mapping[tuple[str, str, str], tuple[int, int | None]]] = dict,
    ) -> None:
        self._books = books
        self._records = records
        self._region_path = region_path
        self._unprotected = unprotected
        self._real = real
        self._kept: dict[str, _Kept] = {}
        """Name of an allocation that somebody has -> its region."""

    def report(self) -> UsageReport | None:
        """All containers with GPU memory, by namespace, pod and GPU; None before the books are
        open. Raises nothing, whatever a tenant does."""
        books = self._books()
        if books is None:
            return None
        found = list(holders(books))
        last = {holder.allocation: holder for holder in found}
        """Allocation -> who has it now: an init container's ids can go on to a later one."""
        self._close_but(last.keys())
        why = self._unprotected()
        uses = [
            use
            for holder in found
            for use in self._of(
                holder, last[holder.allocation], why.get((holder.uid, holder.container))
            )
        ]
        uses.sort(key=lambda use: (use.namespace, use.pod))
        return UsageReport(node=books.node.name, unit=books.unit, containers=uses)

    def close(self) -> None:
        """Closes every region."""
        self._close_but(())

    def _of(self, holder: Holder, last: Holder, unprotected: str | None) -> Iterator[ContainerUse]:
        """One entry for each GPU. `last` is the last container with the same region."""
        record = self._records(holder.allocation) if holder.allocation else None
        limits = tuple(GpuLimit(*limit) for limit in record.limits) if record else ()
        limit_of = {limit.uuid: limit.limit_bytes for limit in limits}
        figures: Mapping[str, _Figures] = {}
        missing: str | None = None
        if holder.allocation and limits:
            if holder is not last:
                missing = f"counted with container {last.container}, which goes on with its memory"
            else:
                try:
                    figures = self._read(holder.allocation, limits)
                except (OSError, RegionError) as error:
                    missing = str(error)
                    log.debug(
                        "what container %s of pod %s/%s uses is not known: %s",
                        holder.container,
                        holder.namespace,
                        holder.pod,
                        error,
                    )
        measured = self._real()
        for index, uuid in holder.gpus:
            of_gpu = figures.get(uuid)
            real, unaccounted = measured.get((holder.uid, holder.container, uuid), (None, None))
            yield ContainerUse(
                namespace=holder.namespace,
                pod=holder.pod,
                container=holder.container,
                gpu=index,
                uuid=uuid,
                units=holder.units,
                limit_bytes=limit_of.get(uuid),
                used_bytes=of_gpu.used if of_gpu else None,
                real_bytes=real,
                unaccounted_bytes=unaccounted,
                peak_bytes=of_gpu.peak if of_gpu else None,
                refused=of_gpu.refused if of_gpu else None,
                unprotected=unprotected,
                missing=missing,
            )

    def _read(self, allocation: str, limits: Sequence[GpuLimit]) -> dict[str, _Figures]:
        """GPU UUID -> figures. Raises RegionError, OSError."""
        kept = self._opened(allocation)
        region = read_region(kept.fd, limits)
        dead = [process for process in region.processes if not _lives(kept.fd, process.slot)]
        figures: dict[str, _Figures] = {}
        for position, gpu in enumerate(region.gpus):
            used = gpu.used - sum(process.uses[position].used for process in dead)
            if max(used, gpu.peak, gpu.refused) >= IMPLAUSIBLE:
                raise RegionError(f"the region says what cannot be of GPU {gpu.uuid}")
            refused = max(gpu.refused, kept.refused.get(gpu.uuid, 0))
            figures[gpu.uuid] = _Figures(used, gpu.peak, refused)
        kept.refused = {uuid: of_gpu.refused for uuid, of_gpu in figures.items()}
        return figures

    def _opened(self, allocation: str) -> _Kept:
        """An allocation's region; opened once, and again only where it was made anew.

        Raises RegionError.
        """
        kept = self._kept.get(allocation)
        if kept is not None and os.fstat(kept.fd).st_nlink:
            return kept
        try:
            fd = open_region(self._region_path(allocation))
        except RegionError:
            if kept is None:
                raise
            return kept  # whoever has it mounted still writes it
        if kept is not None:
            os.close(kept.fd)
        self._kept[allocation] = fresh = _Kept(fd)
        return fresh

    def _close_but(self, needed: Iterable[str | None]) -> None:
        for allocation in self._kept.keys() - set(needed):
            os.close(self._kept.pop(allocation).fd)


def _lives(fd: int, slot: int) -> bool:
    """Whether the process of a slot lives: the kernel holds its lock for it."""
    asked = _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, LOCKS_AT + slot, 1, 0)
    kind, *_ = _LOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return bool(kind != fcntl.F_UNLCK)
