"""A kubelet that has started asks once more for pods that do not run."""

from __future__ import annotations

import pytest

from gpushare.contract import names
from gpushare.deviceplugin.core.attesting import Round, Sighting, attest, kubelet_started, release
from gpushare.deviceplugin.core.offers import Granted, Offer, Stale
from gpushare.deviceplugin.core.publishing import pod_patches
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

    def takes(self, size: int, free: set[str]) -> str:
        """The kubelet asks, and takes what it is offered; the pod it is taken for."""
        offer = self.prefer(size, free, current=True)
        assert isinstance(offer, Offer)
        answer = self.world.matching.allocate(offer.ids, 9, current=True)
        assert isinstance(answer, Granted)
        return answer.piece.uid

    def place(self, uid: str) -> tuple[int, ...] | None:
        (piece,) = self.world.books.pods[uid].pieces
        return piece.place


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


NOTHING_WRITTEN = Round(1_000, [], complete=True)
HOOK_ALONE = Round(1_000, [], listed=False, complete=False)


def test_of_a_pod_that_has_ended_and_one_that_waits_the_one_created_first_is_asked_for(
    node: Node,
) -> None:
    """Taken for the other, each would get the other's GPU, and readers learn of it late."""
    ended = node.pod(request(4))
    node.given(ended, 4)
    node.start(ended)
    waits = node.pod(request(4))
    assert node.place(ended) != node.place(waits)
    kubelet_started(node.world.books, NOTHING_WRITTEN)
    assert isinstance(node.prefer(4, node.ids, current=False), Stale), "it may have left by now"
    assert node.takes(4, node.ids) == ended
    assert node.takes(4, node.ids) == waits


def test_once_a_later_pod_was_asked_for_those_that_have_ended_are_asked_for_no_more(
    node: Node,
) -> None:
    ended = node.pod(request(4))
    node.given(ended, 4)
    node.start(ended)
    kubelet_started(node.world.books, NOTHING_WRITTEN)
    node.prefer(1, node.ids, current=False)
    later = node.pod(request(2))
    assert node.takes(2, node.ids) == later
    other = node.pod(request(4))
    assert node.takes(4, node.ids) == other


def test_a_pod_that_has_ended_gets_ids_of_another_gpu_where_its_own_has_none_free(
    node: Node,
) -> None:
    uid = node.pod(request(4))
    node.given(uid, 4)
    node.start(uid)
    kubelet_started(node.world.books, NOTHING_WRITTEN)
    offer = node.prefer(4, {i for i in node.ids if i.startswith("GPU-1::")}, current=True)
    assert isinstance(offer, Offer)
    assert (offer.piece.uid, offer.place) == (uid, (1,))


@pytest.mark.parametrize(("size", "fits"), [(7, True), (8, False)])
def test_nothing_is_decided_where_a_pod_that_has_ended_is_still_charged(
    node: Node, size: int, fits: bool
) -> None:
    """The kubelet has its ids free, but a reader of the annotations would see 16 of 15."""
    for uid in [node.pod(request(8)) for _ in range(2)]:
        node.given(uid, 8)
        node.start(uid)
    assert release(node.world.books, node.ids, Round(2_000_000_000, [], complete=True)) == 2
    node.world.create(request(size), decided=False)
    node.see()
    answer = node.prefer(size, node.ids, current=True)
    if fits:
        assert isinstance(answer, Offer)
    else:
        assert isinstance(answer, Refused)
        assert answer.cause is Cause.STILL_COUNTED


def test_with_the_hook_alone_what_a_started_kubelet_does_not_list_as_free_stays(node: Node) -> None:
    """It has written it down, for this pod or for another of its class."""
    one = node.pod(request(4))
    offer = node.prefer(4, node.ids, current=False)
    assert isinstance(offer, Offer)
    assert isinstance(node.world.matching.allocate(offer.ids, 1, current=False), Granted)
    other = node.pod(request(4))
    kubelet_started(node.world.books, HOOK_ALONE)
    assert node.takes(4, node.ids - offer.ids) == other
    (piece,) = node.world.books.pods[one].pieces
    assert piece.grant is not None
    assert piece.grant.ids == offer.ids


def test_with_the_hook_alone_what_a_started_kubelet_lists_as_free_is_asked_for_again(
    node: Node,
) -> None:
    uid = node.pod(request(4))
    offer = node.prefer(4, node.ids, current=False)
    assert isinstance(offer, Offer)
    assert isinstance(node.world.matching.allocate(offer.ids, 1, current=False), Granted)
    kubelet_started(node.world.books, HOOK_ALONE)
    again = node.prefer(4, node.ids, current=False)
    assert isinstance(again, Offer)
    assert again.piece.uid == uid


def test_a_letter_from_before_the_kubelets_start_does_not_give_back_what_it_took(
    node: Node,
) -> None:
    uid = node.pod(request(4))
    ids = node.given(uid, 4, complete=False)
    node.start(uid)
    kubelet_started(node.world.books, HOOK_ALONE)
    node.prefer(8, node.ids, current=False)
    (piece,) = node.world.books.pods[uid].pieces
    assert piece.ended
    letter = Sighting("a0", ids, uid=uid, at_ns=500)
    attest(node.world.books, Round(2_000, [letter], listed=False))
    assert piece.ended


def test_a_pod_that_is_asked_for_again_is_not_marked_as_attested_meanwhile(node: Node) -> None:
    uid = node.pod(request(4))
    offer = node.prefer(4, node.ids, current=False)
    assert isinstance(offer, Offer)
    assert isinstance(node.world.matching.allocate(offer.ids, 1, current=False), Granted)
    node.world.pods[uid].assigned = True  # by a plugin before this one
    node.world.changed(uid)
    node.see()
    kubelet_started(node.world.books, NOTHING_WRITTEN)
    (patch,) = pod_patches(node.world.books, 0)
    assert patch.annotations == {names.ANNOTATION_ASSIGNED: "false"}


def test_a_pod_that_readers_knew_as_attested_leaves_nothing_behind(node: Node) -> None:
    """They have given away its room already: to charge it again would be too much."""
    uid = node.pod(request(4))
    node.given(uid, 4)
    node.start(uid)
    node.world.pods[uid].assigned = True
    node.world.changed(uid)
    node.see()
    kubelet_started(node.world.books, NOTHING_WRITTEN)
    assert node.takes(4, node.ids) == uid
    node.world.leave(uid, finish=True)
    node.see()
    assert not node.world.books.pods
