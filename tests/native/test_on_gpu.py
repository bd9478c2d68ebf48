"""native/tests/on-gpu, which runs on a machine with a GPU, over the fake driver.

It must hold what is right and, above all, fail when something is wrong: with the interposer absent,
and with interposers that were broken on purpose, each in one place.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.fakes import ROOT
from tests.native.test_clients import RUNTIMES, installed

pytestmark = pytest.mark.native_slow

OPEN: set[str] = set()
"""What it rightly says of the interposer as it is. Take a line away when that is mended."""

MODULES = """
#include <string.h>
#include "cuda.h"

API cuModuleLoadData(void **module, const char *text)
{
    static char loaded;
    *module = &loaded;
    const char *target = strstr(text, ".target sm_70");
    if (!target || !strstr(text, ".address_size 64"))
        return CUDA_ERROR_INVALID_VALUE;
    return strstr(text, "big[67108864]") && !fake_take(fake, 0, 64 << 20)
               ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

API cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = module;
    return strcmp(name, "nothing") ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
"""
"""What the fake driver lacks: enough of modules for a kernel that does nothing."""


class Run:
    """One run of the script, and what it said."""

    def __init__(self, build: Path, *options: str | Path, fake: Path | None = None) -> None:
        script = ROOT / "native" / "tests" / "on-gpu"
        self.done = subprocess.run(
            [sys.executable, "-I", "-S", script, "--fake", fake or build / "fake", *options],
            capture_output=True,
            text=True,
            timeout=240,
        )
        self.code, self.out = self.done.returncode, self.done.stdout
        if self.code == 2 and "user namespaces" in self.done.stderr:
            pytest.skip("neither root nor user namespaces here")
        _, _, failed = self.done.stderr.partition(" FAILED:\n")
        self.failed = {line.split(": expected")[0].strip() for line in failed.splitlines()}

    def says(self, text: str) -> bool:
        return any(text in line for line in self.failed)


def test_holds_over_the_fake_driver(build: Path) -> None:
    run = Run(build)
    assert run.failed == OPEN, run.done.stderr
    assert run.code == (1 if OPEN else 0)
    assert "says nothing about a GPU" in run.out
    for group in ("1. What calls", "2. On every way", "3. What contexts", "4. The hook behind"):
        assert f"## {group}" in run.out
    for way in ("direct", "dlsym-dlsym", "address-v1", "per-thread"):
        assert f"| {way} " in run.out


def test_reads_the_sum_where_the_driver_lists_no_processes(build: Path) -> None:
    run = Run(build, "--sums")
    assert run.failed == OPEN, run.done.stderr
    assert "by the GPU's sum" in run.out


def test_kernels_and_globals_over_a_fake_driver_with_modules(build: Path, tmp_path: Path) -> None:
    native = tmp_path / "native"
    for folder in ("fake", "abi"):
        shutil.copytree(ROOT / "native" / folder, native / folder)
    shutil.copy(ROOT / "native" / "Makefile", native)
    (native / "fake" / "cuda_module.c").write_text(MODULES)
    done = subprocess.run(
        ["make", "-C", native, f"PYTHON={sys.executable}", f"BUILD={tmp_path}/built", "fake"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    run = Run(build, fake=tmp_path / "built" / "fake")
    assert run.failed == OPEN, run.done.stderr
    assert "a global of 64 MiB takes 64 MiB, charged 0." in run.out
    assert "| kernel launch (not hooked) " in run.out


def test_a_real_runtime_library_is_tried(build: Path) -> None:
    folder = installed(RUNTIMES[-1], target=True)
    (library,) = folder.glob("nvidia/*/lib/libcudart.so.*")
    run = Run(build, "--cudart", library)
    assert run.failed == OPEN, run.done.stderr
    assert f"| {library} | 13" in run.out
    assert "stops with its own error" in run.out


def test_says_that_the_interposer_is_missing(build: Path, tmp_path: Path) -> None:
    run = Run(build, "--interposer", tmp_path / "none.so")
    assert run.code == 2
    assert "none.so is missing" in run.done.stderr


def test_fails_when_what_is_preloaded_is_not_the_interposer(build: Path) -> None:
    run = Run(build, "--interposer", build / "fake" / "libnvidia-ml.so.1")
    assert run.code == 1
    for way in ("direct", "dlsym", "default", "next", "address-v1", "address", "per-thread"):
        assert run.says(f"2 {way}: one granule more than there is")
    assert run.says("4 hooked names that dlsym finds elsewhere")


def test_fails_when_a_context_takes_more_than_the_reserve(build: Path) -> None:
    run = Run(build, "--reserve-mib", "256")
    assert run.code == 1
    assert run.says("3 the reserve on Fake T4")
    assert run.says("6 container 3 of 3, all of its share")


def test_fails_when_it_may_not_take_the_time(build: Path) -> None:
    run = Run(build, "--budget-s", "0")
    assert run.code == 1
    assert run.says("1. What calls really take")


BROKEN = {
    "the limit is shown and not enforced": (
        ("region.c", "uint64_t limit = limits->gpus[gpu].limit;", "uint64_t limit = UINT64_MAX;"),
        "2 dlsym: one granule more than there is",
    ),
    "the limit is two granules off": (
        ("region.c", "= limits->gpus[gpu].limit;", "= limits->gpus[gpu].limit + (4 << 20);"),
        "2 per-thread: one granule more than there is",
    ),
    "everything is refused": (
        ("region.c", "uint64_t limit = limits->gpus[gpu].limit;", "uint64_t limit = 0;"),
        "2. On every way: the share, and no more",
    ),
    "contexts are free": (
        ("account.c", "p->limits.gpus[gpu].reserve, true, CHARGE", "0, true, CHARGE"),
        "2 direct: cuMemGetInfo",
    ),
    "cuGetProcAddress is not looked at": (
        ("lookup.c", "    if (index < 0)\n        return result;", "    return result;"),
        "2 address: one granule more than there is",
    ),
    "mapped memory is forgotten": (
        ("vmm.c", "if (object->references || object->mappings)", "if (object->references)"),
        "5 retained memory is charged",
    ),
    "the device heap is free": (
        ("context.c", "    case CU_LIMIT_MALLOC_HEAP_SIZE:\n", ""),
        "1 drift, device heap of 268435456 B",
    ),
    "pools are charged with what lives": (
        ("pool.c", "holds = holds > pool->live ? holds : pool->live;", "holds = pool->live;"),
        "1 drift, cuMemAllocAsync of 1 B",
    ),
    "graphs are free": (
        ("graph.c", "*before = &p->graphs[device];", "*before = &p->graphs[device]; now = 0;"),
        "5 its launch is charged",
    ),
    "the dead keep their part of the budget": (
        ("region.c", "lock.l_type != F_UNLCK;\n}\n\n/* --- the lock", "1;\n}\n\n/* --- the lock"),
        "6 the budget after SIGKILL",
    ),
    "NVML shows the whole GPU": (
        ("view.c", "    m->total = view.total;", "    return result;"),
        "2 NVML v2 total, reserved, free, used",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_fails_when(build: Path, tmp_path: Path, name: str) -> None:
    (file, right, wrong), expected = BROKEN[name]
    native = tmp_path / "native"
    shutil.copytree(ROOT / "native" / "interposer", native / "interposer")
    shutil.copytree(ROOT / "native" / "abi", native / "abi")
    source = native / "interposer" / file
    text = source.read_text()
    assert text.count(right) == 1, f"{file} has changed"
    source.write_text(text.replace(right, wrong))
    library = tmp_path / "libbroken.so"
    compiler = ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
    options = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-w", "-fPIC", "-fvisibility=hidden", "-shared"]
    done = subprocess.run(
        [*compiler, *options, "-o", library, *sorted((native / "interposer").glob("*.c"))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    run = Run(build, "--interposer", library)
    assert run.code == 1
    assert run.says(expected), run.done.stderr
    assert run.failed > OPEN
