"""Images with the CUDA test program, of this machine's C library or of musl.

The driver is in none of them but the last: it comes with the GPU, as NVIDIA's does. NVIDIA has no
driver for musl, so that image brings a fake one built for it.
"""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

from gpushare_testcluster.node import requirements
from gpushare_testcluster.node.images import Files, Image, busybox_files, layer
from gpushare_testcluster.say import Say
from tests.cluster import injecting

PROGRAM = "/usr/bin/gpuprog"
COMMAND = (PROGRAM, "dlsym")
LIBRARIES = f"/usr/lib/{platform.machine()}-linux-gnu"
"""Where a driver's libraries go: the loader looks there by itself."""

OWN_LIBRARY = "/opt/own/libown.so"
"""What the image with a preload list of its own preloads."""

_MUSL_LOADER = Path(f"/lib/ld-musl-{platform.machine()}.so.1")


@cache
def glibc() -> Image:
    """With a shell."""
    return _image("glibc", {**_shell(), **_program()})


@cache
def own_preload() -> Image:
    """With a list of libraries to preload, as images that bring another malloc have it."""
    harmless = next(Path(path) for path in _needed(_built("gpuprog")) if "libc.so" in path)
    files: Files = {
        "etc/ld.so.preload": f"{OWN_LIBRARY}\n".encode(),
        OWN_LIBRARY[1:]: harmless.with_name("libdl.so.2").read_bytes(),
    }
    return _image("own-preload", {**_shell(), **_program(), **files})


@cache
def distroless() -> Image:
    """Nothing but the program and what it loads."""
    return _image("distroless", _program())


@cache
def musl() -> Image:
    """A program for musl, which loads libraries and has never heard of /etc/ld.so.preload.

    Raises CannotRun where musl is missing and cannot be installed.
    """
    if not _MUSL_LOADER.exists():
        requirements.install(["musl"], Say(), "a program for musl")
    build = injecting.BUILD / "musl"
    injecting.make(
        *("fake", f"{build}/tests/gpuprog"),
        BUILD=str(build),
        CC=f"$(ZIG) -target {platform.machine()}-linux-musl -dynamic",
    )
    return _image(
        "musl",
        {
            **_shell(),
            PROGRAM[1:]: (build / "tests" / "gpuprog").read_bytes(),
            str(_MUSL_LOADER)[1:]: _MUSL_LOADER.read_bytes(),
            "lib/libcuda.so.1": (build / "fake" / "libcuda.so.1").read_bytes(),
        },
    )


def _image(name: str, files: Files) -> Image:
    one = layer(files)
    return Image(f"gpushare.test/{name}:{hashlib.sha256(one).hexdigest()[:16]}", one, COMMAND)


def _shell() -> Files:
    busybox = requirements.static_busybox()
    assert busybox is not None  # the node has it
    return busybox_files(busybox)


def _program() -> Files:
    program = _built("gpuprog")
    return {
        PROGRAM[1:]: program.read_bytes(),
        **{path[1:]: Path(path).read_bytes() for path in _needed(program)},
    }


def _built(name: str) -> Path:
    injecting.make("tests")
    return injecting.BUILD / "tests" / name


def _needed(program: Path) -> list[str]:
    """The loader and the libraries that a program names."""
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"(/\S+) \(0x", text)
