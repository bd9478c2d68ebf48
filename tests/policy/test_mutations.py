"""Each invariant test fails on one mutated line of the core: none of them is a decoration.

The mutated line stands in a copy of the package; the named test runs on that copy and must fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MUTATIONS = {
    # the invariant test -> (file, line as it is, line as it must not be)
    "test_no_gpu_is_above_its_units": (
        "policy/fit.py",
        "if part <= gpu.gpu.units - gpu.used - reserved and (not core or core <= gpu.core_free)",
        "if part <= gpu.gpu.units and (not core or core <= gpu.core_free)",
    ),
    "test_units_held_are_the_sum_over_pods": (
        "model/holding.py",
        "held[gpu] = (units + chunk.units // len(gpus), core + chunk.core)",
        "held[gpu] = (chunk.units // len(gpus), core + chunk.core)",
    ),
    "test_release_restores_the_state_exactly": (
        "model/gpus.py",
        "self.pending + sign * holding.pending,",
        "self.pending + holding.pending,",
    ),
    "test_the_order_of_events_does_not_matter_and_a_rebuilt_ledger_equals_the_live_one": (
        "model/ledger.py",
        "for uid in (*self._uids_of.get(node.name, ()), *node.corrections):",
        "for uid in node.corrections:",
    ),
    "test_the_same_input_gives_the_same_placement_and_the_best_node_is_the_best_of_all": (
        "policy/survey.py",
        "changed = list(self._ledger.changed_since(self._seen))",
        "changed = list(self._ledger.changed_since(self._seen + 1))",
    ),
    "test_a_pod_holds_kubernetes_effective_request": (
        "model/request.py",
        "pool_units = max(pool_units, ask.units)",
        "pool_units = ask.units",
    ),
    "test_no_container_straddles_gpus_when_the_kubelet_reuses_init_ids": (
        "model/request.py",
        "if pool_units or pool_core:",
        "if pool_units > ask.units:",
    ),
    "test_a_split_is_found_whenever_there_is_one": (
        "policy/fit.py",
        "for gpu in sorted(gpus, key=lambda gpu: self._preference(gpu, self._owner)):",
        "for gpu in sorted(gpus, key=lambda gpu: self._preference(gpu, self._owner))[:1]:",
    ),
    "test_a_decision_survives_its_annotations": (
        "model/holding.py",
        "ask.index: {gpu: ask.units // len(gpus) for gpu in gpus}",
        "ask.index: {gpus[0]: ask.units}",
    ),
    "test_a_pod_of_unknown_gpu_is_never_overcommitted_against": (
        "policy/fit.py",
        "reserved = books.pending",
        "reserved = 0",
    ),
    "test_a_refusal_says_the_largest_free_amount": (
        "model/gpus.py",
        "return max(0, gpu.gpu.units - gpu.used - self.pending)",
        "return gpu.gpu.units",
    ),
}


@pytest.mark.parametrize("invariant", MUTATIONS)
def test_the_invariant_fails_on_a_mutated_line(invariant: str, tmp_path: Path) -> None:
    file, line, mutated = MUTATIONS[invariant]
    package = tmp_path / "gpushare"
    shutil.copytree(ROOT / "src/gpushare", package, ignore=shutil.ignore_patterns("__pycache__"))
    source = (package / file).read_text()
    assert source.count(line) == 1, f"{file}: the line to mutate is not there once: {line}"
    (package / file).write_text(source.replace(line, mutated))
    test = f"tests/policy/test_invariants.py::{invariant}"
    plugins = ["-p", "no:cacheprovider", "-p", "no:gpushare_testcluster"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", *plugins, test],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_PROFILE": "mutation",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, f"the invariant held on the mutated core:\n{run.stdout[-2000:]}"
    assert "1 failed" in run.stdout
