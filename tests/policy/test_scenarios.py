"""Every scenario, on the placement core alone."""

from __future__ import annotations

import msgspec
import pytest

from gpushare.contract.names import Reason
from gpushare.kube import objects
from gpushare.kube.reading import read_bound_pod, read_node, read_owner, read_request
from gpushare.model.gpus import Assignment
from gpushare.model.holding import Placement
from gpushare.model.ledger import Ledger, PodRecord
from gpushare.policy import GPU_POLICIES
from gpushare.policy.fit import Refusal
from gpushare.policy.rank import NODE_RANKINGS
from gpushare.policy.survey import Contest, Survey
from tests.scenario import Scenario, load

SCENARIOS = load()
FURTHEST = [
    Reason.NOT_SHARING,
    Reason.NOT_READY,
    Reason.MODE_MIX,
    Reason.NODE_FULL,
    Reason.GPU_COUNT,
    Reason.INIT_STRADDLE,
    Reason.NO_GPU_FITS,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.key for s in SCENARIOS])
def test_scenario(scenario: Scenario) -> None:
    ledger = Ledger()
    for manifest in scenario.node_manifests():
        node = msgspec.convert(manifest, objects.Node)
        ledger.put_node(read_node(node, GPU_POLICIES).node)
    for manifest in scenario.standing_pods():
        record, error = read_bound_pod(msgspec.convert(manifest, objects.Pod))
        assert error is None
        assert record is not None
        ledger.put_pod(record)
    placed = {}
    for manifest in scenario.new_pods():
        pod = msgspec.convert(manifest, objects.Pod)
        placed[pod.metadata.name] = arrive(ledger, pod, scenario.node_ranking)
    if scenario.burst:
        shape = {
            name: sorted(gpu.used for gpu in ledger.books(name).gpus) for name in scenario.shape
        }
        assert shape == {name: sorted(used) for name, used in scenario.shape.items()}
    else:
        assert placed == scenario.expect


def arrive(ledger: Ledger, pod: objects.Pod, ranking: str) -> dict[str, dict[int, int]] | str:
    """Places one pod; where it went, or the reason of the node that came furthest."""
    request, owner = read_request(pod), read_owner(pod.metadata)
    assert request is not None
    survey = Survey(ledger, request, owner, NODE_RANKINGS[ranking])
    best = Contest(survey, ledger, lambda books: True).best()
    if best is None:
        refusals = [answer for name in ledger if isinstance(answer := survey.answer(name), Refusal)]
        return str(max((r.reason for r in refusals), key=FURTHEST.index))
    node, placement = best
    ledger.put_pod(record_of(pod, node, placement))
    return {node: {gpu: units for gpu, (units, _) in placement.held(request).items()}}


def record_of(pod: objects.Pod, node: str, placement: Placement) -> PodRecord:
    request = read_request(pod)
    assert request is not None
    return PodRecord(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=node,
        owner=read_owner(pod.metadata),
        request=request,
        assignment=Assignment(
            placement.allocation(request, init=False), placement.allocation(request, init=True)
        ),
    )
