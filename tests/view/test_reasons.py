"""Reason texts: constant for the scheduler, telling for people."""

from __future__ import annotations

import pytest

from gpushare.contract.names import Reason
from gpushare.contract.units import Unit
from gpushare.view.reasons import amount, message, short


def test_every_code_has_a_short_text_of_its_own() -> None:
    texts = [short(reason) for reason in Reason]
    assert len(set(texts)) == len(texts)
    assert short(Reason.NO_GPU_FITS) == "no single GPU has enough free memory"


@pytest.mark.parametrize("reason", Reason)
def test_short_texts_hold_no_number_and_no_comma(reason: Reason) -> None:
    """kube-scheduler counts equal texts and joins them with commas."""
    assert not any(character.isdigit() or character in ",.;" for character in short(reason))


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("gpu_count", [0, 1, 2])
@pytest.mark.parametrize("largest_free", [0, 3])
def test_every_code_has_a_sentence(reason: Reason, gpu_count: int, largest_free: int) -> None:
    text = message(reason, largest_free=largest_free, units=4, unit=Unit.GIB, gpu_count=gpu_count)
    assert text.isprintable()
    assert "None" not in text
    if reason is not Reason.BAD_REQUEST:
        assert "4 GiB" in text


def test_the_sentence_says_the_largest_free_amount_and_what_would_help() -> None:
    text = message(Reason.NO_GPU_FITS, largest_free=3, units=4, unit=Unit.GIB)
    assert "the most any GPU can still take is 3 GiB" in text
    assert "ask for at most 3" in text


def test_amounts_of_small_units_say_both_the_units_and_the_memory() -> None:
    assert amount(4, Unit.GIB) == "4 GiB"
    assert amount(32, Unit.MIB128) == "32 units of 128 MiB (4 GiB)"
    assert amount(1, Unit.MIB128) == "1 unit of 128 MiB (128 MiB)"
    assert amount(12, Unit.MIB128) == "12 units of 128 MiB (1536 MiB)"
