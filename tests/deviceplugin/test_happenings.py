"""People hear of GPUs that fail and recover, and of a change of mode, with the pods it hits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushare.contract.inventory import Device
from gpushare.contract.names import Mode
from gpushare.deviceplugin.happenings import Happenings
from tests.deviceplugin.requests import request
from tests.deviceplugin.world import World

WELL = tuple(Device(i, f"GPU-{i}", "Tesla T4", 16130, 15) for i in range(2))
ILL = (WELL[0], Device(1, "GPU-1", "Tesla T4", 16130, 15, healthy=False))


@pytest.fixture
def world() -> World:
    world = World(0, (15, 15), "spread")
    for _ in range(2):
        world.create(request(4), decided=True)
    while world.unseen:
        world.see()
    return world


def told(happenings: Happenings, devices: tuple[Device, ...], world: World) -> list[str]:
    problems = {} if devices is WELL else {"GPU-1": "Xid 79"}
    return [one.text for one in happenings.news(devices, problems, {}, world.books)]


def test_a_failure_names_the_pods_on_the_gpu_and_is_told_once(world: World) -> None:
    happenings = Happenings()
    assert told(happenings, WELL, world) == []
    (text,) = told(happenings, ILL, world)
    assert text.startswith("GPU 1 (Tesla T4, GPU-1) takes nothing new: Xid 79. On it: default/p")
    assert text.count("default/") == 1
    assert told(happenings, ILL, world) == []


def test_a_gpu_that_is_ill_when_the_plugin_starts_is_told_of(world: World) -> None:
    assert len(told(Happenings(), ILL, world)) == 1


def test_a_recovery_is_told_once(world: World) -> None:
    happenings = Happenings()
    told(happenings, ILL, world)
    assert told(happenings, WELL, world) == ["GPU 1 (Tesla T4, GPU-1) is well again and takes pods"]
    assert told(happenings, WELL, world) == []


def test_leaving_a_sharing_mode_names_the_pods_that_stay(world: World) -> None:
    happenings = Happenings()
    told(happenings, WELL, world)
    world.books.node = replace(world.books.node, mode=Mode.DEFAULT)
    (text,) = told(happenings, WELL, world)
    assert "ack.node.gpu.schedule is default now" in text
    assert text.count("default/p") == 2
    assert told(happenings, WELL, world) == []
    world.books.node = replace(world.books.node, mode=Mode.SHARE)
    assert told(happenings, WELL, world) == []


def test_many_pods_are_counted(world: World) -> None:
    for _ in range(10):
        world.create(request(1), decided=True)
    while world.unseen:
        world.see()
    happenings = Happenings()
    told(happenings, WELL, world)
    world.books.node = replace(world.books.node, mode=Mode.DEFAULT)
    (text,) = told(happenings, WELL, world)
    assert text.endswith(", and 2 more.")


def test_a_gpu_that_is_well_and_closed_has_not_failed(world: World) -> None:
    happenings = Happenings()
    closed = {"GPU-1": "pod a/b has it whole"}
    (one,) = happenings.news(ILL, {}, closed, world.books)
    assert (one.reason, "has it whole" in one.text) == ("GPUClosed", True)
    assert not happenings.news(ILL, {}, closed, world.books)
    (one,) = happenings.news(ILL, {"GPU-1": "Xid 79"}, closed, world.books)
    assert (one.reason, "Xid 79" in one.text) == ("GPUFailed", True)
    (one,) = happenings.news(ILL, {}, closed, world.books)
    assert one.reason == "GPUClosed"
    (one,) = happenings.news(WELL, {}, {}, world.books)
    assert (one.reason, one.text) == ("GPUOpened", "GPU 1 (Tesla T4, GPU-1) takes pods")
