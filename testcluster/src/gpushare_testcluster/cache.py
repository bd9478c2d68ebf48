"""The cache outside the clone: built binaries and, where a machine has none, the Go toolchain."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from gpushare_testcluster.say import Say


def cache_dir() -> Path:
    """`$GPUSHARE_CACHE`, else `$XDG_CACHE_HOME/gpushare`, else `~/.cache/gpushare`."""
    if own := os.environ.get("GPUSHARE_CACHE"):
        return Path(own)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "gpushare"


@contextlib.contextmanager
def locked(name: str, say: Say) -> Iterator[None]:
    """Holds the cache's lock `name`: two processes never build or install the same thing at once.

    The lock is the kernel's and ends with the process that holds it, however that ends.
    """
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".lock-{name}").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with say.step(f"waiting: another process is preparing {name} in {folder}"):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
