"""Values a user or an API server may put where an amount of GPU memory stands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract.quantity import QuantityError, milli, rounded_up, whole


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        ("4", 4),
        (4, 4),
        ("0", 0),
        ("4.0", 4),
        (4.0, 4),
        ("4000m", 4),
        ("1e1", 10),
        ("0.5k", 500),
        ("10Gi", 10 * 2**30),
        ("1k", 1000),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_whole_numbers_are_read_in_every_notation(value: str | float, amount: int) -> None:
    assert whole(value) == amount


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("4.5", "not a whole number"),
        ("4500m", "not a whole number"),
        ("-1", "negative"),
        (-1, "negative"),
        ("9223372036854775808", "beyond 64 bits"),
        ("1e30", "beyond 64 bits"),
        ("abc", "not a quantity"),
        ("4GiB", "not a quantity"),
        ("4 Gi", "not a quantity"),
        ("", "not a quantity"),
        ("٤", "not a quantity"),
        (True, "not a quantity"),
        (float("nan"), "not a quantity"),
    ],
)
def test_other_values_are_refused_with_what_would_be_right(value: str | float, why: str) -> None:
    with pytest.raises(QuantityError, match=why):
        whole(value)


def test_cpu_and_memory_are_rounded_up_as_the_scheduler_does() -> None:
    assert milli("0.5") == 500
    assert milli("1.0001") == 1001
    assert rounded_up("1.5") == 2
    assert rounded_up("1Ki") == 1024


@given(st.text() | st.integers() | st.floats())
def test_no_value_does_worse_than_an_error(value: str | float) -> None:
    try:
        assert 0 <= whole(value) < 2**63
    except QuantityError as error:
        assert str(error)
