"""NVML's lists of processes, as drivers of several ages answer."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml  # type: ignore[import-untyped]
import pytest

from gpushare.node import nvml

Answer = dict[int, int | None] | int
"""Pid -> bytes, or NVML's error."""

NOT_SUPPORTED, NO_FUNCTION = 3, 13

CASES: dict[str, tuple[dict[str, Answer], dict[int, int | None] | None]] = {
    "compute and graphics": (
        {"Compute_v3": {7: 100}, "Graphics_v3": {8: 20}},
        {7: 100, 8: 20},
    ),
    "a process of both kinds counts once": (
        {"Compute_v3": {7: 100}, "Graphics_v3": {7: 100}},
        {7: 100},
    ),
    "amounts that are not available": (
        {"Compute_v3": {7: None, 8: None}, "Graphics_v3": {8: 20}},
        {7: None, 8: 20},
    ),
    "an older driver": (
        {"Compute_v3": NO_FUNCTION, "Compute_v2": {7: 100}, "Graphics_v3": NO_FUNCTION},
        {7: 100},
    ),
    "one that is older still": ({}, None),
    "a GPU without graphics": (
        {"Compute_v3": {7: 100}, "Graphics_v3": NOT_SUPPORTED},
        {7: 100},
    ),
    "no lists here": (
        {"Compute_v3": NOT_SUPPORTED, "Compute_v2": {7: 1}, "Graphics_v3": {8: 20}},
        None,
    ),
}


@pytest.mark.parametrize(("answers", "expected"), CASES.values(), ids=CASES)
def test_lists_of_processes(
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str, Answer],
    expected: dict[int, int | None] | None,
) -> None:
    def listing(answer: Answer) -> object:
        def list_(handle: object) -> list[SimpleNamespace]:
            if isinstance(answer, int):
                raise pynvml.NVMLError(answer)
            return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in answer.items()]

        return list_

    for kind in ("Compute", "Graphics"):
        for version in ("v3", "v2"):
            name = f"nvmlDeviceGet{kind}RunningProcesses_{version}"
            answer = answers.get(f"{kind}_{version}", NO_FUNCTION)
            monkeypatch.setattr(pynvml, name, listing(answer))
    assert nvml._processes(object()) == expected
