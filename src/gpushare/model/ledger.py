"""What every pod holds, keyed by pod UID.

The ledger takes facts in any order, nodes before pods or after, and the same facts twice; it always
equals one built afresh from the facts that stand. A pod holds its units from the moment it is on a
node until it has Succeeded or Failed or its object is gone, a terminating one included. A
correction of its node stands above that: until the plugin takes it back, the pod's device ids may
be somebody else's, so it is charged for a pod that has ended as for one that is gone.

Every change of a node's books advances `generation` and stamps the node with it, so that whoever
keeps answers about nodes knows which to renew (`changed_since`). A fact that changes nothing on the
books (most updates of a pod) advances nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpushare.model.gpus import Assignment, Holding, Node, NodeBooks
from gpushare.model.holding import holding_of, holding_of_gone
from gpushare.model.owner import Owner
from gpushare.model.request import Request


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod that is on a node and asks for GPU memory."""

    uid: str
    namespace: str
    name: str
    node: str
    owner: Owner
    request: Request
    assignment: Assignment | None = None
    """Where its annotations say it is; None where they say nothing that can be read."""
    finished: bool = False
    """Succeeded or Failed: the object is there, but holds nothing unless a correction stands."""
    unprotected: str | None = None
    """Why it runs without its memory limit, if it does."""
    attested: bool = False
    """The kubelet has given it its GPUs, and the node's plugin has seen which."""


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod on the books of a node, and what it holds there. `record` is None for a pod that is
    gone but still charged (a correction of its node names it)."""

    uid: str
    record: PodRecord | None
    holding: Holding


class Ledger:
    """The books of every node. Not thread-safe; holds no clock and does no I/O."""

    def __init__(self) -> None:
        self._books: dict[str, NodeBooks] = {}
        """Node name -> its books."""
        self._pods: dict[str, PodRecord] = {}
        """Pod UID -> the pod."""
        self._on_node: dict[str, dict[str, Holding]] = {}
        """Node name -> pod UID -> what it holds there; for known nodes only."""
        self._uids_of: dict[str, dict[str, None]] = {}
        """Node name -> UIDs of the pods on it, in order of arrival; unknown nodes too."""
        self._stamps: dict[str, int] = {}
        """Node name -> generation of its last change, oldest change first."""
        self._nodes_of: dict[Owner, dict[str, int]] = {}
        """Owner -> node name -> how many of its pods are on the node's books."""
        self.generation = 0

    # -- facts ------------------------------------------------------------------------------------

    def put_node(self, node: Node) -> bool:
        """A node is, or has changed to, `node`. True if that changed anything."""
        books = self._books.get(node.name)
        if books is not None and books.node == node:
            return False
        self._rebuild(node)
        return True

    def remove_node(self, name: str) -> bool:
        """A node is gone. Pods on it stay known, should it come back. True if it was there."""
        if self._books.pop(name, None) is None:
            return False
        for holding in self._on_node.pop(name).values():
            self._count(holding.owner, name, -1)
        self._stamp(name)
        return True

    def put_pod(self, pod: PodRecord) -> bool:
        """A pod is on a node, or has changed there. True if that changed any books."""
        old = self._pods.get(pod.uid)
        if old == pod:
            return False
        if old is not None and old.node != pod.node:
            self.remove_pod(pod.uid)
        self._pods[pod.uid] = pod
        self._uids_of.setdefault(pod.node, {})[pod.uid] = None
        return self._recharge(pod.node, pod.uid)

    def remove_pod(self, uid: str) -> bool:
        """A pod's object is gone. True if that changed any books."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return False
        uids = self._uids_of[pod.node]
        del uids[uid]
        if not uids:
            del self._uids_of[pod.node]
        return self._recharge(pod.node, uid)

    def recount(self, name: str) -> int:
        """Check a node's books against the facts, and mend them: units by which they were wrong.

        Always 0 unless the bookkeeping has a fault. Raises KeyError for an unknown node.
        """
        books = self._books[name]
        fresh = NodeBooks.of(books.node, self._holdings(books.node).values())
        if fresh == books:
            return 0
        self._rebuild(books.node)
        gpus = zip(books.gpus, fresh.gpus, strict=True)
        wrong = sum(abs(old.used - new.used) for old, new in gpus)
        return max(1, wrong + abs(books.pending - fresh.pending))

    # -- questions --------------------------------------------------------------------------------

    def __contains__(self, node: str) -> bool:
        return node in self._books

    def __iter__(self) -> Iterator[str]:
        """Names of the nodes, in no order that means anything."""
        return iter(self._books)

    def __len__(self) -> int:
        return len(self._books)

    def books(self, node: str) -> NodeBooks:
        """The books of a node. Raises KeyError for one that is not known."""
        return self._books[node]

    def get_books(self, node: str) -> NodeBooks | None:
        return self._books.get(node)

    def pod(self, uid: str) -> PodRecord | None:
        return self._pods.get(uid)

    @property
    def pods(self) -> Mapping[str, PodRecord]:
        """Pod UID -> pod, finished ones included."""
        return self._pods

    def pods_on(self, node: str) -> list[HeldPod]:
        """The pods on a node's books, in order of arrival; those gone but still charged last."""
        return [
            HeldPod(uid, self._pods.get(uid), holding)
            for uid, holding in self._on_node.get(node, {}).items()
        ]

    def holding(self, uid: str) -> Holding | None:
        """What a pod holds; None if it holds nothing."""
        pod = self._pods.get(uid)
        return self._on_node.get(pod.node, {}).get(uid) if pod is not None else None

    def nodes_of(self, owner: Owner) -> Mapping[str, int]:
        """Node name -> how many pods of `owner` hold something there."""
        return self._nodes_of.get(owner, {})

    def pods_without_node(self) -> list[PodRecord]:
        """Unfinished pods that stand on a node nobody has told of."""
        return [
            pod for pod in self._pods.values() if not pod.finished and pod.node not in self._books
        ]

    def stamp(self, node: str) -> int:
        """The generation in which a node's books last changed; 0 if it was never known."""
        return self._stamps.get(node, 0)

    def changed_since(self, generation: int) -> Iterator[str]:
        """Nodes whose books changed after `generation`, latest first; removed ones too."""
        for name in reversed(self._stamps):
            if self._stamps[name] <= generation:
                return
            yield name

    # -- bookkeeping ------------------------------------------------------------------------------

    def _stamp(self, name: str) -> None:
        self.generation += 1
        self._stamps.pop(name, None)
        self._stamps[name] = self.generation

    def _count(self, owner: Owner, name: str, change: int) -> None:
        counts = self._nodes_of.setdefault(owner, {})
        counts[name] = counts.get(name, 0) + change
        if not counts[name]:
            del counts[name]
            if not counts:
                del self._nodes_of[owner]

    def _holding(self, node: Node, uid: str) -> Holding | None:
        pod = self._pods.get(uid)
        correction = node.corrections.get(uid)
        if pod is None or pod.node != node.name:
            if correction is None or pod is not None:
                return None
            return holding_of_gone(correction, Owner("", "Pod", uid), node)
        if pod.finished:
            return holding_of_gone(correction, pod.owner, node) if correction is not None else None
        return holding_of(pod.request, pod.owner, pod.assignment, correction, node)

    def _recharge(self, name: str, uid: str) -> bool:
        books = self._books.get(name)
        if books is None:
            return False
        on_node = self._on_node[name]
        old, new = on_node.get(uid), self._holding(books.node, uid)
        if old == new:
            return False
        if old is not None:
            books = books.release(old)
            del on_node[uid]
            self._count(old.owner, name, -1)
        if new is not None:
            books = books.charge(new)
            on_node[uid] = new
            self._count(new.owner, name, 1)
        self._books[name] = books
        self._stamp(name)
        return True

    def _holdings(self, node: Node) -> dict[str, Holding]:
        """Pod UID -> what it holds on the node, from the facts alone.

        Pods with the same request and the very same assignment hold the same: found once for all.
        """
        on_node: dict[str, Holding] = {}
        same: dict[tuple[Request, int], Holding] = {}
        for uid in (*self._uids_of.get(node.name, ()), *node.corrections):
            if uid in on_node:
                continue
            pod = self._pods.get(uid)
            if pod is None or pod.finished or uid in node.corrections:
                holding = self._holding(node, uid)
            else:
                like = (pod.request, id(pod.assignment))
                found = same.get(like)
                if found is None:
                    found = holding_of(pod.request, pod.owner, pod.assignment, None, node)
                    same[like] = found
                holding = Holding(pod.owner, found.gpus, found.pending, found.core)
            if holding is not None:
                on_node[uid] = holding
        return on_node

    def _rebuild(self, node: Node) -> None:
        for held in self._on_node.get(node.name, {}).values():
            self._count(held.owner, node.name, -1)
        on_node = self._holdings(node)
        for held in on_node.values():
            self._count(held.owner, node.name, 1)
        self._books[node.name] = NodeBooks.of(node, on_node.values())
        self._on_node[node.name] = on_node
        self._stamp(node.name)
