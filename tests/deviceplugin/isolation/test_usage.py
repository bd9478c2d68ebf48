"""What containers use, read from regions that tenants write: real files, hostile ones too."""

from __future__ import annotations

import fcntl
import os
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpushare.contract.names import Mode
from gpushare.contract.units import Unit
from gpushare.deviceplugin.core.books import Books
from gpushare.deviceplugin.core.matching import Matching
from gpushare.deviceplugin.core.offers import Granted, Offer
from gpushare.deviceplugin.core.pods import read_facts
from gpushare.deviceplugin.counters import Counters
from gpushare.deviceplugin.isolation.usage import IMPLAUSIBLE, ContainerUse, Usage
from gpushare.isolation.backend import Interposer
from gpushare.isolation.limits import MIB, GpuLimit
from gpushare.isolation.region import HEADER_SIZE, LOCKS_AT, SIZE, SLOT_SIZE
from gpushare.kube.objects import Pod
from gpushare.model.gpus import Gpu, Node
from gpushare.node.mailbox import Mailboxes, Record
from tests.deviceplugin import fake_node_api as fake

UUIDS = tuple(f"GPU-00000000-0000-4000-8000-00000000000{i}" for i in (1, 2))
RESERVE = 512 * MIB
LIMIT = 1075 * MIB
"""Of each unit."""
SAMPLE = Path(__file__).parents[2] / "native" / "data" / "region-v1.bin"


