"""Every check of the interposer once more, with sanitizers: addresses, undefined behaviour."""

import subprocess
from pathlib import Path

import pytest

from tests.native.test_interposer import *  # noqa: F403
from tests.native.test_interposer_objects import *  # noqa: F403

pytestmark = pytest.mark.native_slow


@pytest.fixture
def interposer(sanitized: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The interposer with sanitizers, and before it the runtimes they need in a plain program."""
    runtimes = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    # Memory behind pages that the sanitizer does not search would count as lost.
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1")
    monkeypatch.setenv("UBSAN_OPTIONS", "halt_on_error=1:abort_on_error=1:print_stacktrace=1")
    return ":".join([*runtimes, str(sanitized / "libgpushare-interposer.so")])
