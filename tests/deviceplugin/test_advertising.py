"""The list of devices, from the books."""

from __future__ import annotations

import pytest

from gpushare.contract.names import Mode
from gpushare.contract.units import Unit
from gpushare.deviceplugin.advertising import TooManyUnits, advertised, device_list
from gpushare.deviceplugin.core.books import Books
from gpushare.model.gpus import Gpu, Node


def books(*gpus: Gpu, unit: Unit = Unit.GIB) -> Books:
    return Books(Node("n1", Mode.SHARE, "binpack", gpus, unit=unit), unit, {})


def health(of: Books) -> dict[str, str]:
    what = advertised(of, offering=True)
    return {d.ID: d.health for d in device_list(what, of.node).devices}


def test_one_id_for_each_unit() -> None:
    of = books(Gpu(0, 2, uuid="GPU-a"), Gpu(3, 1, uuid="GPU-b"))
    assert health(of) == {"GPU-a::0": "Healthy", "GPU-a::1": "Healthy", "GPU-b::0": "Healthy"}


def test_the_unit_is_part_of_the_id() -> None:
    of = books(Gpu(0, 1, uuid="GPU-a"), unit=Unit.MIB128)
    assert set(health(of)) == {"GPU-a::128MiB::0"}


@pytest.mark.parametrize("why", [{"healthy": False}, {"cordoned": True}])
def test_a_gpu_that_takes_nothing_new_is_unhealthy(why: dict[str, bool]) -> None:
    of = books(Gpu(0, 1, uuid="GPU-a", **why), Gpu(1, 1, uuid="GPU-b"))
    assert health(of) == {"GPU-a::0": "Unhealthy", "GPU-b::0": "Healthy"}


def test_all_is_unhealthy_where_nothing_is_offered() -> None:
    """Not an empty list: the kubelet would end with a panic if it was allocating."""
    of = books(Gpu(0, 2, uuid="GPU-a"))
    what = advertised(of, offering=False)
    assert [one.health for one in device_list(what, of.node).devices] == ["Unhealthy"] * 2


def test_a_list_that_the_kubelet_would_not_take_is_said_with_what_helps() -> None:
    """Its limit is 4 MiB in one message: 8 GPUs of 1.5 TB in units of 128 MiB are too many."""
    gpus = [Gpu(i, 12_000, uuid=f"GPU-{'0' * 35}{i}") for i in range(8)]
    of = books(*gpus, unit=Unit.MIB128)
    with pytest.raises(TooManyUnits, match=r"96000 units of 128MiB .* use units of 1 GiB"):
        device_list(advertised(of, offering=True), of.node)


def test_a_list_just_below_the_limit_is_sent() -> None:
    """Eight GPUs of 288 GB in the smaller unit."""
    gpus = [Gpu(i, 2304, uuid=f"GPU-{'0' * 35}{i}") for i in range(8)]
    of = books(*gpus, unit=Unit.MIB128)
    assert len(health(of)) == 8 * 2304
