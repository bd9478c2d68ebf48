"""Putting the interposer and the hook on the host, under a name that says their contents.

A file that containers have mapped must never be overwritten in place, and running containers keep
the one they started with: each build has a directory of its own, and an old one stays until it is
removed by `remove_others`, when no container can be using it.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path


def install(files: Iterable[Path], home: Path) -> Path:
    """Copies the files into `home/<hash of their contents>/` and returns that directory.

    Installed once, it is only looked at afterwards; an installation that was interrupted is done
    again. Raises OSError.
    """
    contents = {file.name: file.read_bytes() for file in files}
    digest = hashlib.sha256()
    for name in sorted(contents):
        digest.update(name.encode() + b"\0" + hashlib.sha256(contents[name]).digest())
    target = home / digest.hexdigest()[:16]
    if _complete(target, contents):
        return target
    fresh = home / f".installing-{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name, data in contents.items():
        (fresh / name).write_bytes(data)
        (fresh / name).chmod(0o555)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    return target


def remove_others(home: Path, keep: Iterable[Path]) -> list[Path]:
    """Removes every installed version but those in `keep`; returns what it removed."""
    kept = {path.name for path in keep}
    removed = []
    for path in sorted(home.iterdir()):
        if path.is_dir() and path.name not in kept:
            shutil.rmtree(path)
            removed.append(path)
    return removed


def _complete(target: Path, contents: dict[str, bytes]) -> bool:
    try:
        return all((target / name).read_bytes() == data for name, data in contents.items())
    except OSError:
        return False
