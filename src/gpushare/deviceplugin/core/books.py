"""Which chunk of which pod has which place on the node, and which device ids.

A **piece** is a chunk (model.request) of a pod on this node. Its **place** is the GPUs it has: at
first those that were decided for it. A **grant** is the device ids the kubelet was given for a
chunk.

The kubelet does not say for whom it asks, so until it is attested a grant is only *taken* to be a
piece's. Where that proves wrong, the two pieces exchange place and grant (`exchange`). They are of
one class (model.calls), so every GPU holds after it what it held before: places are only ever
permuted. What pieces have in the end is what was decided, if not for whom.

A pod that leaves with a grant that was never attested stays as a **ghost**: somebody else may have
its ids, and then it is that one's decided place that has become free, not the ghost's. The ghost
goes once its ids are seen with somebody, or with nobody (core.attesting). A pod that runs
without a grant must have one that is taken to be another's (`deduce`).

Nothing here does I/O or looks at a clock; times are given in.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpushare.contract.units import Unit
from gpushare.deviceplugin.core.pods import PodFacts
from gpushare.model.calls import Call, CallClass, calls_of, classes_of
from gpushare.model.gpus import Assignment, Node
from gpushare.model.holding import Placement, placement_of

Place = tuple[int, ...]
"""Indexes of GPUs, ascending: one, or as many as the pod's gpu-count says."""

DEPARTED_REMEMBERED = 64
"""So many pods that left before the kubelet asked for them are kept in mind."""

PODS_REMEMBERED = 10_000
"""So many names, and UIDs of pods that left, are remembered; the oldest are forgotten first."""


@dataclass(slots=True, eq=False)
class Grant:
    """Device ids handed out for one chunk."""

    at_ns: int
    """When, by this node's clock; Unix ns."""
    ids: set[str] = field(default_factory=set)
    handed: dict[int, frozenset[str]] = field(default_factory=dict)
    """Position of a call in its chunk -> the ids it was given."""
    doubtful: bool = False
    """The kubelet it was given to has ended, and may not have written it down."""

    def add(self, position: int, ids: frozenset[str]) -> None:
        self.handed[position] = ids
        self.ids |= ids


@dataclass(slots=True, eq=False)
class Piece:
    """A chunk of a pod on this node."""

    uid: str
    number: int
    """Of the chunk in its request."""
    cls: CallClass
    calls: tuple[Call, ...]
    place: Place | None
    """None: nobody has decided yet."""
    grant: Grant | None = None
    attested: bool = False
    """The kubelet was seen to have given these ids to this pod."""
    forgotten: bool = False
    """The kubelet has taken its ids back although its pod is there, and may ask for it again."""

    @property
    def key(self) -> tuple[str, int]:
        return self.uid, self.number

    @property
    def units(self) -> int:
        """Units the piece holds, on all its GPUs together."""
        return sum(call.fresh for call in self.calls)

    @property
    def ended(self) -> bool:
        """It had ids, and the kubelet has taken them back."""
        return self.attested and self.grant is None

    @property
    def next_call(self) -> int | None:
        """Position of the first call not served yet; None when all are."""
        if self.ended:
            return None
        handed = self.grant.handed if self.grant is not None else {}
        return next((i for i in range(len(self.calls)) if i not in handed), None)

    @property
    def outstanding(self) -> int:
        """Units the kubelet has yet to take for it."""
        if self.ended:
            return 0
        handed = self.grant.handed if self.grant is not None else {}
        return sum(call.fresh for i, call in enumerate(self.calls) if i not in handed)

    @property
    def hands_on(self) -> bool:
        """Whether it has an init container, whose ids later containers are given."""
        return any(hands_on for _, _, hands_on in self.cls.calls)