@dataclass
class Process:
    """Of a container; lives while its lock is held."""

    lock: int | None

    def kill(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


class World:
    """One node with two GPUs of 15 units, its books, and its allocations' files."""

    def __init__(self, folder: Path) -> None:
        gpus = tuple(Gpu(index, 15, uuid=uuid) for index, uuid in enumerate(UUIDS))
        self.books = Books(Node("n1", Mode.CGPU, gpus=gpus), Unit.GIB, {})
        self.matching = Matching(self.books)
        self.mailboxes = Mailboxes(folder / "allocations")
        self.backend = Interposer(Path("/opt/lib.so"), folder / "files")
        self.unprotected: dict[tuple[str, str], str] = {}
        self.usage = Usage(
            lambda: self.books,
            self.mailboxes.record,
            self.backend.region_path,
            lambda: self.unprotected,
        )
        self.counters = Counters(lambda: self.books)
        self.counters.watch(self.usage.report)

    def start(self, manifest: dict[str, Any], *, limited: bool = True) -> list[Path]:
        """A pod comes and is allocated; the regions of its containers, in their order."""
        facts = read_facts(msgspec.convert(manifest, Pod))
        assert facts is not None
        self.books.put(facts)
        regions: list[Path] = []
        pieces = self.books.pods[facts.record.uid].pieces
        taken: frozenset[str] = frozenset()
        for call in [call for piece in pieces for call in piece.calls]:
            free = [
                f"{gpu.uuid}::{slot}" for gpu in self.books.node.gpus for slot in range(gpu.units)
            ]
            must = taken if call.reused else frozenset()
            offer = self.matching.prefer(free, must, call.ask.units, current=True)
            assert isinstance(offer, Offer)
            granted = self.matching.allocate(offer.ids, 1, current=True)
            assert isinstance(granted, Granted)
            taken = granted.ids
            limits = [
                (UUIDS[i], LIMIT * call.ask.units // len(granted.place), RESERVE)
                for i in granted.place
            ]
            record = Record(ids=tuple(sorted(taken)), env={}, limits=tuple(limits * limited))
            self.mailboxes.renew(record)
            if limited:
                self.backend.prepare(record.id, [GpuLimit(*limit) for limit in limits])
            regions.append(self.backend.region_path(record.id))
        for piece in pieces:
            piece.attested = True
        return regions

    def uses(self) -> list[ContainerUse]:
        report = self.usage.report()
        assert report is not None
        return report.containers

    def use(self) -> ContainerUse:
        (use,) = self.uses()
        return use

    def metrics(self) -> dict[tuple[str, str, str], float]:
        """(metric without its prefix, container, GPU index) -> value."""
        lines = self.counters.text().decode().splitlines()
        found = {}
        for line in lines:
            match = re.fullmatch(r"gpushare_container_(\w+)\{(.*)\} (\S+)", line)
            if match:
                labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
                found[match[1], labels["container"], labels["gpu"]] = float(match[3])
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.usage.close()


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    """process(region, slot, used, peak, refused) -> a process that says so of the first GPU."""
    started: list[Process] = []

    def run(
        region: Path, slot: int = 0, used: int = 0, *, peak: int = 0, refused: int = 0, gpu: int = 0
    ) -> Process:
        fd = os.open(region, os.O_RDWR)
        at = HEADER_SIZE + slot * SLOT_SIZE
        os.pwrite(fd, struct.pack("<IIQ", 7, 0, 1), at)
        os.pwrite(fd, struct.pack("<Q", used), at + 64 + gpu * 48)
        os.pwrite(fd, struct.pack("<QQ", peak, refused), 64 + gpu * 64 + 32)
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, LOCKS_AT + slot, 1, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
        started.append(Process(fd))
        return started[-1]

    yield run
    for each in started:
        each.kill()


Run = Callable[..., Process]


# -- what is read --------------------------------------------------------------------------------


def test_a_containers_figures_are_its_regions(world: World, process: Run) -> None:
    (region,) = world.start(fake.pod("p", 4, gpu=1))
    process(region, 0, 600 * MIB, peak=3000 * MIB, refused=2)
    process(region, 3, 700 * MIB, peak=3000 * MIB, refused=2)
    assert world.use() == ContainerUse(
        namespace="default",
        pod="p",
        container="c0",
        gpu=1,
        uuid=UUIDS[1],
        units=4,
        limit_bytes=4 * LIMIT,
        used_bytes=1300 * MIB,
        peak_bytes=3000 * MIB,
        refused=2,
    )
    assert world.metrics() == {
        ("allocated_units", "c0", "1"): 4,
        ("memory_limit_bytes", "c0", "1"): 4 * LIMIT,
        ("memory_used_bytes", "c0", "1"): 1300 * MIB,
        ("memory_peak_bytes", "c0", "1"): 3000 * MIB,
        ("allocations_refused_total", "c0", "1"): 2,
        ("unprotected", "c0", "1"): 0,
    }


def test_all_labels_stand_on_each_metric(world: World) -> None:
    world.start(fake.pod("p", 4, gpu=1))
    labels = (
        f'{{container="c0",gpu="1",namespace="default",node="n1",pod="p",uuid="{UUIDS[1]}"}}'.split(
            ","
        )
    )
    lines = [line for line in world.counters.text().decode().splitlines() if 'pod="p"' in line]
    assert len(lines) == 6
    for line in lines:
        assert all(label.strip("{}") in line for label in labels), line


def test_a_pod_on_two_gpus_has_one_series_for_each(world: World, process: Run) -> None:
    (region,) = world.start(fake.pod("p", 8, gpus=(0, 1)))
    process(region, 0, 100 * MIB, gpu=0)
    process(region, 1, 200 * MIB, gpu=1)
    assert [(use.gpu, use.units, use.used_bytes) for use in world.uses()] == [
        (0, 4, 100 * MIB),
        (1, 4, 200 * MIB),
    ]


def test_what_a_killed_process_used_is_not_counted(world: World, process: Run) -> None:
    (region,) = world.start(fake.pod("p", 4, gpu=0))
    killed = process(region, 0, 600 * MIB, peak=1000 * MIB)
    process(region, 1, 50 * MIB, peak=1000 * MIB)
    killed.kill()
    assert (world.use().used_bytes, world.use().peak_bytes) == (50 * MIB, 1000 * MIB)


def test_the_frozen_sample_of_version_1_is_read(world: World) -> None:
    """Its processes have long ended."""
    (region,) = world.start(fake.pod("p", 4, gpu=0))
    region.write_bytes(SAMPLE.read_bytes().ljust(SIZE, b"\0"))
    use = world.use()
    assert (use.used_bytes, use.refused, use.missing) == (0, 1, None)
    assert use.peak_bytes == (2 * 320 + 512 + 64 + 128) * MIB


def test_a_container_of_a_share_node_has_units_and_nothing_else(world: World) -> None:
    world.start(fake.pod("p", 4, gpu=0), limited=False)
    assert world.metrics() == {("allocated_units", "c0", "0"): 4}
    use = world.use()
    assert (use.limit_bytes, use.used_bytes, use.refused, use.missing) == (None, None, None, None)


def test_an_unprotected_container_is_told_of_with_or_without_a_limit(world: World) -> None:
    world.start(fake.pod("p", 4, 2, gpu=0))
    world.start(fake.pod("q", 1, gpu=1), limited=False)
    world.unprotected = {("uid-p", "c1"): "static binary", ("uid-q", "c0"): "CGPU_DISABLE"}
    found = world.metrics()
    told = {key[1:]: value for key, value in found.items() if key[0] == "unprotected"}
    assert told == {("c0", "0"): 0, ("c1", "0"): 1, ("c0", "1"): 1}
    assert [use.unprotected for use in world.uses()] == [None, "static binary", "CGPU_DISABLE"]


def test_a_region_that_two_containers_share_is_counted_once(world: World, process: Run) -> None:
    """The app takes the init container's ids, all of them, and so its allocation."""
    manifest = fake.pod("p", 4, gpu=0)
    manifest["spec"]["initContainers"] = [fake.container("i", 4)]
    first, second = world.start(manifest)
    assert first == second
    process(second, 0, 300 * MIB)
    init, app = world.uses()
    assert (init.container, init.limit_bytes, init.used_bytes) == ("i", 4 * LIMIT, None)
    assert (app.container, app.limit_bytes, app.used_bytes) == ("c0", 4 * LIMIT, 300 * MIB)
    assert "counted with container c0" in str(init.missing)


def test_nothing_is_told_before_the_books_are_open(world: World) -> None:
    usage = Usage(lambda: None, world.mailboxes.record, world.backend.region_path)
    assert usage.report() is None
    counters = Counters(lambda: None)
    counters.watch(usage.report)
    assert b"gpushare_container_memory_used_bytes{" not in counters.text()


# -- allocations come and go ---------------------------------------------------------------------


def descriptors(folder: Path) -> list[str]:
    """Where this process's open files below a folder lie, or lay."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return [name for name in names if name.startswith(str(folder))]


def test_descriptors_are_kept_while_the_allocation_lives(world: World, tmp_path: Path) -> None:
    world.start(fake.pod("p", 4, 2, gpu=0))
    for _ in range(5):
        world.uses()
    assert len(descriptors(tmp_path)) == 2
    world.books.remove("uid-p")
    assert world.uses() == []
    assert descriptors(tmp_path) == []


def test_the_same_ids_given_again_are_read_from_their_new_region(
    world: World, process: Run
) -> None:
    (old,) = world.start(fake.pod("p", 4, gpu=0))
    process(old, 0, 500 * MIB, peak=800 * MIB, refused=9)
    assert world.use().refused == 9
    world.books.remove("uid-p")
    world.backend.forget(old.parent.name)
    (new,) = world.start(fake.pod("q", 4, gpu=0))
    assert new == old
    use = world.use()
    assert (use.pod, use.used_bytes, use.peak_bytes, use.refused) == ("q", 0, 0, 0)


def test_a_region_made_anew_between_two_looks_is_noticed(
    world: World, process: Run, tmp_path: Path
) -> None:
    """Its pod is the same: a kubelet that has started anew asked again."""
    (region,) = world.start(fake.pod("p", 4, gpu=0))
    process(region, 0, 500 * MIB, refused=9).kill()
    world.uses()
    world.backend.forget(region.parent.name)
    world.backend.prepare(region.parent.name, [GpuLimit(UUIDS[0], LIMIT, RESERVE)])
    assert (world.use().used_bytes, world.use().refused) == (0, 0)
    assert len(descriptors(tmp_path)) == 1


def test_a_pod_that_has_ended_uses_nothing(world: World) -> None:
    """It stays on the books as long as nobody knows whose its ids were."""
    world.start(fake.pod("p", 4, gpu=0))
    for piece in world.books.pods["uid-p"].pieces:
        piece.attested = False
    world.books.remove("uid-p")
    assert list(world.books.pods) == ["uid-p"]
    assert world.uses() == []
    assert world.metrics() == {}


def test_a_region_whose_name_is_gone_is_still_read(world: World, process: Run) -> None:
    """The container has it mounted and goes on writing it."""
    (region,) = world.start(fake.pod("p", 4, gpu=0))
    process(region, 0, 500 * MIB)
    world.uses()
    region.unlink()
    assert world.use().used_bytes == 500 * MIB
    os.mkfifo(region)
    assert world.use().used_bytes == 500 * MIB


def test_refusals_never_go_backwards(world: World, process: Run) -> None:
    (region,) = world.start(fake.pod("p", 4, gpu=0))
    process(region, 0, refused=5)
    assert world.use().refused == 5
    process(region, 1, refused=1)
    assert world.use().refused == 5
    process(region, 2, refused=6)
    assert world.use().refused == 6


# -- hostile tenants -----------------------------------------------------------------------------


def truncated(region: Path) -> None:
    os.truncate(region, 100)


def emptied(region: Path) -> None:
    os.truncate(region, 0)


def a_link(region: Path) -> None:
    region.rename(region.with_name("moved"))
    region.symlink_to(region.with_name("moved"))


def a_pipe(region: Path) -> None:
    region.unlink()
    os.mkfifo(region)


def a_directory(region: Path) -> None:
    region.unlink()
    region.mkdir()


def gone(region: Path) -> None:
    region.unlink()


def unreadable_words(region: Path) -> None:
    region.write_bytes(b"\xff" * SIZE)


def of_another_version(region: Path) -> None:
    data = bytearray(region.read_bytes())
    struct.pack_into("<I", data, 8, 2)
    region.write_bytes(data)


def figure(at: int, value: int) -> Callable[[Path], None]:
    def write(region: Path) -> None:
        data = bytearray(region.read_bytes())
        struct.pack_into("<Q", data, at, value)
        region.write_bytes(data)

    return write


HOSTILE = {
    "truncated": truncated,
    "emptied": emptied,
    "a link": a_link,
    "a pipe": a_pipe,
    "a directory": a_directory,
    "gone": gone,
    "garbage": unreadable_words,
    "of another version": of_another_version,
    "peak of 2^64": figure(64 + 32, 2**64 - 1),
    "peak of 2^53": figure(64 + 32, IMPLAUSIBLE),
    "refused 2^63": figure(64 + 40, 2**63),
    "extra of 2^63": figure(64 + 48, 2**63),
}


@pytest.mark.parametrize("do", HOSTILE.values(), ids=HOSTILE)
def test_what_cannot_be_read_is_missing_and_not_zero(
    world: World, caplog: pytest.LogCaptureFixture, do: Callable[[Path], None]
) -> None:
    caplog.set_level("DEBUG", "gpushare")
    (region,) = world.start(fake.pod("p", 4, gpu=0))
    world.start(fake.pod("neighbour", 2, gpu=0))
    do(region)
    neighbour, use = sorted(world.uses(), key=lambda use: use.pod)
    assert (use.limit_bytes, use.used_bytes, use.peak_bytes) == (4 * LIMIT, None, None)
    assert use.refused is None
    assert use.missing
    assert f"of pod default/p uses is not known: {use.missing}" in caplog.text
    assert (neighbour.used_bytes, neighbour.missing) == (0, None)


@pytest.mark.parametrize("do", [truncated, emptied, unreadable_words], ids=lambda do: do.__name__)
def test_a_region_spoilt_while_it_is_read_is_missing_until_it_is_right_again(
    world: World, process: Run, do: Callable[[Path], None]
) -> None:
    (region,) = world.start(fake.pod("p", 4, gpu=0))
    process(region, 0, 5 * MIB, refused=3)
    good = region.read_bytes()
    assert world.use().used_bytes == 5 * MIB
    do(region)
    assert world.use().used_bytes is None
    assert "allocations_refused_total" not in {name for name, *_ in world.metrics()}
    region.write_bytes(good)
    assert (world.use().used_bytes, world.use().refused) == (5 * MIB, 3)


def test_a_process_that_claims_more_than_there_can_be(world: World, process: Run) -> None:
    (region,) = world.start(fake.pod("p", 4, gpu=0))
    process(region, 0, 2**63)
    process(region, 1, 2**63)
    assert world.use().used_bytes is None


@pytest.mark.parametrize("seed", range(20))
def test_any_contents_are_figures_or_missing(world: World, seed: int) -> None:
    chance = random.Random(seed)
    (region,) = world.start(fake.pod("p", 8, gpus=(0, 1)))
    data = bytearray(region.read_bytes())
    for _ in range(40):
        at = chance.randrange(64, SIZE - 64)
        data[at : at + 64] = chance.choice([b"\xff" * 64, bytes(64), chance.randbytes(64)])
    region.write_bytes(data)
    for use in world.uses():
        figures = (use.used_bytes, use.peak_bytes, use.refused)
        assert all(value is None or 0 <= value < IMPLAUSIBLE for value in figures)
        assert (use.missing is None) == (None not in figures)
    assert world.counters.text()


def test_a_container_whose_record_is_lost_is_still_there(world: World) -> None:
    (region,) = world.start(fake.pod("p", 4, gpu=0))
    world.mailboxes.remove(region.parent.name)
    assert (world.use().units, world.use().limit_bytes) == (4, None)
