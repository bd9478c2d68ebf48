"""The run: pods that wait are placed one by one, on the best node for each.

In the order of priority, then of the input. For each pod: of the nodes that its constraints allow
and that have the CPU, memory and other resources it asks for, the best by the node ranking,
computed with each node's own GPU policy; the first by name among equals (a scheduler takes any of
them). What it gets is charged before the next one is looked at. Nobody is moved or preempted.

Same input, same outcome. `simulate` is the whole way from plain manifests, without files.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.contract.units import Unit
from gpushare.model.gpus import Assignment
from gpushare.model.holding import Placement
from gpushare.model.ledger import Ledger, PodRecord
from gpushare.policy.rank import DEFAULT_NODE_RANKING, NODE_RANKINGS
from gpushare.simulate.chooser import Chooser
from gpushare.simulate.hosts import Hosts
from gpushare.simulate.intake import gather
from gpushare.simulate.refusals import Refusals, Why, unit_of
from gpushare.simulate.scene import Scene, Waiting
from gpushare.simulate.source import Document
from gpushare.simulate.staging import Options, stage

Heard = Callable[[int, int], None]
"""Told after a pod: pods done, pods in all."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod that found a place."""

    pod: Waiting
    node: str
    placement: Placement

    @property
    def held(self) -> dict[int, int]:
        """GPU index -> units the pod holds there."""
        assert self.pod.request is not None
        return {gpu: units for gpu, (units, _) in self.placement.held(self.pod.request).items()}


@dataclass(frozen=True, slots=True)
class Refused:
    """A pod that found none."""

    pod: Waiting
    why: Why


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    scene: Scene
    ledger: Ledger
    unit: Unit
    shown: Sequence[str]
    """The nodes that belong into the table."""
    placed: Sequence[Placed]
    refused: Sequence[Refused]

    def place_of(self, name: str, namespace: str = "default") -> Placed | Refused | None:
        """What became of a pod that waited; None if there was none of this name."""
        entries: tuple[Placed | Refused, ...] = (*self.placed, *self.refused)
        for entry in entries:
            if (entry.pod.namespace, entry.pod.name) == (namespace, name):
                return entry
        return None


def run(
    scene: Scene, *, node_ranking: str = DEFAULT_NODE_RANKING, heard: Heard | None = None
) -> Outcome:
    """Place every pod of the scene that waits. Raises KeyError for an unknown ranking."""
    ledger = scene.ledger()
    hosts = Hosts({name: node.room for name, node in scene.nodes.items()})
    for standing in scene.standing:
        hosts.take(standing.node, standing.ask)
    chooser = Chooser(scene, ledger, hosts, NODE_RANKINGS[node_ranking])
    refusals = Refusals(scene, ledger, hosts)
    placed: list[Placed] = []
    refused: list[Refused] = []
    queue = scene.queue()
    for done, pod in enumerate(queue, 1):
        found = chooser.best(pod) if pod.unfit is None else None
        if found is None:
            refused.append(Refused(pod, refusals.why(pod)))
        else:
            node, placement = found
            ledger.put_pod(_record(pod, node, placement))
            hosts.take(node, pod.ask)
            placed.append(Placed(pod, node, placement))
        if heard is not None:
            heard(done, len(queue))
    shown = scene.shown(ledger)
    return Outcome(scene, ledger, unit_of(scene, ledger, shown), shown, placed, refused)


def _record(pod: Waiting, node: str, placement: Placement) -> PodRecord:
    assert pod.request is not None
    return PodRecord(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        node=node,
        owner=pod.owner,
        request=pod.request,
        assignment=Assignment(
            placement.allocation(pod.request, init=False),
            placement.allocation(pod.request, init=True),
        ),
    )


def simulate(
    manifests: Iterable[Mapping[str, Any]],
    *,
    node_ranking: str = DEFAULT_NODE_RANKING,
    options: Options | None = None,
) -> Outcome:
    """Where the pods of `manifests` (API objects as plain dicts, nodes among them) would go.

    Raises InputError for objects that cannot be used.
    """
    documents = [
        Document("manifests", number, manifest, b"") for number, manifest in enumerate(manifests, 1)
    ]
    scene = stage(gather(documents), options or Options())
    return run(scene, node_ranking=node_ranking)
