"""The kubelet asks once more for a pod it had given ids.

A kubelet that has started allocates anew for every pod that does not run and has no ids in its
checkpoint: one that was not created yet when the kubelet forgot it, or one whose containers have
finished and whose end it has yet to report (without ids it would fail that pod). It lists the ids
it forgot as free. That alone proves nothing: its List of pod resources can make it forget ids that
a container has (core.matching); but then it does not ask. So a call that nobody else waits for is
taken to be for such a pod, which is offered what it had.

Where somebody does wait for a call of this size, and a pod of another class that does not run yet
may have been forgotten, the call is refused: it could be for either, and a container would run with
a part of the wrong GPUs.
"""

from gpushare.deviceplugin.core import refusals
from gpushare.deviceplugin.core.books import Books, Grant, Piece
from gpushare.deviceplugin.core.offers import Free, Granted, Offer, take
from gpushare.deviceplugin.core.refusals import Cause, Refused


def asked_again(
    books: Books, offer: Offer | Refused, available: frozenset[str], free: Free, size: int
) -> Offer | Refused:
    """`offer`, unless the call may be, or has to be, for a pod whose ids the kubelet forgot.

    available  the ids that the kubelet lists as free
    free       those of them that nobody has on our books
    """
    forgotten = _forgotten(books, available, size)
    if isinstance(offer, Offer):
        other = any(piece.cls != offer.piece.cls for piece, _ in forgotten)
        return refusals.ambiguous(size, books.unit, offer.piece.uid) if other else offer
    if offer.cause is not Cause.UNKNOWN_POD:
        return offer
    ended = _ended(books, available, size)
    if len({piece.cls for piece, _ in (*forgotten, *ended)}) > 1:
        return refusals.ambiguous(size, books.unit, (*forgotten, *ended)[0][0].uid)
    for piece, position in forgotten:
        if piece.grant is not None and piece.place is not None:
            return Offer(piece, position, piece.grant.handed[position], piece.place, again=True)
    for piece, position in ended:
        had = piece.grant.handed.get(position) if piece.grant is not None else None
        ids = had or (take(free, piece.place, size) if piece.place is not None else None)
        if ids is not None and piece.place is not None:
            return Offer(piece, position, ids, piece.place, again=True)
    return _partly(books, available, size) or offer


def granted_again(offer: Offer, now_ns: int) -> Granted:
    """It may be another's of its class this time, so it counts as attested no more."""
    piece = offer.piece
    piece.attested = False
    if piece.grant is None:
        piece.grant = Grant(now_ns)
    piece.grant.add(offer.position, offer.ids)
    return Granted(piece, offer.position, offer.ids, offer.place)


def _partly(books: Books, available: frozenset[str], size: int) -> Refused | None:
    """A pod is asked for once more of whose ids the kubelet lists only some as free.

    It was killed before it wrote down what it had been answered, and counts the others for a pod
    that has ended.
    """
    for pod in books.pods.values():
        for piece in pod.pieces:
            if not pod.live or pod.facts.started or piece.grant is None:
                continue
            for position, ids in piece.grant.handed.items():
                if piece.calls[position].ask.units == size and not ids.isdisjoint(available):
                    return refusals.still_counted(len(ids - available), books.unit, piece.uid)
    return None


def _ended(books: Books, available: frozenset[str], size: int) -> list[tuple[Piece, int]]:
    """Chunks of pods that have run, whose ids were taken back, with a call of `size`.

    Where no source tells of every container, ids that are listed as free count as taken back.
    """
    found: list[tuple[tuple[int, str, int, int], Piece, int]] = []
    for pod in books.pods.values():
        for piece in pod.pieces:
            if not pod.live or not pod.facts.started:
                continue
            handed = piece.grant.handed if piece.grant is not None else {}
            if piece.grant is not None and not books.told_all and piece.grant.ids <= available:
                handed = {}
            elif piece.attested != piece.ended:
                continue
            for position, call in enumerate(piece.calls):
                if position not in handed and call.reused == 0 and call.ask.units == size:
                    age = (pod.facts.bound_ns, piece.uid, piece.number, position)
                    found.append((age, piece, position))
    return [(piece, position) for _, piece, position in sorted(found, key=lambda entry: entry[0])]


def _forgotten(books: Books, available: frozenset[str], size: int) -> list[tuple[Piece, int]]:
    """Chunks with a call of `size` that the kubelet may make once more, and its position."""
    found: list[tuple[tuple[int, str, int, int], Piece, int]] = []
    for pod in books.pods.values():
        if not pod.live or pod.facts.started or pod.facts.static:
            continue
        for piece in pod.pieces:
            handed = piece.grant.handed if piece.grant is not None else {}
            for position, call in enumerate(piece.calls):
                lost = piece.forgotten or (position in handed and handed[position] <= available)
                if lost and call.reused == 0 and call.ask.units == size:
                    age = (pod.facts.bound_ns, piece.uid, piece.number, position)
                    found.append((age, piece, position))
    return [(piece, position) for _, piece, position in sorted(found, key=lambda entry: entry[0])]
