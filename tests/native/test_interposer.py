"""A container is held to its share, on every way a program can find the driver.

The shipped library runs in a mount namespace with the files the plugin would mount, over the fake
driver, which charges 300 MiB for a context whatever anybody thinks.
"""

import os
import random
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from gpushare.isolation.limits import MIB
from tests.native.conftest import RESERVE_MIB
from tests.native.container import OUT_OF_MEMORY, WAYS, Container

New = Callable[..., Container]
GRANULE = 2
LIMIT = 4096
ROOM = LIMIT - RESERVE_MIB


@pytest.mark.parametrize("way", WAYS)
def test_sees_its_share_and_gets_it_and_not_more(new_container: New, way: str) -> None:
    with new_container().run(way) as program:
        assert program.ask("total 0") == [0, LIMIT * MIB]
        assert program.ask("info") == [0, ROOM * MIB, LIMIT * MIB]
        assert program.ask("info-null") == [0, LIMIT * MIB]
        assert program.ask("info-first")[0] == 0
        assert program.ask("total-first 0") == [0, min(LIMIT * MIB, 2**32 - 1)]
        assert program.result(f"alloc {(ROOM + GRANULE) * MIB}") == OUT_OF_MEMORY
        pointer = program.handle(f"alloc {(ROOM - GRANULE) * MIB}")
        assert program.free == GRANULE
        assert program.result(f"alloc {2 * GRANULE * MIB}") == OUT_OF_MEMORY
        assert program.result(f"free {pointer}") == 0
        assert program.free == ROOM
        assert program.ask(f"fill {32 * MIB}") == [OUT_OF_MEMORY, ROOM // 32]


@pytest.mark.parametrize("way", WAYS)
def test_the_same_program_without_isolation_gets_the_whole_gpu(
    new_container: New, way: str
) -> None:
    with new_container(isolated=False).run(way) as program:
        assert program.ask("total 0") == [0, (15360 - 443) * MIB]
        assert program.ask(f"fill {32 * MIB}") == [OUT_OF_MEMORY, (15360 - 443 - 300) // 32]


@pytest.mark.parametrize("way", ["direct", "dlsym", "address", "per-thread"])
@pytest.mark.parametrize("how", ["managed", "pitch", "async", "first"])
def test_every_kind_of_memory_shares_the_budget(new_container: New, way: str, how: str) -> None:
    with new_container(limit_mib=1024).run(way) as program:
        first = program.handle(f"{how} {256 * MIB}")
        room = 1024 - RESERVE_MIB - 256
        assert program.result(f"alloc {(room + GRANULE) * MIB}") == OUT_OF_MEMORY
        second = program.handle(f"alloc {room * MIB}")
        assert program.result(f"{how} {64 * MIB}") == OUT_OF_MEMORY
        assert program.result(f"free {second}") == 0
        free = {"first": "free-first", "async": "free-async"}.get(how, "free")
        assert program.result(f"{free} {first}") == 0
        program.ask("sync")
        assert program.handle(f"alloc {(1024 - RESERVE_MIB) * MIB}")


def test_arrays_and_imported_memory_count(new_container: New) -> None:
    with new_container(limit_mib=1024).run() as program:
        array = program.handle(f"array {256 * MIB}")
        assert program.free == 1024 - RESERVE_MIB - 256
        memory = program.handle(f"external {128 * MIB}")
        assert program.free == 1024 - RESERVE_MIB - 384
        assert program.result(f"array {512 * MIB}") == OUT_OF_MEMORY
        sparse, deferred = 0x40, 0x80
        program.handle(f"array {8192 * MIB} {sparse}")
        program.handle(f"array {8192 * MIB} {deferred}")
        assert program.result(f"free-array {array}") == 0
        assert program.result(f"free-external {memory}") == 0
        assert program.free == 1024 - RESERVE_MIB


def test_processes_share_one_budget_and_the_dead_leave_it(new_container: New) -> None:
    container = new_container()
    with container.run() as one, container.run("address") as other:
        room = LIMIT - 2 * RESERVE_MIB
        one.handle(f"alloc {1024 * MIB}")
        assert other.free == room - 1024
        assert other.result(f"alloc {(room - 1024 + GRANULE) * MIB}") == OUT_OF_MEMORY
        one.kill()
        assert other.free == LIMIT - RESERVE_MIB
        other.handle(f"alloc {(LIMIT - RESERVE_MIB) * MIB}")
    assert [gpu.refused for gpu in container.region().gpus] == [1]


def test_a_restarted_container_starts_clean(new_container: New) -> None:
    container = new_container()
    with container.run() as program:
        program.handle(f"alloc {1024 * MIB}")
        program.kill()
    with container.run() as program:
        assert program.free == ROOM
    (gpu,) = container.region().gpus
    assert gpu.peak >= (1024 + RESERVE_MIB) * MIB


def test_closing_all_files_does_not_free_its_place(new_container: New) -> None:
    container = new_container()
    with container.run() as program, container.run() as other:
        program.handle(f"alloc {1024 * MIB}")
        assert program.result("close-all") == 0
        # A refusal looks for processes that died.
        assert other.result(f"alloc {LIMIT * MIB}") == OUT_OF_MEMORY
        assert other.free == LIMIT - 2 * RESERVE_MIB - 1024


def test_fork_with_and_without_exec(new_container: New) -> None:
    container = new_container()
    with container.run() as program:
        program.handle(f"alloc {512 * MIB}")
        assert program.ask("fork") == [0, 0]
        assert program.ask("fork-exec") == [0, 0]
        assert program.free == ROOM - 512
        program.handle(f"alloc {(ROOM - 512) * MIB}")


def test_contexts_are_charged_and_take_what_they_own_with_them(new_container: New) -> None:
    with new_container(limit_mib=1024).run() as program:
        assert program.free == 1024 - RESERVE_MIB
        second = program.handle("context 0")
        program.handle(f"alloc {256 * MIB}")
        assert program.free == 1024 - 2 * RESERVE_MIB - 256
        assert program.result("context 0") == OUT_OF_MEMORY
        assert program.result(f"destroy {second}") == 0
        assert program.free == 1024 - RESERVE_MIB
        program.handle(f"alloc {512 * MIB}")
        assert program.result("reset 0") == 0
        assert program.result("init 0") == 0
        assert program.free == 1024 - RESERVE_MIB


def test_a_share_without_room_for_a_context_gets_none(new_container: New) -> None:
    with new_container(limit_mib=256).run(device=None) as program:
        assert program.result("init 0") == OUT_OF_MEMORY


def test_the_device_heap_is_no_way_around(new_container: New) -> None:
    stack, heap = 0, 2
    with new_container(limit_mib=1024).run() as program:
        assert program.result(f"limit {heap} {1024 * MIB}") == OUT_OF_MEMORY
        assert program.result(f"limit {heap} {(8 + 256) * MIB}") == 0
        assert program.free == 1024 - RESERVE_MIB - 256
        assert program.result(f"limit {heap} {(8 + 64) * MIB}") == 0
        assert program.free == 1024 - RESERVE_MIB - 64
        assert program.result(f"limit {stack} {64 * 1024}") == OUT_OF_MEMORY
        assert program.result(f"limit {stack} {2048}") == 0
        assert program.free == 1024 - RESERVE_MIB - 64 - 40


def test_a_gpu_full_of_pods_stays_within_its_memory(new_container: New) -> None:
    """Seven containers of a seventh each, all at their limit."""
    limit = (15360 - 443) // 7
    containers = [new_container(limit_mib=limit) for _ in range(7)]
    with ExitStack() as stack:
        for number, container in enumerate(containers):
            program = stack.enter_context(container.run(WAYS[number % len(WAYS)]))
            while program.result(f"alloc {64 * MIB}") == 0:
                pass
            while program.result(f"async {2 * MIB}") == 0:
                pass
            while program.result("alloc 4096000") == 0:
                pass
        (gpu, _) = containers[0].gpus.show()["gpus"]
        assert gpu["refusals"] == 0
        assert int(str(gpu["peak"])) <= (15360 - 443) * MIB
        assert int(str(gpu["used"])) > 7 * (limit - 80) * MIB


def test_each_gpu_has_its_own_limit(new_container: New) -> None:
    container = new_container(limit_mib=1024, gpus=2)
    with container.run() as program:
        program.handle(f"alloc {512 * MIB}")
        assert program.result("init 1") == 0
        assert program.free == 1024 - RESERVE_MIB
        program.handle(f"alloc {(1024 - RESERVE_MIB) * MIB}")
    assert [gpu.used for gpu in container.region().gpus] == [
        (512 + RESERVE_MIB) * MIB,
        1024 * MIB,
    ]


def test_a_gpu_the_limits_do_not_name_is_refused(new_container: New) -> None:
    with new_container().run(device=None) as program:
        assert program.result("init 1") == OUT_OF_MEMORY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpushare-limits 2\n",
        "gpushare-limits 1\n",
        "gpushare-limits 1\nGPU-1 limit=1 reserve=0\n",
        "gpushare-limits 1\nGPU-00000000-0000-4000-8000-000000000001 limit=-1 reserve=0\n",
        "gpushare-limits 1\nGPU-00000000-0000-4000-8000-000000000001 limit=9"
        + "9" * 30
        + " reserve=0\n",
        "gpushare-limits 1\nGPU-00000000-0000-4000-8000-000000000001 limit=99999999999 reserve=0",
        "x" * 10_000,
    ],
)
def test_an_unreadable_limits_file_refuses_everything(new_container: New, text: str) -> None:
    container = new_container()
    (container.folder / "limits").write_text(text)
    with container.run(device=None) as program:
        assert program.result("init 0") == OUT_OF_MEMORY
        assert program.ask("total 0") == [0, 0]


