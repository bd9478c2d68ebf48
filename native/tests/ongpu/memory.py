"""What calls and contexts really take of the GPU, against what is charged for them.

Charging less than the driver takes is the failure: a GPU full of containers then runs out of
memory although none of them is over its limit. Charging more only wastes.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .program import NOT_THERE, OUT_OF_MEMORY, Program
from .report import mib
from .setting import BIG_MIB, GRANULE, MIB, SMALL_MIB, Setting

HEAP, STACK = 2, 0
NO_COMPILER = 221
EMPTY_KERNEL = ".visible .entry nothing()\n{\n    ret;\n}\n"
GLOBAL_MIB = 64
GLOBAL = f".visible .global .align 8 .b8 big[{GLOBAL_MIB * MIB}];\n"


def load(program: Program, body: str) -> int | None:
    """A module of hand-written PTX, compiled by the driver; None if it cannot do that here."""
    result = NOT_THERE
    for target in ("sm_70", "sm_52"):
        text = f".version 6.0\n.target {target}\n.address_size 64\n{body}"
        result, module, _ = program.call("cuModuleLoadData", "@4", program.put(5, text.encode()))
        if result == 0:
            return module
        if result in (NOT_THERE, NO_COMPILER):
            return None
    raise RuntimeError(f"cuModuleLoadData answers {result} to PTX for sm_52")


def kernel(program: Program) -> int | None:
    """An empty kernel, or None."""
    module = load(program, EMPTY_KERNEL)
    if module is None:
        return None
    return program.made("cuModuleGetFunction", "@4", module, program.put(5, b"nothing"))


def launch(function: int, stream: int) -> list[str]:
    """The words of a call that launches one thread."""
    return f"cuLaunchKernel {function} 1 1 1 1 1 1 0 {stream} 0 0".split()


@dataclass(frozen=True)
class Reading:
    real: int
    charged: int


@dataclass
class Probe:
    """A program whose use is read between steps."""

    setting: Setting
    program: Program
    used: Callable[[], int]

    def read(self) -> Reading:
        self.program.result("cuCtxSynchronize")
        return Reading(self.setting.really_used(self.program), self.used())


Steps = Iterator[None]


def linear(p: Program, size: int) -> Steps:
    result, pointer = p.allocate(size)
    assert result == 0, f"cuMemAlloc answers {result}"
    yield
    p.free(pointer)


def managed(p: Program, size: int) -> Steps:
    pointer = p.made("cuMemAllocManaged", "@0", size, 1)
    # It is the GPU's only once something was written there.
    p.must("cuMemsetD8_v2", pointer, 1, min(size, 64 * MIB))
    p.must("cuCtxSynchronize")
    yield
    p.free(pointer)


def pitched(p: Program, size: int) -> Steps:
    pointer = p.made("cuMemAllocPitch_v2", "@0", "@1", 1000, max(size // 1024, 1), 4)
    yield
    p.free(pointer)


def pooled(p: Program, size: int) -> Steps:
    pointer = p.made("cuMemAllocAsync", "@0", size, p.stream)
    p.must("cuCtxSynchronize")
    yield
    p.must("cuMemFreeAsync", pointer, p.stream)


def virtual(p: Program, size: int) -> Steps:
    result, handle = p.physical(size)
    assert result == 0, f"cuMemCreate answers {result}"
    address = p.mapped(handle, size)
    yield
    p.must("cuMemUnmap", address, size)
    p.must("cuMemRelease", handle)


def array(p: Program, size: int) -> Steps:
    floats = struct.pack("<QQQiII4x", 1024, size // 4096, 0, 0x20, 1, 0)
    handle = p.made("cuArray3DCreate_v2", "@0", p.put(1, floats))
    yield
    p.must("cuArrayDestroy", handle)


def captured(p: Program, size: int) -> int:
    """An executable graph that allocates and frees."""
    p.must("cuStreamBeginCapture_v2", p.stream, 0)
    pointer = p.made("cuMemAllocAsync", "@0", size, p.stream)
    p.must("cuMemFreeAsync", pointer, p.stream)
    graph = p.made("cuStreamEndCapture", p.stream, "@0")
    return p.made("cuGraphInstantiateWithFlags", "@0", graph, 0)


def drop_graph(p: Program, executable: int) -> None:
    p.must("cuCtxSynchronize")
    p.must("cuGraphExecDestroy", executable)
    p.must("cuDeviceGraphMemTrim", 0)


def graph(p: Program, size: int) -> Steps:
    executable = captured(p, size)
    p.must("cuGraphLaunch", executable, p.stream)
    yield
    drop_graph(p, executable)


def heap(p: Program, size: int) -> Steps:
    before = p.made("cuCtxGetLimit", "@0", HEAP)
    p.must("cuCtxSetLimit", HEAP, before + size)
    if (function := kernel(p)) is not None:
        p.must(*launch(function, p.stream))
        p.must("cuCtxSynchronize")
    yield


def stack(p: Program, size: int) -> Steps:
    before = p.made("cuCtxGetLimit", "@0", STACK)
    p.must("cuCtxSetLimit", STACK, before + size)
    if (function := kernel(p)) is not None:
        p.must(*launch(function, p.stream))
        p.must("cuCtxSynchronize")
    yield


KINDS: tuple[tuple[str, Callable[[Program, int], Steps], tuple[int, ...]], ...] = (
    ("cuMemAlloc", linear, (1, SMALL_MIB * MIB, BIG_MIB * MIB)),
    ("cuMemAllocAsync", pooled, (1, SMALL_MIB * MIB, BIG_MIB * MIB)),
    ("cuMemCreate", virtual, (SMALL_MIB * MIB, BIG_MIB * MIB)),
    ("cuMemAllocManaged", managed, (1, SMALL_MIB * MIB, BIG_MIB * MIB)),
    ("cuMemAllocPitch", pitched, (SMALL_MIB * MIB, BIG_MIB * MIB)),
    ("cuArray3DCreate", array, (SMALL_MIB * MIB, 256 * MIB)),
    ("graph launch", graph, (SMALL_MIB * MIB, 256 * MIB)),
    ("device heap", heap, (256 * MIB,)),
    ("stack per thread", stack, (1024,)),
)


def drift(s: Setting) -> None:
    """Every kind of memory: what the driver took, what was charged, and what stays afterwards."""
    rows = []
    for name, make, sizes in KINDS:
        for size in sizes:
            # A program for each: what a pool kept from before would be in the way.
            container = s.container()
            with container.program() as program:
                probe = Probe(s, program, container.used)
                readings = [probe.read()]
                steps = make(program, size)
                next(steps)
                readings.append(probe.read())
                next(steps, None)
                readings.append(probe.read())
                (real, charged), (kept, still) = (
                    (now.real - readings[0].real, now.charged - readings[0].charged)
                    for now in readings[1:]
                )
                what = f"1 drift, {name} of {size} B"
                s.report.check(
                    what,
                    real <= charged + GRANULE,
                    f"at least {mib(real - GRANULE)} MiB charged",
                    f"{mib(charged)} MiB",
                )
                s.report.check(
                    f"{what}, freed",
                    kept <= still + GRANULE,
                    f"at least {mib(kept - GRANULE)} MiB charged",
                    f"{mib(still)} MiB",
                )
                rows.append((name, size, mib(real), mib(charged), mib(kept), mib(still)))
    s.report.table(
        ("call", "asked, B", "really MiB", "charged MiB", "kept when freed", "still charged"), rows
    )
    _known_gap(s)


def _known_gap(s: Setting) -> None:
    container = s.container()
    with container.program() as program:
        probe = Probe(s, program, container.used)
        before = probe.read()
        if load(program, GLOBAL) is None:
            s.report.omit("kernels and module globals: the driver compiles no PTX here")
            return
        after = probe.read()
        print(
            f"Known and not charged: a module with a global of {GLOBAL_MIB} MiB takes "
            f"{mib(after.real - before.real)} MiB, charged {mib(after.charged - before.charged)}."
        )


def contexts(s: Setting) -> None:
    """What the driver takes for a context, against the reserve."""
    memory = s.machine.memory()
    rows = []
    most = 0

    def step(name: str, before: int, now: int, contexts: int) -> None:
        nonlocal most
        rows.append((name, mib(now - before), mib(now), contexts * mib_of(s.reserve)))
        if contexts:
            most = max(most, now // contexts)

    with s.container(held=False).program(ready=False) as program:
        program.must("cuInit", 0)
        last = s.really_used(program)
        step("cuInit alone", 0, last, 0)
        bare_total = program.made("cuDeviceTotalMem_v2", "@0", 0)
        assert program.init() == 0
        now = s.really_used(program)
        step("the primary context and a stream", last, now, 1)
        last = now
        if (function := kernel(program)) is not None:
            program.must(*launch(function, program.stream))
            program.must("cuCtxSynchronize")
            now = s.really_used(program)
            step("a module, a launch", last, now, 1)
            last = now
        result, second = program.call("cuCtxCreate_v2", "@0", 0, 0)
        assert result == 0, f"cuCtxCreate_v2 answers {result}"
        now = s.really_used(program)
        step("a second context", last, now, 2)
        last = now
        program.must("cuCtxDestroy_v2", second)
        step("it is destroyed", last, s.really_used(program), 1)
        shown = program.info()[1]
    s.report.table(("step", "MiB more", "MiB in all", "reserve charged, MiB"), rows)
    s.report.check(
        f"3 the reserve on {s.machine.name}",
        most <= s.reserve,
        f"at most {mib(s.reserve)} MiB taken per context",
        f"{mib(most)} MiB",
    )
    s.report.table(
        ("total, MiB", ""),
        (
            ("NVML v1 total", mib(memory.v1_total)),
            ("NVML v2 total", mib(memory.total)),
            ("NVML v2 reserved", mib(memory.reserved)),
            ("usable, of which shares are made", mib(memory.usable)),
            ("cuDeviceTotalMem", mib(bare_total)),
            ("cuMemGetInfo's total", mib(shown)),
        ),
    )
    s.report.check(
        "3 the usable memory",
        memory.usable <= bare_total + 16 * MIB,
        f"no more than CUDA's total, {mib(bare_total)} MiB",
        f"{mib(memory.usable)} MiB",
    )


def mib_of(amount: int) -> int:
    return amount // MIB


def graphs_and_ends(s: Setting) -> None:
    """Stream capture, graphs beyond the share, VMM as NCCL frees it, pools and ends of contexts."""
    equal = s.report.equal
    container = s.container()
    with container.program() as p:
        before = container.used()
        executable = captured(p, 512 * MIB)
        equal("5 an allocation in a capture charges", container.used() - before, 0)
        p.must("cuGraphLaunch", executable, p.stream)
        equal("5 its launch is charged", container.used() - before >= 512 * MIB, True)
        charged = container.used()
        for _ in range(3):
            p.must("cuGraphLaunch", executable, p.stream)
        p.must("cuCtxSynchronize")
        equal("5 launched again, charged", container.used(), charged)
        drop_graph(p, executable)
        equal("5 destroyed and trimmed, charged", container.used(), before)
        beyond = captured(p, s.room + GRANULE)
        equal("5 a graph beyond the share", p.result("cuGraphLaunch", beyond, p.stream), 2)
        p.must("cuGraphExecDestroy", beyond)

        # NCCL frees by retain, release, unmap, release.
        size = 512 * MIB
        result, handle = p.physical(size)
        equal("5 cuMemCreate within the share", result, 0)
        address = p.mapped(handle, size)
        p.must("cuMemRelease", handle)
        again = p.made("cuMemRetainAllocationHandle", "@0", address)
        p.must("cuMemUnmap", address, size)
        equal("5 retained memory is charged", container.used() - before, size)
        p.must("cuMemRelease", again)
        equal("5 the last reference gone, charged", container.used(), before)
        equal("5 cuMemCreate beyond the share", p.physical(s.room + GRANULE)[0], OUT_OF_MEMORY)
        p.must("cuMemAllocAsync", "@0", 64 * MIB, p.stream)
        equal(
            "5 cuMemAllocAsync beyond the share",
            p.result("cuMemAllocAsync", "@0", s.room, p.stream),
            OUT_OF_MEMORY,
        )
    _ends(s)


def _ends(s: Setting) -> None:
    rows = []
    container = s.container()
    with container.program() as p:
        probe = Probe(s, p, container.used)

        def end(name: str, finish: Callable[[], object], before: Reading) -> None:
            finish()
            now = Reading(s.really_used(p), container.used())
            real, charged = now.real - before.real, now.charged - before.charged
            rows.append((name, mib(real), mib(charged)))
            s.report.check(
                f"5 {name}",
                real <= charged + GRANULE,
                f"at least {mib(real - GRANULE)} MiB still charged",
                f"{mib(charged)} MiB",
            )

        before = probe.read()
        second = p.made("cuCtxCreate_v2", "@0", 0, 0)
        s.report.equal("5 memory of a second context", p.allocate(256 * MIB)[0], 0)
        end("a context destroyed with 256 MiB", lambda: p.must("cuCtxDestroy_v2", second), before)
        s.report.equal("5 after it, charged", container.used(), before.charged)

        p.must("cuMemAllocAsync", "@0", 256 * MIB, p.stream)
        result, _ = p.physical(128 * MIB)
        s.report.equal("5 cuMemCreate before the reset", result, 0)
        p.must("cuCtxSynchronize")
        end(
            "primary reset with a pool of 256 MiB and 128 MiB of VMM",
            lambda: p.must("cuDevicePrimaryCtxReset_v2", 0),
            Reading(0, 0),
        )
    s.report.table(("end", "really MiB left", "charged MiB left"), rows)
