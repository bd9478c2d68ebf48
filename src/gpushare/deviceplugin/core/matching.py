"""For which chunk is this call?

`prefer` answers GetPreferredAllocation: the kubelet gives the ids that are free and how many it
wants, never for whom. It asks for pods in the order in which they came to the node, or, after its
own start, in which they were created; so the call is taken to be for the oldest chunk that waits
for a call of this size, and the answer is ids of the GPU that was decided for it. If it was another
chunk of that class, attesting will tell (core.books).

`allocate` answers Allocate, where the kubelet says which ids it took: those of the last answer, or
ids of an init container of the pod, about which it does not ask. Anything else is refused rather
than run on a wrong GPU.

**Ids that should not be free.** The kubelet can list ids as free that a container has: its List of
pod resources, called by anybody between an allocation's choice of ids and its end, makes it forget
them (kubernetes/pkg/kubelet/cm/devicemanager/manager.go, UpdateAllocatedDevices). More often they
are free because their pod has just ended and we do not know yet. So ids on our books are never
given out; when the rest does not suffice the answer is `Stale`, and whoever called brings the books
up to date and asks again.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from gpushare.deviceplugin.core import refusals
from gpushare.deviceplugin.core.asking_again import (
    asked_again,
    granted_again,
    of_ended_pods,
    other_kinds,
    take_back_what_is_free,
)
from gpushare.deviceplugin.core.books import Books, Grant, Piece, Place
from gpushare.deviceplugin.core.deciding import decide, overruled, room, unheld
from gpushare.deviceplugin.core.handing_on import continued, position_of, reusable, succeeded
from gpushare.deviceplugin.core.ids import by_gpu, slot_of, uuid_of
from gpushare.deviceplugin.core.late import asked_late
from gpushare.deviceplugin.core.offers import Free, Granted, Offer, Stale, counts, listed, take
from gpushare.deviceplugin.core.refusals import Cause, Refused
from gpushare.policy.fit import Refusal


@dataclass(slots=True)
class Matching:
    """The calls of one kubelet: it makes them one after the other."""

    books: Books
    last: Offer | None = field(default=None)
    """The answer that Allocate should follow."""

    def prefer(
        self, available: Iterable[str], must: Collection[str], size: int, *, current: bool
    ) -> Offer | Refused | Stale:
        """Which ids to take.

        available  the ids that are free
        must       those of the pod's own init containers that have to be among the `size` ids
        current    the books were brought up to date since the kubelet asked: never Stale
        """
        self.last = None
        available = frozenset(available)
        take_back_what_is_free(self.books, available)
        self.books.deduce()
        free = _free(self.books, available, must)
        if must:
            offer = continued(self.books, free, must, size)
        else:
            offer = _begun(self.books, free, size, overrule=current)
            if current:
                offer = asked_again(self.books, offer, available, free, size)
                if isinstance(offer, Refused) and offer.cause is Cause.UNKNOWN_POD:
                    offer = asked_late(self.books, free, size) or offer
            elif isinstance(offer, Offer) and (
                offer.again or other_kinds(self.books, offer, available, size)
            ):
                return Stale(refusals.unknown_pod(size, self.books.unit))
        if isinstance(offer, Refused):
            return offer if current or not offer.curable else Stale(offer)
        self.last = offer
        return offer

    def allocate(
        self, ids: frozenset[str], now_ns: int, *, current: bool
    ) -> Granted | Refused | Stale:
        """The kubelet has chosen `ids` for a container; `now_ns` is Unix time.

        current    the list of pods was read since the kubelet asked: never Stale
        """
        offer, self.last = self.last, None
        answer = self._allocate(offer, ids, now_ns)
        if isinstance(answer, Refused) and answer.curable and not current:
            self.last = offer
            return Stale(answer)
        return answer

    def _allocate(self, offer: Offer | None, ids: frozenset[str], now_ns: int) -> Granted | Refused:
        books = self.books
        books.deduce()
        shape = by_gpu(ids, books.index_of, books.unit)
        if not shape:
            return refusals.foreign_ids()
        place = tuple(sorted(shape))
        if len({len(mine) for mine in shape.values()}) > 1:
            return refusals.straddle(f"the kubelet chose unequal parts of GPUs {listed(place)}")
        if offer is not None and offer.ids == ids:
            if offer.again:
                return granted_again(books, offer, now_ns)
            taker = _taker(books, offer)
            if taker is None:
                return refusals.unknown_pod(len(ids), books.unit)
            return _granted(books, taker, offer.position, ids, place, now_ns)
        holder = books.holder(ids)
        if holder is not None:
            piece = reusable(books, holder, ids)
            if isinstance(piece, Refused):
                return piece
            return _granted(books, piece, position_of(piece, len(ids)), ids, place, now_ns)
        unasked = _unasked(books, place, len(ids))
        if unasked is not None:
            return _granted(books, unasked, 0, ids, place, now_ns)
        return refusals.straddle(
            f"the kubelet chose ids of GPU {listed(place)} that were decided for no pod"
        )


def _free(books: Books, available: Iterable[str], must: Collection[str]) -> Free:
    """The available ids that nobody has on our books."""
    index_of, taken = books.index_of, books.granted_ids()
    free: Free = {}
    for identifier in available:
        index = index_of.get(uuid_of(identifier, books.unit) or "")
        if index is not None and identifier not in taken and identifier not in must:
            free.setdefault(index, []).append(identifier)
    for ids in free.values():
        ids.sort(key=slot_of)
    return free


def _candidates(books: Books, size: int) -> list[tuple[Piece, int]]:
    """Chunks that wait for a fresh call of `size` units, with its position, likeliest first.

    A pod is allocated as a whole, so a chunk that is half done comes first; then by age. Among them
    are those that a kubelet that has started asks for anew though they have ended.
    """
    found: list[tuple[tuple[object, ...], Piece, int]] = []
    for pod in books.pods.values():
        facts = pod.facts
        if not pod.live or facts.static or facts.error:
            continue
        for piece in pod.pieces:
            again = books.asked_again(piece)
            position = 0 if again and piece.ended else piece.next_call
            if position is None or (books.admitted(piece) and not again):
                continue
            call = piece.calls[position]
            if call.reused == 0 and call.ask.units == size:
                found.append(((piece.grant is None, *books.age(piece)), piece, position))
    return [(piece, position) for _, piece, position in sorted(found, key=lambda entry: entry[0])]


def _begun(books: Books, free: Free, size: int, *, overrule: bool) -> Offer | Refused:
    """A call that names no ids: for the oldest chunk whose place has room.

    With `overrule`, where none of the decided places has room, the oldest chunk gets another place:
    the one it had is held by somebody who is not on our books, or its GPU has failed.
    """
    candidates = _candidates(books, size)
    pieces = [piece for piece, _ in candidates]
    if len({piece.cls for piece in pieces}) > 1 and any(map(books.maybe_again, pieces)):
        return refusals.ambiguous(size, books.unit, candidates[0][0].uid)
    for piece, position in candidates:
        if piece.place is not None:
            ids = take(free, piece.place, size)
            if ids is not None:
                again = books.asked_again(piece)
                return Offer(piece, position, ids, piece.place, piece.grant, again=again)
        else:
            offer = _decided(books, piece, position, free)
            if offer is not None:
                return offer
    if overrule:
        for piece, position in candidates:
            if piece.place is not None and piece.grant is None:
                offer = overruled(books, piece, position, free)
                if offer is not None:
                    return replace(offer, again=books.asked_again(piece))
    if candidates:
        return _no_room(books, candidates[0][0], free, size)
    for pod in books.pods.values():
        asked = any(call.ask.units == size for piece in pod.pieces for call in piece.calls)
        if pod.live and not pod.facts.started and pod.facts.error and asked:
            return refusals.bad_request(pod.facts.error, pod.facts.record.uid)
    return refusals.unknown_pod(size, books.unit)


def _decided(books: Books, piece: Piece, position: int, free: Free) -> Offer | None:
    """For a chunk that nobody decided: its pod's undecided chunks get places together."""
    pod = books.pod_of(piece)
    undecided = [other for other in pod.pieces if other.place is None]
    answer = decide(books, pod, undecided, counts(free))
    if isinstance(answer, Refusal):
        return None
    for other, place in zip(undecided, answer, strict=True):
        books.decide(other, place)
    assert piece.place is not None
    ids = take(free, piece.place, piece.calls[position].ask.units)
    return Offer(piece, position, ids, piece.place) if ids is not None else None


