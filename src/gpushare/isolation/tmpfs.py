"""The small tmpfs on which limits and regions lie.

A region must not lie on overlayfs, where locks are lost, and its size must be capped, since a
tenant can make the file grow. So the directory is a tmpfs of its own, made once and found again by
the next process; containers keep what they have mounted whatever becomes of it.
"""

import ctypes
import os
from pathlib import Path
from typing import Final

from gpushare.isolation.region import RegionError, file_system

SIZE_BYTES: Final = 256 << 20
"""Room for some 960 containers; memory is taken for those there are."""

_TMPFS: Final = 0x01021994
_NOSUID_NODEV_NOEXEC: Final = 2 | 4 | 8


def provide(directory: Path) -> None:
    """Makes `directory` a tmpfs of its own, where it is not one yet.

    Where that is not allowed a directory on a larger tmpfs will do. Raises RegionError, OSError.
    """
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    on_tmpfs = file_system(directory) == _TMPFS
    if on_tmpfs and os.path.ismount(directory):
        return
    try:
        _mount(directory)
    except OSError as error:
        if not on_tmpfs:
            raise RegionError(
                f"no tmpfs can be mounted on {directory} ({error.strerror}). Mount one there "
                f"before the device plugin starts: mount -t tmpfs -o size={SIZE_BYTES >> 20}m,"
                f"mode=755,nosuid,nodev,noexec gpushare {directory}"
            ) from None


def _mount(directory: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    data = f"size={SIZE_BYTES},mode=755".encode()
    if libc.mount(b"gpushare", os.fsencode(directory), b"tmpfs", _NOSUID_NODEV_NOEXEC, data):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(directory))
