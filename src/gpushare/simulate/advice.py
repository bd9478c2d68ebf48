"""What a user should know beyond the table: notes on stderr, `warnings` in the JSON.

First what the reading of the input brought up, then where displaced pods went, then the notes on
nodes that inspect gives too (view.notes), then what only a simulation can say.
"""

from collections.abc import Iterator, Sequence

from gpushare.contract import names
from gpushare.model.ledger import Ledger
from gpushare.simulate.engine import Outcome, Placed
from gpushare.simulate.scene import SceneNode
from gpushare.view.notes import notes

NAMED = 5


def advice(outcome: Outcome) -> list[str]:
    """All notes on a run."""
    scene, ledger = outcome.scene, outcome.ledger
    return [
        *scene.warnings,
        *_moves(outcome),
        *notes(scene.cluster(ledger), outcome.shown, outcome.unit),
        *_unready(list(scene.nodes.values()), outcome.shown),
        *_problems_of_hidden(outcome),
        *_lone_spread(outcome),
        *_offered_twice(outcome),
        *_preemption(outcome, ledger),
    ]


def _moves(outcome: Outcome) -> Iterator[str]:
    for placed in outcome.placed:
        if placed.pod.displaced_from is not None:
            yield (
                f"pod {placed.pod.namespace}/{placed.pod.name}, displaced from "
                f"{placed.pod.displaced_from}, goes to {placed.node}, {_gpus(placed)}"
            )
    for refused in outcome.refused:
        if refused.pod.displaced_from is not None:
            yield (
                f"pod {refused.pod.namespace}/{refused.pod.name}, displaced from "
                f"{refused.pod.displaced_from}, finds no place"
            )


def _gpus(placed: Placed) -> str:
    held = sorted(placed.held)
    return f"{'GPU' if len(held) == 1 else 'GPUs'} {', '.join(map(str, held))}"


def _unready(nodes: Sequence[SceneNode], shown: Sequence[str]) -> Iterator[str]:
    """Nodes labelled as sharing that offer nothing, and so are in no table."""
    unready = sorted(
        n.node.name
        for n in nodes
        if n.node.mode.shares_memory and not n.node.gpus and n.node.name not in set(shown)
    )
    if unready:
        yield (
            f"{_first(unready)} {'is' if len(unready) == 1 else 'are'} labelled as sharing, but "
            f"{'offers' if len(unready) == 1 else 'offer'} no {names.RESOURCE_MEM}: no device "
            "plugin runs there. --share takes a node's GPUs from its labels instead"
        )


def _problems_of_hidden(outcome: Outcome) -> Iterator[str]:
    """A typo in the label of a node is the reason why it is in no table."""
    shown = set(outcome.shown)
    for name, problems in sorted(outcome.scene.node_problems.items()):
        if name in outcome.scene.nodes and name not in shown:
            for problem in problems:
                yield f"node {name}: {problem.message}"


def _lone_spread(outcome: Outcome) -> Iterator[str]:
    lone = [
        name
        for name in outcome.shown
        if len(outcome.scene.nodes[name].node.gpus) == 1
        and outcome.scene.nodes[name].node.placement == "spread"
    ]
    if lone:
        yield (
            f"{_first(lone)} {'has' if len(lone) == 1 else 'have'} one GPU: spread chooses among "
            "the GPUs of a node, so it has no effect there"
        )


def _offered_twice(outcome: Outcome) -> Iterator[str]:
    """Whole GPUs offered beside their memory: two schedulings of the same GPUs."""
    twice = [
        name
        for name in outcome.shown
        if outcome.scene.nodes[name].room.get(names.RESOURCE_WHOLE_GPU)
        and not outcome.scene.nodes[name].given
        and outcome.scene.nodes[name].node.mode.shares_memory
    ]
    if twice:
        yield (
            f"{_first(twice)} {'offers' if len(twice) == 1 else 'offer'} "
            f"{names.RESOURCE_WHOLE_GPU} beside {names.RESOURCE_MEM}: the same GPUs are "
            "given out twice; keep NVIDIA's device plugin off sharing nodes"
        )


def _preemption(outcome: Outcome, ledger: Ledger) -> Iterator[str]:
    """Pods without a place that a cluster might make room for."""
    holding = [placed.pod.priority for placed in outcome.placed]
    holding += [s.again.priority for s in outcome.scene.standing if s.record and s.again]
    if not holding:
        return
    lowest = min(holding)
    count = sum(r.pod.priority > lowest and r.pod.unfit is None for r in outcome.refused)
    if count:
        yield (
            f"not modelled: preemption; {count} {'pod' if count == 1 else 'pods'} without a place "
            f"{'has' if count == 1 else 'have'} a higher priority than some that hold GPU memory"
        )


def _first(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
    return f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(nodes[:NAMED])}{more}"
