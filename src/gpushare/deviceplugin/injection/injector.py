"""Gives containers their GPUs by the way that works on this node, and follows what changes there.

The node's CDI specifications are looked at every few seconds. If they no longer name the GPUs twice
in a row, nothing is offered until they do: NVIDIA's tools write them anew when the driver changes.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from gpushare.deviceplugin.core.attesting import Sighting
from gpushare.deviceplugin.core.ids import by_gpu
from gpushare.deviceplugin.core.offers import Granted
from gpushare.deviceplugin.core.refusals import Cause, Refused
from gpushare.deviceplugin.injection.allocations import FILES_FAILED, AllocationDevices
from gpushare.deviceplugin.injection.choosing import Choice, Injection, decide
from gpushare.deviceplugin.injection.environment import environment, variables
from gpushare.deviceplugin.injection.proving import IGNORED, Proof
from gpushare.deviceplugin.isolation.isolator import Isolator, Limits
from gpushare.deviceplugin.sources import Sources
from gpushare.deviceplugin.state import NodeState
from gpushare.isolation.backend import Mount
from gpushare.isolation.installing import install
from gpushare.isolation.limits import LimitsError
from gpushare.node.cdi import CdiDevices, read_specs
from gpushare.node.mailbox import Record, allocation_id

log = logging.getLogger(__name__)

POLL_S: Final = 2.0
TEND_EVERY: Final = 5
"""Polls, between two looks at the allocations' files."""

_OWN: Final = "gpushare.dev-"
"""Begins the names of our own specifications."""


@dataclass(frozen=True, slots=True)
class Given:
    """The answer to Allocate for one container."""

    environment: dict[str, str]
    devices: tuple[str, ...] = ()
    """Fully qualified names of CDI devices."""
    mounts: tuple[Mount, ...] = ()
    """Files of the host, where no CDI device of ours carries them."""


