"""Indexes that stay their GPU's own."""

from __future__ import annotations

import pytest

from gpushare.contract.inventory import Device
from gpushare.contract.units import Unit
from gpushare.deviceplugin.inventory import accelerator_labels, merged, pruned
from gpushare.node.gpus import FoundGpu


def found(
    uuid: str, *, mib: int = 16130, model: str = "Tesla T4", ill: str | None = None
) -> FoundGpu:
    return FoundGpu(uuid, model, mib, "00000000:00:00.0", 0, ill)


def device(index: int, uuid: str, *, healthy: bool = True, units: int = 15) -> Device:
    return Device(index, uuid, "Tesla T4", 16130, units, healthy)


def indexes(devices: tuple[Device, ...]) -> dict[str, int]:
    return {d.uuid: d.index for d in devices}


def test_new_gpus_are_numbered_in_pci_order() -> None:
    assert merged((), [found("z"), found("a")], Unit.GIB) == (device(0, "z"), device(1, "a"))


@pytest.mark.parametrize(
    ("published", "seen", "expected"),
    [
        ({"a": 0, "b": 1}, "ba", {"a": 0, "b": 1}),
        ({"a": 0, "b": 1}, "bca", {"a": 0, "b": 1, "c": 2}),
        ({"a": 2}, "axy", {"a": 2, "x": 0, "y": 1}),
        ({"a": 1}, "xyza", {"a": 1, "x": 0, "y": 2, "z": 3}),
        ({"gone": 0, "b": 1}, "bx", {"gone": 0, "b": 1, "x": 2}),
        ({"a": 0, "b": 5}, "ab", {"a": 0, "b": 5}),
    ],
)
def test_an_index_stays_and_new_gpus_take_the_lowest_free(
    published: dict[str, int], seen: str, expected: dict[str, int]
) -> None:
    known = [device(index, uuid) for uuid, index in published.items()]
    devices = merged(known, [found(uuid) for uuid in seen], Unit.GIB)
    assert indexes(devices) == expected
    assert [d.index for d in devices] == sorted(expected.values())


def test_a_gpu_that_vanished_is_unhealthy_and_keeps_its_figures() -> None:
    assert merged([device(0, "a", units=14)], [], Unit.GIB) == (
        device(0, "a", units=14, healthy=False),
    )


def test_a_gpu_with_a_problem_is_unhealthy_and_one_that_recovered_is_not() -> None:
    (ill,) = merged([device(0, "a")], [found("a", ill="Xid 79")], Unit.GIB)
    assert not ill.healthy
    (well,) = merged([ill], [found("a")], Unit.GIB)
    assert well.healthy


def test_a_gpu_that_does_not_say_what_it_is_keeps_what_it_said() -> None:
    (known,) = merged([device(0, "a")], [found("a", mib=0, model="", ill="silent")], Unit.GIB)
    assert (known.model, known.memory_mib, known.units) == ("Tesla T4", 16130, 15)


def test_units_are_those_of_now() -> None:
    assert [d.units for d in merged([device(0, "a")], [found("a")], Unit.MIB128)] == [126]
    assert [d.units for d in merged((), [found("a", mib=6041)], Unit.GIB)] == [5]


def test_only_vanished_gpus_that_nobody_holds_are_forgotten() -> None:
    devices = (device(0, "here"), device(1, "held"), device(2, "forgotten"))
    assert pruned(devices, [found("here")], {1}) == devices[:2]
    assert pruned(devices, [found("here")], set()) == devices[:1]


def test_accelerator_labels_tell_of_the_first_gpu() -> None:
    assert accelerator_labels([device(0, "a"), device(1, "b")]) == {
        "aliyun.accelerator/nvidia_name": "Tesla-T4",
        "aliyun.accelerator/nvidia_mem": "16130MiB",
        "aliyun.accelerator/nvidia_count": "2",
    }


def test_accelerator_labels_go_without_gpus() -> None:
    assert set(accelerator_labels([]).values()) == {None}


@pytest.mark.parametrize(
    ("model", "value"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("(odd) name!", "odd-name"),
        ("x" * 62 + " y", "x" * 62),
        ("???", None),
    ],
)
def test_a_models_name_as_a_label_can_have_it(model: str, value: str | None) -> None:
    labels = accelerator_labels([Device(0, "a", model, 1024, 1)])
    assert labels["aliyun.accelerator/nvidia_name"] == value
