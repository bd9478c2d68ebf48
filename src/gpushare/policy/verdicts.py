"""All nodes' answers to one request, kept current: who has room, who has not and why, who is best.

A scheduler extender is asked about hundreds of nodes many times a second, while a placement changes
one node. So the answers stand in maps by node name, and before they are read only the nodes that
changed since are asked again (`Ledger.changed_since`): the cost of a placement, not of the cluster.

`Verdicts` holds what depends on the request alone (see fit.why_not). `Ranks` holds rank keys, which
depend on the GPU a pod would get and so, under some policies, on its owner: nodes where the owner
has nothing yet share their keys with every other such owner.
"""

from collections.abc import Iterable

from gpushare.contract.names import Reason
from gpushare.model.holding import Placement
from gpushare.model.ledger import Ledger
from gpushare.model.owner import Owner
from gpushare.model.request import Request
from gpushare.policy.fit import NOBODY, place, why_not
from gpushare.policy.rank import Ranking, RankKey


class Verdicts:
    """Which nodes have room for one request. Call `refresh` before reading."""

    def __init__(self, ledger: Ledger, request: Request) -> None:
        self.request = request
        self.fits: set[str] = set()
        """Names of the nodes that have room."""
        self.reasons: dict[str, Reason] = {}
        """Node name -> why it has none; a node is here or in `fits`, or unknown."""
        self.version = 0
        """Advances whenever any answer does."""
        self._ledger = ledger
        self._seen = -1

    def refresh(self) -> None:
        """Make the answers those of the ledger as it stands."""
        ledger = self._ledger
        if self._seen == ledger.generation:
            return
        names = list(ledger) if self._seen < 0 else list(ledger.changed_since(self._seen))
        self._seen = ledger.generation
        changed = False
        for name in names:
            changed |= self._ask(name)
        self.version += changed

    def _ask(self, name: str) -> bool:
        books = self._ledger.get_books(name)
        known = name in self.fits
        if books is None:
            self.fits.discard(name)
            return (self.reasons.pop(name, None) is not None) or known
        reason = why_not(books, self.request)
        if reason is None:
            self.fits.add(name)
            self.reasons.pop(name, None)
            return not known
        self.fits.discard(name)
        if self.reasons.get(name) is reason:
            return False
        self.reasons[name] = reason
        return True


class Ranks:
    """Rank keys of nodes for one request and owner, computed when asked for."""

    def __init__(
        self, ledger: Ledger, request: Request, ranking: Ranking, owner: Owner = NOBODY
    ) -> None:
        self._ledger = ledger
        self._request = request
        self._ranking = ranking
        self._owner = owner
        self._seen = -1
        self._keys: dict[str, RankKey | None] = {}
        """Node name -> its key; None where the request does not fit."""

    def keys(self, names: Iterable[str]) -> dict[str, RankKey]:
        """The keys of those of `names` that are known and have room."""
        self._forget_changed()
        kept = self._keys
        keys: dict[str, RankKey] = {}
        for name in names:
            key = kept[name] if name in kept else self._rank(name)
            if key is not None:
                keys[name] = key
        return keys

    def _forget_changed(self) -> None:
        if self._seen != self._ledger.generation:
            for name in self._ledger.changed_since(self._seen) if self._keys else ():
                self._keys.pop(name, None)
            self._seen = self._ledger.generation

    def _rank(self, name: str) -> RankKey | None:
        books = self._ledger.get_books(name)
        if books is None:
            return None
        answer = place(books, self._request, self._owner)
        key = self._ranking(books, self._request, answer) if isinstance(answer, Placement) else None
        self._keys[name] = key
        return key
