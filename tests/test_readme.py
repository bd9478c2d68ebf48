"""What the README shows is what the commands print."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def simulate(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gpushare", "simulate", "-o", "json", *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("policy", ["spread", "binpack"])
def test_the_table_is_what_simulate_prints(policy: str) -> None:
    row = re.search(rf"^\| `{policy}` \|(.*)\|$", README, re.MULTILINE)
    assert row is not None
    *cells, blast = (cell.strip() for cell in row[1].split("|"))
    node = f"examples/mnist-{policy}/node.yaml"
    (shown,) = simulate(node, "examples/mnist-spread/job.yaml")["nodes"]
    amounts = [f"{gpu['allocated']}/{gpu['total']}" for gpu in shown["gpus"]]
    assert cells == [*amounts, f"{shown['allocated']}/{shown['total']}"]
    most = max(len(gpu["pods"]) for gpu in shown["gpus"])
    assert blast == {1: "1 of the Job's 3 pods", 3: "all 3"}[most]


def test_the_job_shown_is_the_example_in_its_relevant_lines() -> None:
    block = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert block is not None
    shown = yaml.safe_load(block[1])
    real = yaml.safe_load((ROOT / "examples/mnist-spread/job.yaml").read_text())
    assert_within(shown, real)


def assert_within(part: Any, whole: Any) -> None:
    """Everything in `part` stands in `whole` too."""
    if isinstance(part, dict):
        for key, value in part.items():
            assert_within(value, whole[key])
    elif isinstance(part, list):
        for mine, theirs in zip(part, whole, strict=True):
            assert_within(mine, theirs)
    else:
        assert part == whole
