"""Who really got which ids.

A `Sighting` says that a container of a pod has certain ids. Sources differ in what they know:

* by the pod's UID: the kubelet's checkpoint, the pod's own `allocatedResourcesStatus`, a CDI hook;
* by name only: PodResources. A pod created again under its name must not be credited with what the
  earlier one had. So where a name was used twice, the ids have to be of a grant that is younger
  than the pod (`by_name`).

Attesting a chunk whose ids are taken to be another's exchanges the two (core.books). A
grant that nobody is seen with any more, and whose ids the kubelet lists as free, has ended
(`release`). A chunk that no source can tell of, an init container that has finished, is presumed to
have what it is taken to have once its pod runs (`presume`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpushare.deviceplugin.core.books import Books, Grant, NodePod, Piece, Place
from gpushare.deviceplugin.core.deciding import decide
from gpushare.deviceplugin.core.ids import by_gpu
from gpushare.policy.fit import Refusal

SHOWN_AFTER_NS = 1_000_000_000
"""A container is in the kubelet's lists this long after Allocate; seen: 7 to 19 ms."""

PRESUMED_AFTER_NS = 10_000_000_000
"""What no source has told by then will not be told."""

SETTLED_AFTER_NS = 5_000_000_000
"""After this a pod of the same name that was there before has left the kubelet's lists."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A container that the kubelet, or a hook, shows with device ids of ours."""

    container: str
    ids: frozenset[str]
    uid: str | None = None
    namespace: str = ""
    pod: str = ""
    """Namespace and name count where the UID is not known."""
    at_ns: int | None = None
    """When it was so, Unix ns; None: it is so now."""


@dataclass(frozen=True, slots=True)
class Attested:
    """A chunk that is now known to have its ids."""

    piece: Piece
    exchanged: Piece | None = None
    """The chunk it was taken for."""
    foreign: bool = False
    """That chunk is of another class: the container may be on a wrong GPU."""


@dataclass(frozen=True, slots=True)
class Round:
    """What the sources showed, asked once each."""

    began_ns: int
    """When the first was asked, Unix ns."""
    sightings: Sequence[Sighting]
    listed: bool = True
    """All containers that run were shown, whosever they are."""
    complete: bool = False
    """Init containers that have finished too."""

    def seen(self, books: Books) -> set[str]:
        """All ids that were shown with anybody who has not left (a checkpoint can be old)."""
        return {
            i
            for sighting in self.sightings
            if not (sighting.uid and books.has_left(sighting.uid))
            for i in sighting.ids
        }

    def would_show(self, piece: Piece, grant: Grant) -> bool:
        """Whether a grant that anybody has must have been among what was shown."""
        if not self.listed or grant.at_ns > self.began_ns - SHOWN_AFTER_NS:
            return False
        return self.complete or any(not piece.cls.calls[position][2] for position in grant.handed)


def attest(books: Books, shown: Round) -> list[Attested]:
    """Take in what sources have shown; what that made known. By UID first: names can mislead."""
    found: list[Attested] = []
    books.told_all = shown.complete
    for sighting in sorted(shown.sightings, key=lambda sighting: sighting.uid is None):
        if sighting.uid:
            pod = books.pods.get(sighting.uid)
        else:
            pod = by_name(books, sighting, shown.began_ns)
        target = _target(pod, sighting.container) if pod is not None else None
        if target is None or _is_over(books, target[0], sighting):
            continue
        attested = _attest(books, *target, sighting.ids)
        if target[0].grant is not None and _is_news(books, sighting):
            target[0].grant.doubtful = False
        if attested is not None:
            found.append(attested)
    books.deduce()
    _settle(books, shown)
    books.forget_departed()
    return found


def _is_news(books: Books, sighting: Sighting) -> bool:
    """What was seen is not from before the kubelet's start."""
    return sighting.at_ns is None or sighting.at_ns >= books.kubelet_ns


def _is_over(books: Books, piece: Piece, sighting: Sighting) -> bool:
    """What was seen is from before the kubelet's start, and the kubelet took the ids back."""
    return piece.forgotten and not _is_news(books, sighting)


