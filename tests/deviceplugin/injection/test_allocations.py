"""The CDI device of an allocation: what it changes, how long it lives."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpushare.deviceplugin.injection.allocations import KEPT_S, AllocationDevices
from gpushare.deviceplugin.injection.edits import composed, environment_part
from gpushare.isolation.backend import Edits, Interposer
from gpushare.isolation.limits import GpuLimit, decode_limits
from gpushare.node.cdi import ContainerEdits, Mount, read_specs
from gpushare.node.mailbox import Mailboxes, Record

HOOK = Path("/var/lib/gpushare/bin/v1/gpushare-hook")
RECORD = Record(
    ids=("GPU-a::0", "GPU-b::0"),
    env={"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b", "ALIYUN_COM_GPU_MEM_IDX": "0,1"},
    devices=("nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"),
)
OTHER = Record(ids=("GPU-a::1",), env={"NVIDIA_VISIBLE_DEVICES": "GPU-a"})


LIMITS = ("GPU-00000000-0000-4000-8000-000000000001", 4096 << 20, 512 << 20)


@dataclass
class Isolation:
    """The interposer's files in a directory that is no tmpfs."""

    folder: Path

    def prepare(self, record: Record) -> Edits:
        if not record.limits:
            return Edits()
        limits = [GpuLimit(*limit) for limit in record.limits]
        return Interposer(Path(record.library), self.folder).prepare(record.id, limits)

    def forget(self, allocation: str) -> None:
        Interposer(Path(), self.folder).forget(allocation)

    def tend(self, needed: Iterable[str]) -> None:
        for name in {*Interposer(Path(), self.folder).names()} - {*needed}:
            self.forget(name)


class World:
    def __init__(self, folder: Path) -> None:
        self.minors = {"GPU-a": 0, "GPU-b": 7}
        self.boxes = Mailboxes(folder / "allocations")
        self.specs = folder / "cdi"
        self.isolation = Isolation(folder / "files")
        self.devices = AllocationDevices(
            self.boxes, self.specs, lambda: self.minors, self.isolation, HOOK
        )

    def edits(self, record: Record) -> dict[str, Any]:
        path = self.specs / f"gpushare.dev-allocation_{record.id}.json"
        (device,) = json.loads(path.read_text())["devices"]
        assert device["name"] == record.id
        edits: dict[str, Any] = device["containerEdits"]
        return edits

    def arguments(self, record: Record) -> list[str]:
        hook = self.edits(record)["hooks"][0]
        assert (hook["hookName"], hook["path"]) == ("createRuntime", str(self.devices.hook))
        words: list[str] = hook["args"]
        return words

    def letter(self, record: Record) -> None:
        (self.boxes.path(record.id) / "u_c.json").write_text(
            '{"version":1,"podUid":"u","container":"c"}'
        )

    def age(self, record: Record, seconds: float) -> None:
        at = os.stat(self.boxes.path(record.id)).st_mtime - seconds
        os.utime(self.boxes.path(record.id), (at, at))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_device_brings_the_environment_and_the_hook(world: World) -> None:
    name = world.devices.make(RECORD).device
    assert name == f"gpushare.dev/allocation={RECORD.id}"
    assert list(read_specs([world.specs]).files) == [name]
    assert world.edits(RECORD)["env"] == [
        "NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b",
        "ALIYUN_COM_GPU_MEM_IDX=0,1",
    ]
    mailbox = str(world.boxes.path(RECORD.id))
    assert world.arguments(RECORD) == [
        *("gpushare-hook", "attest", "--mailbox", mailbox, "--gpu", "GPU-a", "--gpu", "GPU-b"),
        *("--device", "/dev/nvidia0", "--device", "/dev/nvidia7"),
    ]


def test_where_no_device_makes_the_files_the_hook_looks_at_the_environment(world: World) -> None:
    world.devices.make(OTHER)
    assert "--device" not in world.arguments(OTHER)


def test_a_gpu_the_driver_does_not_show_has_no_file_to_ask_for(world: World) -> None:
    del world.minors["GPU-b"]
    world.devices.make(RECORD)
    assert "--device" not in world.arguments(RECORD)


def test_without_the_hook_the_environment_stays(world: World) -> None:
    world.devices.hook = None
    world.devices.make(RECORD)
    assert list(world.edits(RECORD)) == ["env"]


def test_ids_that_are_handed_out_again_begin_without_letters(world: World) -> None:
    world.devices.make(RECORD)
    world.letter(RECORD)
    world.devices.make(RECORD)
    assert list(world.boxes.letters(RECORD.id)) == []


def test_a_reboot_empties_the_specifications_and_they_are_rebuilt(world: World) -> None:
    world.devices.make(RECORD)
    world.letter(RECORD)
    for path in world.specs.iterdir():
        path.unlink()
    world.minors = {"GPU-a": 7, "GPU-b": 0}
    world.devices.hook = HOOK.parents[1] / "v2" / "gpushare-hook"
    assert world.devices.rebuild([OTHER]) == 2
    assert world.arguments(RECORD)[-4:] == ["--device", "/dev/nvidia7", "--device", "/dev/nvidia0"]
    assert list(world.boxes.letters(RECORD.id)), "who has it is still known"
    assert world.boxes.names() == sorted([RECORD.id, OTHER.id])


