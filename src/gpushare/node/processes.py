"""Which processes belong to which container, by the name of their cgroup.

The runtimes put a container's processes into a cgroup that is named for it:

    containerd, cgroupfs    …/pod<uid>/<id>
    containerd, systemd     …/cri-containerd-<id>.scope, …slice:cri-containerd:<id>
    CRI-O                   …/crio-<id>.scope, also with a cgroup of the container's own below

A process cannot leave it, nor rename it; what a container makes of its own is below. So the
outermost id counts. `crio-conmon-<id>` is the runtime's, not the container's.
"""

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")

_ID: Final = re.compile(rb"(?<![0-9a-f])(?<!conmon-)[0-9a-f]{64}(?![0-9a-f])")
_MAX_BYTES: Final = 64 << 10
"""Of a process's list of cgroups: one line for each tree of version 1."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The processes that are there."""

    pids: dict[str, tuple[int, ...]]
    """Container id -> its processes, ascending; none for a container of which nothing runs."""
    others: bool
    """Processes of other containers than our own are seen: we are in the node's pid namespace."""


def container_id(reference: str | None) -> str | None:
    """The id in a pod's `containerID` (containerd://<id>); None where there is none."""
    found = (reference or "").partition("://")[2]
    return found if _ID.fullmatch(found.encode()) else None


def processes_of(ids: Collection[str], proc: Path = PROC) -> Seen:
    """The processes of these containers, in one pass over all there are. Raises OSError."""
    own = set(_containers(proc / "self"))
    found: dict[str, list[int]] = {}
    others = False
    with os.scandir(proc) as entries:
        pids = sorted(int(entry.name) for entry in entries if entry.name.isdecimal())
    for pid in pids:
        containers = _containers(proc / str(pid))
        others = others or any(container not in own for container in containers)
        mine = next((container for container in containers if container in ids), None)
        if mine is not None:
            found.setdefault(mine, []).append(pid)
    return Seen({container: tuple(pids) for container, pids in found.items()}, others)


def owners_of(pids: Iterable[int], ids: Collection[str], proc: Path = PROC) -> dict[int, str]:
    """Process -> which of these containers it belongs to; without those that belong to none."""
    found: dict[int, str] = {}
    for pid in pids:
        for container in _containers(proc / str(pid)):
            if container in ids:
                found[pid] = container
                break
    return found


def _containers(process: Path) -> list[str]:
    """What may be ids of containers in a process's cgroups, outermost first; none if it is gone."""
    try:
        descriptor = os.open(process / "cgroup", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, _MAX_BYTES)
        finally:
            os.close(descriptor)
    except OSError:
        return []
    return [container.decode() for container in _ID.findall(text)]
