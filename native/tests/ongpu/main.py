"""Everything this script does, in the order in which it matters on a machine with a GPU.

Exit status: 0 all checks hold, 1 some do not (each named on standard error, with what was
expected), 2 nothing could be checked here.
"""

import argparse
import datetime
import functools
import hashlib
import platform
import sys
import tempfile
from pathlib import Path

from gpushare.isolation.limits import DEFAULT_RESERVE_MIB, MIB
from gpushare.isolation.region import RegionError

from . import cost, memory, paths, processes
from .machine import Machine, Unusable
from .report import Report, mib
from .setting import Setting

NATIVE = Path(__file__).resolve().parents[2]
OLDEST_CUDA = 11040
NEVER = (
    "libcudart linked statically; cuBLAS and other libraries' memory",
    "external memory of Vulkan and others; MIG; several GPUs; peer access; MPS; green contexts",
    "fork; 32-bit and musl programs; checkpoints",
    "the container itself: hook, CDI and the kubelet (tests/native and the cluster tests do those)",
)


def main() -> int:
    options = _options()
    report = Report(options.budget_s)
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir=options.scratch) as scratch:
        try:
            setting = _setting(options, report, Path(scratch))
            _describe(setting)
            setting.choose_meter(by_sum=options.sums)
        except (Unusable, RegionError) as problem:
            print(f"on-gpu: nothing was checked: {problem}", file=sys.stderr)
            return 2
        _run(setting)
    for text in NEVER:
        report.left_out.append(text)
    return report.end()


def _run(s: Setting) -> None:
    assert s.meter is not None
    how = "its pid" if s.meter.by_process else "the GPU's sum"
    print(f"What a program really takes is read from NVML by {how}.")
    for title, check in (
        ("1. What calls really take, and what is charged", memory.drift),
        ("2. On every way: the share, and no more", paths.edges),
        ("2. Real runtime libraries", paths.runtimes),
        ("3. What contexts really take", memory.contexts),
        ("4. The hook behind every name, and newer versions", paths.versions),
        ("5. Capture, graphs, VMM, pools, ends of contexts", memory.graphs_and_ends),
        ("6. Processes of one container", processes.one_budget),
        ("6. SIGKILL, and a neighbour", processes.killed),
        ("6. A GPU full of containers", processes.full_gpu),
        ("7. What it costs", cost.ratios),
    ):
        s.report.group(title, functools.partial(check, s))


def _describe(s: Setting) -> None:
    machine, now = s.machine, datetime.datetime.now(datetime.UTC)
    if machine.fake:
        print("OVER THE FAKE DRIVER: this tests the script and says nothing about a GPU.\n")
    digest = hashlib.sha256(s.library.read_bytes()).hexdigest()[:16]
    s.report.table(
        ("this run", ""),
        (
            ("date", now.strftime("%Y-%m-%d %H:%M UTC")),
            ("GPU", f"{machine.name}, {machine.uuid}"),
            ("memory", f"{mib(machine.memory().usable)} MiB usable"),
            ("driver", machine.driver),
            (
                "CUDA of the driver",
                f"{machine.cuda_version // 1000}.{machine.cuda_version % 1000 // 10}",
            ),
            ("libcudart", ", ".join(path.name for path in s.runtimes) or "none found"),
            ("kernel, C library", f"{platform.release()}, {' '.join(platform.libc_ver())}"),
            ("interposer", f"sha256 {digest}…, by /etc/ld.so.preload in a mount namespace"),
            ("share, reserve", f"{mib(s.limit)} MiB, {mib(s.reserve)} MiB"),
        ),
    )


def _setting(options: argparse.Namespace, report: Report, scratch: Path) -> Setting:
    library = options.interposer or (
        options.build / platform.machine() / "libgpushare-interposer.so"
    )
    programs = [options.build / "tests" / name for name in ("incontainer", "ongpu", "ongpu-direct")]
    hooks = NATIVE / "interposer" / "hooks.def"
    # The loader ignores a missing preload: without this everything would run unlimited.
    for path in (library, hooks, *programs):
        if not path.is_file():
            raise Unusable(f"{path} is missing; run: make -C native all tests")
    machine = Machine(options.gpu, options.fake, scratch)
    usable = machine.memory().usable // MIB
    if machine.cuda_version < OLDEST_CUDA:
        raise Unusable(f"a driver of CUDA {machine.cuda_version} has no pools and no graphs")
    options.reserve_mib += options.reserve_mib % 2
    limit = options.share_mib or min(4096, usable // 3 // 2 * 2)
    if usable < limit + 2 * options.reserve_mib or limit < 2048 + 2 * options.reserve_mib:
        raise Unusable(f"a share of {limit} MiB of {usable} MiB does not suit these checks")
    return Setting(
        report=report,
        machine=machine,
        build=options.build.resolve(),
        library=library.resolve(),
        scratch=scratch,
        limit=limit * MIB,
        reserve=options.reserve_mib * MIB,
        hooks=hooks,
        runtimes=[path.resolve() for path in (options.cudart or _find_runtimes(options))],
    )


def _find_runtimes(options: argparse.Namespace) -> list[Path]:
    """Of pip packages and toolkits, one of each version."""
    if options.fake:
        return []
    places = [Path(path) for path in sys.path if path.endswith("-packages")]
    found = [
        *(file for place in places for file in place.glob("nvidia/*/lib/libcudart.so.*")),
        *Path("/usr/local").glob("cuda*/lib64/libcudart.so.*"),
        *Path("/usr/local").glob("cuda*/targets/*/lib/libcudart.so.*"),
    ]
    return sorted({path.resolve() for path in found})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="on-gpu", description=__doc__)
    add = parser.add_argument
    add("--gpu", type=int, default=0, help="NVML's index of the GPU to use")
    add("--build", type=Path, default=NATIVE.parent / "build" / "native", help="what make built")
    add("--interposer", type=Path, help="another library to check")
    add("--reserve-mib", type=int, default=DEFAULT_RESERVE_MIB, help="charged for a context")
    add("--share-mib", type=int, help="of the containers; 4096 where the GPU is large enough")
    add("--cudart", type=Path, action="append", help="a libcudart.so to check; may be repeated")
    add("--budget-s", type=float, default=210, help="no group of checks starts after so long")
    add("--scratch", default="/dev/shm", help="a tmpfs, for the regions")
    add("--sums", action="store_true", help="read the GPU's sums, as where it lists no pids")
    add("--fake", type=Path, metavar="DIR", help="test this script over the fake driver in DIR")
    return parser.parse_args()
