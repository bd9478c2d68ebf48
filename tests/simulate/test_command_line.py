"""The command as people and scripts use it: streams, statuses, help, the progress bar."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.__main__ import main as gpushare
from gpushare.simulate import progress
from gpushare.simulate.main import main
from gpushare.simulate.progress import Progress
from tests.simulate.conftest import Simulate
from tests.simulate.objects import controller, node, pod, waiting


def test_the_table_goes_to_stdout_and_notes_to_stderr(simulate: Simulate) -> None:
    ran = simulate([node(placement="spred"), waiting("p", 4)], output="table")
    assert ran.out.splitlines()[-1] == "4/30 (13%)"
    assert "note: node a: label ack.node.gpu.placement='spred' is not known" in ran.err


def test_json_has_the_notes_within_and_leaves_stderr_empty(simulate: Simulate) -> None:
    ran = simulate([node(placement="spred"), waiting("p", 99)])
    assert ran.err == ""
    assert ran.warned("'spred'")
    assert set(ran.json) == {
        "version", "unit", "nodes", "allocated", "total", "unscheduled", "warnings",
    }  # fmt: skip
    (found,) = ran.json["nodes"]
    assert set(found) == {
        "name", "address", "mode", "placement", "isolation", "allocated", "total", "largest_free",
        "pending", "pending_pods", "gpus",
    }  # fmt: skip
    assert set(found["gpus"][0]) == {
        "index", "uuid", "total", "allocated", "healthy", "cordoned", "pods",
    }  # fmt: skip
    (refused,) = ran.json["unscheduled"]
    assert set(refused) == {"namespace", "name", "reason", "message", "candidates"}
    assert refused["candidates"] == [{"node": "a", "largest_free": 15}]


def test_pods_without_a_place_stand_below_the_table_with_what_was_looked_at(
    simulate: Simulate,
) -> None:
    ran = simulate([node(), controller("Job", units=16, parallelism=2)], output="table")
    assert ran.status == 1
    below = ran.out.split("0/30 (0%)\n")[1]
    assert below.startswith(
        "\nNo place for 2 pods:\n\ndefault/x-0, default/x-1\n  no-gpu-fits: 0 of"
    )
    assert below.splitlines()[-2:] == ["    NODE  LARGEST-FREE", "    a     15"]


def test_hundreds_of_pods_without_a_place_share_one_explanation(simulate: Simulate) -> None:
    ran = simulate([node(), controller("Job", units=16, parallelism=300)], output="table")
    assert ran.out.count("no-gpu-fits") == 1
    assert "default/x-299" in ran.out
    assert max(len(line) for line in ran.out.splitlines()) <= 120


def test_of_many_candidates_those_with_the_most_free_are_listed(simulate: Simulate) -> None:
    nodes = [node(f"n{i:03}", [i % 50 + 1]) for i in range(150)]
    ran = simulate([*nodes, waiting("p", 60)], output="table")
    listed = ran.out.split("LARGEST-FREE\n")[1].splitlines()
    assert listed[0].split() == ["n049", "50"]
    assert len(listed) == 21
    assert "-o json lists more" in listed[-1]
    (refused,) = simulate([*nodes, waiting("p", 60)]).json["unscheduled"]
    assert len(refused["candidates"]) == 100


def test_wide_adds_the_details(simulate: Simulate) -> None:
    ran = simulate([node(), pod("p", 4, 0)], output="wide")
    assert "LARGEST-FREE" in ran.out
    assert "Allocated :" in ran.out
    assert ran.out.splitlines()[-1] == "Allocated/Total GPU Memory In Cluster:  4/30 (13%)"


@pytest.mark.parametrize(
    ("units", "status"), [(4, 0), (16, 1), ("4.5", 2)], ids=["placed", "no place", "unusable"]
)
def test_the_exit_status(simulate: Simulate, units: object, status: int) -> None:
    assert simulate([node(), waiting("p", units)]).status == status


def test_control_characters_in_names_do_not_reach_the_terminal(simulate: Simulate) -> None:
    ran = simulate([node("a\x1b[2J"), waiting("p\x1b]0;x\x07", 99)], output="table")
    assert "\x1b" not in ran.out + ran.err
    assert "\x07" not in ran.out + ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--gpu-policy", "spred", "x.yaml"],
        ["--compare", "spred", "x.yaml"],
        ["--compare", "", "x.yaml"],
        ["--compare", "spread", "--gpu-policy", "spread", "x.yaml"],
        ["--unit", "1GiB", "x.yaml"],
        ["--node=--"],
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err


def test_help_has_examples_for_a_newcomer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["-h"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "kubectl get nodes,pods -A -o json > dump.json" in printed
    assert "--node name=a,gpus=4x15,placement=spread" in printed
    assert max(len(line) for line in printed.splitlines()) <= 100


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_on_a_terminal_after_a_second_and_wiped_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    terminal = Terminal()
    bar = Progress(terminal)
    now += 0.9
    bar.placing(1, 4)
    assert terminal.getvalue() == ""
    now += 0.2
    bar.placing(2, 4)
    assert "placing pods [###############               ] 50%" in terminal.getvalue()
    bar.clear()
    assert terminal.getvalue().endswith(" \r")


def test_no_bar_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    pipe = io.StringIO()
    bar = Progress(pipe)
    now += 10
    bar.placing(2, 4)
    bar.clear()
    assert pipe.getvalue() == ""


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpushare", "simulate", "-o", "json"]
    command += ["--node", "name=a,gpus=8x15,count=2000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_gpushare_without_a_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpushare([]) == 2
    assert gpushare(["--help"]) == 0
    printed = capsys.readouterr().out
    for command in ("simulate", "inspect", "extender", "device-plugin"):
        assert command in printed


def test_gpushare_hands_over_and_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpushare(["simulate", "-h"])
    assert capsys.readouterr().out.startswith("usage: gpushare simulate ")
    assert gpushare(["simulate", "--node", "name=a,gpus=15"]) == 0


def test_an_unknown_command_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpushare(["simulat"]) == 2
    assert "there is no command 'simulat'" in capsys.readouterr().err


def test_an_extra_that_is_not_installed_is_said_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("gpushare.extender")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gpushare.extender.main", None)
    with pytest.raises(SystemExit) as stop:
        gpushare(["extender"])
    assert stop.value.code == 2
    assert "gpushare extender" in capsys.readouterr().err


def test_the_base_command_imports_no_extra() -> None:
    """simulate needs argparse, msgspec and PyYAML."""
    code = (
        "import sys, gpushare.__main__, gpushare.simulate.main;"
        "print([m for m in ('aiohttp', 'grpc', 'prometheus_client', 'asyncio', 'pynvml') "
        "if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