@dataclass
class Injector:
    """Decides, and answers the kubelet. `begin` comes first; then `run` must be running."""

    state: NodeState
    sources: Sources
    allocations: AllocationDevices
    isolator: Isolator
    choice: Choice
    fake: bool
    directories: tuple[Path, ...]
    """Of CDI specifications."""
    hook_file: Path | None
    """The hook as it is shipped."""
    hook_home: Path
    """Where it is installed on the host."""
    injection: Injection | None = None
    _specs: CdiDevices = field(default_factory=lambda: CdiDevices({}))
    _seen: frozenset[tuple[object, ...]] | None = None
    """What the directories looked like when they were last read."""
    _doubted: bool = False
    """The last look found a problem that was not there before."""
    _trouble: str | None = None
    """Why CDI devices do not work here after all."""

    def __post_init__(self) -> None:
        self._proof = Proof(self.state, self.allocations.mailboxes)

    # -- the answer -------------------------------------------------------------------------------

    def give(self, granted: Granted) -> Given | Refused:
        """What the container gets that was granted ids."""
        assert self.state.books is not None
        assert self.injection is not None
        env = environment(self.state.books, granted)
        limits = self.isolator.limits(granted)
        if isinstance(limits, Refused):
            return limits
        uuids = {gpu.index: gpu.uuid or "" for gpu in self.state.books.node.gpus}
        mine = [uuids[index] for index in granted.place]
        named = self.injection.devices if self.injection.cdi else {}
        missing = [uuid for uuid in mine if uuid not in named]
        if missing and self.injection.cdi and not self.fake:
            return self._refused(granted, f"no CDI specification names GPU {missing[0]} any more")
        devices = tuple(named[uuid] for uuid in mine if uuid not in missing)
        record = Record(
            ids=tuple(sorted(granted.ids)),
            env=env,
            devices=devices,
            owner=granted.piece.uid,
            chunk=granted.piece.number,
            position=granted.position,
            cdi=self.injection.cdi,
            limits=limits,
            library=str(self.isolator.library or "") if limits else "",
        )
        if not record.cdi and not limits:
            return Given(env)
        try:
            made = self.allocations.make(record)
        except FILES_FAILED as error:
            return self._refused(granted, f"its files on the node cannot be made: {error}")
        if made.device is None:
            return Given(env, mounts=made.isolation.mounts)
        if self.allocations.hook is not None:
            self._proof.await_letter(record.id)
        return Given(env, (*devices, made.device))

    def _refused(self, granted: Granted, why: str) -> Refused:
        return Refused(Cause.NOT_READY, f"{why}; see the Events of the node", granted.piece.uid)

    # -- beginning --------------------------------------------------------------------------------

    def rebuild(self, shown: Iterable[Sighting]) -> None:
        """Makes every allocation's device again; `shown` is who has which ids.

        The kubelet's checkpoint still shows pods that have ended.
        """
        assert self.injection is not None
        alive = [s for s in shown if s.uid is None or s.uid in self.state.pods]
        held = [record for s in alive if (record := self._record(s.ids))]
        try:
            count = self.allocations.rebuild(r for r in held if r.cdi or r.limits)
        except FILES_FAILED as error:
            self._now(f"the files of allocations cannot be made: {error}")
        else:
            if count:
                log.info("rebuilt the files of %d allocations", count)

    def _record(self, ids: frozenset[str]) -> Record | None:
        """For ids of which only the kubelet tells; without what the pod has in all."""
        books = self.state.books
        assert books is not None
        place = by_gpu(ids, books.index_of, books.unit)
        if not place:
            return None
        env = variables(books, tuple(sorted(place)), len(ids))
        assert self.injection is not None
        limits: Limits = ()
        if self.state.conditions.takes_nothing_new:
            return None  # without its device the container does not start: better than not held
        if self.state.conditions.isolating:
            try:
                limits = self.isolator.limits_of(ids)
            except LimitsError as error:
                log.warning("an allocation is not made again: %s", error)
                return None
        return Record(
            ids=tuple(sorted(ids)),
            env=env,
            cdi=self.injection.cdi,
            limits=limits,
            library=str(self.isolator.library or "") if limits else "",
        )

    def _install(self) -> None:
        """Puts the hook on the host; once."""
        if self.allocations.hook is not None:
            return
        why = "none is shipped with this program; give it with --hook FILE"
        if self.hook_file is not None:
            try:
                folder = install([self.hook_file], self.hook_home)
            except OSError as error:
                why = str(error)
            else:
                self.allocations.hook = folder / self.hook_file.name
                return
        self.hook_file = None
        log.warning(
            "containers start without gpushare-hook, which would check that each has its GPU: %s",
            why,
        )

    # -- following the node -----------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Follow the node, until cancelled."""
        while True:
            for _ in range(TEND_EVERY):
                await asyncio.sleep(POLL_S)
                await self.probe()
            self.tend()

    async def probe(self) -> None:
        """Decide, as the node is now."""
        seen = await asyncio.to_thread(_fingerprint, self.directories)
        if seen != self._seen:
            self._specs = await asyncio.to_thread(read_specs, self.directories)
            self._seen = seen
        status = self.state.node.status if self.state.node else None
        info = status.node_info if status else None
        decided = decide(
            self.choice,
            fake=self.fake,
            runtime=info.container_runtime_version if info else None,
            specs=self._specs,
            uuids=[gpu.uuid for gpu in self.state.found if gpu.problem is None],
        )
        before = self.injection
        news = decided.problem and before is not None and before.problem is None
        if news and not self._doubted:
            self._doubted = True
            return
        self._doubted = False
        if decided == before:
            return
        if decided.cdi and (before is None or not before.cdi):
            self._install()
        self.injection = decided
        log.info(
            "GPUs reach containers by %s%s, CDI names %d of them",
            decided.way,
            "" if decided.cdi else ", without CDI devices",
            len(decided.devices),
        )
        self._publish()

    def tend(self) -> None:
        """Look after the allocations' files."""
        try:
            self.allocations.tend(self._held())
        except FILES_FAILED as error:
            self._now(f"the files of allocations cannot be kept: {error}")
        else:
            self._now(IGNORED if self._proof.missing() and not self.fake else None)

    def _held(self) -> set[str] | None:
        """Names of the allocations that anybody has, by the books and by the kubelet.

        Where the kubelet's checkpoint does not tell, an init container that has finished, or a pod
        that did not start before us, may have ids that nobody knows of. Then all are needed while
        any pod that asks for GPU memory is on the node.
        """
        assert self.state.books is not None
        shown = self.sources.checkpointed()
        if shown is None:
            return None if self.state.has_live_pods else set()
        books = {
            allocation_id(ids)
            for piece in self.state.books.pieces()
            if piece.grant is not None
            for ids in piece.grant.handed.values()
        }
        return books | {allocation_id(sighting.ids) for sighting in shown}

    def _now(self, trouble: str | None) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._publish()

    def _publish(self) -> None:
        assert self.injection is not None
        trouble = self._trouble if self.injection.cdi else None
        self.state.injectable(self.injection.way, self.injection.problem or trouble)


def _fingerprint(directories: Sequence[Path]) -> frozenset[tuple[object, ...]]:
    """Changes with every specification of others."""
    found: set[tuple[object, ...]] = set()
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.name.startswith((_OWN, f".{_OWN}")):
                        continue
                    status = entry.stat()
                    found.add((entry.path, status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError as error:
            found.add((str(directory), error.errno))
    return frozenset(found)
