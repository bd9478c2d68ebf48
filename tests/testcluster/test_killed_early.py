"""A starter killed while it builds, an owner killed, a start interrupted: nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare_testcluster import wait_for
from gpushare_testcluster.lifecycle import take_down
from gpushare_testcluster.processes import MARK
from gpushare_testcluster.procfs import marked
from gpushare_testcluster.say import Say
from gpushare_testcluster.state import StateDir

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

UP = [sys.executable, "-m", "gpushare_testcluster", "up", "--no-extender", "--dir"]
GO = """#!/bin/sh
[ "$1" = env ] && exec echo go1.26.8
touch {building}
sleep 600
"""
OWNER = """
import sys
from gpushare_testcluster import Cluster
Cluster.start(sys.argv[1])
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An empty cache and a Go that never finishes."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO.format(building=tmp_path / "building"))
    go.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{go.parent}:{os.environ['PATH']}",
        "GPUSHARE_CACHE": str(tmp_path / "cache"),
    }


@contextmanager
def start(
    argv: list[str], environ: dict[str, str], tmp_path: Path
) -> Iterator[subprocess.Popen[str]]:
    starter = subprocess.Popen(
        [*argv, str(tmp_path / "c")],
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
        # As in a terminal, also where whoever runs the tests in the background ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for((tmp_path / "building").exists, 20, "building")
        yield starter
    finally:
        starter.kill()
        starter.wait()


def marked_there(tmp_path: Path) -> list[object]:
    return list(marked(f"{MARK}={tmp_path / 'c'}"))


def test_a_starter_killed_while_it_builds_leaves_what_down_finds(tmp_path, environ):
    with start(UP, environ, tmp_path) as starter:
        starter.kill()
    assert len(marked_there(tmp_path)) >= 2  # the keeper and the compiler
    assert take_down(StateDir(tmp_path / "c"), Say(quiet=True))
    assert marked_there(tmp_path) == []
    assert not (tmp_path / "c").exists()


def test_a_cluster_ends_by_itself_when_its_owner_is_killed(tmp_path, environ):
    with start([sys.executable, "-c", OWNER], environ, tmp_path) as starter:
        starter.kill()
    wait_for(lambda: not marked_there(tmp_path), 15, "the keeper has ended everything")
    assert not (tmp_path / "c").exists()


def test_an_interrupted_start_ends_what_it_started_and_says_where_its_logs_are(tmp_path, environ):
    with start(UP, environ, tmp_path) as starter:
        starter.send_signal(signal.SIGINT)
        _, said = starter.communicate(timeout=20)
    assert starter.returncode == 130
    assert "interrupted" in said
    assert marked_there(tmp_path) == []
    assert take_down(StateDir(tmp_path / "c"), Say(quiet=True))
    assert not (tmp_path / "c").exists()
    assert list((tmp_path / "cache" / "bin").glob(".building-*")) == []