def test_limits_that_the_container_could_write_are_not_trusted(new_container: New) -> None:
    with new_container(writable_limits=True).run(device=None) as program:
        assert program.result("init 0") == OUT_OF_MEMORY


def test_the_environment_says_nothing(new_container: New) -> None:
    container = new_container()
    container.extra_environment = {
        "GPUSHARE_LIMITS": "/tmp/mine",
        "CUDA_MEM_LIMIT": "99999999999",
        "CGPU_DISABLE": "true",
    }
    with container.run() as program:
        assert program.free == ROOM


def test_an_old_region_is_refused_rather_than_guessed(new_container: New) -> None:
    container = new_container()
    with container.region_file.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 7))
    with container.run(device=None) as program:
        assert program.result("init 0") == OUT_OF_MEMORY


def test_a_region_on_overlayfs_is_refused(new_container: New) -> None:
    """There a lock is gone once its file is closed, and slots would be taken from the living."""
    container = new_container()
    # The test's /etc is an overlay: a region that is not mounted there lies on it.
    words = container.command("true")
    words[words.index("--region") + 1] = "/dev/null"
    script = (
        "umount /etc/gpushare/region && rm -f /etc/gpushare/region && "
        f"cp {container.region_file} /etc/gpushare/region && "
        "chmod 666 /etc/gpushare/region && "
        f"echo 'init 0' | LD_PRELOAD={container.library} "
        f"{container.gpus.build}/tests/gpuprog dlsym"
    )
    words[words.index("--") + 1 :] = ["sh", "-c", script]
    import subprocess

    done = subprocess.run(words, env=container.environment(), capture_output=True, text=True)
    assert done.stdout == f"{OUT_OF_MEMORY}\n", done.stderr
    assert "loses locks" in done.stderr


