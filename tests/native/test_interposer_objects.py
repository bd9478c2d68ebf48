"""Memory that is more than a pointer: virtual memory management, pools, capture and graphs."""

import struct
import subprocess
import sys
from collections.abc import Callable

from gpushare.isolation.limits import MIB
from tests.native.conftest import RESERVE_MIB
from tests.native.container import OUT_OF_MEMORY, Container
from tests.native.fakes import uuid

New = Callable[..., Container]
LIMIT = 1024
ROOM = LIMIT - RESERVE_MIB
DEVICE, HOST, HOST_NUMA, LOCALITY_DOMAIN = 1, 2, 3, 6
CHUNK = 32


def test_vmm_as_nccl_frees_it(new_container: New) -> None:
    """Retain, release, unmap, release: the memory goes with the last of them."""
    with new_container(LIMIT).run("address") as program:
        handle = program.handle(f"create {512 * MIB} {DEVICE}")
        assert program.free == ROOM - 512
        assert program.result(f"create {512 * MIB} {DEVICE}") == OUT_OF_MEMORY
        address = program.handle(f"map {handle} {512 * MIB}")
        assert program.result(f"drop {handle}") == 0
        assert program.free == ROOM - 512
        again = program.handle(f"retain {address}")
        assert program.result(f"unmap {address} {512 * MIB}") == 0
        assert program.free == ROOM - 512
        assert program.result(f"drop {again}") == 0
        assert program.free == ROOM


def test_unmapped_after_release_too(new_container: New) -> None:
    with new_container(LIMIT).run() as program:
        handle = program.handle(f"create {256 * MIB} {DEVICE}")
        address = program.handle(f"map {handle} {256 * MIB}")
        program.result(f"drop {handle}")
        program.result(f"unmap {address} {256 * MIB}")
        assert program.free == ROOM


def test_host_memory_is_free_and_every_other_place_is_not(new_container: New) -> None:
    with new_container(LIMIT).run() as program:
        for place in (HOST, HOST_NUMA):
            program.handle(f"create {8192 * MIB} {place}")
        assert program.free == ROOM
        program.handle(f"create {256 * MIB} {LOCALITY_DOMAIN}")
        assert program.free == ROOM - 256


def test_a_surviving_importer_takes_over_a_dead_exporters_charge(new_container: New) -> None:
    container = new_container(2048)
    room = 2048 - 2 * RESERVE_MIB
    with container.run() as exporter, container.run() as importer:
        handle = exporter.handle(f"create {512 * MIB} {DEVICE}")
        result, fd = exporter.ask(f"export {handle}")
        assert result == 0
        imported = importer.handle(f"import {exporter.process.pid} {fd}")
        address = importer.handle(f"map {imported} {512 * MIB}")
        assert importer.free == room - 512
        exporter.kill()
        assert importer.free == room + RESERVE_MIB - 512
        importer.result(f"drop {imported}")
        importer.result(f"unmap {address} {512 * MIB}")
        assert importer.free == room + RESERVE_MIB


def test_memory_from_outside_the_container_is_charged_to_who_maps_it(new_container: New) -> None:
    outside, inside = new_container(2048), new_container(LIMIT)
    with outside.run() as exporter, inside.run() as importer:
        handle = exporter.handle(f"create {ROOM * MIB} {DEVICE}")
        _, fd = exporter.ask(f"export {handle}")
        imported = importer.handle(f"import {exporter.process.pid} {fd}")
        importer.handle(f"alloc {64 * MIB}")
        assert importer.result(f"map {imported} {ROOM * MIB}") == OUT_OF_MEMORY
        importer.handle(f"map {imported} {(ROOM - 64) * MIB}")
        assert importer.free == 0


