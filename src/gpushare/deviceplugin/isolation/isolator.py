"""Holds containers to their share on a node whose label wants it.

Decides whether this node can (isolation.probe), again whenever its GPUs or its label change; says
how much each container may use; and prepares the files of an allocation (isolation.backend). What
was decided for an allocation stands in its record and stays, whatever becomes of the label: a
container that restarts is held to the same limit, by the same version of the library.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from gpushare.contract.names import ENV_DISABLE_ISOLATION, Mode
from gpushare.deviceplugin.core.ids import by_gpu
from gpushare.deviceplugin.core.offers import Granted
from gpushare.deviceplugin.core.refusals import Refused, not_isolating, share_too_small
from gpushare.deviceplugin.state import NodeState
from gpushare.isolation.backend import LIBRARY_NAME, Edits, Interposer, NoIsolation
from gpushare.isolation.installing import install
from gpushare.isolation.limits import DEFAULT_RESERVE_MIB, GpuLimit, LimitsError, share_of
from gpushare.isolation.probe import Facts, GpuFacts, Isolation, decide
from gpushare.isolation.region import RegionError
from gpushare.isolation.tmpfs import provide
from gpushare.kube.moments import set_within
from gpushare.node.gpus import FoundGpu
from gpushare.node.mailbox import Record

log = logging.getLogger(__name__)

POLL_S: Final = 5.0
"""What kept the node from isolating is tried again this often."""
_CGROUP_V2: Final = Path("/sys/fs/cgroup/cgroup.controllers")

Limits = tuple[tuple[str, int, int], ...]
"""As they stand in a record (node.mailbox)."""


@dataclass
class Isolator:
    """What is held, and by what. `probe` comes first; then `run` must be running."""

    state: NodeState
    shipped: Path | None
    """The library as it is shipped."""
    home: Path
    """Where it is installed on the host."""
    files: Path
    """A tmpfs: a directory for each allocation."""
    reserve_mib: int = DEFAULT_RESERVE_MIB
    """Charged within a container's limit for each CUDA context."""
    may_opt_out: bool = False
    """Containers may ask not to be held."""
    library: Path | None = None
    """The library on the host, once it is installed."""
    _decided_for: tuple[object, ...] | None = field(default=None)

    # -- whether this node can --------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Follow the node's label and GPUs, until cancelled."""
        changed = asyncio.Event()
        self.state.subscribers.append(changed)
        while True:
            changed.clear()
            self.probe()
            await set_within(changed, POLL_S)

    def probe(self) -> None:
        """Decide, as the node is now."""
        if self.state.mode is not Mode.CGPU:
            self._decided_for = None
            self.state.isolated_by(None)
            return
        inputs = (*self.state.found, self.state.driver)
        able = self.state.isolation is not None and not self.state.isolation.problems
        if inputs != self._decided_for or not able:
            self._decided_for = inputs
            self._decide()

    def _decide(self) -> None:
        found = decide(self._facts())
        if found != self.state.isolation:
            _log(found)
            self.state.isolated_by(found)

    def _facts(self) -> Facts:
        library_problem, region_problem = self._install(), None
        try:
            provide(self.files)
        except (RegionError, OSError) as error:
            region_problem = str(error)
        return Facts(
            gpus=tuple(map(_facts_of, self.state.found)),
            driver_version=self.state.driver.version,
            memory_limits_function=self.state.driver.limits_memory,
            cgroup_v2=_CGROUP_V2.exists(),
            library=str(self.library) if self.library else None,
            library_problem=library_problem,
            region_problem=region_problem,
        )

    def _install(self) -> str | None:
        """Puts the library on the host, where it is not there as it should be; why it could not."""
        self.library = None
        if self.shipped is None:
            return f"no {LIBRARY_NAME} is shipped with this program; give it with --library FILE"
        try:
            self.library = install([self.shipped], self.home) / self.shipped.name
        except OSError as error:
            return f"{LIBRARY_NAME} cannot be installed on the node: {error}"
        return None

    # -- an allocation ----------------------------------------------------------------------------

    def limits(self, granted: Granted) -> Limits | Refused:
        """What a container may use that was granted ids; nothing where it is not held."""
        self.probe()
        if self.state.conditions.isolating and self._install() is not None:
            self._decide()
        if self.state.conditions.takes_nothing_new:
            # The kubelet has yet to hear of it: better no container than one that is not held.
            return not_isolating(granted.piece.uid)
        call = granted.piece.calls[granted.position]
        if not self.state.conditions.isolating or (call.ask.opted_out and self.may_opt_out):
            return ()
        if call.ask.opted_out:
            log.info("%s=true is not allowed on this node", ENV_DISABLE_ISOLATION)
        try:
            return self.limits_of(granted.ids)
        except LimitsError as error:
            return share_too_small(str(error), granted.piece.uid)

    def limits_of(self, ids: Iterable[str]) -> Limits:
        """What `ids` of this node's GPUs are worth. Raises LimitsError."""
        books = self.state.books
        assert books is not None
        shape = by_gpu(ids, books.index_of, books.unit) or {}
        devices = {device.index: device for device in self.state.devices}
        shares = [
            share_of(
                devices[index].uuid,
                memory_mib=devices[index].memory_mib,
                units=len(mine),
                gpu_units=devices[index].units,
                reserve_mib=self.reserve_mib,
            )
            for index, mine in sorted(shape.items())
        ]
        return tuple((one.uuid, one.limit_bytes, one.reserve_bytes) for one in shares)

    def prepare(self, record: Record) -> Edits:
        """What an allocation's container is given. Raises OSError, RegionError, LimitsError."""
        if not record.limits:
            return NoIsolation().prepare(record.id, ())
        library = Path(record.library)
        if not library.is_file() and self.library is not None:
            library = self.library
        provide(self.files)
        limits = [GpuLimit(*limit) for limit in record.limits]
        return Interposer(library, self.files).prepare(record.id, limits)

    def forget(self, allocation: str) -> None:
        """Removes what `prepare` made, once no container can have it any more. Raises OSError."""
        self._interposer.forget(allocation)

    def tend(self, needed: Iterable[str]) -> None:
        """Removes the files of all other allocations, and takes back what tenants have added."""
        needed = set(needed)
        if needed and self.library is not None:
            self._install()
        for name in self._interposer.names():
            if name not in needed:
                self.forget(name)
            elif self._interposer.trim(name):
                log.warning("a container has made the region of allocation %s larger", name)

    def region_path(self, allocation: str) -> Path:
        """Where an allocation's region lies."""
        return self._interposer.region_path(allocation)

    @property
    def _interposer(self) -> Interposer:
        return Interposer(self.library or Path(), self.files)


def _facts_of(gpu: FoundGpu) -> GpuFacts:
    return GpuFacts(gpu.uuid, gpu.memory_mib, host_page_tables=gpu.host_memory, mig=gpu.mig)


def _log(found: Isolation) -> None:
    for note in found.notes:
        log.info("%s", note)
    log.info(
        "containers are held to their GPU memory by: %s%s",
        found.backend,
        "".join(f"; GPU {uuid} cannot be isolated: {why}" for uuid, why in found.refused.items()),
    )
