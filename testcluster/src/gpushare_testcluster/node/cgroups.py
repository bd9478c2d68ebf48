"""The node's own cgroup, below which the kubelet keeps its pods: /gpushare-tc-<cluster id>.

Containers carry no mark of the cluster, but they cannot leave their cgroup: that is how they are
found and ended when kubelet and containerd are gone. Knows cgroup v1 (one tree per controller)
and v2.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from gpushare_testcluster.errors import TestClusterError

_ROOT = Path("/sys/fs/cgroup")


def name_of(cluster_id: str) -> str:
    return f"gpushare-tc-{cluster_id}"


def create(name: str) -> None:
    """Makes the cgroup in every tree; the kubelet wants to find it there."""
    for tree in _trees():
        (tree / name).mkdir(exist_ok=True)


def processes_in(name: str) -> list[int]:
    """The pids of all processes in the cgroup or below."""
    pids: set[int] = set()
    for tree in _trees():
        for folder, _, _ in os.walk(tree / name):
            with contextlib.suppress(OSError):
                pids.update(map(int, Path(folder, "cgroup.procs").read_text().split()))
    return sorted(pids - {0})


def pods_in(name: str) -> list[str]:
    """The names of the pods' cgroups (`pod<uid>`) that there are."""
    found: set[str] = set()
    for tree in _trees():
        for _, folders, _ in os.walk(tree / name):
            found.update(folder for folder in folders if folder.startswith("pod"))
    return sorted(found)


def kill(name: str) -> None:
    """Sends SIGKILL to everything in the cgroup; does not wait."""
    for pid in processes_in(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def remove(name: str, timeout_s: float = 10) -> None:
    """Ends everything in the cgroup and removes it. Raises TestClusterError when it stays."""
    deadline = time.monotonic() + timeout_s
    while True:
        kill(name)
        left = [tree / name for tree in _trees() if (tree / name).is_dir()]
        for top in left:
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        if not any(top.is_dir() for top in left):
            return
        if time.monotonic() > deadline:
            raise TestClusterError(
                f"the cgroup {name} cannot be removed; in it: {processes_in(name) or 'nobody'}"
            )
        time.sleep(0.02)


def _trees() -> list[Path]:
    """The mounted hierarchies: one of v2, or one for each controller of v1."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    seen: dict[tuple[int, int], Path] = {}
    for path in sorted(_ROOT.iterdir()):
        if (path / "cgroup.procs").exists() and not path.is_symlink():
            status = path.stat()
            seen.setdefault((status.st_dev, status.st_ino), path)
    return list(seen.values())
