"""What every group of checks works with."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpushare.isolation.limits import MIB, GpuLimit

from .machine import Machine, Meter, Unusable
from .program import GRANULE, Container, Program
from .report import Report


@dataclass
class Setting:
    report: Report
    machine: Machine
    build: Path
    library: Path
    scratch: Path
    limit: int
    """Bytes of the share that most checks give."""
    reserve: int
    hooks: Path
    runtimes: list[Path]
    meter: Meter | None = None
    _made: int = 0

    @property
    def room(self) -> int:
        """What one process with one context may allocate."""
        return self.limit - self.reserve

    def container(self, limit: int | None = None, *, held: bool = True) -> Container:
        """A container of the share, or of another limit; not held: as on a `share` node."""
        self._made += 1
        return Container(
            self.machine,
            self.build,
            self.scratch / f"container{self._made}",
            GpuLimit(self.machine.uuid, limit or self.limit, self.reserve),
            self.library if held else None,
        )

    def really_used(self, program: Program) -> int:
        """Bytes a program holds, contexts and all; where sums count, it must be the only one."""
        assert self.meter is not None
        return self.meter.used(program.pid)

    def choose_meter(self, *, by_sum: bool) -> None:
        """By process where the driver lists ours under a number we know, else the GPU's sum."""
        before = self.machine.memory().used
        strangers = self.machine.processes()
        with self.container(held=False).program() as program:
            by_process = not by_sum and self.machine.processes().get(program.pid, 0) > 0
        self.meter = Meter(self.machine, by_process, 0 if by_process else before)
        if not by_process and strangers:
            raise Unusable(f"other processes use the GPU ({sorted(strangers)}): sums say nothing")
        # The memory of a process that ended comes back a moment later.
        self.wait(lambda: self.machine.memory().used <= before + GRANULE, 10)

    @staticmethod
    def wait_each(conditions: dict[str, Callable[[], bool]], at_most_s: float) -> dict[str, float]:
        """Name → seconds until it held; without those that did not in time."""
        held: dict[str, float] = {}
        started = time.monotonic()
        while len(held) < len(conditions) and time.monotonic() - started < at_most_s:
            for name, condition in conditions.items():
                if name not in held and condition():
                    held[name] = time.monotonic() - started
            time.sleep(0.001)
        return held

    @classmethod
    def wait(cls, condition: Callable[[], bool], at_most_s: float) -> None:
        """Until it holds, but no longer."""
        cls.wait_each({"": condition}, at_most_s)


SMALL_MIB, BIG_MIB = 2, 1024
__all__ = ["BIG_MIB", "GRANULE", "MIB", "SMALL_MIB", "Setting"]
