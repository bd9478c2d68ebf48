"""Which node of those that fit: a cluster-wide setting, apart from each node's GPU policy.

binpack (default)  the node that keeps the least free on the GPU the pod would get, then the one
                   that is used most: large gaps stay large
spread             the opposite

kube-scheduler takes whole scores from 0 to 10 from an extender, too coarse for a formula, so a
score is a rank among the candidates: 10 for the best, 9 for the next, and so on. Nodes of equal
value share a rank.
"""

from collections.abc import Callable, Mapping
from typing import Final

from gpushare.model.gpus import NodeBooks
from gpushare.model.holding import Placement
from gpushare.model.request import Request

RankKey = tuple[int, int]
"""Orders nodes: the smallest is the best."""

Ranking = Callable[[NodeBooks, Request, Placement], RankKey]

MAX_SCORE: Final = 10
"""kube-scheduler's MaxExtenderPriority."""


def binpack(books: NodeBooks, request: Request, placement: Placement) -> RankKey:
    """(units left on the GPUs it would get, permille of the node's units not in use)."""
    return _left_over(books, request, placement), 1000 - _permille_used(books)


def spread(books: NodeBooks, request: Request, placement: Placement) -> RankKey:
    """The reverse of binpack: most left first, then the least used node."""
    return -_left_over(books, request, placement), _permille_used(books)


NODE_RANKINGS: Final[Mapping[str, Ranking]] = {"binpack": binpack, "spread": spread}
DEFAULT_NODE_RANKING: Final = "binpack"


def scores(keys: Mapping[str, RankKey]) -> dict[str, int]:
    """Node -> score from 0 to 10, by rank of its key."""
    distinct = sorted(set(keys.values()))
    score = {key: max(0, MAX_SCORE - rank) for rank, key in enumerate(distinct)}
    return {node: score[key] for node, key in keys.items()}


def _left_over(books: NodeBooks, request: Request, placement: Placement) -> int:
    gpus = placement.gpus
    if len(set(gpus)) == 1:  # all chunks together: the usual case, without building a map
        share = request.units // len(gpus[0])
        return sum(gpu.free - share for gpu in books.gpus if gpu.gpu.index in gpus[0])
    held = placement.held(request)
    return sum(gpu.free - held[gpu.gpu.index][0] for gpu in books.gpus if gpu.gpu.index in held)


def _permille_used(books: NodeBooks) -> int:
    units = books.node.units
    return (books.used + books.pending) * 1000 // units if units else 0
