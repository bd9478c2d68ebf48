"""Starting processes so that none can be lost, and ending exactly those.

Each process of a cluster is recorded in a file of its own (pid and start time), and carries the
cluster's folder in its environment (`GPUSHARE_TESTCLUSTER_DIR`). The record is written right
after the start; a starter killed in between leaves a process without a record, which the mark in
its environment gives away. Nothing is ever signalled that is not one of the two.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from gpushare_testcluster.errors import StartFailed, TestClusterError
from gpushare_testcluster.procfs import Process, alive, marked, own_line, start_time
from gpushare_testcluster.state import StateDir, write_atomically

MARK = "GPUSHARE_TESTCLUSTER_DIR"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """How a process was started, enough to start it again the same way.

    pid 0: it is about to be started. environ: only what was added to the starter's own.
    """

    name: str
    argv: list[str]
    environ: dict[str, str] = {}
    pid: int = 0
    start: int = 0

    @property
    def process(self) -> Process:
        return Process(self.pid, self.start)


class Processes:
    """The processes of one cluster, by name ("etcd", "kube-apiserver", "extender", …)."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._mark = f"{MARK}={state.path}"
        # Children of this very process, kept to be reaped; other starters' are init's to reap.
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def log_of(self, name: str) -> Path:
        return self._state.logs / f"{name}.log"

    def environ(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a child: ours, the mark, `extra`, and no proxy for loopback."""
        env = {**os.environ, MARK: str(self._state.path), **(extra or {})}
        for name in ("NO_PROXY", "no_proxy"):
            kept = [part for part in env.get(name, "").split(",") if part]
            env[name] = ",".join([*kept, "127.0.0.0/8", "127.0.0.1", "localhost"])
        return env

    def spawn(self, name: str, argv: list[str], environ: Mapping[str, str] | None = None) -> Record:
        """Starts a process that outlives its starter; output is appended to its log.

        Raises TestClusterError when one of that name runs, StartFailed when the program is missing.
        """
        if self.running(name):
            raise TestClusterError(f"{name} of the cluster in {self._state.path} runs already")
        record = Record(name=name, argv=argv, environ=dict(environ or {}))
        self._write(record)
        with self.log_of(name).open("ab") as log:
            try:
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.environ(environ),
                    cwd=self._state.path,
                    start_new_session=True,
                )
            except OSError as error:
                self.forget(name)
                raise StartFailed(f"{name} cannot be started: {error}") from error
        self._children[child.pid] = child
        record = msgspec.structs.replace(record, pid=child.pid, start=start_time(child.pid) or 0)
        self._write(record)
        return record

    def respawn(self, name: str) -> Record:
        """Starts a stopped process again with the command it had. Raises TestClusterError."""
        record = self.record(name)
        if record is None:
            raise TestClusterError(f"{name} was never started in {self._state.path}")
        return self.spawn(name, record.argv, record.environ)

    def record(self, name: str) -> Record | None:
        """How `name` was started last; None if it never was."""
        try:
            data = (self._state.processes / f"{name}.json").read_bytes()
            return msgspec.json.decode(data, type=Record)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def records(self) -> list[Record]:
        names = sorted(path.stem for path in self._state.processes.glob("[!.]*.json"))
        return [record for name in names if (record := self.record(name)) is not None]

    def running(self, name: str) -> bool:
        """True while the process runs (a paused one does too)."""
        record = self.record(name)
        if record is None:
            return False
        self._reap(record.pid)
        return alive(record.process)

    def signal(self, name: str, number: int) -> None:
        """Sends a signal; does nothing when the process is gone."""
        record = self.record(name)
        if record is not None and alive(record.process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, number)

    def stop(self, name: str, *, hard: bool = False, timeout_s: float = 10) -> None:
        """Ends a process: SIGTERM, and SIGKILL after timeout_s (at once when `hard`).

        Processes it started itself and left behind are not looked for here but by `stop_all`.
        """
        record = self.record(name)
        if record is None:
            return
        if not hard:
            self.signal(name, signal.SIGTERM)
            self.signal(name, signal.SIGCONT)
            deadline = time.monotonic() + timeout_s
            while self.running(name) and time.monotonic() < deadline:
                time.sleep(0.01)
        while self.running(name):
            self.signal(name, signal.SIGKILL)
            time.sleep(0.01)

    def forget(self, name: str) -> None:
        """Removes the record of a process that is not to be started again."""
        (self._state.processes / f"{name}.json").unlink(missing_ok=True)

    def ours(self) -> list[Process]:
        """Every process of this cluster: the recorded ones and all that carry its mark.

        This process and its ancestors are never among them.
        """
        spared = own_line()
        recorded = [record.process for record in self.records() if alive(record.process)]
        return sorted(
            {found for found in (*recorded, *marked(self._mark)) if found.pid not in spared}
        )

    def stop_all(self, timeout_s: float = 20) -> list[Process]:
        """Kills everything of this cluster, and looks again until nothing is found.

        Data is thrown away with the cluster, so nobody is asked to end in an orderly way.
        Returns what was killed. Raises TestClusterError when something does not end.
        """
        killed: set[Process] = set()
        deadline = time.monotonic() + timeout_s
        while left := self.ours():
            killed.update(left)
            _kill(left)
            for process in left:
                while alive(process) and time.monotonic() < deadline:
                    self._reap(process.pid)
                    time.sleep(0.005)
            if time.monotonic() > deadline:
                raise TestClusterError(f"these processes do not end on SIGKILL: {left}")
        for pid in list(self._children):
            self._reap(pid)
        return sorted(killed)

    def tail(self, name: str, lines: int = 25) -> str:
        """The last lines of a process's log, for an error's text."""
        try:
            text = self.log_of(name).read_text(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def _write(self, record: Record) -> None:
        path = self._state.processes / f"{record.name}.json"
        write_atomically(path, msgspec.json.encode(record))

    def _reap(self, pid: int) -> None:
        child = self._children.get(pid)
        if child is not None and child.poll() is not None:
            del self._children[pid]


def _kill(processes: Iterable[Process]) -> None:
    for process in processes:
        if alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
