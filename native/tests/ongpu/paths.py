"""Every way to a function of the driver: the share is shown, kept, and cannot be passed by."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .machine import MIB
from .program import NOT_THERE, OUT_OF_MEMORY, Program
from .report import mib
from .setting import GRANULE, Setting

WAYS = ("direct", "dlsym", "default", "next", "dlsym-dlsym", "address-v1", "address", "per-thread")
LEGACY, PER_THREAD = 1, 2
UNHOOKED = ("cuLaunchKernel", "cuCtxGetCurrent", "cuMemAddressReserve", "cuInit")
SECOND = 12000
SINCE = {"address": SECOND, "per-thread": SECOND}
"""The CUDA version that brought the second version of cuGetProcAddress."""


def edges(s: Setting) -> None:
    """On every way the share is shown, given, and given no further."""
    rows: list[tuple[object, ...]] = []
    for way in WAYS:
        if s.machine.cuda_version < SINCE.get(way, 0):
            s.report.omit(f"{way}: this driver is older than it")
            continue
        with s.container().program(way) as program:
            shown = program.made("cuDeviceTotalMem_v2", "@0", 0)
            s.report.equal(f"2 {way}: cuDeviceTotalMem", shown, s.limit)
            free, total = program.info()
            s.report.equal(f"2 {way}: cuMemGetInfo", (free, total), (s.room, s.limit))
            over, _ = program.allocate(s.room + GRANULE)
            s.report.equal(f"2 {way}: one granule more than there is", over, OUT_OF_MEMORY)
            under, pointer = program.allocate(s.room - GRANULE)
            s.report.equal(f"2 {way}: one granule less than there is", under, 0)
            second, _ = program.allocate(2 * GRANULE)
            s.report.equal(f"2 {way}: two granules where one is left", second, OUT_OF_MEMORY)
            last, rest = program.allocate(GRANULE)
            s.report.equal(f"2 {way}: the last granule", last, 0)
            for given, result in ((pointer, under), (rest, last)):
                if result == 0:
                    program.free(given)
            s.report.equal(f"2 {way}: free again", program.info()[0], s.room)
            asynchronous = program.result("cuMemAllocAsync", "@0", s.room + GRANULE, program.stream)
            s.report.equal(f"2 {way}: cuMemAllocAsync of more", asynchronous, OUT_OF_MEMORY)
            rows.append((way, mib(shown), under, over, asynchronous))
    with s.container(held=False).program() as program:
        free, total = program.info()
        s.report.check(
            "2 without the interposer", total > s.limit, f"more than {mib(s.limit)} MiB", mib(total)
        )
        under, pointer = program.allocate(s.limit)
        s.report.equal("2 without the interposer, as much as the whole share", under, 0)
        rows.append(("not held", mib(total), under, "-", "-"))
    s.report.table(("way", "total MiB", "room - 2 MiB", "room + 2 MiB", "async"), rows)
    _first_generation(s)
    _views(s)


def _first_generation(s: Setting) -> None:
    """The 32-bit names. A driver may refuse them in a newer context; it may not be a way around."""
    rows = []
    for way in ("direct", "dlsym", "address" if s.machine.cuda_version >= SECOND else "address-v1"):
        with s.container().program(way, ready=False) as program:
            program.must("cuInit", 0)
            context = program.result("cuCtxCreate", "@0", 0, 0)
            if context == NOT_THERE:
                context = program.result("cuCtxCreate_v2", "@0", 0, 0)
            s.report.equal(f"2 first generation, {way}: a context", context, 0)
            total, shown = program.call("cuDeviceTotalMem", program.put(1, b""), 0)
            got, _, info = program.call("cuMemGetInfo", program.put(2, b""), program.put(3, b""))
            most = min(s.limit, 2**32 - 1)
            for name, result, value in (("total", total, shown), ("info", got, info)):
                s.report.check(
                    f"2 first generation, {way}: {name}",
                    result != 0 or value == most,
                    f"{most}, or an error of the driver's own",
                    (result, value),
                )
            over = program.result("cuMemAlloc", "@0", min(s.room + GRANULE, 2**32 - 1))
            s.report.check(
                f"2 first generation, {way}: more than there is",
                over == OUT_OF_MEMORY,
                str(OUT_OF_MEMORY),
                over,
            )
            under = program.result("cuMemAlloc", "@0", 64 * MIB)
            rows.append((way, total, got, under, over))
    s.report.table(("way", "cuDeviceTotalMem", "cuMemGetInfo", "64 MiB", "room + 2 MiB"), rows)


def _views(s: Setting) -> None:
    """NVML inside a container: the share, and no neighbour."""
    with s.container().program() as neighbour, s.container().program() as program:
        neighbour.allocate(256 * MIB)
        program.allocate(512 * MIB)
        program.must("nvmlInit_v2")
        uuid = program.put(1, s.machine.uuid.encode())
        device = program.made("nvmlDeviceGetHandleByUUID", uuid, "@0") and int.from_bytes(
            program.bytes_of(0, 8), "little"
        )
        used = 512 * MIB + s.reserve
        program.must("nvmlDeviceGetMemoryInfo", device, program.put(2, b""))
        one = [int.from_bytes(program.bytes_of(2, 24)[i : i + 8], "little") for i in (0, 8, 16)]
        s.report.equal("2 NVML v1 total, free, used", one, [s.limit, s.limit - used, used])
        version = (40 | 2 << 24).to_bytes(4, "little")
        program.must("nvmlDeviceGetMemoryInfo_v2", device, program.put(2, version))
        two = program.bytes_of(2, 40)
        found = [int.from_bytes(two[i : i + 8], "little") for i in (8, 16, 24, 32)]
        s.report.equal(
            "2 NVML v2 total, reserved, free, used", found, [s.limit, 0, s.limit - used, used]
        )
        room = program.put(3, (64).to_bytes(4, "little"))
        program.must("nvmlDeviceGetComputeRunningProcesses_v3", device, room, "@2")
        count = int.from_bytes(program.bytes_of(3, 4), "little")
        pid = int.from_bytes(program.bytes_of(2, 4), "little")
        s.report.equal("2 NVML's processes", (count, pid), (1, program.pid))
        s.report.check(
            "2 free as shown",
            program.info()[0] <= s.machine.memory().usable - s.machine.memory().used + GRANULE,
            "no more than the GPU has",
            program.info()[0],
        )


# --- the runtime library of real programs ---------------------------------------------------------


RUNTIME = """
import ctypes, json, sys
runtime = ctypes.CDLL(sys.argv[1])
def allocate(size):
    pointer = ctypes.c_void_p()
    result = runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
    if result == 0:
        runtime.cudaFree(pointer)
    return result
