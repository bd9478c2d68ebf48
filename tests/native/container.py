"""Containers for tests of the interposer: the files a plugin would mount, and programs in them."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpushare.isolation.limits import MIB, GpuLimit, encode_limits
from gpushare.isolation.region import Region, create_region, open_region, read_region
from tests.native.fakes import FakeGpus

OUT_OF_MEMORY = 2

WAYS = ("direct", "dlsym", "default", "next", "dlsym-dlsym", "address", "address-v1", "per-thread")
"""How real programs find the driver's functions."""


class Program:
    """A running CUDA program that obeys commands, one answer for each."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, command: str) -> list[int]:
        """The numbers of the answer; the first is the driver's result code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(10)
            if self.process.returncode == 77:
                pytest.skip("neither root nor user namespaces here")
            raise AssertionError(f"{command!r}: the program ended with {self.process.returncode}")
        return [int(word) for word in line.split()]

    def result(self, command: str) -> int:
        return self.ask(command)[0]

    def handle(self, command: str) -> int:
        """Of a command that must succeed: the number to name its object by."""
        result, *rest = self.ask(command)
        assert result == 0, f"{command!r} answered {result}"
        return rest[0]

    @property
    def free(self) -> int:
        """MiB that cuMemGetInfo shows as free."""
        result, free, _ = self.ask("info")
        assert result == 0
        return free // MIB

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0


@dataclass
class Container:
    """What the plugin prepares for one container, and its processes."""

    gpus: FakeGpus
    folder: Path
    limits: tuple[GpuLimit, ...]
    library: Path | str
    """What is preloaded; a list of it where sanitizers must come first."""
    isolated: bool = True
    """False: a container of a `share` node, with nothing in front of the driver."""
    writable_limits: bool = False
    extra_environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "limits").write_text(encode_limits(self.limits))
        create_region(self.folder / "region", self.limits)

    @property
    def region_file(self) -> Path:
        return self.folder / "region"

    def region(self) -> Region:
        fd = open_region(self.region_file)
        try:
            return read_region(fd, self.limits)
        finally:
            os.close(fd)

    def command(self, *words: str | Path) -> list[str]:
        inside = [str(self.gpus.build / "tests" / "incontainer")]
        inside += ["--limits", str(self.folder / "limits"), "--region", str(self.region_file)]
        if self.writable_limits:
            inside.append("--writable")
        if self.isolated:
            inside += ["--", "env", f"LD_PRELOAD={self.library}", *map(str, words)]
        else:
            inside += ["--", *map(str, words)]
        return inside

    def environment(self) -> dict[str, str]:
        return {**self.gpus.environment(), **self.extra_environment}

    @contextmanager
    def run(self, way: str = "dlsym", device: int | None = 0) -> Iterator[Program]:
        """A program in the container, with a context on a device unless that is None."""
        name = "gpuprog-direct" if way == "direct" else "gpuprog"
        process = subprocess.Popen(
            self.command(self.gpus.build / "tests" / name, way),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment(),
            text=True,
        )
        program = Program(process)
        try:
            if device is not None:
                assert program.result(f"init {device}") == 0
            yield program
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(10)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
