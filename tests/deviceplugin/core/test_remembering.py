"""What an earlier plugin process handed out, where no source tells of all."""

from __future__ import annotations

import pytest

from gpushare.deviceplugin.core.attesting import Round, Sighting, attest, remember
from gpushare.deviceplugin.core.offers import Granted, Offer, Refused
from tests.deviceplugin.requests import request
from tests.deviceplugin.world import World


@pytest.fixture
def world() -> World:
    return World(0, (15, 15))


def created(world: World) -> str:
    uid = world.create(request(4), decided=True)
    assert uid is not None
    while world.unseen:
        world.see()
    return uid


def taken_for(world: World, free: set[str]) -> str | None:
    """Who the kubelet's next call for 4 is taken for."""
    offer = world.matching.prefer(free, (), 4, current=True)
    if isinstance(offer, Refused):
        return None
    assert isinstance(offer, Offer)
    granted = world.matching.allocate(offer.ids, 9, current=True)
    assert isinstance(granted, Granted)
    return granted.piece.uid


def handed_out(world: World, uid: str) -> frozenset[str]:
    (piece,) = world.books.pods[uid].pieces
    assert piece.place is not None
    gpu = {index: gpu for gpu, index in world.books.index_of.items()}[piece.place[0]]
    return frozenset(f"{gpu}::{slot}" for slot in range(4))


def test_a_call_is_not_taken_for_one_that_was_served_before(world: World) -> None:
    first, second = created(world), created(world)
    ids = handed_out(world, first)
    assert remember(world.books, first, 0, 0, ids)
    assert taken_for(world, set(world.kubelet.ids) - ids) == second


def test_unless_the_kubelet_lists_its_ids_as_free(world: World) -> None:
    first, _ = created(world), created(world)
    assert remember(world.books, first, 0, 0, handed_out(world, first))
    assert taken_for(world, set(world.kubelet.ids)) == first


def test_what_is_seen_counts_more(world: World) -> None:
    first, second = created(world), created(world)
    ids = handed_out(world, first)
    attest(world.books, Round(1, [Sighting("a0", ids, uid=second)]))
    assert not remember(world.books, first, 0, 0, ids)


@pytest.mark.parametrize(
    ("uid", "chunk", "position"), [("nobody", 0, 0), ("", 0, 0), (None, 5, 0), (None, 0, 5)]
)
def test_what_fits_nobody_is_left(world: World, uid: str | None, chunk: int, position: int) -> None:
    first = created(world)
    owner = first if uid is None else uid
    assert not remember(world.books, owner, chunk, position, handed_out(world, first))
