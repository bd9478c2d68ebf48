"""Compares what containers really use of their GPUs with what is counted within their limits.

The driver says what each process uses, contexts included; the region says what the library charges
the container with, a reserve for each context included. What is real and not accounted for has gone
around the library, or is a context larger than the reserve. Contexts are some hundred MiB more or
less than the reserve, so up to one reserve is no news.

**Whose pids.** Drivers differ in whose pids they tell, the node's or those of a container's own
namespace. Where none of a GPU's processes can be put down to a container, only sums are compared:
what is used of the GPU with what all its containers are charged with. That says something only
where each of them is held to a limit, and what the node's own processes use is in it too.

**A tenant** can write what it likes into its region; so at most its limit counts.

**Two readings** of what changes never fit. The region is read before and after the driver is asked,
and the larger figure counts; where too much seems to be used, everything is measured again at once,
and the smallest difference counts; and people are told only after two looks in a row.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn

from gpushare.deviceplugin.announce import Announcer
from gpushare.deviceplugin.isolation.guarding import container_ids
from gpushare.deviceplugin.isolation.usage import UsageReport, holders
from gpushare.deviceplugin.state import NodeState
from gpushare.isolation.limits import MIB, GpuLimit
from gpushare.node.gpus import Occupancy
from gpushare.node.mailbox import Record
from gpushare.node.processes import PROC, owners_of

log = logging.getLogger(__name__)

POLL_S: Final = 10.0
TIMES: Final = 3
"""So often it is measured in one look that finds too much."""

ContainerKey = tuple[str, str, str]
"""UID of a pod, name of a container in it, UUID of a GPU."""
Subject = ContainerKey | str
"""A container on a GPU; or a GPU's UUID: all that is on it."""


