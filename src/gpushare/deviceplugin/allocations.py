"""The CDI device of each allocation and its directory: made, rebuilt, and taken away in the end.

The kubelet keeps what Allocate answered and never asks again for a container that has ids. A
container of a pod that restarts, and every container after a reboot, which empties /var/run/cdi,
needs the device it was answered with. So both live as long as anybody has the ids.

    Allocate    the directory made and emptied, the specification written; then the answer
    start       every specification written again, before the plugin registers
    tend        now and then: what is missing is made again, what nobody needs any more is removed
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.contract import names
from gpushare.deviceplugin.edits import composed, environment_part, hook_part
from gpushare.node.cdi import (
    ALLOCATION_KIND,
    ContainerEdits,
    Device,
    remove_spec,
    spec_name,
    write_spec,
    written_specs,
)
from gpushare.node.mailbox import Mailboxes, Record

log = logging.getLogger(__name__)

KEPT_S: Final = 60.0
"""An allocation is not removed before it has been quiet for so long."""


@dataclass
class AllocationDevices:
    """The devices whose specifications stand in `specs`, a directory the runtime reads."""

    mailboxes: Mailboxes
    specs: Path
    minors: Callable[[], Mapping[str, int]]
    """GPU UUID -> number of its device file, as the driver says now."""
    hook: Path | None = None
    """The hook on the host; None: containers start without it."""

    def make(self, record: Record) -> str:
        """The CDI device of an allocation that is being answered. Raises OSError, CdiError."""
        self.mailboxes.renew(record)
        return self._write(record)

    def rebuild(self, held: Iterable[Record]) -> int:
        """Writes every specification again; how many. Raises OSError, CdiError.

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
        """Makes what is missing, removes what nobody needs. Raises OSError, CdiError.

        held   names of the allocations that anybody has; None: nobody can tell
        """
        now_s = time.time() if now_s is None else now_s
        written = set(written_specs(self.specs, ALLOCATION_KIND))
        directories = set(self.mailboxes.names())
        for name in sorted(written | directories):
            needed = held is None or name in held or self._touched_s(name) > now_s - KEPT_S
            if not needed:
                remove_spec(self.specs, ALLOCATION_KIND, name)
                self.mailboxes.remove(name)
                log.debug("allocation %s is nobody's any more", name)
            elif name not in written:
                record = self.mailboxes.record(name)
                if record is not None:
                    self._write(record)
                    log.warning("the CDI specification of allocation %s was missing", name)

    def _touched_s(self, name: str) -> float:
        changed_ns = self.mailboxes.changed_ns(name)
        if changed_ns is not None:
            return changed_ns / 1e9
        with suppress(OSError):
            return (self.specs / spec_name(ALLOCATION_KIND, name)).stat().st_mtime
        return 0.0

    def _write(self, record: Record) -> str:
        device = Device(record.id, composed(self._parts(record)))
        write_spec(self.specs, ALLOCATION_KIND, [device], record.id)
        return f"{ALLOCATION_KIND}={record.id}"

    def _parts(self, record: Record) -> Iterable[ContainerEdits]:
        """What an allocation's container is given, beside its GPUs."""
        yield environment_part(record.env)
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
