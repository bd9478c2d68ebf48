"""The kubelet asks once more for a pod it had given ids.

A kubelet that has started allocates anew for every pod that does not run and has no ids in its
checkpoint: one that was not created yet when the kubelet forgot it, or one whose containers have
finished and whose end it has yet to report (without ids it would fail that pod). It lists the ids
it forgot as free. That alone proves nothing: its List of pod resources can make it forget ids that
a container has (core.matching); but then it does not ask. So a call that nobody else waits for is
taken to be for such a pod, which is offered what it had. If that is another's by now, it gets ids
of another GPU, where a pod that has finished does no harm; and where there are none, because the
kubelet still counts others that have ended, the call is refused for that.

Ids that were given out before the kubelet's start, and that it lists as free, it has not written
down (`take_back_what_is_free`).

Where somebody waits for a call of this size, and a pod of another class may be asked for once more,
the call is refused: it could be for either, and a container would run with a part of the wrong
GPUs.
"""

from dataclasses import replace

from gpushare.deviceplugin.core import refusals
from gpushare.deviceplugin.core.books import Books, Grant, Piece
from gpushare.deviceplugin.core.deciding import overruled
from gpushare.deviceplugin.core.ids import by_gpu
from gpushare.deviceplugin.core.offers import Free, Granted, Offer, take
from gpushare.deviceplugin.core.refusals import Cause, Refused


def take_back_what_is_free(books: Books, available: frozenset[str]) -> None:
    """Grants from before the kubelet's start, whose ids it lists as free, have ended.

    What a pod that has run had was written down, so of that the kubelet's first call tells.
    """
    first = books.there_at_start is None
    if first:
        books.there_at_start = frozenset(books.pods)
    for pod in list(books.pods.values()):
        doubtful = [p for p in pod.pieces if p.grant is not None and p.grant.doubtful]
        back = [p for p in doubtful if p.grant is not None and p.grant.ids <= available]
        if pod.facts.started:
            back = doubtful if back and first else []  # they are taken from a pod as a whole
            for piece in doubtful:
                if piece.grant is not None:
                    piece.grant.doubtful = False
        for piece in back:
            books.take_back(piece)
        if back and not pod.live:
            books.keep(pod, [piece for piece in pod.pieces if piece.grant is not None])


def other_kinds(books: Books, offer: Offer, available: frozenset[str], size: int) -> bool:
    """Whether a kubelet that has started may mean a pod of another class than `offer` does."""
    return any(
        piece.cls != offer.piece.cls
        for piece, _ in _forgotten(books, available, size)
        if books.maybe_again(piece)
        or (piece.grant is not None and piece.grant.at_ns < books.kubelet_ns)
    )


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
    again = [*forgotten, *_doubtful(books, size), *_ended(books, available, size)]
    if len({piece.cls for piece, _ in again}) > 1:
        return refusals.ambiguous(size, books.unit, again[0][0].uid)
    for piece, position in again:
        had = piece.grant.handed.get(position) if piece.grant is not None else None
        if piece.place is None:
            continue
        ids = had if had is not None and had <= available else take(free, piece.place, size)
        if ids is not None:
            return Offer(piece, position, ids, piece.place, again=True)
    partly = _partly(books, available, size)
    if partly is not None or not again:
        return partly or offer
    for piece, position in again:
        elsewhere = overruled(books, piece, position, free) if piece.ended else None
        if elsewhere is not None:
            return replace(elsewhere, again=True)
    return refusals.still_counted(of_ended_pods(books, free), books.unit, again[0][0].uid)


def granted_again(books: Books, offer: Offer, now_ns: int) -> Granted:
    """It may be another's of its class this time, so it counts as attested no more.

    Of a pod that has run, every container is asked for anew.
    """
    piece = offer.piece
    pod = books.pods.get(piece.uid)
    for other in pod.pieces if pod is not None and pod.facts.started else ():
        if other is not piece and other.attested and other.grant is not None:
            books.take_back(other)
    piece.attested, piece.forgotten = False, True
    grant, piece.grant = piece.grant, Grant(now_ns)
    for position, ids in (grant.handed if grant is not None else {}).items():
        if position != offer.position:
            piece.grant.add(position, ids)
    piece.grant.add(offer.position, offer.ids)
    return Granted(piece, offer.position, offer.ids, offer.place)


def of_ended_pods(books: Books, free: Free) -> int:
    """Ids that the kubelet does not list as free though nobody has them, and those of pods that
    have ended without the API server's knowing.

    A kubelet that has just started reads its checkpoint, and takes nothing back from pods that have
    ended until it knows all that are there.
    """
    granted = by_gpu(books.granted_ids(), books.index_of, books.unit) or {}
    counted = sum(
        max(0, gpu.units - len(free.get(gpu.index, ())) - len(granted.get(gpu.index, ())))
        for gpu in books.node.gpus
        if gpu.open
    )
    return max(counted, sum(piece.units for piece in books.pieces() if piece.ended))


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


def _doubtful(books: Books, size: int) -> list[tuple[Piece, int]]:
    """Chunks with a call of `size` that an earlier kubelet was answered, and nobody has attested.

    The one that has started does not list their ids as free: it counts them for a pod that has
    ended, or has them written down, and then it does not ask.
    """
    return _by_age(
        books,
        [
            (piece, position)
            for piece in books.pieces()
            if books.is_live(piece) and not books.pod_of(piece).facts.started
            if piece.grant is not None and piece.grant.doubtful and not piece.attested
            for position in piece.grant.handed
            if piece.calls[position].reused == 0 and piece.calls[position].ask.units == size
        ],
    )


def _ended(books: Books, available: frozenset[str], size: int) -> list[tuple[Piece, int]]:
    """Chunks of pods that have run, whose ids were taken back, with a call of `size`.

    Where no source tells of every container, ids that are listed as free count as taken back.
    """
    found: list[tuple[Piece, int]] = []
    for pod in books.pods.values():
        for piece in pod.pieces:
            if not pod.live or not (pod.facts.started or piece.ended):
                continue
            handed = piece.grant.handed if piece.grant is not None else {}
            if piece.grant is not None and not books.told_all and piece.grant.ids <= available:
                handed = {}
            elif piece.attested != piece.ended:
                continue
            for position, call in enumerate(piece.calls):
                if position not in handed and call.reused == 0 and call.ask.units == size:
                    found.append((piece, position))
    return _by_age(books, found)


def _forgotten(books: Books, available: frozenset[str], size: int) -> list[tuple[Piece, int]]:
    """Chunks with a call of `size` that the kubelet may make once more, and its position."""
    found: list[tuple[Piece, int]] = []
    for pod in books.pods.values():
        if not pod.live or pod.facts.started or pod.facts.static:
            continue
        for piece in pod.pieces:
            handed = piece.grant.handed if piece.grant is not None else {}
            for position, call in enumerate(piece.calls):
                lost = piece.forgotten or (position in handed and handed[position] <= available)
                if lost and call.reused == 0 and call.ask.units == size:
                    found.append((piece, position))
    return _by_age(books, found)


def _by_age(books: Books, found: list[tuple[Piece, int]]) -> list[tuple[Piece, int]]:
    return sorted(found, key=lambda entry: (*books.age(entry[0]), entry[1]))
