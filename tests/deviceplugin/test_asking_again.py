"""A kubelet that has started asks once more for pods that do not run."""

from __future__ import annotations

import pytest

from gpushare.deviceplugin.core.attesting import Round, Sighting, attest, kubelet_started, release
from gpushare.deviceplugin.core.offers import Granted, Offer, Stale
from gpushare.deviceplugin.core.refusals import Cause, Refused
from gpushare.model.request import Request
from tests.deviceplugin.requests import request
from tests.deviceplugin.world import World


class Node:
    """One node, whose kubelet is played by the test."""

    def __init__(self) -> None:
        self.world = World(0, (15, 15))
        self.ids = set(self.world.kubelet.ids)

    def pod(self, asked: Request) -> str:
        """A pod that was decided, and that the plugin has seen."""
        uid = self.world.create(asked, decided=True)
        assert uid is not None
        self.see()
        return uid

    def see(self) -> None:
        while self.world.unseen:
            self.world.see()

    def prefer(self, size: int, free: set[str], *, current: bool) -> Offer | Refused | Stale:
        return self.world.matching.prefer(free, (), size, current=current)

    def given(self, uid: str, size: int, *, complete: bool = True) -> frozenset[str]:
        """The pod is allocated, and attested by sources that tell of all (`complete`)."""
        offer = self.prefer(size, self.ids, current=False)
        assert isinstance(offer, Offer)
        assert isinstance(self.world.matching.allocate(offer.ids, 1, current=False), Granted)
        attest(self.world.books, Round(2, [Sighting("a0", offer.ids, uid=uid)], complete=complete))
        assert self.world.books.pods[uid].attested
        return offer.ids

    def start(self, uid: str) -> None:
        self.world.begin(uid)
        self.see()


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_pod_that_does_not_run_yet_gets_the_same_ids_again(node: Node) -> None:
    ids = node.given(node.pod(request(4)), 4)
    assert isinstance(node.prefer(4, node.ids, current=False), Stale), "not before a fresh look"
    again = node.prefer(4, node.ids, current=True)
    assert isinstance(again, Offer)
    assert again.ids == ids
    assert isinstance(node.world.matching.allocate(ids, 3, current=False), Granted)


def test_a_pod_whose_ids_the_kubelet_still_has_does_not_get_them_again(node: Node) -> None:
    ids = node.given(node.pod(request(4)), 4)
    answer = node.prefer(4, node.ids - ids, current=True)
    assert isinstance(answer, Refused)
    assert answer.cause is Cause.UNKNOWN_POD


def test_a_call_that_could_be_for_pods_of_two_kinds_is_refused(node: Node) -> None:
    node.given(node.pod(request(8, gpu_count=2)), 8)
    node.world.pods["u001"].assigned = True  # the class wait lets the other pass
    node.pod(request(8))
    answer = node.prefer(8, node.ids, current=True)
    assert isinstance(answer, Refused)
    assert answer.cause is Cause.AMBIGUOUS


def test_a_pod_that_has_ended_and_is_asked_for_anew_is_given_its_gpu(node: Node) -> None:
    """Without ids the kubelet would fail a pod that has done its work."""
    uid = node.pod(request(4))
    ids = node.given(uid, 4)
    node.start(uid)
    (piece,) = node.world.books.pods[uid].pieces
    place = piece.place
    assert release(node.world.books, node.ids, Round(2_000_000_000, [], complete=True)) == 1
    again = node.prefer(4, node.ids, current=True)
    assert isinstance(again, Offer)
    assert again.place == place
    assert isinstance(node.world.matching.allocate(again.ids, 3, current=False), Granted)
    assert piece.grant is not None
    assert piece.grant.ids == again.ids == ids


def test_a_running_pod_is_not_taken_for_one_that_is_asked_for_anew(node: Node) -> None:
    """Its ids can look free: the kubelet's List makes it forget them."""
    uid = node.pod(request(4))
    node.given(uid, 4)
    node.start(uid)
    answer = node.prefer(4, node.ids, current=True)
    assert isinstance(answer, Refused)
    assert answer.cause is Cause.UNKNOWN_POD


def test_where_no_source_tells_of_all_free_ids_are_believed_to_be_free(node: Node) -> None:
    """With the hook alone nobody says that a container has ended."""
    uid = node.pod(request(4))
    ids = node.given(uid, 4, complete=False)
    node.start(uid)
    again = node.prefer(4, node.ids, current=True)
    assert isinstance(again, Offer)
    assert again.ids == ids


def test_a_pod_whose_ids_are_partly_counted_for_one_that_has_ended_is_refused(node: Node) -> None:
    ids = node.given(node.pod(request(4)), 4)
    answer = node.prefer(4, node.ids - set(sorted(ids)[:2]), current=True)
    assert isinstance(answer, Refused)
    assert answer.cause is Cause.STILL_COUNTED


def test_what_a_kubelet_did_not_write_down_is_asked_for_again(node: Node) -> None:
    """It was killed before it took what it was answered, and its ids are counted for another."""
    uid = node.pod(request(4))
    offer = node.prefer(4, node.ids, current=False)
    assert isinstance(offer, Offer)
    assert isinstance(node.world.matching.allocate(offer.ids, 1, current=False), Granted)
    ended = Sighting("a0", offer.ids, uid="a pod that has ended")
    kubelet_started(node.world.books, Round(2, [ended], complete=True))
    again = node.prefer(4, node.ids - offer.ids, current=False)
    assert isinstance(again, Offer)
    assert again.piece.uid == uid


def test_what_a_kubelet_wrote_down_stays(node: Node) -> None:
    uid = node.pod(request(4))
    ids = node.given(uid, 4)
    kubelet_started(node.world.books, Round(2, [Sighting("a0", ids, uid=uid)], complete=True))
    assert node.world.books.pods[uid].attested
