"""What the tests of the C side share: one build per session, and fake GPUs to run on."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.isolation.limits import MIB, GpuLimit
from tests.native.container import Container
from tests.native.fakes import ROOT, FakeGpus, uuid

BUILD = ROOT / "build" / "native"


def make(*targets: str, **variables: str) -> None:
    """Runs native/Makefile; what is up to date is not built again."""
    command = [
        "make",
        "--no-print-directory",
        "-C",
        str(ROOT / "native"),
        f"PYTHON={sys.executable}",
    ]
    command += [f"{name}={value}" for name, value in variables.items()]
    done = subprocess.run([*command, *targets], capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"make {' '.join(targets)} in native/ failed:\n{done.stdout}\n{done.stderr}")


@pytest.fixture(scope="session")
def build() -> Path:
    """The folder with everything built for this machine."""
    make("all", "tests")
    return BUILD


@pytest.fixture(scope="session")
def hook(build: Path) -> Path:
    """The hook as it is shipped."""
    return build / platform.machine() / "gpushare-hook"


@pytest.fixture
def fake_gpus(build: Path, tmp_path: Path) -> FakeGpus:
    """Two Tesla T4 as their driver reports them: 15360 MiB, 443 of them its own."""
    gpus = FakeGpus(build, tmp_path / "gpus")
    gpus.run("create", *(f"{uuid(number)},Tesla T4,15360,443" for number in (1, 2)))
    return gpus


@pytest.fixture(scope="session")
def sanitized(build: Path) -> Path:
    """The folder with what is built with the address and undefined-behaviour sanitizers."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc: zig carries no address sanitizer")
    make("sanitized", CC="gcc")
    return BUILD / "sanitized"


RESERVE_MIB = 320
"""For a context of 300 MiB."""


@pytest.fixture
def interposer(build: Path) -> Path:
    """The interposer as it is shipped."""
    return build / platform.machine() / "libgpushare-interposer.so"


@pytest.fixture
def new_container(
    fake_gpus: FakeGpus, interposer: Path | str, tmp_path: Path
) -> Callable[..., Container]:
    """Makes containers that share the fake machine's first GPU, or both."""
    count = 0

    def make_one(
        limit_mib: int = 4096, reserve_mib: int = RESERVE_MIB, gpus: int = 1, **options: bool
    ) -> Container:
        nonlocal count
        count += 1
        limits = tuple(
            GpuLimit(uuid(number), limit_mib * MIB, reserve_mib * MIB)
            for number in range(1, gpus + 1)
        )
        return Container(fake_gpus, tmp_path / f"container{count}", limits, interposer, **options)

    return make_one
