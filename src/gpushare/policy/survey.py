"""The answers of many nodes to one question, kept current.

A question is a request and its owner. Placing a pod changes one node, so an answer is kept with the
stamp of the node's books and asked for again only when the stamp has moved: a placement costs the
nodes that changed since the question was last asked, not the size of the cluster.

`Survey` answers node by node. `Contest` knows the best node
of all, in a heap whose outdated entries are dropped as they surface.
"""

import heapq
from collections.abc import Callable, Collection

from gpushare.model.gpus import NodeBooks
from gpushare.model.holding import Placement
from gpushare.model.ledger import Ledger
from gpushare.model.owner import Owner
from gpushare.model.request import Request
from gpushare.policy.fit import Answer, place
from gpushare.policy.preference import Preference
from gpushare.policy.rank import Ranking, RankKey


class Survey:
    """Every node's answer to one question, computed when asked for."""

    def __init__(
        self,
        ledger: Ledger,
        request: Request,
        owner: Owner,
        ranking: Ranking,
        preference: Preference | None = None,
    ) -> None:
        self.request = request
        self.owner = owner
        self._ledger = ledger
        self._ranking = ranking
        self._preference = preference
        self._answers: dict[str, tuple[int, Answer]] = {}
        """Node name -> (stamp of its books, its answer then)."""
        self._keys: dict[str, tuple[int, RankKey]] = {}
        """Node name -> (stamp of its books, its rank key then), for nodes that were ranked."""

    def answer(self, node: str) -> Answer:
        """Where the request goes on a node, or why it does not. Raises KeyError if unknown."""
        stamp = self._ledger.stamp(node)
        kept = self._answers.get(node)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        answer = place(self._ledger.books(node), self.request, self.owner, self._preference)
        self._answers[node] = (stamp, answer)
        return answer

    def rank(self, node: str) -> RankKey | None:
        """The node's rank key, or None where the request does not fit."""
        answer = self.answer(node)
        if not isinstance(answer, Placement):
            return None
        stamp = self._ledger.stamp(node)
        kept = self._keys.get(node)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        key = self._ranking(self._ledger.books(node), self.request, answer)
        self._keys[node] = (stamp, key)
        return key


class Contest:
    """The best node for one question, of those that `admits` lets in.

    `admits` may look at anything that changes only together with the node's books.
    """

    def __init__(self, survey: Survey, ledger: Ledger, admits: Callable[[NodeBooks], bool]) -> None:
        self._survey = survey
        self._ledger = ledger
        self._admits = admits
        self._seen = -1
        self._current: dict[str, RankKey] = {}
        """Node name -> its valid rank key, for nodes that fit."""
        self._heap: list[tuple[RankKey, str]] = []
        """May hold outdated entries; one is valid if `_current` says the same."""

    def best(self, skip: Collection[str] = ()) -> tuple[str, Placement] | None:
        """The best node and where the request goes on it; the first by name among equals.

        skip   nodes that are passed over this time; each costs a step
        """
        self._catch_up()
        passed: set[tuple[RankKey, str]] = set()
        best: tuple[str, Placement] | None = None
        while self._heap:
            key, name = self._heap[0]
            if self._current.get(name) == key:
                if name not in skip:
                    answer = self._survey.answer(name)
                    assert isinstance(answer, Placement)
                    best = name, answer
                    break
                passed.add((key, name))
            heapq.heappop(self._heap)
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return best

    def _catch_up(self) -> None:
        if self._seen < 0:
            changed = list(self._ledger)
        else:
            changed = list(self._ledger.changed_since(self._seen))
        self._seen = self._ledger.generation
        for name in changed:
            self._refresh(name)
        if len(self._heap) > 2 * len(self._current) + 64:
            self._heap = [(key, name) for name, key in self._current.items()]
            heapq.heapify(self._heap)

    def _refresh(self, name: str) -> None:
        books = self._ledger.get_books(name)
        key = self._survey.rank(name) if books is not None and self._admits(books) else None
        if key is None:
            self._current.pop(name, None)
        elif self._current.get(name) != key:
            self._current[name] = key
            heapq.heappush(self._heap, (key, name))
