"""`--compare binpack,spread`: the same input under several policies.

Each policy runs twice: **new**, pods on a node stay and only the others are placed; **all**,
everything is placed afresh, as if the cluster had always been run so. Per run:

allocated          units held
unscheduled        pods without a place
largest_placeable  the largest request, for one GPU, that an uncordoned node could still take
blast radius       what one failing GPU takes down, at worst: the most pods on a GPU, and the
                   largest share of one owner's pods on a GPU. Owners with a single pod lose all of
                   it wherever it is, so they count only if there is no other.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gpushare.model.gpus import NodeBooks
from gpushare.model.ledger import Ledger
from gpushare.model.owner import Owner
from gpushare.model.request import ContainerAsk, compile_request
from gpushare.policy.fit import why_not
from gpushare.simulate.engine import Heard, Outcome, run
from gpushare.simulate.scene import Scene


class Row(msgspec.Struct, frozen=True):
    """One policy in one scope."""

    gpu_policy: str
    scope: str
    """"new" or "all"."""
    allocated: int
    unscheduled: int
    largest_placeable: int
    blast_pods: int
    blast_owner_share: float
    """From 0 to 1, four digits."""


class Comparison(msgspec.Struct, frozen=True):
    """The JSON of `--compare`, field for field."""

    compare: list[Row]
    version: int = 1


def compare(
    scene: Scene, policies: Sequence[str], node_ranking: str, heard: Heard | None = None
) -> Iterator[tuple[Row, Outcome]]:
    """A row per policy and scope, with its outcome."""
    for policy in policies:
        under = scene.with_policy(policy)
        for scope, variant in (("new", under), ("all", under.afresh())):
            outcome = run(variant, node_ranking=node_ranking, heard=heard)
            yield _row(policy, scope, outcome), outcome


def _row(policy: str, scope: str, outcome: Outcome) -> Row:
    books = [outcome.ledger.books(name) for name in outcome.shown]
    return Row(
        gpu_policy=policy,
        scope=scope,
        allocated=sum(b.used + b.pending for b in books),
        unscheduled=len(outcome.refused),
        largest_placeable=largest_placeable(outcome),
        blast_pods=max((gpu.pods for b in books for gpu in b.gpus), default=0),
        blast_owner_share=owner_share(outcome.ledger, books),
    )


def largest_placeable(outcome: Outcome) -> int:
    """Units of the largest request for one GPU that still has a place on an uncordoned node."""
    best = 0
    for name, scene_node in outcome.scene.nodes.items():
        if scene_node.face.unschedulable:
            continue
        books = outcome.ledger.books(name)
        units = books.largest_free
        if books.node.advertised is not None:
            units = min(units, books.node.advertised - books.used - books.pending)
        if units > best:
            request = compile_request([ContainerAsk(0, units)])
            assert request is not None
            if why_not(books, request) is None:
                best = units
    return best


def owner_share(ledger: Ledger, books: Iterable[NodeBooks]) -> float:
    """The largest share of one owner's pods that stands on one GPU."""
    on_one: dict[Owner, int] = {}
    for node in books:
        for gpu in node.gpus:
            for owner, count in gpu.owners.items():
                on_one[owner] = max(on_one.get(owner, 0), count)
    totals = {owner: sum(ledger.nodes_of(owner).values()) for owner in on_one}
    several = [owner for owner in on_one if totals[owner] > 1]
    shares = [on_one[owner] / totals[owner] for owner in several or on_one]
    return round(max(shares, default=0.0), 4)