def _no_room(books: Books, piece: Piece, free: Free, size: int) -> Refused:
    if not books.node.mode.shares_memory:  # the kubelet has yet to hear that nothing is offered
        return refusals.not_sharing(books.node.mode)
    left = room(books, [piece], counts(free))
    share = size // piece.cls.gpus
    enough = [i for i, units in unheld(books, [piece], ended=False).items() if units >= share]
    if len(enough) >= piece.cls.gpus:
        return refusals.still_counted(of_ended_pods(books, free), books.unit, piece.uid)
    largest = max(left.values(), default=0)
    return refusals.no_room(size, books.unit, largest, piece.cls.gpus, piece.uid)


def _taker(books: Books, offer: Offer) -> Piece | None:
    """The chunk an offer is taken for, now that the kubelet has followed it.

    Since it was made, its chunk may have left or have been attested to hold other ids. Then the
    call was somebody's of the same class, who gets the place.
    """
    piece = offer.piece
    if offer.goes_on is not None:
        for holder in books.pieces():
            if holder.grant is offer.goes_on:
                return succeeded(books, holder)
    pod = books.pods.get(piece.uid)
    same = piece.place == offer.place and piece.next_call == offer.position
    if same and pod is not None and pod.live:
        return piece
    mates = [
        other
        for other, position in _candidates(books, piece.calls[offer.position].ask.units)
        if other.cls == piece.cls and position == offer.position
    ]
    for other in mates:
        if other.place == offer.place:
            return other
    if not mates:
        return None
    displaced = [p for p in books.pieces() if p.place == offer.place and _waits(books, p, piece)]
    if displaced:
        books.exchange(displaced[0], mates[0])
    mates[0].place = offer.place
    return mates[0]


def _waits(books: Books, piece: Piece, other: Piece) -> bool:
    return piece.cls == other.cls and piece.grant is None and books.is_live(piece)


def _unasked(books: Books, place: Place, size: int) -> Piece | None:
    """The chunk for ids that the kubelet chose by itself, where they are what was decided."""
    for piece, position in _candidates(books, size):
        if position == 0 and piece.place == place:
            return piece
    for piece, position in _candidates(books, size):
        if position == 0 and piece.place is None and piece.cls.gpus == len(place):
            free = dict.fromkeys(place, size // len(place))
            if not isinstance(decide(books, books.pod_of(piece), [piece], free), Refusal):
                books.decide(piece, place)
                return piece
    return None


def _granted(
    books: Books,
    piece: Piece,
    position: int,
    ids: frozenset[str],
    place: Place,
    now_ns: int,
) -> Granted:
    if piece.grant is None:
        piece.grant = Grant(now_ns)
    piece.grant.add(position, ids)
    if books.there_at_start is not None and piece.uid not in books.there_at_start:
        books.there_at_start = frozenset()
    return Granted(piece, position, ids, place)