@dataclass(slots=True, eq=False)
class NodePod:
    """A pod on this node, and its pieces."""

    facts: PodFacts
    pieces: list[Piece]
    since: int
    """Serial number of the moment it was first seen."""
    gone: bool = False
    """Its object is no longer there."""

    @property
    def live(self) -> bool:
        """Whether it holds anything by Kubernetes' own rules."""
        return not self.gone and not self.facts.record.finished

    @property
    def placement(self) -> Placement | None:
        """Where the books have it; None while a chunk has no place."""
        places = [piece.place for piece in self.pieces]
        if not all(places):
            return None
        return Placement(tuple(place for place in places if place is not None))

    @property
    def attested(self) -> bool:
        return all(piece.attested for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Decision:
    """A place that was decided here."""

    piece: Piece
    place: Place
    overruled: Place | None = None
    """The place that was decided elsewhere and had no room; None where there was none."""


class Books:
    """The pods of one node, their places and ids."""

    def __init__(self, node: Node, unit: Unit, corrections: dict[str, Assignment]) -> None:
        """`corrections` are those an earlier plugin process left on the node."""
        self.node = node
        self.unit = unit
        self.pods: dict[str, NodePod] = {}
        """Pod UID -> pod; ghosts included."""
        self.exchanges = 0
        """How often two pieces were taken for each other and put right."""
        self.decisions: list[Decision] = []
        """What was decided here and not told to anybody yet; for whoever tells, to empty."""
        self.told_all = True
        """Whether the sources tell of every container, so that one they miss has no ids."""
        self.kubelet_ns = 0
        """Since when the kubelet that is served has been there, Unix ns."""
        self.there_at_start: frozenset[str] | None = None
        """UIDs of the pods that were there when the kubelet began to ask after its start, which it
        may have yet to ask for; None: it has yet to begin. Empty once it asks for later ones."""
        self.departed: OrderedDict[str, NodePod] = OrderedDict()
        """UID -> pod that has gone and for which the kubelet may ask all the same (core.late)."""
        self._corrections = corrections
        self._serial = 0
        self._names: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Namespace and name -> how many pods of that name there have been."""
        self._left: OrderedDict[str, None] = OrderedDict()
        """UIDs of pods that have ended or gone."""

    # -- questions --------------------------------------------------------------------------------

    @property
    def index_of(self) -> dict[str, int]:
        """GPU UUID -> index."""
        return {gpu.uuid: gpu.index for gpu in self.node.gpus if gpu.uuid is not None}

    def pieces(self) -> Iterator[Piece]:
        """All pieces, ghosts' included."""
        for pod in self.pods.values():
            yield from pod.pieces

    def pod_of(self, piece: Piece) -> NodePod:
        return self.pods[piece.uid]

    def is_live(self, piece: Piece) -> bool:
        return self.pods[piece.uid].live

    def admitted(self, piece: Piece) -> bool:
        """Whether the kubelet has allocated for the piece, as far as its pod shows: it has
        started, or a plugin, maybe an earlier process, has attested it."""
        facts = self.pods[piece.uid].facts
        return facts.started or (facts.assigned and not piece.forgotten)

    def holder(self, ids: Iterable[str]) -> Piece | None:
        """The piece whose grant has any of `ids`."""
        wanted = set(ids)
        for piece in self.pieces():
            if piece.grant is not None and not wanted.isdisjoint(piece.grant.ids):
                return piece
        return None

    def granted_ids(self) -> set[str]:
        """All ids that anybody is taken to hold."""
        return {i for piece in self.pieces() if piece.grant is not None for i in piece.grant.ids}

    def promised(self, *, but: Iterable[Piece] = ()) -> dict[int, int]:
        """GPU index -> units that pieces have there and the kubelet has yet to take."""
        left_out = {piece.key for piece in but}
        promised: dict[int, int] = {}
        for piece in self.pieces():
            pod = self.pods[piece.uid]
            if piece.place and pod.live and not self.admitted(piece) and piece.key not in left_out:
                for index in piece.place:
                    units = piece.outstanding // len(piece.place)
                    promised[index] = promised.get(index, 0) + units
        return promised

    def age(self, piece: Piece) -> tuple[bool, int, int, str, int]:
        """The order in which the kubelet is likely to ask: of pods as they came; but of those that
        were there when it started, as they were created."""
        facts = self.pods[piece.uid].facts
        came_later = piece.uid not in (self.there_at_start or ())
        created_ns = 0 if came_later else facts.created_ns
        return came_later, created_ns, facts.bound_ns, piece.uid, piece.number

    def asked_again(self, piece: Piece) -> bool:
        """Whether its pod has run and ended, and a kubelet that has started asks for it anew."""
        has_run = piece.ended or self.pods[piece.uid].facts.started
        return self.maybe_again(piece) and has_run

    def maybe_again(self, piece: Piece) -> bool:
        """Whether a kubelet that has started has taken its ids back, and may ask for it anew."""
        return piece.forgotten and piece.uid in (self.there_at_start or ())

    def waiting(self) -> bool:
        """Whether anybody holds ids that were not attested yet."""
        return any(piece.grant is not None and not piece.attested for piece in self.pieces())

    # -- pods -------------------------------------------------------------------------------------

    def put(self, facts: PodFacts) -> None:
        """A pod is on this node, or has changed there."""
        uid = facts.record.uid
        pod = self.pods.get(uid)
        if pod is None:
            if facts.record.finished:
                self._note_left(uid)
                return
            self._serial += 1
            self._note_name(facts)
            pod = NodePod(facts, self._new_pieces(facts), self._serial)
            self.pods[uid] = pod
            return
        told_anew = facts.record.assignment != pod.facts.record.assignment
        pod.facts = facts
        if facts.record.finished:
            self._leave(pod)
        elif told_anew and all(p.place is None and p.grant is None for p in pod.pieces):
            # Somebody has decided after all.
            for piece, fresh in zip(pod.pieces, self._new_pieces(facts), strict=True):
                piece.place = fresh.place

    def remove(self, uid: str) -> None:
        """A pod's object is gone."""
        pod = self.pods.get(uid)
        if pod is not None:
            pod.gone = True
            self._depart(pod)
            self._leave(pod)
        self._note_left(uid)
        self._corrections.pop(uid, None)

    def _new_pieces(self, facts: PodFacts) -> list[Piece]:
        record = facts.record
        correction = self._corrections.get(record.uid)
        assignment = record.assignment
        if correction is not None:
            base = assignment or Assignment({}, {})
            assignment = Assignment(
                {**base.app, **correction.app}, {**base.init, **correction.init}
            )
        placement = placement_of(record.request, assignment, self.node) if assignment else None
        places = placement.gpus if placement else (None,) * len(record.request.chunks)
        return [
            Piece(record.uid, number, cls, calls, place)
            for number, (cls, calls, place) in enumerate(
                zip(classes_of(record.request), calls_of(record.request), places, strict=True)
            )
        ]

    def name_was_used(self, namespace: str, name: str) -> bool:
        """Whether more than one pod of that name has been here in this process's time."""
        return self._names.get((namespace, name), 0) > 1

    def has_left(self, uid: str) -> bool:
        """Whether a pod has ended or gone in this process's time."""
        return uid in self._left

    def _note_left(self, uid: str) -> None:
        self._left[uid] = None
        if len(self._left) > PODS_REMEMBERED:
            self._left.popitem(last=False)

    def _note_name(self, facts: PodFacts) -> None:
        key = (facts.record.namespace, facts.record.name)
        self._names[key] = self._names.pop(key, 0) + 1
        if len(self._names) > PODS_REMEMBERED:
            self._names.popitem(last=False)

    def _depart(self, pod: NodePod) -> None:
        """It has gone, and the kubelet may not have come to it yet."""
        facts = pod.facts
        known = facts.started or facts.assigned or facts.record.finished or facts.static
        if known or any(piece.grant or piece.attested for piece in pod.pieces):
            return
        copy = NodePod(facts, list(pod.pieces), pod.since, gone=True)
        self.departed[facts.record.uid] = copy
        if len(self.departed) > DEPARTED_REMEMBERED:
            self.departed.popitem(last=False)

    def revive(self, pod: NodePod) -> None:
        """A departed pod is on the books again: the kubelet asks for it."""
        self.pods.setdefault(pod.facts.record.uid, pod)

    def forget_departed(self) -> None:
        """Those that the kubelet has passed by: it has come to a pod that was bound later."""
        attested = [
            self.pods[piece.uid].facts.bound_ns for piece in self.pieces() if piece.attested
        ]
        latest = max(attested, default=0)
        for uid, pod in list(self.departed.items()):
            if pod.facts.bound_ns < latest and not any(piece.grant for piece in pod.pieces):
                del self.departed[uid]

    def _leave(self, pod: NodePod) -> None:
        """It no longer holds anything; what it may have been mistaken for stays.

        Not where readers knew it as attested: they have given away its room already.
        """
        self._note_left(pod.facts.record.uid)
        told = pod.facts.assigned
        self.keep(pod, [p for p in pod.pieces if p.grant and not p.attested and not told])

    # -- changes ----------------------------------------------------------------------------------

    def exchange(self, one: Piece, other: Piece) -> None:
        """Two pieces were taken for each other: each gets the other's place and grant."""
        one.place, other.place = other.place, one.place
        one.grant, other.grant = other.grant, one.grant
        self.exchanges += 1

    def take_back(self, piece: Piece) -> None:
        """A kubelet that has started has its ids no more, and may ask for it again.

        If it was attested or its pod has run, its containers have finished: it keeps its place
        until its pod is seen to have ended, and waits for nothing.
        """
        piece.grant, piece.forgotten = None, True
        piece.attested = piece.attested or self.pods[piece.uid].facts.started

    def decide(self, piece: Piece, place: Place) -> None:
        """`piece` gets a place that was decided here."""
        self.decisions.append(Decision(piece, place, piece.place))
        piece.place = place

    def deduce(self) -> None:
        """A pod that runs has ids; so where none are taken to be its, another's of its class are.

        Of another that does not run, that is: it is then still waiting.
        """
        for piece in self.pieces():
            if piece.attested or piece.grant is not None or not self._runs(piece):
                continue
            for other in self.pieces():
                taken = other.grant is not None and not other.attested
                if taken and other.cls == piece.cls and not self._runs(other):
                    self.exchange(piece, other)
                    break

    def _runs(self, piece: Piece) -> bool:
        pod = self.pods[piece.uid]
        return pod.live and self.admitted(piece)

    def keep(self, pod: NodePod, pieces: list[Piece]) -> None:
        """Of a pod that has left, only `pieces` stay."""
        pod.pieces = pieces
        if not pieces:
            self.pods.pop(pod.facts.record.uid, None)
