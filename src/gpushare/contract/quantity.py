"""Kubernetes quantities as exact numbers.

The grammar is the API's (kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity):
a decimal number with a binary suffix (Ki … Ei), a decimal one (n, u, m, k, M … E) or an exponent.
Whole numbers stay whole: nothing goes through a float.
"""

import re
from fractions import Fraction

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))"
    r"(?:(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|[eE](?P<exponent>[+-]?\d{1,3}))?",
    re.ASCII,
)

_FACTOR = {
    None: Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}

MAX_INT64 = 2**63 - 1

MAX_LENGTH = 100
"""Characters of the longest quantity that is read; no amount of anything needs as many."""

RawQuantity = str | int | float
"""What JSON or YAML may hold where a quantity stands."""


class QuantityError(ValueError):
    """A value that is no quantity, or not the whole number that is needed."""


def parse(value: RawQuantity) -> Fraction:
    """The exact value of a quantity.

    Raises QuantityError, saying what the value is and what would be right.
    """
    if isinstance(value, bool):
        raise QuantityError(f"{value!r} is not a quantity such as 4, 500m or 10Gi")
    if isinstance(value, int):
        if value.bit_length() > 8 * MAX_LENGTH:
            raise QuantityError(f"a number of {value.bit_length()} bits is no quantity")
        return Fraction(value)
    text = (repr(value) if isinstance(value, float) else value).strip()
    match = _QUANTITY.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        shown = text if len(text) <= MAX_LENGTH else f"{text[:20]}… ({len(text)} characters)"
        raise QuantityError(f"{shown!r} is not a quantity such as 4, 500m or 10Gi")
    number = Fraction(match["number"])
    if match["exponent"] is not None:
        return number * Fraction(10) ** int(match["exponent"])
    return number * _FACTOR[match["suffix"]]


def whole(value: RawQuantity) -> int:
    """A quantity that counts things: a whole number from 0 to 2^63 - 1.

    Extended resources such as `aliyun.com/gpu-mem` take no others; the API server refuses them.
    Raises QuantityError.
    """
    if type(value) is str and value.isascii() and value.isdecimal() and len(value) < 19:
        return int(value)  # nearly all of them
    exact = parse(value)
    if exact.denominator != 1:
        raise QuantityError(f"{value!r} is not a whole number; ask for whole units, e.g. 4")
    if exact < 0:
        raise QuantityError(f"{value!r} is negative; ask for 0 or more whole units")
    if exact > MAX_INT64:
        raise QuantityError(f"{value!r} is beyond 64 bits; no node has that much")
    return int(exact)


def milli(value: RawQuantity) -> int:
    """A quantity in thousandths, rounded up, as kube-scheduler counts CPU. Raises QuantityError."""
    return _ceil(parse(value) * 1000)


def rounded_up(value: RawQuantity) -> int:
    """A quantity as a whole number, rounded up, as kube-scheduler counts bytes.

    Raises QuantityError.
    """
    return _ceil(parse(value))


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
