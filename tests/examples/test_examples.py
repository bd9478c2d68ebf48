"""The examples show what they say, in the README beside them and in the demo."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from gpushare.simulate.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def table(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[list[str]]:
    """The rows of the table, as words; the cluster's sum last."""
    assert main(list(arguments)) == status
    lines = capsys.readouterr().out.splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("---"))
    return [line.split() for line in [*lines[1:rule], lines[rule + 2]]]


def test_the_documentations_job_spread(capsys: pytest.CaptureFixture[str]) -> None:
    row, total = table(capsys, "examples/mnist-spread")
    assert sorted(row[2:6]) == ["0/15", "4/15", "4/15", "4/15"]
    assert row[6] == "12/60"
    assert total == ["12/60", "(20%)"]


def test_the_documentations_job_binpack(capsys: pytest.CaptureFixture[str]) -> None:
    files = ("examples/mnist-binpack/node.yaml", "examples/mnist-spread/job.yaml")
    row, total = table(capsys, *files)
    assert row[2:] == ["12/15", "0/15", "0/15", "0/15", "12/60"]
    assert total == ["12/60", "(20%)"]


def test_the_documentations_job_is_as_users_have_it() -> None:
    job = yaml.safe_load((ROOT / "examples/mnist-spread/job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert job["spec"]["parallelism"] == 3
    image = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:tensorflow-1.5"
    assert container["image"] == image
    assert " ".join(container["command"]) == (
        "python tensorflow-sample-code/tfjob/docker/mnist/main.py --max_steps=100000 "
        "--data_dir=tensorflow-sample-code/data"
    )
    assert container["workingDir"] == "/root"
    assert container["resources"] == {"limits": {"aliyun.com/gpu-mem": 4}}
    assert pod["restartPolicy"] == "Never"
    assert list(pod["nodeSelector"]) == ["kubernetes.io/hostname"]


@pytest.mark.parametrize(
    ("policy", "cells"), [("binpack", ["5/15", "0/15"]), ("spread", ["2/15", "3/15"])]
)
def test_two_gpus(policy: str, cells: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    files = (f"examples/two-gpus/node-{policy}.yaml", "examples/two-gpus/pods.yaml")
    row, total = table(capsys, *files)
    assert row[2:4] == cells
    assert total == ["5/30", "(16%)"]


def test_mixed_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    row, _ = table(capsys, "examples/mixed-sizes")
    assert row[2:] == ["44/44", "12/15", "4/5", "60/64"]


def test_a_fragmented_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """24 GiB are free in all, and no GPU has 8."""
    *rows, total = table(capsys, "examples/fragmented", status=1)
    assert [row[2:] for row in rows] == [["9/15", "9/15", "18/30"]] * 2
    assert total == ["36/60", "(60%)"]


def test_every_command_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "examples/README.md").read_text()
    commands = re.findall(r"`gpushare simulate ([^`]+)`", readme)
    assert len(commands) == 6
    for command in commands:
        assert main(shlex.split(command)) in (0, 1)
    capsys.readouterr()


def test_the_demo_ends_with_what_to_run_next() -> None:
    run = subprocess.run([ROOT / "scripts/demo"], capture_output=True, text=True, check=True)
    printed = " ".join(run.stdout.split())
    assert "4/15 4/15 4/15 0/15 12/60" in printed
    assert "12/15 0/15 0/15 0/15 12/60" in printed
    assert printed.count("12/60 (20%)") >= 2
    assert "3 pods, 100% of one owner's" in printed
    assert "1 pod, 33% of one owner's" in printed
    assert run.stdout.rstrip().endswith("make test")
