"""The limits file: what a share is worth, and that both codecs read the same."""

import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.isolation.limits import (
    HEADER,
    MAX_GPUS,
    MIB,
    GpuLimit,
    LimitsError,
    decode_limits,
    encode_limits,
    share_of,
)

UUIDS = st.uuids().map(lambda uuid: f"GPU-{uuid}")
AMOUNTS = st.integers(0, 2**48)
GPUS = st.lists(
    st.builds(GpuLimit, UUIDS, AMOUNTS, AMOUNTS),
    min_size=1,
    max_size=MAX_GPUS,
    unique_by=lambda gpu: gpu.uuid,
)


@given(GPUS)
def test_what_is_written_is_read(gpus: list[GpuLimit]) -> None:
    assert decode_limits(encode_limits(gpus)) == tuple(gpus)


def test_a_share_is_its_part_of_the_whole_gpu() -> None:
    gpu = share_of("GPU-x", memory_mib=16130, units=3, gpu_units=15, reserve_mib=512)
    assert gpu == GpuLimit("GPU-x", 3226 * MIB, 512 * MIB)


def test_a_share_that_a_context_would_fill_is_refused_with_a_sentence() -> None:
    with pytest.raises(LimitsError, match="ask for more"):
        share_of("GPU-x", memory_mib=15360, units=4, gpu_units=120, reserve_mib=512)


@pytest.mark.parametrize(
    "gpus",
    [
        [],
        [GpuLimit("GPU-1", 1, 1)],
        [GpuLimit(f"GPU-00000000-0000-4000-8000-{n:012x}", 1, 1) for n in range(MAX_GPUS + 1)],
        [GpuLimit("GPU-00000000-0000-4000-8000-000000000001", 2**60, 1)],
        [GpuLimit("GPU-00000000-0000-4000-8000-000000000001", 1, 1)] * 2,
        [GpuLimit("GPU-00000000-0000-4000-8000-000000000001\n", 1, 1)],
    ],
)
def test_what_the_library_would_not_read_is_not_written(gpus: list[GpuLimit]) -> None:
    with pytest.raises(LimitsError):
        encode_limits(gpus)


def mutated(chance: random.Random, text: str) -> str:
    characters = list(text)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(characters) + 1)
        match chance.randrange(4):
            case 0:
                characters[at:at] = chance.choice("0123456789abcGPU-=\n limtresv\tx\xff")
            case 1:
                del characters[at : at + 1]
            case 2:
                characters[at:at] = characters[at : at + chance.randrange(200)]
            case _:
                characters[at : at + 1] = chance.choice("0123456789abcdefABCDEF\n -")
    return "".join(characters)


@pytest.mark.parametrize("rounds", [2_000, pytest.param(60_000, marks=pytest.mark.native_slow)])
def test_library_and_plugin_read_the_same_of_broken_files(sanitized: Path, rounds: int) -> None:
    chance = random.Random(7)
    seeds = [
        encode_limits(
            [
                GpuLimit(f"GPU-00000000-0000-4000-8000-{n:012x}", 10**n, 9 * 10**n)
                for n in range(1, count)
            ]
        )
        for count in (2, 3, 15)
    ]
    texts = [mutated(chance, chance.choice(seeds)) for _ in range(rounds)]
    texts += [HEADER, HEADER[:-1], HEADER * 2, "", *seeds]
    done = subprocess.run(
        [sanitized / "fuzz_limits"],
        input=b"".join(text.encode("latin-1") + b"\0" for text in texts),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    answers = done.stdout.decode().split("\n")[:-1]
    read = 0
    for text, answer in zip(texts, answers, strict=True):
        try:
            expected = "".join(
                f"{gpu.uuid[4:].replace('-', '').lower()} {gpu.limit_bytes} {gpu.reserve_bytes};"
                for gpu in decode_limits(text)
            )
            read += 1
        except LimitsError:
            expected = "-"
        assert answer == expected, repr(text)
    assert 0 < read < len(texts)
