"""What a node needs of this machine: root, overlayfs, util-linux, a static busybox, and what runc
is built with.

What is missing is installed by apt where that is possible, and it is said.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gpushare_testcluster import binaries
from gpushare_testcluster.errors import CannotRun
from gpushare_testcluster.say import Say

_TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "mount": "mount", "sh": "dash"}
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def why_not() -> str:
    """Why this machine cannot run a node; empty when it can (as far as can be told quickly)."""
    if platform.system() != "Linux":
        return f"a kubelet runs on Linux, not on {platform.system()}"
    if os.geteuid() != 0:
        return "a kubelet needs root"
    if "overlay\n" not in Path("/proc/filesystems").read_text() and _modprobe_overlay():
        return "the kernel has no overlay file system, which containers' images need"
    for tool, package in _TOOLS.items():
        if not find(tool):
            return f"{tool} is missing (Debian: apt-get install {package})"
    return ""


def require(say: Say) -> None:
    """Installs what is missing and can be installed. Raises CannotRun."""
    if reason := why_not():
        raise CannotRun(reason)
    wanted: list[tuple[str, object]] = [("busybox-static", static_busybox())]
    if binaries.missing(["runc"]):
        wanted += [
            ("gcc", find("gcc")),
            ("libc6-dev", _header("stdlib.h")),
            ("libseccomp-dev", _header("seccomp.h")),
            ("pkg-config", find("pkg-config")),
        ]
    if missing := [package for package, there in wanted if not there]:
        install(missing, say, "a node")


def install(packages: Sequence[str], say: Say, who: str) -> None:
    """Installs Debian packages that `who` needs, and says so. Raises CannotRun."""
    wanted = " and ".join(packages)
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if not shutil.which("apt-get"):
        raise CannotRun(f"{who} needs {wanted}; install them (no apt-get here)")
    with say.step(" ".join(command)):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
    if done.returncode:
        raise CannotRun(
            f"{who} needs {wanted}, and '{' '.join(command)}' failed; run "
            f"'apt-get update' first, or install them by hand:\n{done.stderr.strip()[-1500:]}"
        )


def find(tool: str) -> str:
    """The path of a program, also where the PATH lacks sbin; empty when there is none."""
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:{_SBIN}") or ""


def _header(name: str) -> Path | None:
    path = Path("/usr/include") / name
    return path if path.exists() else None


def static_busybox() -> Path | None:
    """A busybox without a dynamic loader, which alone runs in an image of its own."""
    for place in (find("busybox"), find("busybox-static")):
        if place and b"ld-linux" not in Path(place).read_bytes()[:8192]:
            return Path(place)
    return None


def _modprobe_overlay() -> bool:
    """Tries to load overlayfs; True when it is still not there."""
    if tool := find("modprobe"):
        subprocess.run([tool, "overlay"], capture_output=True)
    return "overlay\n" not in Path("/proc/filesystems").read_text()
