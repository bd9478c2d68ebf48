"""GPUs that only a file says are there: for trying gpushare out, and for tests.

    gpus:
    - {uuid: GPU-1, model: Tesla T4, memory_mib: 16130}
    - {uuid: GPU-2, model: Tesla T4, memory_mib: 16130}
    events:
    - {after_s: 30, uuid: GPU-1, healthy: false, xid: 79}
    - {after_s: 60, uuid: GPU-1, healthy: true}

YAML, or JSON where the file's name ends in .json. The file may change at any time. What it says
then is a new beginning: every GPU in it is well, and the times of its events count from there. Only
a GPU that left the file is remembered, as one that fell off the bus, until it is back. A file that
cannot be read any more changes nothing, and the log says so.

A GPU keeps its PCI address and minor number while the process lives: its place in the first file,
or the next one free.
"""

import json
import logging
import math
import re
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from gpushare.node.gpus import (
    GONE,
    SILENT,
    Driver,
    FoundGpu,
    GpuSource,
    GpusUnavailable,
    Occupancy,
    xid_problem,
)

log = logging.getLogger(__name__)

MAX_UUID_LENGTH: Final = 48
"""The kubelet takes device ids of 63 characters, and the longest form of one is
`<uuid>::128MiB::<slot>` with a slot of five digits. NVML's own UUIDs have 40."""

MAX_MEMORY_MIB: Final = 100_000 * 128
"""What five digits of slots can name in the smallest unit."""

MAX_FILE_BYTES: Final = 256 << 10

POLL_S: Final = 0.2
"""How often the file is read while waiting."""

_SETTLE_S: Final = 0.05
_SETTLE_TRIES: Final = 5
"""A new content is believed once two readings this far apart agree: half a YAML list is a list."""

_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]+", re.ASCII)

_FORM: Final = (
    "it holds `gpus`, a list of {uuid, model, memory_mib}, "
    "and may hold `events`, a list of {after_s, uuid, healthy, xid}"
)


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU of the file."""

    uuid: str
    model: str
    memory_mib: int


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU's turn to ill or well."""

    after_s: float
    """Seconds after the file was read."""
    uuid: str
    healthy: bool
    xid: int | None = None


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    gpus: tuple[Gpu, ...]
    events: tuple[Event, ...] = ()


def parse_machine(data: bytes, *, as_json: bool = False) -> Machine:
    """The file's content, checked. Raises ValueError with the line or the field, and the cure."""
    try:
        content: Any = json.loads(data) if as_json else yaml.load(data, Loader=yaml.CSafeLoader)
    except RecursionError:
        raise ValueError(f"it is nested too deeply; {_FORM}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {_one_line(error)}; {_FORM}") from None
    except (ValueError, OverflowError) as error:
        # json's own errors too, and values that YAML takes for an impossible date or number
        language = "JSON" if as_json else "YAML"
        raise ValueError(f"it is not {language}: {_one_line(error)}; {_FORM}") from None
    try:
        machine = msgspec.convert(content, Machine)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f"{error}; {_FORM}") from None
    _check(machine)
    return machine


def _check(machine: Machine) -> None:
    uuids: set[str] = set()
    for number, gpu in enumerate(machine.gpus):
        where = f"gpus[{number}]"
        if not _UUID.fullmatch(gpu.uuid) or len(gpu.uuid) > MAX_UUID_LENGTH:
            raise ValueError(
                f"{where}.uuid is {gpu.uuid!r}; make it `GPU-` and then letters, digits and `-`, "
                f"{MAX_UUID_LENGTH} characters at most"
            )
        if gpu.uuid in uuids:
            raise ValueError(f"{where}.uuid is {gpu.uuid} again; each GPU needs its own")
        uuids.add(gpu.uuid)
        if not gpu.model.strip():
            raise ValueError(f"{where}.model is empty; name one, for example Tesla T4")
        if not 0 < gpu.memory_mib <= MAX_MEMORY_MIB:
            raise ValueError(
                f"{where}.memory_mib is {gpu.memory_mib}; give 1 to {MAX_MEMORY_MIB} MiB"
            )
    for number, event in enumerate(machine.events):
        where = f"events[{number}]"
        if event.uuid not in uuids:
            raise ValueError(f"{where}.uuid is {event.uuid!r}; name a GPU that `gpus` lists")
        if not math.isfinite(event.after_s) or event.after_s < 0:
            raise ValueError(f"{where}.after_s is {event.after_s}; give seconds, 0 or more")
        if event.xid is not None and (event.healthy or event.xid <= 0):
            raise ValueError(
                f"{where}.xid is {event.xid}; give a number above 0, and only with healthy: false"
            )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@dataclass(frozen=True, slots=True)
