"""The look from outside at real processes: held to their limit by the library, or not."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.isolation.backend import LIBRARY_IN_CONTAINER, PRELOAD_IN_CONTAINER
from gpushare.isolation.protection import Given, why_unprotected
from tests.native.container import Container, Program

PROC = Path("/proc")

_MOUNTED = """
set -e
mkdir /mnt/upper-lib /mnt/work-lib
mount -t overlay overlay /usr/lib -o lowerdir=/usr/lib,upperdir=/mnt/upper-lib,workdir=/mnt/work-lib
mkdir /usr/lib/gpushare
touch {inside}
mount --bind {library} {inside}
mount -o remount,bind,ro {inside}
exec "$@"
"""
"""What remains to be mounted after `incontainer`: the library where containers have it."""


@contextmanager
def running(container: Container, library: Path, *words: str | Path) -> Iterator[Program]:
    """A program in a container that has everything but /etc/ld.so.preload."""
    script = _MOUNTED.format(library=library, inside=LIBRARY_IN_CONTAINER)
    command = container.command("sh", "-c", script, "sh", *words)
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=container.environment(),
        text=True,
    )
    try:
        yield Program(process)
    finally:
        process.kill()
        process.communicate()


def preload(pid: int) -> None:
    """Puts /etc/ld.so.preload in place for the programs that a process starts from now on."""
    (PROC / str(pid) / "root" / PRELOAD_IN_CONTAINER[1:]).write_text(LIBRARY_IN_CONTAINER + "\n")


@pytest.fixture
def container(new_container: Callable[..., Container]) -> Container:
    # `isolated` would preload the library by the environment.
    return new_container(isolated=False)


def test_a_program_that_was_there_before_the_preload_is_found(
    container: Container, interposer: Path
) -> None:
    given = Given(container.limits, interposer)
    prog = container.gpus.build / "tests" / "gpuprog"
    with running(container, interposer, prog, "dlsym") as program:
        assert program.result("init 0") == 0
        pid = program.process.pid
        assert why_unprotected(PROC, [pid], given) == f"it has no {PRELOAD_IN_CONTAINER}"
        preload(pid)
        why = why_unprotected(PROC, [pid], given)
        assert why is not None
        assert "'gpuprog' uses the GPU without the library" in why


def test_a_program_with_the_library_is_protected(container: Container, interposer: Path) -> None:
    given = Given(container.limits, interposer)
    prog = container.gpus.build / "tests" / "gpuprog"
    script = 'read ready; echo 0; read go; exec "$@"'
    with running(container, interposer, "sh", "-c", script, "sh", prog, "dlsym") as program:
        pid = program.process.pid
        assert program.result("ready") == 0
        preload(pid)
        assert program.process.stdin is not None
        program.process.stdin.write("go\n")
        assert program.result("init 0") == 0
        assert program.ask("info")[2] == container.limits[0].limit_bytes
        assert why_unprotected(PROC, [pid], given) is None
        another = Given(container.limits, Path("/bin/sh"))
        assert "not the node's" in (why_unprotected(PROC, [pid], another) or "")
        assert "something else" in (why_unprotected(PROC, [pid], Given((), interposer)) or "")


def test_a_static_program_alone_is_no_fault(container: Container, interposer: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None or b"static" not in subprocess.check_output(["file", "-L", busybox]):
        pytest.skip("no static busybox here")
    given = Given(container.limits, interposer)
    with running(container, interposer, busybox, "sleep", "100") as program:
        pid = program.process.pid
        end = time.monotonic() + 10
        while (PROC / str(pid) / "comm").read_text().strip() != "busybox":
            assert time.monotonic() < end
            time.sleep(0.01)
        preload(pid)
        assert why_unprotected(PROC, [pid], given) is None
