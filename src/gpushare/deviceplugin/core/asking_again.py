"""The kubelet asks once more for a pod it had given ids.

A kubelet that has started, or that took a pod's ids back before its container was created,
allocates for the pod anew. It has forgotten what it gave, so it lists those ids as free. That alone
proves nothing: its List of pod resources can make it forget ids that a container has
(core.matching); but then it does not ask. So a call that nobody else waits for is taken to be for
such a pod, which is offered the same ids.

Where somebody does wait for a call of this size, whose class is another, the call is refused: it
could be for either, and a container would run with a part of the wrong GPUs.
"""

from gpushare.deviceplugin.core import refusals
from gpushare.deviceplugin.core.books import Books, Piece
from gpushare.deviceplugin.core.offers import Granted, Offer
from gpushare.deviceplugin.core.refusals import Cause, Refused


def asked_again(
    books: Books, offer: Offer | Refused, available: frozenset[str], size: int
) -> Offer | Refused:
    """`offer`, unless the call may be, or has to be, for a pod whose ids the kubelet forgot.

    available  the ids that the kubelet lists as free
    """
    forgotten = _forgotten(books, available, size)
    if isinstance(offer, Offer):
        other = any(piece.cls != offer.piece.cls for piece, _ in forgotten)
        return refusals.ambiguous(size, books.unit, offer.piece.uid) if other else offer
    if offer.cause is not Cause.UNKNOWN_POD:
        return offer
    for piece, position in forgotten:
        if piece.grant is not None and piece.place is not None:
            return Offer(piece, position, piece.grant.handed[position], piece.place, again=True)
    return offer


def granted_again(offer: Offer) -> Granted:
    """It may be another's of its class this time, so it counts as attested no more."""
    offer.piece.attested = False
    return Granted(offer.piece, offer.position, offer.ids, offer.place)


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