@dataclass(frozen=True, slots=True)
class Held:
    """A container that is held to a limit on a GPU."""

    key: ContainerKey
    ids: frozenset[str]
    """The runtime's, of all containers that are counted as this one. Empty: it has not started."""
    charged: int | None
    """Bytes, by its region; None: not known."""
    limit: GpuLimit


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes."""

    real: int
    accounted: int | None
    """None: not known."""
    reserve: int
    """Up to which a difference is no news."""

    @property
    def unaccounted(self) -> int | None:
        return None if self.accounted is None else max(0, self.real - self.accounted)

    @property
    def too_much(self) -> bool:
        return (self.unaccounted or 0) > self.reserve


def compare(
    held: Collection[Held], gpu: Occupancy, owners: Mapping[int, str], *, all_held: bool
) -> dict[Subject, Measured]:
    """What is used of one GPU and what of that is accounted for, as far as it can be told.

    owners    process -> the container it belongs to, by the runtime's id
    all_held  there is no container on the GPU but those in `held`
    """
    uses: dict[str, list[int | None]] = {}
    """Container -> what each of its processes uses."""
    for pid, used in (gpu.processes or {}).items():
        if pid in owners:
            uses.setdefault(owners[pid], []).append(used)
    found: dict[Subject, Measured] = {}
    if any(used is not None for of_container in uses.values() for used in of_container):
        for one in held:
            mine = [used for id_ in one.ids for used in uses.get(id_, ())]
            known = [used for used in mine if used is not None]
            if one.ids and len(known) == len(mine):
                found[one.key] = Measured(sum(known), _accounted(one), one.limit.reserve_bytes)
        return found
    charged = [amount for one in held if (amount := _accounted(one)) is not None]
    if gpu.used_bytes is not None and all_held and len(charged) == len(held) > 0:
        reserves = sum(one.limit.reserve_bytes for one in held)
        uuid = next(iter(held)).limit.uuid
        found[uuid] = Measured(gpu.used_bytes, sum(charged), reserves)
    return found


def _accounted(one: Held) -> int | None:
    return None if one.charged is None else min(one.charged, one.limit.limit_bytes)


@dataclass
class Truth:
    """Looks, while anybody is held to a limit, and tells. `run` must be running.

    report     what the regions say; None until the plugin may serve
    records    name of an allocation -> what was handed out
    occupancy  what the driver says: GPU UUID -> what is used of it
    """

    state: NodeState
    report: Callable[[], UsageReport | None]
    records: Callable[[str], Record | None]
    occupancy: Callable[[], Awaitable[Mapping[str, Occupancy]]]
    announcer: Announcer
    proc: Path = PROC
    measured: dict[Subject, Measured] = field(default_factory=dict)
    """What the last look found."""
    _told: set[Subject] = field(default_factory=set)
    """Of whom people were told, until too much was not found any more."""

    async def run(self) -> NoReturn:
        """Look, now and then, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(POLL_S)

    def real(self) -> dict[ContainerKey, tuple[int, int | None]]:
        """What containers really use, in bytes, and how much of that is not accounted for."""
        return {
            subject: (one.real, one.unaccounted)
            for subject, one in self.measured.items()
            if isinstance(subject, tuple)
        }

    async def look(self) -> None:
        """Look once at every container, and tell of what is new."""
        found = await self._measure()
        for _ in range(TIMES - 1):
            if not any(one.too_much for one in found.values()):
                break
            again = await self._measure()
            found = {
                subject: min(one, again[subject], key=lambda each: each.unaccounted or 0)
                for subject, one in found.items()
                if subject in again
            }
        before, self.measured = self.measured, found
        for subject, one in found.items():
            was = before.get(subject)
            if not one.too_much:
                self._told.discard(subject)
            elif was is not None and was.too_much and subject not in self._told:
                self._told.add(subject)
                self._tell(subject, one)
        self._told = {each for each in self._told if each in found or self._is_there(each)}

    async def _measure(self) -> dict[Subject, Measured]:
        before, _ = self._held()
        if not before:
            return {}
        gpus = await self.occupancy()
        held, unlimited = self._held()
        ids = {id_ for one in held for id_ in one.ids}
        pids = {pid for gpu in gpus.values() for pid in gpu.processes or ()}
        owners = await asyncio.to_thread(owners_of, pids, ids, self.proc)
        charged = {one.key: one.charged for one in before}
        held = [replace(one, charged=_larger(one.charged, charged.get(one.key))) for one in held]
        found: dict[Subject, Measured] = {}
        for uuid, gpu in gpus.items():
            here = [one for one in held if one.limit.uuid == uuid]
            found |= compare(here, gpu, owners, all_held=uuid not in unlimited)
        return found

    def _held(self) -> tuple[list[Held], set[str]]:
        """Who is held to a limit; and the GPUs on which there is anybody who is not."""
        books, report = self.state.books, self.report()
        if books is None or report is None:
            return [], set()
        used = {
            (use.namespace, use.pod, use.container, use.uuid): use.used_bytes
            for use in report.containers
        }
        held: dict[tuple[str, str], Held] = {}
        """(allocation, GPU UUID) -> the last container that has it."""
        unlimited: set[str] = set()
        for holder in holders(books):
            limits = self._limits(holder.allocation)
            pod = self.state.pods.get(holder.uid)
            ids = container_ids(pod) if pod and books.pods[holder.uid].attested else {}
            mine = frozenset({ids[holder.container]} if holder.container in ids else ())
            for _, uuid in holder.gpus:
                if uuid not in limits:
                    unlimited.add(uuid)
                    continue
                earlier = held.get((str(holder.allocation), uuid))
                held[str(holder.allocation), uuid] = Held(
                    (holder.uid, holder.container, uuid),
                    mine | earlier.ids if earlier else mine,
                    used.get((holder.namespace, holder.pod, holder.container, uuid)),
                    limits[uuid],
                )
        return list(held.values()), unlimited

    def _limits(self, allocation: str | None) -> dict[str, GpuLimit]:
        """GPU UUID -> limit."""
        record = self.records(allocation) if allocation else None
        return {limit[0]: GpuLimit(*limit) for limit in record.limits} if record else {}

    def _is_there(self, subject: Subject) -> bool:
        return isinstance(subject, str) or subject[0] in self.state.pods

    def _tell(self, subject: Subject, measured: Measured) -> None:
        books = self.state.books
        indexes = books.index_of if books is not None else {}
        if isinstance(subject, str):
            gpu = f"GPU {indexes.get(subject, '?')} ({subject})"
            self.announcer.gpu_unaccounted(self.state, _why_of_gpu(gpu, measured))
            return
        uid, container, uuid = subject
        if uid in self.state.pods:
            why = _why_of_container(f"GPU {indexes.get(uuid, '?')}", measured)
            self.announcer.unaccounted(self.state.pods[uid], container, why)


def _larger(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


_CAUSES: Final = (
    "something goes around the library (a static program, another API such as Vulkan or OpenCL), "
    "or CUDA contexts are larger than the reserve: then start the device plugin with a larger "
    "--reserve-mib"
)


def _why_of_container(gpu: str, one: Measured) -> str:
    return (
        f"the driver says that it uses {_mib(one.real)} of {gpu}, and {_mib(one.accounted)} are "
        f"counted within its limit. The other {_mib(one.unaccounted)} are more than the reserve "
        f"for a context, {_mib(one.reserve)}. Either {_CAUSES}"
    )


def _why_of_gpu(gpu: str, one: Measured) -> str:
    return (
        f"the driver says that {_mib(one.real)} of {gpu} are used, and {_mib(one.accounted)} are "
        f"counted within the limits of its containers. The other {_mib(one.unaccounted)} are more "
        f"than a reserve for each of them, {_mib(one.reserve)} together; whose they are is not "
        "known, as none of the driver's processes could be put down to a container. Either a "
        f"process outside of containers has them, or {_CAUSES}"
    )


def _mib(amount: int | None) -> str:
    return f"{(amount or 0) // MIB} MiB"
