"""Runs the program on objects and returns what it printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare.simulate.main import main
from tests.inspect.objects import Object, dump


@dataclass(frozen=True)
class Ran:
    """What a run left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def held(self, node: str) -> list[int]:
        """Units held on each GPU of a node (of JSON output)."""
        (found,) = [n for n in self.json["nodes"] if n["name"] == node]
        return [gpu["allocated"] for gpu in found["gpus"]]

    def pods(self, node: str) -> dict[str, list[int]]:
        """Pod -> indexes of its GPUs on a node (of JSON output)."""
        (found,) = [n for n in self.json["nodes"] if n["name"] == node]
        pods: dict[str, list[int]] = {}
        for gpu in found["gpus"]:
            for pod in gpu["pods"]:
                pods.setdefault(pod["name"], []).append(gpu["index"])
        return pods

    @property
    def no_place(self) -> dict[str, str]:
        """Pod -> reason (of JSON output)."""
        return {pod["name"]: pod["reason"] for pod in self.json["unscheduled"]}

    def message(self, pod: str) -> str:
        (found,) = [p for p in self.json["unscheduled"] if p["name"] == pod]
        return str(found["message"])

    def warned(self, text: str) -> bool:
        """Whether a warning holds the text (of JSON output)."""
        return any(text in warning for warning in self.json["warnings"])


Simulate = Callable[..., Ran]


@pytest.fixture
def simulate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Simulate:
    """simulate([objects] or text, *arguments) -> Ran; JSON unless `output` says otherwise.

    The input lies in dump.json, a text in input.yaml, of the current folder.
    """
    monkeypatch.chdir(tmp_path)

    def run(source: list[Object] | str | None, *arguments: str, output: str = "json") -> Ran:
        files: list[str] = []
        if isinstance(source, str):
            (tmp_path / "input.yaml").write_text(source)
            files = ["input.yaml"]
        elif source is not None:
            (tmp_path / "dump.json").write_text(dump(*source))
            files = ["dump.json"]
        status = main([*files, *arguments, "-o", output])
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run
