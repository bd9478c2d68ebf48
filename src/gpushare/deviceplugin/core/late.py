"""The kubelet asks for a pod that has left: it was deleted before the kubelet had come to it.

If another of its class waits, the call is taken for that one, and the call that comes for that one
then seems to be nobody's. So the departed pod is kept in mind (`Books.departed`), and a call that
nobody waits for is answered with what was decided for it. It then is a ghost like any that left
with ids: whoever has them is seen to, and the two exchange places (core.attesting).
"""

from gpushare.deviceplugin.core.books import Books
from gpushare.deviceplugin.core.offers import Free, Offer, take


def asked_late(books: Books, free: Free, size: int) -> Offer | None:
    """What a call of `size` gets that nobody waits for; None where nobody has left either."""
    for pod in books.departed.values():
        for piece in pod.pieces:
            position = piece.next_call
            if position is None or piece.place is None or piece.attested:
                continue
            call = piece.calls[position]
            if call.reused or call.ask.units != size:
                continue
            ids = take(free, piece.place, size)
            if ids is not None:
                books.revive(pod)
                return Offer(piece, position, ids, piece.place, again=True)
    return None
