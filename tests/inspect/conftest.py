"""Runs the program on objects and returns what it printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare.inspect.main import main
from tests.inspect.objects import Object, dump


@dataclass(frozen=True)
class Printed:
    """What a run left behind."""

    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The words of the table's rows, without the header and without what stands below."""
        lines = self.out.splitlines()
        return [line.split() for line in lines[1 : lines.index("-" * 86)]]

    @property
    def header(self) -> str:
        return self.out.splitlines()[0]

    @property
    def last(self) -> str:
        return self.out.splitlines()[-1]

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Inspect = Callable[..., Printed]


@pytest.fixture
def inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Inspect:
    """inspect([objects], *arguments) -> Printed, over a dump of the objects."""

    def run(objects: list[Object] | str, *arguments: str, suffix: str = "json") -> Printed:
        file = tmp_path / f"dump.{suffix}"
        file.write_text(objects if isinstance(objects, str) else dump(*objects))
        status = main(["-f", str(file), *arguments])
        captured = capsys.readouterr()
        return Printed(status, captured.out, captured.err)

    return run
