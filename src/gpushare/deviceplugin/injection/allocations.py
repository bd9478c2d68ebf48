"""What each allocation's container is given: made, rebuilt, and taken away in the end.

That is its directory, what holds it to its share, and, where the kubelet is told of it, a CDI
device of its own, which carries the rest.

The kubelet keeps what Allocate answered and never asks again for a container that has ids. A
container of a pod that restarts, and every container after a reboot, which empties /var/run/cdi,
needs the device it was answered with. So both live as long as anybody has the ids.

    Allocate    the directory made and emptied, the files and the specification written; then the
                answer
    start       every file and specification written again, before the plugin registers
    tend        now and then: what is missing is made again, what nobody needs any more is removed
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gpushare.contract import names
from gpushare.deviceplugin.injection.edits import (
    composed,
    environment_part,
    hook_part,
    isolation_part,
)
from gpushare.isolation.backend import Edits
from gpushare.isolation.limits import LimitsError
from gpushare.isolation.region import RegionError
from gpushare.node.cdi import (
    ALLOCATION_KIND,
    CdiError,
    ContainerEdits,
    Device,
    remove_spec,
    spec_name,
    write_spec,
    written_specs,
)
from gpushare.node.mailbox import Mailboxes, Record

log = logging.getLogger(__name__)

FILES_FAILED: Final = (OSError, CdiError, RegionError, LimitsError)
"""Why an allocation's files cannot be made or removed."""

KEPT_S: Final = 60.0
"""An allocation is not removed before it has been quiet for so long."""


class Isolation(Protocol):
    """Holds containers to their share (deviceplugin.isolation)."""

    def prepare(self, record: Record) -> Edits:
        """Makes what the container needs, or finds it made."""
        ...

    def forget(self, allocation: str) -> None:
        """Removes it."""
        ...

    def tend(self, needed: Iterable[str]) -> None:
        """Removes all but that of the allocations in `needed`."""
        ...


@dataclass(frozen=True, slots=True)
class Made:
    """What the kubelet is to be told of an allocation."""

    device: str | None
    """Its CDI device, which carries everything else."""
    isolation: Edits
    """What the container needs where there is no such device."""


@dataclass
class AllocationDevices:
    """The devices whose specifications stand in `specs`, a directory the runtime reads."""

    mailboxes: Mailboxes
    specs: Path
    minors: Callable[[], Mapping[str, int]]
    """GPU UUID -> number of its device file, as the driver says now."""
    isolation: Isolation
    hook: Path | None = None
    """The hook on the host; None: containers start without it."""

    def make(self, record: Record) -> Made:
        """For an allocation that is being answered. Raises any of FILES_FAILED."""
        self.isolation.forget(record.id)
        self.mailboxes.renew(record)
        return self._write(record)

    def rebuild(self, held: Iterable[Record]) -> int:
        """Writes all files and specifications again; of how many allocations. Raises as `make`.

        held   what is known to be held; an allocation that has a directory is known by that
        """
        records = {record.id: record for record in held}
        for name in self.mailboxes.names():
            record = self.mailboxes.record(name)
            if record is not None:
                records[name] = record
        for record in records.values():
            self.mailboxes.keep(record)
            self._write(record)
        return len(records)

    def tend(self, held: Collection[str] | None, now_s: float | None = None) -> None:
        """Makes what is missing, removes what nobody needs. Raises as `make`.

        held   names of the allocations that anybody has; None: nobody can tell
        """
        now_s = time.time() if now_s is None else now_s
        written = set(written_specs(self.specs, ALLOCATION_KIND))
        directories = set(self.mailboxes.names())
        kept: set[str] = set()
        for name in sorted(written | directories):
            needed = held is None or name in held or self._touched_s(name) > now_s - KEPT_S
            if not needed:
                remove_spec(self.specs, ALLOCATION_KIND, name)
                self.mailboxes.remove(name)
                log.debug("allocation %s is nobody's any more", name)
                continue
            kept.add(name)
            record = self.mailboxes.record(name)
            if record is not None and record.cdi and name not in written:
                self._write(record)
                log.warning("the CDI specification of allocation %s was missing", name)
            elif record is not None:
                self.isolation.prepare(record)
        self.isolation.tend(kept)

    def libraries(self) -> list[Path]:
        """Those that containers were given, on the host. Raises OSError."""
        records = map(self.mailboxes.record, self.mailboxes.names())
        return [Path(record.library) for record in records if record and record.library]

    def _touched_s(self, name: str) -> float:
        changed_ns = self.mailboxes.changed_ns(name)
        if changed_ns is not None:
            return changed_ns / 1e9
        with suppress(OSError):
            return (self.specs / spec_name(ALLOCATION_KIND, name)).stat().st_mtime
        return 0.0

    def _write(self, record: Record) -> Made:
        isolation = self.isolation.prepare(record)
        if not record.cdi:
            return Made(None, isolation)
        device = Device(record.id, composed(self._parts(record, isolation)))
        write_spec(self.specs, ALLOCATION_KIND, [device], record.id)
        return Made(f"{ALLOCATION_KIND}={record.id}", isolation)

    def _parts(self, record: Record, isolation: Edits) -> Iterable[ContainerEdits]:
        """What an allocation's container is given, beside its GPUs."""
        yield environment_part(record.env)
        yield isolation_part(isolation, self.hook)
        if self.hook is not None:
            uuids = record.env[names.ENV_VISIBLE_DEVICES].split(",")
            files = self._device_files(record, uuids)
            yield hook_part(self.hook, self.mailboxes.path(record.id), uuids, files)

    def _device_files(self, record: Record, uuids: list[str]) -> list[str]:
        """The files a container must have; none where no CDI device was to make them."""
        minors = self.minors()
        if len(record.devices) < len(uuids) or any(uuid not in minors for uuid in uuids):
            return []
        return [f"/dev/nvidia{minors[uuid]}" for uuid in uuids]
