"""Values no API server would take are a QuantityError, never another exception."""

import pytest

from gpushare.contract.quantity import QuantityError, milli, parse, rounded_up, whole


@pytest.mark.parametrize(
    "value",
    [
        "9" * 5000,
        "٣",
        "１",
        1 << 100_000,
        float("nan"),
        float("inf"),
        "",
        " ",
        "0x10",
        "1e9999",
        True,
    ],
    ids=lambda value: repr(type(value)) if not isinstance(value, str) else value[:8] or "empty",
)
def test_a_value_that_is_no_quantity_is_said_to_be_none(value: str | int | float) -> None:
    for read in (parse, whole, milli, rounded_up):
        with pytest.raises(QuantityError):
            read(value)


def test_a_huge_value_is_shown_short() -> None:
    with pytest.raises(QuantityError) as error:
        whole("9" * 5000)
    assert len(str(error.value)) < 200
