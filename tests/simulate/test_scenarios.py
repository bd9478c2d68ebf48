"""Every scenario, through the whole way from manifests to an outcome."""

from __future__ import annotations

import pytest

from gpushare.simulate.engine import Placed, Refused, simulate
from tests.scenario import Scenario, load

SCENARIOS = load()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.key for s in SCENARIOS])
def test_scenario(scenario: Scenario) -> None:
    manifests = [*scenario.node_manifests(), *scenario.standing_pods(), *scenario.new_pods()]
    outcome = simulate(manifests, node_ranking=scenario.node_ranking)
    found: dict[str, dict[str, dict[int, int]] | str] = {}
    for name in scenario.expect:
        entry = outcome.place_of(name)
        assert isinstance(entry, Placed | Refused)
        found[name] = {entry.node: entry.held} if isinstance(entry, Placed) else entry.why.reason
    assert found == scenario.expect
    shape = {n: sorted(g.used for g in outcome.ledger.books(n).gpus) for n in scenario.shape}
    assert shape == {n: sorted(used) for n, used in scenario.shape.items()}
