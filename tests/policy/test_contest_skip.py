"""A contest may pass nodes over, and forgets nothing of them."""

from __future__ import annotations

from gpushare.model.gpus import Gpu, Node
from gpushare.model.holding import Placement
from gpushare.model.ledger import Ledger
from gpushare.model.request import ContainerAsk, compile_request
from gpushare.policy.fit import NOBODY
from gpushare.policy.rank import binpack
from gpushare.policy.survey import Contest, Survey


def test_nodes_that_are_passed_over_are_back_the_next_time() -> None:
    ledger = Ledger()
    for name, units in (("a", 10), ("b", 11), ("c", 12)):
        ledger.put_node(Node(name, gpus=(Gpu(0, units),)))
    request = compile_request([ContainerAsk(0, 4)])
    assert request is not None
    contest = Contest(Survey(ledger, request, NOBODY, binpack), ledger, lambda books: True)
    placement = Placement(((0,),))
    assert contest.best() == ("a", placement)
    assert contest.best(skip={"a"}) == ("b", placement)
    assert contest.best(skip={"a", "b"}) == ("c", placement)
    assert contest.best(skip={"a", "b", "c"}) is None
    assert contest.best() == ("a", placement)
