"""The region as the plugin reads it: an interface between versions, and the tenant's to write."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.isolation.limits import MIB, GpuLimit
from gpushare.isolation.region import (
    SIZE,
    RegionError,
    create_region,
    decode_region,
    new_region,
    open_region,
    read_region,
    refuse_file_system,
)
from tests.native.conftest import RESERVE_MIB
from tests.native.container import OUT_OF_MEMORY, Container

New = Callable[..., Container]
SAMPLE = Path(__file__).parent / "data" / "region-v1.bin"
LIMITS = (GpuLimit("GPU-00000000-0000-4000-8000-000000000001", 4096 * MIB, 320 * MIB),)


def test_a_region_of_version_1_is_still_read() -> None:
    """Frozen from a real container: two processes, one killed. Never made anew."""
    region = decode_region(SAMPLE.read_bytes().ljust(SIZE, b"\0"), LIMITS)
    (gpu,) = region.gpus
    assert gpu.used == (2 * 320 + 512 + 64) * MIB
    assert gpu.peak == (2 * 320 + 512 + 64 + 128) * MIB
    assert gpu.refused == 1
    assert [process.uses[0].used // MIB for process in region.processes] == [320 + 512, 320 + 64]
    assert [process.uses[0].contexts // MIB for process in region.processes] == [320, 320]
    assert all(process.pid > 0 and process.started_ns > 10**18 for process in region.processes)


def test_the_books_are_those_of_the_processes(new_container: New) -> None:
    container = new_container()
    with container.run() as one, container.run() as other:
        one.handle(f"alloc {512 * MIB}")
        pointer = one.handle(f"alloc {128 * MIB}")
        other.handle(f"alloc {64 * MIB}")
        assert other.result(f"alloc {8192 * MIB}") == OUT_OF_MEMORY
        one.result(f"free {pointer}")
        region = container.region()
        (gpu,) = region.gpus
        assert gpu.used == (2 * RESERVE_MIB + 512 + 64) * MIB
        assert gpu.peak == (2 * RESERVE_MIB + 512 + 64 + 128) * MIB
        assert gpu.refused == 1
        assert gpu.limit == 4096 * MIB
        assert [process.pid for process in region.processes] == [
            one.process.pid,
            other.process.pid,
        ]


@pytest.mark.parametrize("seed", range(20))
def test_any_contents_are_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(new_region(LIMITS))
    for _ in range(40):
        at = chance.randrange(SIZE - 64)
        data[at : at + 64] = chance.choice([b"\xff" * 64, chance.randbytes(64)])
    try:
        region = decode_region(bytes(data), LIMITS)
    except RegionError:
        return
    assert region.gpus[0].limit == LIMITS[0].limit_bytes
    assert region.gpus[0].uuid == LIMITS[0].uuid


@pytest.mark.parametrize("size", [0, 1, 4096, SIZE - 1])
def test_a_truncated_region_is_an_error_and_no_crash(tmp_path: Path, size: int) -> None:
    create_region(tmp_path / "region", LIMITS)
    fd = open_region(tmp_path / "region")
    os.truncate(tmp_path / "region", size)
    with pytest.raises(RegionError):
        read_region(fd, LIMITS)
    os.close(fd)


def test_neither_a_link_nor_a_pipe_is_opened(tmp_path: Path) -> None:
    create_region(tmp_path / "region", LIMITS)
    (tmp_path / "link").symlink_to(tmp_path / "region")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "missing"):
        with pytest.raises(RegionError):
            open_region(tmp_path / name)


def test_an_existing_file_is_not_taken_for_a_new_region(tmp_path: Path) -> None:
    create_region(tmp_path / "region", LIMITS)
    with pytest.raises(RegionError):
        create_region(tmp_path / "region", LIMITS)


def test_overlayfs_is_refused(tmp_path: Path) -> None:
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    script = (
        f"mount -t tmpfs tmpfs {tmp_path}/upper && mkdir {tmp_path}/upper/u {tmp_path}/upper/w && "
        f"mount -t overlay overlay -o lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper/u,"
        f"workdir={tmp_path}/upper/w {tmp_path}/merged && exec python3 -c '"
        "import sys; from gpushare.isolation.region import *\n"
        f'try: refuse_file_system("{tmp_path}/merged")\n'
        "except RegionError as error: print(error)'"
    )
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], env=environment, capture_output=True, text=True
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(done.stderr)
    assert "use a tmpfs" in done.stdout, done.stderr
    refuse_file_system(str(tmp_path))