def test_a_pool_is_charged_with_what_it_holds(new_container: New) -> None:
    with new_container(LIMIT).run() as program:
        pointer = program.handle(f"async {100 * MIB}")
        held = -(-100 // CHUNK) * CHUNK
        assert program.free == ROOM - held
        # Freed memory stays in the pool until a synchronisation.
        assert program.result(f"free-async {pointer}") == 0
        assert program.free == ROOM - held
        program.ask("sync")
        # Nobody tells us: it is noticed before something would be refused.
        program.handle(f"alloc {ROOM * MIB}")
        assert program.free == 0


def test_a_pools_rest_is_used_before_it_grows(new_container: New) -> None:
    with new_container(RESERVE_MIB + 2 * CHUNK).run() as program:
        for _ in range(2 * CHUNK // 4):
            program.handle(f"async {4 * MIB}")
        assert program.result(f"async {4 * MIB}") == OUT_OF_MEMORY


def test_a_pool_that_grows_by_more_than_there_is_room_is_refused(new_container: New) -> None:
    container = new_container(RESERVE_MIB + CHUNK // 2)
    with container.run() as program:
        assert program.result(f"async {4 * MIB}") == OUT_OF_MEMORY
        assert program.free == CHUNK // 2
        program.handle(f"alloc {CHUNK // 2 * MIB}")


def test_a_pool_that_keeps_memory_gives_it_to_other_kinds(new_container: New) -> None:
    with new_container(LIMIT).run() as program:
        program.ask(f"threshold {2**40}")
        pointer = program.handle(f"async {512 * MIB}")
        program.result(f"free-async {pointer}")
        program.ask("sync")
        program.handle(f"alloc {ROOM * MIB}")


def test_own_pools_and_their_end(new_container: New) -> None:
    with new_container(LIMIT).run("per-thread") as program:
        pool = program.handle(f"pool {DEVICE} 0")
        pointer = program.handle(f"from-pool {128 * MIB} {pool}")
        assert program.free == ROOM - 128
        assert program.result(f"from-pool {LIMIT * MIB} {pool}") == OUT_OF_MEMORY
        program.result(f"free-async {pointer}")
        assert program.result(f"destroy-pool {pool}") == 0
        assert program.free == ROOM
        host = program.handle(f"pool {HOST} 0")
        program.handle(f"from-pool {8192 * MIB} {host}")
        assert program.free == ROOM


def test_an_allocation_in_a_capture_is_only_a_node(new_container: New) -> None:
    with new_container(LIMIT).run() as program:
        program.ask("capture")
        pointer = program.handle(f"async {512 * MIB}")
        program.result(f"free-async {pointer}")
        graph = program.handle("end-capture")
        assert program.free == ROOM
        assert program.result(f"launch {graph}") == 0
        assert program.free == ROOM - 512
        for _ in range(3):
            assert program.result(f"launch {graph}") == 0
        assert program.free == ROOM - 512
        program.result(f"destroy-graph {graph}")
        program.result("trim-graphs 0")
        assert program.free == ROOM


def test_a_graph_beyond_the_share_is_refused_at_launch(new_container: New) -> None:
    with new_container(LIMIT).run() as program:
        program.ask("capture")
        for _ in range(3):
            program.handle(f"async {256 * MIB}")
        graph = program.handle("end-capture")
        assert program.result(f"launch {graph}") == OUT_OF_MEMORY
        assert program.free == ROOM


def test_a_holder_of_the_lock_that_died_does_not_block(new_container: New) -> None:
    container = new_container(LIMIT)
    dead_slot, garbage = 200, 0x7FFFFFFF
    with container.run() as program, container.region_file.open("r+b", buffering=0) as file:
        for word in (dead_slot + 1, garbage, 1):
            file.seek(32)
            file.write(struct.pack("<I", word))
            pointer = program.handle(f"alloc {64 * MIB}")
            assert program.free == ROOM - 64
            program.result(f"free {pointer}")


PYNVML = """
import os, sys, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
one, two = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
print(one.total >> 20, one.free >> 20, one.used >> 20)
print(two.total >> 20, two.free >> 20, two.used >> 20, two.reserved)
print(sorted(p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)))
print(n.nvmlDeviceGetGraphicsRunningProcesses_v3(h))
print(n.nvmlDeviceGetName(h), n.nvmlDeviceGetUUID(h))
"""


def test_nvml_shows_the_share_and_no_neighbour(new_container: New) -> None:
    container, neighbour = new_container(), new_container()
    with container.run() as program, neighbour.run() as other:
        other.handle(f"alloc {2048 * MIB}")
        program.handle(f"alloc {512 * MIB}")
        done = subprocess.run(
            container.command(sys.executable, "-c", PYNVML),
            env=container.environment(),
            capture_output=True,
            text=True,
        )
        used = 512 + RESERVE_MIB
        assert done.stdout.splitlines() == [
            f"4096 {4096 - used} {used}",
            f"4096 {4096 - used} {used} 0",
            f"[{program.process.pid}]",
            "[]",
            f"Tesla T4 {uuid(1)}",
        ], done.stderr
        assert done.stderr == ""