@pytest.mark.parametrize("seed", range(3))
def test_hostile_contents_neither_crash_nor_unlimit(new_container: New, seed: int) -> None:
    container = new_container(limit_mib=1024)
    noise = random.Random(seed)
    room = 1024 - RESERVE_MIB
    with container.run() as program, container.region_file.open("r+b", buffering=0) as file:
        for _ in range(12):
            value = noise.choice([b"\0" * 4096, b"\xff" * 4096, noise.randbytes(4096)])
            # Behind the version and size, up to the end of the slots; the lock word included.
            file.seek(32 + noise.randrange(0, 8) * 1024)
            file.write(value)
            granted = []
            while (answer := program.ask(f"alloc {64 * MIB}"))[0] == 0:
                granted.append(answer[1])
            assert answer == [OUT_OF_MEMORY]
            assert len(granted) <= room // 64
            for pointer in granted:
                assert program.result(f"free {pointer}") == 0
        file.seek(32)
        file.write(b"\0" * (4096 - 32))
        file.truncate(file.seek(0, os.SEEK_END))
        assert program.free <= room


def test_threads_do_not_drift(new_container: New) -> None:
    container = new_container()
    with container.run() as program:
        assert program.ask("threads 8 4000") == [0, 0]
        assert program.free == ROOM
    (process,) = container.region().processes
    assert process.uses[0].used == RESERVE_MIB * MIB


def test_killed_at_any_moment_nothing_is_lost(new_container: New) -> None:
    container = new_container()
    chance = random.Random(1)
    with container.run() as observer:
        for _ in range(15):
            with container.run() as program, container.run() as other:
                for churning in (program, other):
                    churning.ask("churn")
                time.sleep(chance.random() * 0.02)
                program.kill()
                time.sleep(0.005)
                # The other one goes on, also if the first died with the lock in its hand.
                before = container.region().gpus[0]
                time.sleep(0.005)
                assert before.used <= before.limit
                other.kill()
            assert observer.free == ROOM
