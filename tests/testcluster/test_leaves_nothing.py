"""`down` leaves nothing behind, also after its starter was killed outright while it started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare_testcluster import wait_for
from gpushare_testcluster.processes import MARK
from gpushare_testcluster.procfs import marked

pytestmark = pytest.mark.cluster

COMMAND = [sys.executable, "-m", "gpushare_testcluster"]
SYSCTLS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")

MOMENTS = {
    # the last process whose log is there when the starter is killed
    "etcd has just started": "etcd",
    "kube-apiserver has just started": "kube-apiserver",
    "kube-scheduler has just started": "kube-scheduler",
}


def machine() -> tuple[list[str], list[str]]:
    """Mounts and sysctls: what a cluster must leave as it was, beside processes."""
    mounts = sorted(
        line.split(" ", 5)[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()
    )
    return mounts, [Path("/proc/sys", name).read_text() for name in SYSCTLS]


def ours(folder: Path) -> list[object]:
    """Processes that carry the cluster's mark, the starter apart."""
    return list(marked(f"{MARK}={folder}"))


@pytest.mark.parametrize("moment", MOMENTS)
def test_after_kill_9_of_the_starter(cluster: object, tmp_path: Path, moment: str) -> None:
    """`cluster` has the binaries built; this one is another, in its own folder."""
    before = machine()
    folder = tmp_path / "c"
    up = [*COMMAND, "up", "--dir", str(folder), "--no-extender"]
    with subprocess.Popen(up, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as starter:
        log = folder / "logs" / f"{MOMENTS[moment]}.log"
        wait_for(log.exists, 60, f"{MOMENTS[moment]} started")
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    assert ours(folder), "nothing was left to clean up: the test shows nothing"
    down = [*COMMAND, "down", "--dir", str(folder)]
    run = subprocess.run(down, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert ours(folder) == []
    assert not folder.exists()
    assert machine() == before
