"""A /proc as the plugin reads it, and what containers' files look like below their root."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.isolation.backend import (
    LIBRARY_IN_CONTAINER,
    LIMITS_IN_CONTAINER,
    PRELOAD_IN_CONTAINER,
)
from gpushare.isolation.limits import MIB, GpuLimit, encode_limits

LIMITS = (GpuLimit("GPU-00000000-0000-4000-8000-000000000001", 4096 * MIB, 512 * MIB),)

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
LIBCUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14"

HELD = (LIBC, LIBRARY_IN_CONTAINER, LIBCUDA)
"""What a CUDA program maps that is held to its limit."""


@dataclass
class Root:
    """A container's root, with everything in place. `library` is the host's file."""

    path: Path
    library: Path

    def __post_init__(self) -> None:
        self.library.parent.mkdir(parents=True, exist_ok=True)
        if not self.library.exists():
            self.library.write_bytes(b"\x7fELF and so on")
        self.write(PRELOAD_IN_CONTAINER, LIBRARY_IN_CONTAINER + "\n")
        self.write(LIMITS_IN_CONTAINER, encode_limits(LIMITS))
        self.at(LIBRARY_IN_CONTAINER).parent.mkdir(parents=True)
        self.at(LIBRARY_IN_CONTAINER).hardlink_to(self.library)

    def at(self, path: str) -> Path:
        return self.path / path[1:]

    def write(self, path: str, text: str) -> None:
        self.at(path).parent.mkdir(parents=True, exist_ok=True)
        self.at(path).unlink(missing_ok=True)
        self.at(path).write_text(text)


@dataclass
class FakeProc:
    """Processes below `path`."""

    path: Path
    _ticks: itertools.count[int] = field(default_factory=lambda: itertools.count(100))

    def __post_init__(self) -> None:
        self.path.mkdir()
        (self.path / "sys").mkdir()

    def own(self, cgroup: str) -> None:
        (self.path / "self").mkdir()
        (self.path / "self" / "cgroup").write_text(f"0::{cgroup}\n")

    def add(
        self,
        pid: int,
        *,
        cgroup: str = "/",
        root: Path | None = None,
        maps: tuple[str, ...] = (),
        files: tuple[str, ...] = (),
        name: str = "python",
    ) -> int:
        """A process; each is younger than the one before."""
        home = self.path / str(pid)
        (home / "fd").mkdir(parents=True)
        (home / "cgroup").write_text(cgroup if "\n" in cgroup else f"0::{cgroup}\n")
        (home / "comm").write_text(name + "\n")
        started = next(self._ticks)
        (home / "stat").write_text(f"{pid} (a ) b) S {' '.join('0' * 18)} {started} 0 0\n")
        self.map(pid, *maps)
        for number, file in enumerate(files, 3):
            (home / "fd" / str(number)).symlink_to(file)
        if root is not None:
            (home / "root").symlink_to(root)
        return pid

    def map(self, pid: int, *paths: str) -> None:
        """From now on this is what a process has mapped."""
        lines = [
            "55d0c8a00000-55d0c8a01000 r--p 00000000 fe:00 1811           /usr/bin/program",
            "7ffd10000000-7ffd10021000 rw-p 00000000 00:00 0 ",
            "7ffd10fe0000-7ffd11000000 rw-p 00000000 00:00 0              [stack]",
        ]
        lines += [f"7f6a1c000000-7f6a1c001000 r-xp 00000000 fe:00 12  {path}" for path in paths]
        (self.path / str(pid) / "maps").write_text("\n".join(lines) + "\n")
