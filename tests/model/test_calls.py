"""What the kubelet asks for a pod, and which pods it can confuse."""

from __future__ import annotations

import pytest
from hypothesis import given

from gpushare.model.calls import calls_of, classes_of, confusable
from gpushare.model.request import ContainerAsk, Request, compile_request
from tests.strategies import requests


def request(*app: int, init: tuple[int, ...] = (), sidecar: int = 0, gpu_count: int = 0) -> Request:
    asks = [ContainerAsk(i, units, init=True) for i, units in enumerate(init)]
    if sidecar:
        asks.append(ContainerAsk(len(init), sidecar, init=True, sidecar=True))
    asks += [ContainerAsk(i, units) for i, units in enumerate(app)]
    compiled = compile_request(asks, gpu_count)
    assert compiled is not None
    return compiled


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (request(4), [[(4, 0)]]),
        (request(4, 8), [[(4, 0)], [(8, 0)]]),
        (request(4, init=(8,)), [[(8, 0), (4, 4)]]),
        (request(8, init=(4,)), [[(4, 0), (8, 4)]]),
        (request(8, 8, init=(12,)), [[(12, 0), (8, 8), (8, 4)]]),
        (request(4, 4, init=(8,)), [[(8, 0), (4, 4), (4, 4)]]),
        (request(4, init=(8, 4)), [[(8, 0), (4, 4), (4, 4)]]),
        (request(init=(4,), sidecar=6), [[(4, 0), (6, 4)]]),
        (request(5, sidecar=3), [[(3, 0)], [(5, 0)]]),
        (request(4, 8, gpu_count=2), [[(4, 0), (8, 0)]]),
    ],
)
def test_calls_replay_the_kubelets_reuse(
    asked: Request, expected: list[list[tuple[int, int]]]
) -> None:
    found = [[(call.ask.units, call.reused) for call in calls] for calls in calls_of(asked)]
    assert found == expected


@given(requests())
def test_fresh_units_of_the_calls_are_what_each_chunk_holds(asked: Request) -> None:
    for chunk, calls in zip(asked.chunks, calls_of(asked), strict=True):
        assert sum(call.fresh for call in calls) == chunk.units
        assert calls[0].reused == 0


@pytest.mark.parametrize(
    ("one", "other", "harm"),
    [
        (request(4), request(4), False),
        (request(4), request(8), False),
        (request(4), request(4, 8), False),  # the 4 of either pod can stand for the other's
        (request(8), request(8, gpu_count=2), True),
        (request(4, init=(4,)), request(4), True),
        (request(4, init=(4,)), request(8, init=(4,)), True),
        (request(4, init=(8,)), request(4), False),  # the app container's 4 is not asked about
        (request(4, 8), request(4, 8, gpu_count=2), True),
        (request(4, 8, gpu_count=2), request(12), False),
        (request(4, 8, gpu_count=2), request(8), True),  # its second container is asked about too
    ],
)
def test_only_chunks_with_the_same_calls_can_stand_for_each_other(
    one: Request, other: Request, harm: bool
) -> None:
    assert confusable(one, other) is harm
    assert confusable(other, one) is harm


def test_who_opts_out_of_isolation_is_of_a_class_of_its_own() -> None:
    held, free = (
        compile_request([ContainerAsk(0, 4), ContainerAsk(1, 4, opted_out=out)])
        for out in (False, True)
    )
    assert held is not None
    assert free is not None
    assert confusable(held, free)
    (one, other), (same, open_one) = classes_of(held), classes_of(free)
    assert one == other == same != open_one
    assert one.begins_like(open_one, 0)
    assert not one.begins_like(open_one, 1)


@given(requests())
def test_pods_that_ask_alike_are_never_confusable(asked: Request) -> None:
    assert not confusable(asked, asked)
    assert len(classes_of(asked)) == len(asked.chunks)
