"""The codecs of annotations: total, strict, canonical."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract import names
from gpushare.contract.allocation import (
    CodecError,
    binding_annotations,
    decode_allocation,
    decode_corrections,
    encode_allocation,
    encode_corrections,
)
from gpushare.contract.inventory import (
    Device,
    decode_cordoned,
    decode_devices,
    decode_node,
    encode_devices,
)
from gpushare.contract.units import Unit, share_limit_mib

ALLOCATIONS = st.dictionaries(
    st.integers(0, 20), st.dictionaries(st.integers(0, 15), st.integers(1, 200)), max_size=4
)


@given(ALLOCATIONS)
def test_an_allocation_survives_its_annotation(allocation: dict[int, dict[int, int]]) -> None:
    assert decode_allocation("x", encode_allocation(allocation)) == allocation


@given(st.dictionaries(st.text(min_size=1), ALLOCATIONS, max_size=3))
def test_corrections_survive_their_annotation(
    corrections: dict[str, dict[int, dict[int, int]]],
) -> None:
    assert decode_corrections("x", encode_corrections(corrections)) == corrections


@pytest.mark.parametrize(
    "value",
    [
        "",
        "null",
        "[]",
        "{",
        '{"0":4}',
        '{"0":{"1":-4}}',
        '{"0":{"1":0}}',
        '{"0":{"1":4.5}}',
        '{"0":{"one":4}}',
        '{"-1":{"1":4}}',
        '{"0":{"1":99999999999999999999}}',
        '{"99999999":{"1":4}}',
        '{"0":' * 5000,
        '{"0":{"1":"4"}}',
    ],
)
def test_a_garbled_allocation_is_an_error_that_names_the_annotation(value: str) -> None:
    with pytest.raises(CodecError, match="the-annotation"):
        decode_allocation("the-annotation", value)


@given(st.text())
def test_no_annotation_text_does_worse_than_an_error(value: str) -> None:
    decode_cordoned(value)
    for decode in (
        lambda v: decode_allocation("x", v),
        lambda v: decode_corrections("x", v),
        decode_devices,
        decode_node,
    ):
        try:
            decode(value)
        except CodecError as error:
            assert str(error)


def test_a_pod_on_one_gpu_carries_both_generations() -> None:
    annotations = binding_annotations(
        app={0: {1: 4}}, init={}, core={}, held={1: 4}, gpu_units={0: 15, 1: 15}, assume_time_ns=7
    )
    assert annotations == {
        "scheduler.framework.gpushare.allocation": '{"0":{"1":4}}',
        "scheduler.framework.gpushare.assume-time": "7",
        "scheduler.framework.gpushare.assigned": "false",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "7",
    }


def test_a_pod_on_two_gpus_carries_the_first_generation_only() -> None:
    annotations = binding_annotations(
        app={0: {0: 4, 1: 4}},
        init={},
        core={},
        held={0: 4, 1: 4},
        gpu_units={0: 15, 1: 15},
        assume_time_ns=7,
    )
    assert not any(name.startswith("ALIYUN") for name in annotations)


def test_devices_are_ordered_by_index_and_gaps_are_allowed() -> None:
    devices = (Device(3, "GPU-b", "T4", 15109, 14), Device(1, "GPU-a", "T4", 15109, 14, False))
    assert [d.index for d in decode_devices(encode_devices(devices))] == [1, 3]


@pytest.mark.parametrize(
    ("indexes", "uuids", "units"),
    [([0, 0], "ab", 14), ([0, 1], "aa", 14), ([0, 1], "ab", -1), ([-1, 1], "ab", 14)],
)
def test_a_contradictory_inventory_is_refused(indexes: list[int], uuids: str, units: int) -> None:
    devices = tuple(
        Device(i, f"GPU-{u}", "T4", 15109, units) for i, u in zip(indexes, uuids, strict=True)
    )
    with pytest.raises(CodecError, match=names.ANNOTATION_DEVICES):
        decode_devices(encode_devices(devices))


def test_cordoned_gpus_are_indexes_or_uuids() -> None:
    assert decode_cordoned(" 1, GPU-8d7e ,") == (frozenset({1}), frozenset({"GPU-8d7e"}))


@pytest.mark.parametrize(
    ("memory_mib", "units", "of", "limit"),
    [
        (15079, 3, 14, 3231),
        (16130, 3, 15, 3226),
        (16130, 4, 15, 4301),
        (16130, 2, 15, 2150),
        (15360, 3, 15, 3072),
    ],
)
def test_the_limit_is_what_ack_publishes(memory_mib: int, units: int, of: int, limit: int) -> None:
    assert share_limit_mib(memory_mib, units, of) == limit
    assert Unit.GIB.units_of(memory_mib) == of


def test_a_gpu_offers_whole_units() -> None:
    assert Unit.GIB.units_of(int(5.9 * 1024)) == 5
    assert Unit.GIB.units_of(144384) == 141
    assert Unit.MIB128.units_of(16130) == 126
