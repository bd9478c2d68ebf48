"""What the build promises: old systems, one dependency, no name but those of the table."""

import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.native.fakes import ROOT

CHECK = ROOT / "native" / "check_elf.py"
TABLE = ROOT / "native" / "interposer" / "hooks.def"


def check(library: Path, glibc: str, *needed: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, CHECK, library, "--glibc", glibc]
    for name in needed:
        words += ["--needed", name]
    return subprocess.run(words, capture_output=True, text=True)


def test_the_interposer_runs_on_glibc_2_17_and_needs_libc_alone(interposer: Path) -> None:
    assert check(interposer, "2.17", "libc.so.6").returncode == 0


@pytest.mark.parametrize(
    ("glibc", "needed", "text"),
    [
        ("2.13", ("libc.so.6",), "newer than GLIBC_2.13"),
        ("2.17", (), "it needs ['libc.so.6']"),
        ("2.17", ("libc.so.6", "libdl.so.2"), "it needs ['libc.so.6']"),
    ],
)
def test_a_newer_symbol_or_another_library_fails_the_build(
    interposer: Path, glibc: str, needed: tuple[str, ...], text: str
) -> None:
    done = check(interposer, glibc, *needed)
    assert done.returncode == 1
    assert text in done.stderr


def test_it_exports_the_table_and_the_lookups(interposer: Path) -> None:
    table = set(re.findall(r"^HOOK\(\w+, (\w+),", TABLE.read_text(), re.MULTILINE))
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", interposer], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[-1] for line in shown.splitlines()} == table | {"dlsym", "dlvsym"}


def test_a_program_without_a_gpu_notices_nothing(build: Path, interposer: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", "echo out"],
        env={"LD_PRELOAD": str(interposer), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("out\n", "")


def test_a_wheel_carries_what_was_built(build: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    (wheel,) = tmp_path.iterdir()
    assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    with zipfile.ZipFile(wheel) as archive:
        modes = {
            info.filename: info.external_attr >> 16
            for info in archive.infolist()
            if info.filename.startswith("gpushare/native/")
        }
    assert {Path(name).name for name in modes} == {
        "gpushare-hook",
        "libgpushare-interposer.so",
    }
    assert modes["gpushare/native/gpushare-hook"] & 0o111
