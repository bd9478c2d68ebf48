"""Real programs' libraries over the fake driver, in an environment of their own."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare_testcluster.cache import cache_dir
from tests.native.container import Container

pytestmark = pytest.mark.native_slow
New = Callable[..., Container]

CLIENTS = (
    "cuda-bindings==13.5.0",
    "numba-cuda==0.30.4",
    "numpy==2.4.6",
    "nvidia-cuda-runtime==13.5.37",
)
RUNTIMES = (
    "nvidia-cuda-runtime-cu11==11.8.89",
    "nvidia-cuda-runtime-cu12==12.1.105",
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-cuda-runtime==13.5.37",
)
SCRIPTS = Path(__file__).parent / "clients"


def installed(*packages: str, target: bool = False) -> Path:
    """A folder with the packages, made once and kept outside the clone."""
    digest = hashlib.sha256(" ".join((sys.version, *packages)).encode()).hexdigest()[:12]
    folder = cache_dir() / f"clients-{digest}"
    if (folder / ".ready").exists():
        return folder
    uv = Path(sys.executable).parent / "uv"
    if target:
        command = ["pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    else:
        subprocess.run(
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True
        )
        command = ["pip", "install", "--quiet", "--python", str(folder / "bin" / "python")]
    subprocess.run([uv, *command, *packages], check=True)
    (folder / ".ready").touch()
    return folder


def run(container: Container, *words: str | Path, **environment: str) -> list[str]:
    done = subprocess.run(
        container.command(*words),
        env={**container.environment(), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_cuda_bindings(new_container: New) -> None:
    python = installed(*CLIENTS) / "bin" / "python"
    assert run(new_container(), python, SCRIPTS / "use_cuda_bindings.py") == [
        "3776 4096 4096",
        "7 2",
        "2",
        "2 0",
    ]


def test_numba(new_container: New) -> None:
    python = installed(*CLIENTS) / "bin" / "python"
    # The first array of 4 KiB shares a page that cannot be had whole any more.
    assert run(new_container(), python, SCRIPTS / "use_numba.py") == ["[3774, 4096]", "7 True"]


@pytest.mark.parametrize("package", RUNTIMES)
def test_libcudart_gets_the_swapped_functions(
    new_container: New, package: str, tmp_path: Path
) -> None:
    folder = installed(package, target=True)
    (library,) = folder.glob("nvidia/*/lib/libcudart.so.*")
    container = new_container()
    result, swapped = run(
        container,
        sys.executable,
        SCRIPTS / "use_cudart.py",
        library,
        tmp_path / "lookups",
        FAKE_CUDA_LOOKUPS=str(tmp_path / "lookups"),
    )
    code, lookups = result.split()
    # An authenticity check of the driver; it is not forged.
    assert code != "0"
    assert int(lookups) > 300
    assert {
        "cuMemAlloc",
        "cuMemAllocManaged",
        "cuMemAllocAsync",
        "cuMemFree",
        "cuMemFreeAsync",
        "cuMemGetInfo",
        "cuMemPoolCreate",
        "cuDevicePrimaryCtxRetain",
        "cuGraphLaunch",
        "cuGetProcAddress",
        "cuCtxSetLimit",
    } <= set(swapped.split())
    print(package, lookups, len(swapped.split()), swapped, file=sys.stderr)
    assert os.environ.get("LD_PRELOAD") is None
