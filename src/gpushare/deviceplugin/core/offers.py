"""What an allocation is answered with."""

from dataclasses import dataclass

from gpushare.deviceplugin.core.books import Grant, Piece, Place
from gpushare.deviceplugin.core.refusals import Refused

Free = dict[int, list[str]]
"""GPU index -> ids that may be given out, by slot."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The answer to GetPreferredAllocation."""

    piece: Piece
    position: int
    """Of the call in the piece."""
    ids: frozenset[str]
    place: Place
    goes_on: Grant | None = None
    """What the chunk's earlier calls were given."""
    again: bool = False
    """They are what the chunk has already, and the kubelet has forgotten."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer to Allocate: container number `position` of `piece` gets `ids`, on `place`."""

    piece: Piece
    position: int
    ids: frozenset[str]
    place: Place


@dataclass(frozen=True, slots=True)
class Stale:
    """No answer from what is known. Read pods and allocations anew and ask again."""

    why: Refused
    """The answer if nothing new turns up."""


def counts(free: Free) -> dict[int, int]:
    """GPU index -> number of free ids."""
    return {index: len(ids) for index, ids in free.items()}


def take(free: Free, place: Place, size: int) -> frozenset[str] | None:
    """`size` free ids in equal parts from the GPUs of `place`; None where they have not as many."""
    part = size // len(place)
    if any(len(free.get(index, ())) < part for index in place):
        return None
    return frozenset(i for index in place for i in free[index][:part])


def listed(place: Place) -> str:
    """ "1 and 3", for messages."""
    return " and ".join(map(str, place))