def _settle(books: Books, shown: Round) -> None:
    """Let ghosts go whose ids nobody was seen with, or which were seen with them themselves."""
    seen = shown.seen(books)
    suspects = {piece.cls for piece in books.pieces() if _may_be_mistaken(books, piece)}
    for pod in [pod for pod in books.pods.values() if not pod.live]:
        kept: list[Piece] = []
        for piece in pod.pieces:
            grant = piece.grant
            if piece.attested or grant is None:
                continue
            unseen = grant.ids.isdisjoint(seen)
            old = grant.at_ns < shown.began_ns - PRESUMED_AFTER_NS
            if unseen and (shown.would_show(piece, grant) or (old and piece.cls not in suspects)):
                continue
            kept.append(piece)
        books.keep(pod, kept)


def _may_be_mistaken(books: Books, piece: Piece) -> bool:
    return not piece.attested and books.is_live(piece)


def by_name(books: Books, sighting: Sighting, now_ns: int) -> NodePod | None:
    """The pod of a sighting without UID, where its name leaves no doubt."""
    named = [
        pod
        for pod in books.pods.values()
        if pod.facts.record.name == sighting.pod
        and pod.facts.record.namespace == sighting.namespace
    ]
    holder = books.holder(sighting.ids)
    if holder is None or holder.grant is None:
        # From before our time; what an earlier pod of the name had is long gone by then.
        named = [
            pod
            for pod in named
            if any(map(books.admitted, pod.pieces))
            or pod.facts.bound_ns < now_ns - SETTLED_AFTER_NS
        ]
    elif len(named) > 1 or books.name_was_used(sighting.namespace, sighting.pod):
        granted = holder.grant.at_ns
        named = [pod for pod in named if pod.facts.bound_ns < granted]
    live = [pod for pod in named if pod.live]
    return max(live, key=lambda pod: pod.since, default=None)


def release(books: Books, free: Collection[str], shown: Round) -> int:
    """End the grants whose ids the kubelet lists as free and no source shows; how many."""
    free, seen = set(free), shown.seen(books)
    ended = 0
    for piece in list(books.pieces()):
        grant = piece.grant
        if grant is None or not grant.ids <= free or not grant.ids.isdisjoint(seen):
            continue
        told = shown.complete or not (piece.hands_on and piece.attested and books.is_live(piece))
        if shown.listed and told:
            piece.grant = None
            if books.is_live(piece) and not books.pod_of(piece).facts.started:
                # Attested: it has ended before it was seen to have run, unless a kubelet that has
                # started has forgotten it. Not attested: it waits again.
                at_start = piece.uid in (books.there_at_start or ())
                before = at_start and grant.at_ns < books.kubelet_ns
                piece.forgotten = before or not piece.attested
            ended += 1
    return ended


def kubelet_started(books: Books, shown: Round) -> None:
    """A kubelet that has just started has what it had written down, and nothing else.

    What was handed out and is not there, because the kubelet ended before it wrote, it will ask for
    again; also what it had taken back from a pod whose containers have finished, if it had no time
    to tell. Where no source tells of all, the ids that it lists as free will tell
    (core.asking_again).
    """
    books.kubelet_ns, books.there_at_start = shown.began_ns, None
    written: dict[str | None, set[str]] = {}
    """Pod UID -> its ids. Those of a pod that has ended may be another's by now."""
    for sighting in shown.sightings:
        written.setdefault(sighting.uid, set()).update(sighting.ids)
    for pod in list(books.pods.values()):
        for piece in pod.pieces:
            if piece.grant is None:
                piece.forgotten = piece.forgotten or piece.ended
            elif piece.grant.ids.isdisjoint(written.get(piece.uid, ())):
                if shown.complete:
                    books.take_back(piece)
                else:
                    piece.grant.doubtful = True
        if not pod.live:
            books.keep(pod, [piece for piece in pod.pieces if piece.grant is not None])


def remember(books: Books, uid: str, number: int, position: int, ids: frozenset[str]) -> bool:
    """Take up what an earlier process handed out to a pod that has yet to start; whether it did.

    For where no source tells of all. The ids that the kubelet lists as free tell whether it still
    counts (core.asking_again).
    """
    pod = books.pods.get(uid)
    if pod is None or not pod.live or pod.facts.started or number >= len(pod.pieces):
        return False
    piece = pod.pieces[number]
    shape = by_gpu(ids, books.index_of, books.unit)
    known = piece.attested or (piece.grant is not None and not piece.grant.doubtful)
    fits = position < len(piece.calls) and piece.calls[position].ask.units == len(ids)
    if known or not fits or not shape or tuple(sorted(shape)) != piece.place:
        return False
    if not ids.isdisjoint(books.granted_ids()):
        return False
    if piece.grant is None:
        piece.grant = Grant(0, doubtful=True)
    piece.grant.add(position, ids)
    return True


