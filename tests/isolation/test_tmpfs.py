"""The tmpfs on which limits and regions lie."""

import os
import subprocess
from pathlib import Path

import pytest

from gpushare.isolation import tmpfs
from gpushare.isolation.region import RegionError

may_mount = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "gpushare"


@may_mount
def test_it_is_mounted_once_small_and_closed(directory: Path) -> None:
    try:
        tmpfs.provide(directory)
        tmpfs.provide(directory)
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        (mine,) = [line.split() for line in mounts if line.split()[1] == str(directory)]
        assert mine[2] == "tmpfs"
        assert {"nosuid", "nodev", "noexec", "size=262144k", "mode=755"} <= {*mine[3].split(",")}
    finally:
        subprocess.run(["umount", directory], check=True)


def test_where_it_may_not_be_mounted_the_error_says_what_to_do(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(tmpfs, "_mount", refused)
    monkeypatch.setattr(tmpfs, "file_system", lambda path: 0xEF53)
    with pytest.raises(RegionError, match=r"not permitted.*mount -t tmpfs -o size=256m"):
        tmpfs.provide(directory)
    monkeypatch.setattr(tmpfs, "file_system", lambda path: 0x01021994)
    tmpfs.provide(directory)  # on a larger tmpfs