def test_what_was_answered_counts_more_than_what_the_kubelet_tells(world: World) -> None:
    world.devices.make(RECORD)
    bare = Record(ids=RECORD.ids, env={"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"})
    world.devices.rebuild([bare])
    assert len(world.edits(RECORD)["env"]) == 2
    assert "--device" in world.arguments(RECORD)


def test_nothing_is_made_on_a_node_that_never_had_any(world: World) -> None:
    assert world.devices.rebuild([]) == 0
    world.devices.tend(set())
    assert not world.boxes.home.exists()
    assert not world.specs.exists()


def test_what_nobody_has_goes_once_it_is_old(world: World) -> None:
    for record in (RECORD, OTHER):
        world.devices.make(record)
    world.devices.tend({OTHER.id})
    assert len(world.boxes.names()) == 2
    for record in (RECORD, OTHER):
        world.age(record, KEPT_S + 1)
    world.devices.tend(None)
    assert len(world.boxes.names()) == 2
    world.devices.tend({OTHER.id})
    assert world.boxes.names() == [OTHER.id]
    assert [path.name for path in world.specs.iterdir()] == [
        f"gpushare.dev-allocation_{OTHER.id}.json"
    ]


def test_a_directory_that_only_the_hook_made_goes_too(world: World) -> None:
    """It makes one where there is none, for the letter's sake."""
    world.boxes.path(RECORD.id).mkdir(parents=True)
    world.letter(RECORD)
    world.age(RECORD, KEPT_S + 1)
    world.devices.tend(set())
    assert world.boxes.names() == []


def test_a_specification_that_somebody_removed_is_written_again(world: World) -> None:
    world.devices.make(RECORD)
    (world.specs / f"gpushare.dev-allocation_{RECORD.id}.json").unlink()
    world.age(RECORD, KEPT_S + 1)
    world.devices.tend({RECORD.id})
    assert "--device" in world.arguments(RECORD)


def test_parts_are_put_together_in_order() -> None:
    mount = Mount(host_path="/a", container_path="/b", options=("bind", "ro"))
    both = composed([environment_part({"A": "1"}), ContainerEdits(env=("B=2",), mounts=(mount,))])
    assert both == ContainerEdits(env=("A=1", "B=2"), mounts=(mount,))


HELD = Record(
    ids=("GPU-a::2",), env={"NVIDIA_VISIBLE_DEVICES": "GPU-a"}, limits=(LIMITS,), library="/lib/v1"
)


def test_what_holds_a_container_comes_by_its_device(world: World) -> None:
    world.devices.make(HELD)
    edits = world.edits(HELD)
    files = world.isolation.folder / HELD.id
    assert {
        (mount["containerPath"], mount["hostPath"], mount["options"][-1])
        for mount in edits["mounts"]
    } == {
        ("/usr/lib/gpushare/libgpushare-interposer.so", "/lib/v1", "ro"),
        ("/etc/ld.so.preload", str(files / "preload"), "ro"),
        ("/etc/gpushare/limits", str(files / "limits"), "ro"),
        ("/etc/gpushare/region", str(files / "region"), "rw"),
    }
    assert all("bind" in mount["options"] for mount in edits["mounts"])
    check = edits["hooks"][0]
    assert (check["hookName"], check["path"]) == ("createContainer", str(HOOK))
    assert check["args"][1:] == [
        "check-preload",
        "--library",
        "/usr/lib/gpushare/libgpushare-interposer.so",
    ]
    (limit,) = decode_limits((files / "limits").read_text())
    assert (limit.uuid, limit.limit_bytes, limit.reserve_bytes) == LIMITS


def test_without_cdi_the_kubelet_is_told_of_the_files(world: World) -> None:
    record = msgspec.structs.replace(HELD, cdi=False)
    made = world.devices.make(record)
    assert made.device is None
    assert [mount.read_only for mount in made.isolation.mounts] == [True, True, True, False]
    assert not list(world.specs.glob("*"))
    world.devices.tend({record.id})
    assert not list(world.specs.glob("*"))


def test_an_allocation_anew_begins_with_an_empty_region(world: World) -> None:
    world.devices.make(HELD)
    region = world.isolation.folder / HELD.id / "region"
    before = region.stat().st_ino
    kept = region.open("rb")
    world.devices.rebuild(())
    assert region.stat().st_ino == before  # a process of the container has it mapped
    world.devices.make(HELD)
    assert region.stat().st_ino != before
    kept.close()


def test_after_a_reboot_the_files_are_made_again(world: World) -> None:
    world.devices.make(HELD)
    limits = (world.isolation.folder / HELD.id / "limits").read_text()
    shutil.rmtree(world.isolation.folder)
    shutil.rmtree(world.specs)
    assert world.devices.rebuild(()) == 1
    assert (world.isolation.folder / HELD.id / "limits").read_text() == limits
    assert world.edits(HELD)["mounts"]


def test_files_that_somebody_removed_are_made_again(world: World) -> None:
    world.devices.make(HELD)
    shutil.rmtree(world.isolation.folder)
    world.devices.tend({HELD.id})
    assert (world.isolation.folder / HELD.id / "region").exists()


def test_the_files_of_what_nobody_has_are_removed(world: World) -> None:
    world.devices.make(HELD)
    world.age(HELD, KEPT_S + 1)
    world.devices.tend({HELD.id})
    assert (world.isolation.folder / HELD.id).exists()
    world.devices.tend(())
    assert not (world.isolation.folder / HELD.id).exists()
