"""What the tests of the C side share: one build per session, and fake GPUs to run on."""

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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


@dataclass(frozen=True)
class FakeGpus:
    """A fake machine's GPUs, in a file that all processes of a test share."""

    build: Path
    state: Path

    def run(self, verb: str, *words: str) -> str:
        """The `fakegpu` tool on this machine's state."""
        return subprocess.run(
            [self.build / "fake" / "fakegpu", verb, self.state, *words],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def show(self) -> dict[str, list[dict[str, object]]]:
        shown: dict[str, list[dict[str, object]]] = json.loads(self.run("show"))
        return shown

    @property
    def libraries(self) -> Path:
        """The folder with the fake libnvidia-ml.so.1 and libcuda.so.1."""
        return self.build / "fake"

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "FAKE_GPU_STATE": str(self.state),
            "LD_LIBRARY_PATH": str(self.libraries),
        }


def uuid(number: int) -> str:
    """The UUID of a test's GPU."""
    return f"GPU-00000000-0000-4000-8000-{number:012x}"


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
