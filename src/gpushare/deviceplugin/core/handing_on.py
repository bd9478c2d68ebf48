"""Calls that go on with the ids of a pod's init containers.

The kubelet gives a later container of the pod what an init container has, in whole or in part
(model.calls). These ids say which chunk it is; if it goes on otherwise than the chunk we took it
for, it is another one that had the same calls so far.
"""

from collections.abc import Collection

from gpushare.deviceplugin.core import refusals
from gpushare.deviceplugin.core.books import Books, Piece, Place
from gpushare.deviceplugin.core.deciding import room
from gpushare.deviceplugin.core.ids import by_gpu
from gpushare.deviceplugin.core.offers import Free, Offer, counts, listed
from gpushare.deviceplugin.core.refusals import Refused


def continued(books: Books, free: Free, must: Collection[str], size: int) -> Offer | Refused:
    """GetPreferredAllocation with ids that must be included: more ids of the GPU they are on."""
    shape = by_gpu(must, books.index_of, books.unit)
    if shape is None:
        return refusals.foreign_ids()
    place = tuple(sorted(shape))
    if len(place) > 1:
        return refusals.straddle(f"its init containers have ids of GPUs {listed(place)}")
    holder = books.holder(must)
    piece = (
        _forgotten(books, place, size)
        if holder is None
        else rematched(books, succeeded(books, holder), size)
    )
    if piece is None:
        return refusals.unknown_pod(size, books.unit)
    missing = size - len(must)
    if missing > room(books, [piece], counts(free)).get(place[0], 0):
        return refusals.straddle(
            f"GPU {place[0]}, where its init container has its memory, has too little left for "
            f"{refusals.amount(size, books.unit)}",
            piece.uid,
        )
    ids = frozenset([*must, *free[place[0]][:missing]])
    return Offer(piece, position_of(piece, size), ids, place, piece.grant)


def reusable(books: Books, holder: Piece, ids: frozenset[str]) -> Piece | Refused:
    """Allocate with ids that `holder` has: the chunk that goes on with them."""
    assert holder.grant is not None
    if not ids <= holder.grant.ids or not holder.hands_on:
        return refusals.twice()
    return rematched(books, succeeded(books, holder), len(ids))


def position_of(piece: Piece, size: int) -> int:
    """The call of `size` units that comes next; for one that comes again, where it came before."""
    position = piece.next_call
    if position is not None and piece.calls[position].ask.units == size:
        return position
    same = [i for i, call in enumerate(piece.calls) if call.ask.units == size]
    return same[-1] if same else len(piece.calls) - 1


def rematched(books: Books, holder: Piece, size: int) -> Piece:
    """The chunk that has `holder`'s grant, now that its next call is known to be of `size` units.

    Where that is another than `holder`, the two change places. They are of different classes, so
    `holder`, if it is the larger, may not fit into the other's place; then it has none for now.
    """
    position = holder.next_call
    if holder.attested or position is None or holder.calls[position].ask.units == size:
        return holder
    for pod in books.pods.values():
        for piece in pod.pieces:
            if (
                pod.live
                and not books.admitted(piece)
                and piece.grant is None
                and not piece.attested
                and len(piece.calls) > position
                and piece.cls.begins_like(holder.cls, position)
                and piece.calls[position].ask.units == size
            ):
                books.exchange(holder, piece)
                if holder.units > piece.units:
                    holder.place = None
                return piece
    return holder


def succeeded(books: Books, holder: Piece) -> Piece:
    """The chunk that has `holder`'s grant: `holder`, or, if that has left, one of its class."""
    if books.is_live(holder):
        return holder
    for pod in books.pods.values():
        for piece in pod.pieces:
            waits = pod.live and not books.admitted(piece) and piece.grant is None
            if waits and not piece.attested and piece.cls == holder.cls:
                books.exchange(piece, holder)
                return piece
    return holder


def _forgotten(books: Books, place: Place, size: int) -> Piece | None:
    """A chunk on `place` that goes on with a call of `size`, its init containers' grant unknown."""
    for pod in books.pods.values():
        for piece in pod.pieces:
            later = [call.ask.units for call in piece.calls[1:]]
            if pod.live and piece.grant is None and piece.place == place and size in later:
                return piece
    return None