class _Version:
    """What the file said from one moment on."""

    number: int
    content: bytes
    machine: Machine
    events: tuple[Event, ...]
    """By time."""
    times: tuple[float, ...]
    """When each event is due, on the clock."""

    def due(self, now: float) -> int:
        """How many events are due."""
        return bisect_right(self.times, now)

    def problems(self, due: int) -> dict[str, str]:
        """UUID -> what ails it once so many events have come."""
        problems: dict[str, str] = {}
        for event in self.events[:due]:
            if event.healthy:
                problems.pop(event.uuid, None)
            else:
                problems[event.uuid] = SILENT if event.xid is None else xid_problem(event.xid)
        return problems


class FakeGpus(GpuSource):
    """The GPUs that a file names."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._clock = clock
        self._pause = pause
        self._version: _Version | None = None
        self._known: dict[str, FoundGpu] = {}
        """UUID -> the GPU as the file last said it."""
        self._shown: tuple[int, int] | None = None
        """What the last look was made of: the version's number, and how many events were due."""
        self._refused: bytes | None = None
        """A content that was found bad, so that it is not taken apart at every poll."""
        self._complaint: str | None = None
        """What was last said about it in the log."""

    def look(self) -> tuple[FoundGpu, ...]:
        """Every GPU seen so far, by PCI address; one that left the file stays, with its problem.

        Raises GpusUnavailable while the file never was good.
        """
        version = self._refresh()
        due = version.due(self._clock())
        problems = version.problems(due)
        gone = dict(self._known)
        for gpu in version.machine.gpus:
            before = gone.pop(gpu.uuid, None)
            place = len(self._known) if before is None else before.minor
            self._known[gpu.uuid] = FoundGpu(
                uuid=gpu.uuid,
                model=gpu.model,
                memory_mib=gpu.memory_mib,
                pci_bus_id=f"{place >> 8:08X}:{place & 0xFF:02X}:00.0",
                minor=place,
                problem=problems.get(gpu.uuid),
            )
        for uuid, gpu_gone in gone.items():
            self._known[uuid] = replace(gpu_gone, problem=GONE)
        self._shown = version.number, due
        return tuple(sorted(self._known.values(), key=lambda gpu: gpu.pci_bus_id))

    def wait(self, timeout_s: float) -> bool:
        """Waits for an event or another content; False when nothing came in time.

        True again at once until `look` has seen it.
        """
        if self._shown is None:
            raise RuntimeError("look comes first")
        deadline = self._clock() + timeout_s
        while True:
            version = self._refresh()
            now = self._clock()
            due = version.due(now)
            if (version.number, due) != self._shown:
                return True
            if now >= deadline:
                return False
            until = min((deadline, *version.times[due : due + 1]))
            self._pause(min(POLL_S, until - now))

    def occupancy(self) -> dict[str, Occupancy]:
        """Nobody knows."""
        return {}

    def driver(self) -> Driver:
        """There is none."""
        return Driver()

    def close(self) -> None:
        """Nothing is held open."""

    def _refresh(self) -> _Version:
        """What the file says now, or said when it last was good."""
        try:
            content = self._settled()
            if self._version is not None and content == self._version.content:
                self._refused = self._complaint = None
            elif content != self._refused:
                self._refused = content
                machine = parse_machine(content, as_json=self._path.suffix == ".json")
                self._refused = self._complaint = None
                self._version = self._begun(content, machine)
        except OSError as error:
            reason = error.strerror or error
            self._complain(f"{self._path} cannot be read: {reason}; make it a file that can be")
        except ValueError as error:
            self._complain(f"{self._path}: {error}")
        if self._version is None:
            self._refused = None
            raise GpusUnavailable(f"no fake GPUs: {self._complaint}")
        return self._version

    def _begun(self, content: bytes, machine: Machine) -> _Version:
        number = 0 if self._version is None else self._version.number + 1
        now = self._clock()
        events = tuple(sorted(machine.events, key=lambda event: event.after_s))
        times = tuple(now + event.after_s for event in events)
        return _Version(number, content, machine, events, times)

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            if self._version is not None:
                log.warning("%s (the fake GPUs stay as they were)", complaint)

    def _settled(self) -> bytes:
        """The file's content, once it stays the same for a moment. Raises OSError, ValueError."""
        content = self._read()
        if content == self._refused or (self._version and content == self._version.content):
            return content
        for _ in range(_SETTLE_TRIES):
            self._pause(_SETTLE_S)
            before, content = content, self._read()
            if content == before:
                break
        return content

    def _read(self) -> bytes:
        if self._path.exists() and not self._path.is_file():
            raise ValueError("it is not a regular file; give one that can be read again and again")
        with self._path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes; is it the right file?")
        return content
