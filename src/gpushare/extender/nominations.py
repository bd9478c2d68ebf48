"""Which room is promised to pods that are not there yet: nominations, by node.

Fed with what the watch says of waiting pods, and with our own nominations at once. A pod that has
come onto the books (bound, or reserved for a bind in flight) is no promise any more.
"""

from collections.abc import Callable, Iterable, Mapping

from gpushare.extender.waiting import WaitingPod
from gpushare.model.gpus import Holding, NodeBooks
from gpushare.model.ledger import Ledger
from gpushare.policy.promises import Asker, Promise, counted, with_promises


class Nominations:
    """Promises by node. `leaving` says what terminating pods hold on a node."""

    def __init__(self, ledger: Ledger, leaving: Callable[[str], Iterable[Holding]]) -> None:
        self._ledger = ledger
        self._leaving = leaving
        self._node_of: dict[str, str] = {}
        """Pod UID -> the node it is nominated to."""
        self._on: dict[str, dict[str, Promise]] = {}
        """Node name -> pod UID -> its promise."""
        self._count = 0

    @property
    def nodes(self) -> Mapping[str, object]:
        """The nodes that have promises, as keys."""
        return self._on

    def node_of(self, uid: str) -> str | None:
        return self._node_of.get(uid)

    def put(self, pod: WaitingPod, node: str | None) -> None:
        """The pod is nominated to `node`, or to none."""
        old = self._node_of.get(pod.uid)
        if node is None or pod.request is None:
            self.remove(pod.uid)
            return
        since = self._on[node][pod.uid].since if old == node else self._next()
        promise = Promise(pod.uid, pod.request, pod.owner, pod.priority, since)
        if old != node:
            self.remove(pod.uid)
            self._node_of[pod.uid] = node
        self._on.setdefault(node, {})[pod.uid] = promise

    def remove(self, uid: str) -> None:
        """The pod is bound, gone, or not nominated any more."""
        node = self._node_of.pop(uid, None)
        if node is not None:
            del self._on[node][uid]
            if not self._on[node]:
                del self._on[node]

    def books(self, node: str, asker: Asker) -> NodeBooks | None:
        """A node's books as `asker` may use them; None for a node that is not known."""
        books = self._ledger.get_books(node)
        promises = self._on.get(node)
        if books is None or not promises:
            return books
        open_promises = [p for p in promises.values() if self._ledger.pod(p.uid) is None]
        return with_promises(books, counted(open_promises, asker), self._leaving(node))

    def _next(self) -> int:
        self._count += 1
        return self._count
