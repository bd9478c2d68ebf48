"""Containers without Kubernetes, and CUDA programs in them that do what they are told.

A container is a mount namespace with the files the plugin mounts: the limits, read-only, the
region, and /etc/ld.so.preload. That file and not LD_PRELOAD, because it is what containers get, so
that what is checked here is what runs there; the limits need the mount namespace anyway, for they
are trusted by their mount being read-only.
"""

import os
import selectors
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.isolation.limits import MIB, GpuLimit, encode_limits
from gpushare.isolation.region import create_region, open_region, read_region

from .machine import Machine, Unusable

OUT_OF_MEMORY = 2
NOT_THERE = -1
GRANULE = 2 * MIB
ANSWER_WITHIN_S = 30
CANNOT_MOUNT = 77


class Died(Exception):
    """A program ended or did not answer; the text says at which command."""


class Program:
    """A running program; `pointers` and the like are numbers of the driver's."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.stream = 0
        self._unread = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, command: str) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not ready.select(ANSWER_WITHIN_S):
                    raise Died(f"{command[:80]!r} was not answered in {ANSWER_WITHIN_S} s")
                read = os.read(self.process.stdout.fileno(), 65536)
                if not read:
                    self._ended(command)
                self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode().split()

    def _ended(self, command: str) -> None:
        status = self.process.wait(10)
        if status == CANNOT_MOUNT:
            raise Unusable("this needs root, or user namespaces that may mount an overlay on /etc")
        raise Died(f"{command[:80]!r} ended the program with status {status}")

    def call(self, symbol: str, *arguments: object) -> list[int]:
        """The result, and the first 8 bytes of every buffer among the arguments."""
        words = self.ask(" ".join(["call", symbol, *map(str, arguments)]))
        return [int(word) for word in words]

    def result(self, symbol: str, *arguments: object) -> int:
        return self.call(symbol, *arguments)[0]

    def made(self, symbol: str, *arguments: object) -> int:
        """What a call that must succeed put into its first buffer."""
        result, *values = self.call(symbol, *arguments)
        if result:
            raise Died(f"{symbol}({', '.join(map(str, arguments))}) answers {result}")
        return values[0]

    def must(self, symbol: str, *arguments: object) -> None:
        result = self.result(symbol, *arguments)
        if result:
            raise Died(f"{symbol}({', '.join(map(str, arguments))}) answers {result}")

    def put(self, buffer: int, data: bytes) -> str:
        self.ask(f"set {buffer} {data.hex() or '00'}")
        return f"@{buffer}"

    def bytes_of(self, buffer: int, length: int) -> bytes:
        return bytes.fromhex(self.ask(f"get {buffer} {length}")[1])

    # --- what most checks do

    def init(self, device: int = 0) -> int:
        """A primary context on the device; the driver's result."""
        result = self.result("cuInit", 0)
        if not result:
            result, context = self.call("cuDevicePrimaryCtxRetain", "@0", device)
        if not result:
            result = self.result("cuCtxSetCurrent", context)
        if not result:
            self.stream = self.made("cuStreamCreate", "@0", 0)
        return result

    def allocate(self, amount: int) -> tuple[int, int]:
        """The result, and the pointer."""
        result, pointer = self.call("cuMemAlloc_v2", "@0", amount)
        return result, pointer

    def free(self, pointer: int) -> None:
        self.must("cuMemFree_v2", pointer)

    def info(self) -> tuple[int, int]:
        """Free and total as cuMemGetInfo shows them."""
        result, free, total = self.call("cuMemGetInfo_v2", "@0", "@1")
        if result:
            raise Died(f"cuMemGetInfo answers {result}")
        return free, total

    def physical(self, amount: int, *, exportable: bool = False) -> tuple[int, int]:
        """cuMemCreate on the device: the result, and the handle."""
        properties = struct.pack("<iiiiQQQ", 1, int(exportable), 1, 0, 0, 0, 0)
        result, handle, _ = self.call("cuMemCreate", "@0", amount, self.put(1, properties), 0)
        return result, handle

    def mapped(self, handle: int, amount: int) -> int:
        address = self.made("cuMemAddressReserve", "@0", amount, 0, 0, 0)
        self.must("cuMemMap", address, amount, 0, handle, 0)
        return address

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)


@dataclass
class Container:
    """The files of one container, and its programs."""

    machine: Machine
    build: Path
    folder: Path
    limit: GpuLimit
    library: Path | None
    """What is preloaded; None: nothing, as on a `share` node."""
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "limits").write_text(encode_limits([self.limit]))
        create_region(self.folder / "region", [self.limit])

    def used(self) -> int:
        """Bytes charged, by the region."""
        fd = open_region(self.folder / "region")
        try:
            return read_region(fd, [self.limit]).gpus[0].used
        finally:
            os.close(fd)

    def command(self, *words: str | Path) -> list[str]:
        preload = ["--preload", str(self.library)] if self.library else []
        return [
            str(self.build / "tests" / "incontainer"),
            *("--limits", str(self.folder / "limits"), "--region", str(self.folder / "region")),
            *preload,
            "--",
            *map(str, words),
        ]

    @contextmanager
    def program(self, way: str = "dlsym", *, ready: bool = True) -> Iterator[Program]:
        name = "ongpu-direct" if way == "direct" else "ongpu"
        process = subprocess.Popen(
            self.command(self.build / "tests" / name, way),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.machine.environment,
        )
        program = Program(process)
        try:
            if ready and (result := program.init()):
                raise Died(f"a context could not be made: {result}")
            yield program
        finally:
            process.kill()
            process.wait(10)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