version = ctypes.c_int()
runtime.cudaRuntimeGetVersion(ctypes.byref(version))
first = allocate(4096)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
info = runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
results = [allocate(int(size)) for size in sys.argv[2:]]
print(json.dumps([version.value, first, info, total.value, *results]))
"""


def runtimes(s: Setting) -> None:
    """Real libcudart, where there is one: over the share is error 2, under it is granted."""
    if not s.runtimes:
        s.report.omit("libcudart: none found (--cudart FILE, or pip install nvidia-cuda-runtime)")
    rows = []
    for library in s.runtimes:
        container = s.container()
        sizes = (s.room - 2 * GRANULE, s.room + GRANULE)
        done = subprocess.run(
            container.command(sys.executable, "-c", RUNTIME, library, *map(str, sizes)),
            env=s.machine.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        what = f"2 {library.name}"
        s.report.check(what, done.returncode == 0, "to run", done.stderr[-500:])
        if done.returncode:
            continue
        version, first, info, total, under, over = json.loads(done.stdout)
        rows.append((library, version, first, under, over))
        if s.machine.fake and first:
            s.report.omit(f"{library.name}: it stops with its own error {first} on a fake driver")
            continue
        s.report.equal(f"{what}: cudaMalloc of 4096 B", first, 0)
        s.report.equal(f"{what}: cudaMemGetInfo", (info, total), (0, s.limit))
        s.report.equal(f"{what}: cudaMalloc under the edge", under, 0)
        s.report.equal(f"{what}: cudaMalloc over the edge", over, OUT_OF_MEMORY)
    if rows:
        s.report.table(("library", "version", "4096 B", "room - 4 MiB", "room + 2 MiB"), rows)


# --- which functions are ours, and whether they are the right ones --------------------------------


@dataclass(frozen=True)
class Hook:
    symbol: str
    base: str
    since: int
    per_thread: bool


def read_hooks(table: Path) -> list[Hook]:
    """The driver's functions in the interposer's own table."""
    row = re.compile(r"^HOOK\(CUDA, (\w+), (\w+), (\d+), ([01]),", re.MULTILINE)
    hooks = [Hook(a, b, int(c), d == "1") for a, b, c, d in row.findall(table.read_text())]
    if len(hooks) < 30:
        raise RuntimeError(f"{len(hooks)} hooks read from {table}")
    return hooks


def _where(program: Program, command: str) -> tuple[int, str]:
    """The address, 0 if there is none, and the file name of its library."""
    result, address, library = program.ask(command)
    return (0 if int(result) else int(address)), library


def _questions(hooks: list[Hook], driver: int) -> Iterator[tuple[str, int, int]]:
    """What programs of every CUDA version may ask cuGetProcAddress for."""
    for base in sorted({hook.base for hook in hooks}):
        versions = {hook.since for hook in hooks if hook.base == base}
        for version in sorted({*versions, 11040, 11080, 12000, 12050, 12080, 13000, driver}):
            if min(versions) <= version <= driver:
                for flags in (LEGACY, PER_THREAD):
                    yield base, version, flags


def versions(s: Setting) -> None:
    """Every lookup of a hooked name gives the hook that stands for what the driver would give."""
    hooks = read_hooks(s.hooks)
    symbols = {hook.symbol for hook in hooks}
    way = "address" if s.machine.cuda_version >= SECOND else "address-v1"
    questions = list(_questions(hooks, s.machine.cuda_version))
    with (
        s.container(held=False).program("dlsym", ready=False) as bare,
        s.container().program("dlsym", ready=False) as held,
    ):
        there = {symbol: _where(bare, f"symbol {symbol}") for symbol in sorted(symbols)}
        ours = {symbol: _where(held, f"symbol {symbol}") for symbol in sorted(symbols)}
        astray = {
            symbol: library
            for symbol, (_, library) in ours.items()
            if library != (s.library.name if there[symbol][0] else "-")
        }
        s.report.equal("4 hooked names that dlsym finds elsewhere", astray, {})
        for symbol in UNHOOKED:
            found = _where(held, f"symbol {symbol}")[1]
            s.report.equal(f"4 dlsym of {symbol}", found, _where(bare, f"symbol {symbol}")[1])
        newer = sorted(_newer_names(symbols))
        unknown = [name for name in newer if _where(bare, f"symbol {name}")[0]]
        s.report.equal("4 exported versions of hooked names that no hook knows", unknown, [])
    with (
        s.container(held=False).program(way, ready=False) as bare,
        s.container().program(way, ready=False) as held,
    ):
        # Each program has its own addresses: a pointer is named by the symbol that has it too.
        real_names, our_names = _names(bare, symbols), _names(held, symbols)
        wrong: dict[str, dict[str, list[str]]] = {base: {} for base, _, _ in questions}
        internal = 0
        for question in questions:
            base, version, flags = question
            real, _ = _where(bare, f"address {base} {version} {flags}")
            our, library = _where(held, f"address {base} {version} {flags}")
            meant = real_names.get(real, set())
            problem = None
            if not real or library != s.library.name:
                problem = f"a pointer into {library}" if our else None if not real else "nothing"
            elif meant:
                problem = _other_hook(hooks, question, meant, our_names.get(our, set()))
            else:
                internal += 1
                problem = _newer_than_known(bare, hooks, question, real)
            if problem:
                asked = f"{version}{' per thread' if flags == PER_THREAD else ''}"
                wrong[base].setdefault(problem, []).append(asked)
    for base, problems in wrong.items():
        found = "; ".join(f"{what} (CUDA {', '.join(when)})" for what, when in problems.items())
        s.report.check(
            f"4 cuGetProcAddress of {base}", not found, "the hook for what the driver gives", found
        )
    there_count = sum(1 for address, _ in there.values() if address)
    s.report.table(
        ("lookups", ""),
        (
            ("hooked names", len(symbols)),
            ("of them exported by this driver", there_count),
            ("questions to cuGetProcAddress", len(questions)),
            ("answered with a pointer that no export has", internal),
        ),
    )
    absent = sorted(symbol for symbol, (address, _) in there.items() if not address)
    if absent:
        print(f"Not in this driver: {', '.join(absent)}")


def _newer_names(symbols: set[str]) -> Iterator[str]:
    """Names that a newer driver might give to another version of a hooked function."""
    stems = {re.sub(r"(_v\d+)?(_ptsz)?$", "", symbol) for symbol in symbols}
    for stem in stems:
        for version in ("", *(f"_v{n}" for n in range(2, 8))):
            for suffix in ("", "_ptsz", "_ptds"):
                if (name := stem + version + suffix) not in symbols:
                    yield name


def _names(program: Program, symbols: set[str]) -> dict[int, set[str]]:
    names: dict[int, set[str]] = {}
    for symbol in symbols:
        address, _ = _where(program, f"symbol {symbol}")
        if address:
            names.setdefault(address, set()).add(symbol)
    return names


def _other_hook(
    hooks: list[Hook], question: tuple[str, int, int], meant: set[str], ours: set[str]
) -> str | None:
    """Whether our pointer stands for another function than the driver's; what it stands for."""
    if not ours:
        # An entry whose own name this driver does not export: the one the table says.
        base, version, flags = question
        fits = [
            hook
            for hook in hooks
            if hook.base == base
            and hook.since <= version
            and (flags == PER_THREAD or not hook.per_thread)
        ]
        ours = {max(fits, key=lambda hook: (hook.since, hook.per_thread)).symbol}
    # Both variants for streams have the same parameters.
    if {name.removesuffix("_ptsz") for name in meant} & {n.removesuffix("_ptsz") for n in ours}:
        return None
    return f"the hook for {' or '.join(sorted(ours))} where {' or '.join(sorted(meant))} is meant"


def _newer_than_known(
    bare: Program, hooks: list[Hook], question: tuple[str, int, int], real: int
) -> str | None:
    """A pointer that no export has: it must be the one of the newest version we know."""
    base, version, flags = question
    known = max(hook.since for hook in hooks if hook.base == base and hook.since <= version)
    if _where(bare, f"address {base} {known} {flags}")[0] == real:
        return None
    return f"a hook for the function of CUDA {known} where the driver has a newer one"
