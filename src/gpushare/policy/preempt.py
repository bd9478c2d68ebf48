"""Whether an eviction would help.

kube-scheduler chooses victims by the node's sum: it may evict pods whose leaving frees no GPU for
the pod that waits, and then does so again. A node where that is so is no candidate.
"""

from collections.abc import Iterable

from gpushare.model.gpus import Holding, NodeBooks
from gpushare.model.request import Request
from gpushare.policy.fit import why_not


def helps(books: NodeBooks, request: Request, victims: Iterable[Holding]) -> bool:
    """Whether `request` fits on the node once `victims`, which hold something there, have left."""
    for holding in victims:
        books = books.release(holding)
    return why_not(books, request) is None
