"""A kubelet that asks for a pod which was deleted before it had come to it."""

from __future__ import annotations

import pytest

from gpushare.deviceplugin.core.attesting import Round, Sighting, attest
from gpushare.deviceplugin.core.books import Books
from gpushare.deviceplugin.core.offers import Granted, Offer
from gpushare.deviceplugin.core.refusals import Cause, Refused
from tests.deviceplugin.requests import request
from tests.deviceplugin.world import World


class Node:
    """Of a world in which nothing happens but what the test says."""

    def __init__(self) -> None:
        self.world = World(0, (15, 15))
        self.books: Books = self.world.books

    def pod(self, *sizes: int) -> str:
        uid = self.world.create(request(*sizes), decided=True)
        assert uid is not None
        while self.world.unseen:
            self.world.see()
        return uid

    def free(self) -> set[str]:
        return set(self.world.kubelet.ids) - self.books.granted_ids()

    def asked(self, size: int) -> Offer | Refused:
        answer = self.world.matching.prefer(self.free(), (), size, current=True)
        assert isinstance(answer, (Offer, Refused))
        return answer

    def given(self, size: int) -> tuple[str, frozenset[str]]:
        """Who a call is taken for, and the ids."""
        offer = self.asked(size)
        assert isinstance(offer, Offer), offer
        granted = self.world.matching.allocate(offer.ids, 9, current=True)
        assert isinstance(granted, Granted)
        return granted.piece.uid, offer.ids

    def shown(self, **has: frozenset[str]) -> None:
        sightings = [Sighting("a0", ids, uid=uid) for uid, ids in has.items()]
        attest(self.books, Round(10**12, sightings, complete=True))


@pytest.fixture
def node() -> Node:
    return Node()


def test_the_call_of_the_one_that_stays_is_answered_too(node: Node) -> None:
    gone, stays = node.pod(4), node.pod(4)
    (place,) = [piece.place for piece in node.books.pods[gone].pieces]
    node.books.remove(gone)
    first, ids = node.given(4)  # the kubelet means the one that has gone
    assert first == stays
    second, others = node.given(4)
    assert second == gone
    assert ids.isdisjoint(others)
    node.shown(**{stays: others})
    (piece,) = node.books.pods[stays].pieces
    assert piece.attested
    assert piece.place == place
    assert piece.grant is not None
    assert piece.grant.ids == others
    assert gone not in node.books.pods, "nobody has its ids"
    assert isinstance(node.asked(4), Refused)


def test_a_departed_pod_of_several_containers_is_answered_as_a_whole(node: Node) -> None:
    gone, stays = node.pod(4, 8), node.pod(4, 8)
    node.books.remove(gone)
    assert [node.given(size)[0] for size in (4, 8)] == [stays, stays]
    assert [node.given(size)[0] for size in (4, 8)] == [gone, gone]


def test_another_size_is_still_nobodys(node: Node) -> None:
    node.books.remove(node.pod(4))
    answer = node.asked(3)
    assert isinstance(answer, Refused)
    assert answer.cause is Cause.UNKNOWN_POD


def test_it_is_not_asked_for_once_the_kubelet_is_past_it(node: Node) -> None:
    node.books.remove(node.pod(4))
    later = node.pod(3)
    _, ids = node.given(3)
    node.shown(**{later: ids})
    assert isinstance(node.asked(4), Refused)


def test_one_that_has_run_is_not_asked_for_again(node: Node) -> None:
    uid = node.pod(4)
    _, ids = node.given(4)
    node.shown(**{uid: ids})
    node.books.remove(uid)
    assert isinstance(node.asked(4), Refused)


def test_it_charges_nobody(node: Node) -> None:
    """Readers have let it go; the extender holds its room for a moment by itself."""
    gone = node.pod(4)
    node.books.remove(gone)
    assert not node.books.pods
    offer = node.asked(4)
    assert isinstance(offer, Offer)
    node.shown()
    assert gone not in node.books.pods, "offered, and not taken"
