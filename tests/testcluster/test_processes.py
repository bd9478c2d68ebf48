"""Processes are found again, and only ours are ended: on plain `sleep`s, without Kubernetes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpushare_testcluster.controlplane import new_settings
from gpushare_testcluster.errors import StartFailed, TestClusterError
from gpushare_testcluster.lifecycle import take_down
from gpushare_testcluster.processes import MARK, Processes, Record
from gpushare_testcluster.procfs import Process, alive, start_time
from gpushare_testcluster.say import Say
from gpushare_testcluster.state import StateDir
from gpushare_testcluster.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
QUIET = Say(quiet=True)


@pytest.fixture
def state(tmp_path: Path):
    state = StateDir(tmp_path / "cluster")
    state.create(new_settings(tmp_path, large=False, owner=None))
    yield state
    Processes(state).stop_all()


def of(record: Record) -> Process:
    assert alive(record.process)
    return record.process


def test_a_process_outlives_its_starter_and_is_ended_by_name(state):
    code = (
        "import sys; from pathlib import Path\n"
        "from gpushare_testcluster.processes import Processes\n"
        "from gpushare_testcluster.state import StateDir\n"
        f"Processes(StateDir(Path(sys.argv[1]))).spawn('sleeper', {SLEEP!r})"
    )
    subprocess.run([sys.executable, "-c", code, str(state.path)], check=True)
    processes = Processes(state)
    sleeper = of(processes.record("sleeper"))
    processes.stop("sleeper")
    assert not alive(sleeper)
    assert not processes.running("sleeper")


def test_what_a_killed_starter_did_not_record_is_found_by_its_mark(state):
    processes = Processes(state)
    child = subprocess.Popen(SLEEP, env=processes.environ(), start_new_session=True)
    grandchild = [sys.executable, "-c", f"import subprocess; subprocess.run({SLEEP!r})"]
    other = subprocess.Popen(grandchild, env=processes.environ())
    stranger = subprocess.Popen(SLEEP, env={**os.environ, MARK: f"{state.path}-other"})
    try:
        wait_for(lambda: len(processes.ours()) >= 3, 30, "three processes of ours")
        killed = take_down(state, QUIET)
        assert killed
        assert child.wait(5) == other.wait(5) == -signal.SIGKILL
        assert stranger.poll() is None
        assert not state.path.exists()
    finally:
        stranger.kill()
        stranger.wait()


def test_a_recycled_pid_is_left_alone(state):
    stranger = subprocess.Popen(SLEEP)
    try:
        processes = Processes(state)
        started = start_time(stranger.pid)
        processes._write(Record(name="etcd", argv=["etcd"], pid=stranger.pid, start=started - 1))
        assert not processes.running("etcd")
        processes.stop("etcd")
        assert processes.stop_all() == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_process_that_ignores_sigterm_is_killed(state):
    ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); print('.', flush=True)"
    processes = Processes(state)
    processes.spawn("stubborn", [sys.executable, "-c", f"{ignore}; time.sleep(60)"])
    wait_for(lambda: processes.log_of("stubborn").read_text(), 30, "its first line")
    start = time.monotonic()
    processes.stop("stubborn", timeout_s=0.3)
    assert time.monotonic() - start >= 0.3
    assert not processes.running("stubborn")


def test_a_paused_process_is_stopped_in_an_orderly_way(state):
    processes = Processes(state)
    processes.spawn("sleeper", SLEEP)
    processes.signal("sleeper", signal.SIGSTOP)
    assert processes.running("sleeper")
    start = time.monotonic()
    processes.stop("sleeper", timeout_s=5)
    assert time.monotonic() - start < 5


def test_a_process_starts_again_with_the_command_and_environment_it_had(state):
    processes = Processes(state)
    show = "import os, time; print(os.environ['COLOUR'], flush=True); time.sleep(60)"
    first = processes.spawn("shower", [sys.executable, "-c", show], {"COLOUR": "blue"})
    wait_for(lambda: processes.log_of("shower").read_text() == "blue\n", 30, "the first's line")
    processes.stop("shower", hard=True)
    second = Processes(state).respawn("shower")
    assert second.pid != first.pid
    wait_for(lambda: processes.log_of("shower").read_text() == "blue\nblue\n", 30, "both lines")
    with pytest.raises(TestClusterError, match="runs already"):
        processes.respawn("shower")


def test_a_missing_program_says_so_and_leaves_no_record(state):
    processes = Processes(state)
    with pytest.raises(StartFailed, match="ghost cannot be started"):
        processes.spawn("ghost", ["/no/such/program"])
    assert processes.records() == []


def test_down_removes_only_what_a_cluster_made(state):
    (state.path / "notes.txt").write_text("mine")
    take_down(state, QUIET)
    assert [path.name for path in state.path.iterdir()] == ["notes.txt"]
    take_down(state, QUIET)
    assert [path.name for path in state.path.iterdir()] == ["notes.txt"]


def test_two_ups_of_one_folder_are_kept_apart(state):
    with (
        state.lock(),
        pytest.raises(TestClusterError, match=f"stopped by process {os.getpid()}"),
        state.lock(timeout_s=0.1),
    ):
        pass
