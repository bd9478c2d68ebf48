"""Label selectors as kubectl's `-l` takes them."""

from __future__ import annotations

import pytest

from gpushare.kube.selector import SelectorError, parse_selector

LABELS = {"pool": "a100", "example.com/zone": "b", "empty": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("pool=a100", True),
        ("pool==a100", True),
        (" pool = a100 , example.com/zone=b ", True),
        ("pool=t4", False),
        ("pool!=t4", True),
        ("pool!=a100", False),
        ("absent!=x", True),
        ("absent=x", False),
        ("pool", True),
        ("absent", False),
        ("!absent", True),
        ("! pool", False),
        ("empty=", True),
        ("pool=", False),
        ("pool in (t4, a100)", True),
        ("pool in (t4)", False),
        ("pool notin (t4)", True),
        ("pool notin (a100,t4)", False),
        ("absent notin (a100)", True),
        ("pool in (a100),example.com/zone notin (a,c),!absent", True),
        ("pool=a100,example.com/zone=c", False),
        ("in", False),
    ],
)
def test_what_a_selector_selects(text: str, matches: bool) -> None:
    assert parse_selector(text).matches(LABELS) is matches


def test_no_labels_at_all() -> None:
    assert parse_selector("!pool").matches(None)
    assert not parse_selector("pool").matches(None)


@pytest.mark.parametrize(
    "text", ["=x", "pool=a,", "pool=&", "pool in", "pool in a100", "pool>3", "a b", ",", "pool=a b"]
)
def test_what_is_no_selector_is_said(text: str) -> None:
    with pytest.raises(SelectorError):
        parse_selector(text)
