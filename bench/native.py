"""What the interposer costs: the same calls bare and held to a share, ratios from one run.

Over the fake driver, whose calls take tens of nanoseconds; a real one takes microseconds for an
allocation, so its ratios are smaller. Start is a program that does nothing. The best of several
runs, bare and held in turn.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpushare.isolation.limits import MIB, GpuLimit, encode_limits
from gpushare.isolation.region import create_region

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "native"
GPU = "GPU-00000000-0000-4000-8000-000000000001"
RUNS = 5
CALLS = 200_000
STARTS = 100


def main() -> None:
    subprocess.run(
        ["make", "-s", "-C", ROOT / "native", f"PYTHON={sys.executable}", "all", "tests"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        limits = [GpuLimit(GPU, 4096 * MIB, 320 * MIB)]
        (folder / "limits").write_text(encode_limits(limits))
        create_region(folder / "region", limits)
        tool = BUILD / "fake" / "fakegpu"
        subprocess.run([tool, "create", folder / "gpus", f"{GPU},Tesla T4,15360,443"], check=True)
        _calls(folder)
        _start(folder)


def _inside(folder: Path, held: bool) -> list[str]:
    library = BUILD / platform.machine() / "libgpushare-interposer.so"
    files = ["--limits", str(folder / "limits"), "--region", str(folder / "region")]
    words = [str(BUILD / "tests" / "incontainer"), *files, "--", "env"]
    return [*words, f"LD_PRELOAD={library if held else ''}"]


def _calls(folder: Path) -> None:
    def measure(held: bool) -> tuple[float, ...]:
        done = subprocess.run(
            [*_inside(folder, held), str(BUILD / "tests" / "gpuprog"), "dlsym"],
            input=f"init 0\nmeasure {CALLS}\n",
            env={
                **os.environ,
                "FAKE_GPU_STATE": str(folder / "gpus"),
                "LD_LIBRARY_PATH": str(BUILD / "fake"),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        return tuple(float(word) for word in done.stdout.splitlines()[-1].split()[1:])

    bare, held = _best(measure)
    for name, one, other in zip(
        ("allocation and free", "launch (not hooked)", "cuMemGetInfo"), bare, held, strict=True
    ):
        print(f"{name:22} {one:8.1f} ns -> {other:8.1f} ns   {other / one:5.2f} x")


def _start(folder: Path) -> None:
    script = f"i=0; while [ $i -lt {STARTS} ]; do /bin/true; i=$((i+1)); done"

    def measure(held: bool) -> tuple[float, ...]:
        begun = time.perf_counter()
        subprocess.run([*_inside(folder, held), "sh", "-c", script], check=True)
        return ((time.perf_counter() - begun) / STARTS * 1e3,)

    (bare,), (held,) = _best(measure)
    print(f"{'process start':22} {bare:8.2f} ms -> {held:8.2f} ms   {held / bare:5.2f} x")


def _best(measure: Callable[[bool], tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    runs: dict[bool, list[tuple[float, ...]]] = {False: [], True: []}
    for _ in range(RUNS):
        for held in (False, True):
            runs[held].append(measure(held))
    return tuple(tuple(min(column) for column in zip(*runs[h], strict=True)) for h in (False, True))
