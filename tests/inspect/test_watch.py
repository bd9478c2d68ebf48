"""`-w`: drawn again on a terminal, printed again in a pipe when something has changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from gpushare.inspect.errors import ClusterError, InspectError
from gpushare.inspect.output import Rendering
from gpushare.inspect.terminal import CLEAR
from gpushare.inspect.watch import watch
from tests.inspect.objects import node, pod
from tests.inspect.test_kubectl import FakeKubectl, kubectl

__all__ = ["kubectl"]


def run(steps: list[Rendering | Exception], *, took_s: float = 0.0) -> list[float]:
    """Watches the steps and returns the pauses; the last step is followed by Ctrl-C."""
    pauses: list[float] = []
    now = 0.0
    left = list(steps)

    def take() -> Rendering:
        nonlocal now
        now += took_s
        step = left.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not left:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(take, 3.0, sleep=sleep, clock=lambda: now)
    return pauses


def test_in_a_pipe_it_prints_again_only_what_has_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run([Rendering("one\n"), Rendering("one\n"), Rendering("two\n", ("careful",))])
    captured = capsys.readouterr()
    assert captured.out == "one\n\ntwo\n"
    assert captured.err == "note: careful\n"


def test_on_a_terminal_it_is_drawn_anew_each_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    run([Rendering("one\n"), Rendering("one\n")])
    assert capsys.readouterr().out == f"{CLEAR}one\n{CLEAR}one\n"


def test_a_cluster_that_cannot_be_read_for_a_while_is_asked_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run([Rendering("one\n"), ClusterError("gone"), ClusterError("gone"), Rendering("one\n")])
    captured = capsys.readouterr()
    assert captured.out == "one\n\none\n"
    assert captured.err.count("gone") == 1
    assert "Trying again" in captured.err


@pytest.mark.parametrize("error", [ClusterError("gone"), InspectError("no kubectl")])
def test_what_fails_at_first_ends_it(error: Exception) -> None:
    def take() -> Rendering:
        raise error

    with pytest.raises(InspectError):
        watch(take, 3.0)


def test_the_pause_grows_with_what_reading_takes() -> None:
    assert run([Rendering("one\n")] * 2, took_s=0.1) == [3.0, 3.0]
    assert run([Rendering("one\n")] * 2, took_s=2.0) == [8.0, 8.0]


def wait(what: Callable[[], bool], timeout_s: float = 20) -> None:
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_it_follows_a_cluster_and_ends_cleanly_on_ctrl_c(
    kubectl: FakeKubectl, tmp_path: os.PathLike[str]
) -> None:
    out = os.path.join(tmp_path, "out")
    with open(out, "wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpushare.inspect.main", "-w", "--interval", "0.2"],
            stdout=stdout,
            stderr=subprocess.PIPE,
        )

    def text() -> str:
        with open(out) as file:
            return file.read()

    try:
        wait(lambda: text().endswith("\n4/30 (13%)\n"))
        kubectl.holds(node(), pod("p", 4, gpu=1), pod("q", 2, gpu=0))
        wait(lambda: text().endswith("\n6/30 (20%)\n"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert b"Traceback" not in err
    assert "\x1b" not in text()
