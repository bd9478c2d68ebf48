"""What the scheduler asked last about each pod, and what it was told.

The nudge lives on it: only a pod we rejected needs one, and one that was asked about a moment ago
may be helped by the scheduler itself. Bounded: the pods asked about longest ago are forgotten.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpushare.contract.names import Reason

MAX_PODS: Final = 20_000


@dataclass(slots=True)
class Ask:
    """The last filter call about one pod."""

    at: float
    """Of the clock."""
    names: int
    """How many nodes the call named."""
    passed: int
    """How many of them had room."""
    only: str | None
    """The node, if the call named just one: the scheduler tries a nominated node so."""
    reason: Reason | None = None
    """Why there was no room, of the node that came nearest; None if there was some."""


class Asks:
    """Pod UID -> its last ask. `on_rejected` is called at each that found no room."""

    def __init__(self, max_pods: int = MAX_PODS) -> None:
        self._asks: OrderedDict[str, Ask] = OrderedDict()
        self._max = max_pods
        self.on_rejected: Callable[[], None] | None = None

    def note(self, uid: str, ask: Ask) -> None:
        self._asks[uid] = ask
        self._asks.move_to_end(uid)
        if len(self._asks) > self._max:
            self._asks.popitem(last=False)
        if not ask.passed and self.on_rejected is not None:
            self.on_rejected()

    def get(self, uid: str) -> Ask | None:
        return self._asks.get(uid)

    def __len__(self) -> int:
        return len(self._asks)
