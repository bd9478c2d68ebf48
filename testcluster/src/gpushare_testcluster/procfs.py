"""Reading /proc: who runs, since when, and with which mark in the environment.

A pid alone names nobody for long: it is used again. A pid together with its start time (field 22
of /proc/PID/stat, in clock ticks since boot) names one process for as long as the machine is up.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    """One process, exactly: a pid and when it started (clock ticks since boot)."""

    pid: int
    start: int


def start_time(pid: int) -> int | None:
    """The start time of the process with this pid; None when there is none, or only a zombie."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The command name is in parentheses and may hold anything, closing parentheses too.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def alive(process: Process) -> bool:
    """True while exactly this process runs."""
    return process.pid > 0 and start_time(process.pid) == process.start


def parent(pid: int) -> int:
    """The parent's pid; 0 when there is no such process."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return 0
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def own_line() -> set[int]:
    """This process and all its ancestors: never to be ended by us."""
    line: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        pid = parent(pid)
    return line


def marked(mark: str) -> list[Process]:
    """Every process that was started with `mark` (a `NAME=value`) in its environment.

    The environment is that of the exec: a process cannot shed it, and its children inherit it.
    Processes of other users, which we may not read, are not ours.
    """
    wanted = mark.encode()
    found = []
    for entry in os.scandir(PROC):
        if not entry.name.isdigit():
            continue
        try:
            environ = Path(entry.path, "environ").read_bytes()
        except OSError:
            continue
        if wanted in environ.split(b"\0"):
            pid = int(entry.name)
            started = start_time(pid)
            if started is not None:
                found.append(Process(pid, started))
    return found
