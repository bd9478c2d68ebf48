"""What a node does about a container's limit: one interface, a backend each.

A backend prepares the files of one allocation and says what the container must be given: mounts,
environment, hooks. It talks to nobody; the device plugin hands the answer on, by CDI where that
works and by the device plugin API elsewhere. Preparing again the same allocation, after a reboot,
gives the same answer.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gpushare.isolation.limits import GpuLimit, encode_limits
from gpushare.isolation.probe import Backend
from gpushare.isolation.region import SIZE, RegionError, create_region

LIBRARY_NAME: Final = "libgpushare-interposer.so"
LIBRARY_IN_CONTAINER: Final = f"/usr/lib/gpushare/{LIBRARY_NAME}"
LIMITS_IN_CONTAINER: Final = "/etc/gpushare/limits"
REGION_IN_CONTAINER: Final = "/etc/gpushare/region"
PRELOAD_IN_CONTAINER: Final = "/etc/ld.so.preload"
"""Not LD_PRELOAD: users unset it, su and sshd lose it."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One file of the host in the container. Never a directory: a tenant could write into it."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Edits:
    """What a container must be given for its limit to hold."""

    mounts: tuple[Mount, ...] = ()
    preload_hook: bool = False
    """Where CDI works, a hook checks before its first instruction that the library is preloaded."""


class IsolationBackend(Protocol):
    """How containers are held to their limits."""

    @property
    def kind(self) -> Backend:
        """What the node's label says."""
        ...

    def prepare(self, allocation: str, limits: Sequence[GpuLimit]) -> Edits:
        """Makes what an allocation needs, or finds it made.

        Raises OSError, RegionError, LimitsError.

        `allocation` is a name that may stand in a path.
        """
        ...

    def forget(self, allocation: str) -> None:
        """Removes what `prepare` made, once no container can have it any more."""
        ...


class NoIsolation:
    """Mode `share`: the container sees the whole GPU."""

    kind = Backend.NONE

    def prepare(self, allocation: str, limits: Sequence[GpuLimit]) -> Edits:
        return Edits()

    def forget(self, allocation: str) -> None:
        return


class Interposer:
    """Our library, preloaded into every program of the container.

    `library` is its versioned path on the host, `files` a directory on a tmpfs of the plugin's.
    """

    kind = Backend.INTERPOSER

    def __init__(self, library: Path, files: Path) -> None:
        self._library = library
        self._files = files

    def prepare(self, allocation: str, limits: Sequence[GpuLimit]) -> Edits:
        folder = self._folder(allocation)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        _write(folder / "limits", encode_limits(limits))
        _write(folder / "preload", LIBRARY_IN_CONTAINER + "\n")
        # A region that is there belongs to running processes, after an upgrade of the plugin.
        if not (folder / "region").exists():
            create_region(folder / "region", limits)
        return Edits(
            mounts=(
                Mount(str(self._library), LIBRARY_IN_CONTAINER),
                Mount(str(folder / "preload"), PRELOAD_IN_CONTAINER),
                Mount(str(folder / "limits"), LIMITS_IN_CONTAINER),
                Mount(str(folder / "region"), REGION_IN_CONTAINER, read_only=False),
            ),
            preload_hook=True,
        )

    def forget(self, allocation: str) -> None:
        folder = self._folder(allocation)
        for name in ("limits", "preload", "region"):
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()

    def trim(self, allocation: str) -> bool:
        """Takes back what a container has added to its region's size; whether it had.

        The file is its own to write, but the file system it lies on is everybody's.
        """
        path = self.region_path(allocation)
        with contextlib.suppress(OSError):
            if path.lstat().st_size > SIZE:
                os.truncate(path, SIZE)
                return True
        return False

    def names(self) -> list[str]:
        """The allocations that anything was prepared for."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(path.name for path in self._files.iterdir() if path.is_dir())
        return []

    def region_path(self, allocation: str) -> Path:
        """Where an allocation's region lies, to be opened by `region.open_region`."""
        return self._folder(allocation) / "region"

    def _folder(self, allocation: str) -> Path:
        if not allocation or "/" in allocation or allocation.startswith("."):
            raise RegionError(f"{allocation!r} cannot name a directory")
        return self._files / allocation


def _write(path: Path, text: str) -> None:
    """Writes a file that containers mount: nothing happens where it already says so, for a new file
    under the same name would not reach a container that runs."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() == text:
            return
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o444)
    os.replace(fresh, path)
