"""Which containers a kubelet's calls cannot tell apart."""

from __future__ import annotations

import pytest

from gpushare.model.classes import CallClass, classes_of, confusable
from gpushare.model.request import ContainerAsk, compile_request


def of(*app: int, init: tuple[int, ...] = (), count: int = 0) -> frozenset[CallClass]:
    asks = [ContainerAsk(i, units, init=True) for i, units in enumerate(init)]
    request = compile_request([*asks, *(ContainerAsk(i, u) for i, u in enumerate(app))], count)
    assert request is not None
    return classes_of(request)


@pytest.mark.parametrize(
    ("pod", "calls"),
    [
        (of(4), [(4, False)]),
        (of(4, 8), [(4, False), (8, False)]),
        (of(4, init=(8,)), [(8, True)]),
        (of(8, init=(4,)), [(4, True), (8, False)]),
        (of(8, 8, init=(12,)), [(8, False), (12, True)]),
        (of(8, count=2), [(8, False)]),
    ],
)
def test_calls_of_a_pod(pod: frozenset[CallClass], calls: list[tuple[int, bool]]) -> None:
    assert sorted((c.units, c.init) for c in pod) == calls


def test_equal_pods_are_not_confused() -> None:
    assert not confusable(of(8), of(8))
    assert not confusable(of(8, 8), of(8))
    assert not confusable(of(8), of(4))


def test_the_same_call_size_in_another_class_is() -> None:
    assert confusable(of(8), of(8, count=2))
    assert confusable(of(8), of(8, init=(8,)) | of(4, init=(8,)))
    assert confusable(of(4, 8), of(8, count=4))