def presume(books: Books, now_ns: int) -> list[Attested]:
    """Take chunks of running pods that no source tells of for what they are taken to be."""
    found: list[Attested] = []
    for piece in books.pieces():
        pod = books.pod_of(piece)
        if not pod.live or not books.admitted(piece) or piece.attested or piece.place is None:
            continue
        if piece.grant is None or piece.grant.at_ns < now_ns - PRESUMED_AFTER_NS:
            piece.attested, piece.forgotten = True, False
            found.append(Attested(piece))
    return found


def _target(pod: NodePod, container: str) -> tuple[Piece, int] | None:
    """The piece of a container, and the position of its call."""
    which = pod.facts.container(container)
    for piece in pod.pieces:
        for position, call in enumerate(piece.calls):
            if which == (call.ask.init, call.ask.index):
                return piece, position
    return None


def _attest(books: Books, piece: Piece, position: int, ids: frozenset[str]) -> Attested | None:
    shape = by_gpu(ids, books.index_of, books.unit)
    if not shape:
        return None  # of another unit, or of a GPU that is gone
    place = tuple(sorted(shape))
    grant = piece.grant
    if grant is not None and ids <= grant.ids:
        grant.handed[position] = ids
        if piece.attested:
            return None
        piece.attested, piece.forgotten = True, False
        return Attested(piece)
    holder = books.holder(ids - grant.ids if grant is not None else ids)
    if holder is not None and not holder.attested:
        return _exchanged(books, piece, holder, position, ids, place)
    if holder is not None:
        holder.grant = None  # it has ended, and the ids were given out again
    if grant is not None and piece.attested and position not in grant.handed:
        grant.add(position, ids)  # a further container of the chunk, from before our time
        return None
    return _adopted(books, piece, position, ids, place)


def _exchanged(
    books: Books, piece: Piece, holder: Piece, position: int, ids: frozenset[str], place: Place
) -> Attested:
    """`piece` has what `holder` was taken to have."""
    foreign = holder.cls != piece.cls
    if piece.attested and piece.grant is not None and position in piece.grant.handed:
        piece.grant = None  # it was asked for anew: what it had is nobody's
    books.exchange(piece, holder)
    if foreign:
        # What one had is no measure for the other.
        holder.grant = None
        if holder.units > piece.units or holder.cls.gpus != piece.cls.gpus:
            holder.place = None
    if piece.grant is None or not ids <= piece.grant.ids:
        piece.grant = Grant(piece.grant.at_ns if piece.grant else 0)
    piece.grant.add(position, ids)
    piece.place = place
    piece.attested, piece.forgotten = True, False
    if holder.place is None and books.is_live(holder):
        _place_anew(books, holder)
    return Attested(piece, holder, foreign)


def _adopted(
    books: Books, piece: Piece, position: int, ids: frozenset[str], place: Place
) -> Attested:
    """`piece` has ids that were not on our books: from before this process."""
    if piece.attested:
        piece.grant = None
    mates = [
        other
        for other in books.pieces()
        if other.cls == piece.cls
        and other is not piece
        and other.grant is None
        and not other.attested
        and books.is_live(other)
    ]
    mates.sort(key=lambda other: other.place != place)
    exchanged: Piece | None = None
    fits = bool(mates) and mates[0].place == place
    if fits and (piece.grant is not None or piece.place != place):
        # Its place, and the grant it was taken to have, are another's of its class.
        exchanged = mates[0]
        books.exchange(piece, exchanged)
    piece.grant = Grant(0)
    piece.grant.add(position, ids)
    piece.place = place
    piece.attested, piece.forgotten = True, False
    return Attested(piece, exchanged)


def _place_anew(books: Books, piece: Piece) -> None:
    """A place by policy for a chunk whose own has gone to another."""
    answer = decide(books, books.pod_of(piece), [piece], None)
    if not isinstance(answer, Refusal):
        books.decide(piece, answer[0])
