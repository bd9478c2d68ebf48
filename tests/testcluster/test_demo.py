"""`make demo-cluster`: shows the whole system, and leaves nothing, however it ends."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_testcluster import Cluster, TestClusterError, TimedOut, demo, wait_for
from gpushare_testcluster.__main__ import main
from gpushare_testcluster.demo import story
from gpushare_testcluster.demo.output import Output
from gpushare_testcluster.demo.stage import Stage
from gpushare_testcluster.errors import CannotRun
from gpushare_testcluster.lifecycle import take_down
from gpushare_testcluster.node import cgroups
from gpushare_testcluster.say import Say
from gpushare_testcluster.state import StateDir
from tests.testcluster.test_leaves_nothing import machine, ours

CLONE = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "gpushare_testcluster", "demo", "--dir"]
TIMESTAMP = re.compile(r"\d\d:\d\d:\d\d")


class Demo:
    """A demo that runs, and what it has printed so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before = machine()
        self.cgroup = ""
        self.text = ""
        self.process = subprocess.Popen(
            [*COMMAND, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # As in a terminal, also where whoever runs the tests in the background ignores SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def read_to(self, line: str) -> None:
        """Reads until a line begins so."""
        assert self.process.stdout is not None
        for found in iter(self.process.stdout.readline, ""):
            self.text += found
            if not self.cgroup and StateDir(self.folder).exists():
                self.cgroup = cgroups.name_of(StateDir(self.folder).settings().id)
            if found.startswith(line):
                return
        raise AssertionError(f"no line begins with {line!r}:\n{self.text}")

    def end(self) -> int:
        """Reads the rest; the exit status."""
        assert self.process.stdout is not None
        self.text += self.process.stdout.read()
        return self.process.wait()

    def left(self) -> list[object]:
        """What is left of it."""
        there = [self.folder] if self.folder.exists() else []
        trees = [path for path in Path("/sys/fs/cgroup").glob(f"**/{self.cgroup}") if self.cgroup]
        changed = [] if machine() == self.before else ["mounts or sysctls"]
        return [*ours(self.folder), *there, *trees, *changed]


@pytest.fixture
def shown(cluster: Cluster, tmp_path: Path) -> Iterator[Demo]:
    """A demo that was started. `cluster` has the binaries built; this one is another."""
    running = Demo(tmp_path / "c")
    yield running
    running.process.kill()
    running.process.wait()
    if running.process.stdout is not None:
        running.process.stdout.close()
    take_down(StateDir(running.folder), Say(quiet=True))


def gpus(text: str) -> list[list[str]]:
    """What each table of `kubectl inspect cgpu` says of the node's GPUs, then of the whole."""
    rows = re.findall(r"^gpu-node-1 +127\.\S+ +(.*)$", text, re.MULTILINE)
    return [row.split() for row in rows]


def held(text: str, job: str) -> list[list[int]]:
    """GPU -> units of each pod of a Job, in the last `kubectl inspect cgpu -d`."""
    last = text.rpartition("$ kubectl inspect cgpu -d")[2]
    rows = re.findall(rf"^{job}-\w+ +default +(.*)$", last, re.MULTILINE)
    return sorted([int(units) for units in row.split()] for row in rows)


@pytest.mark.node
def test_it_shows_the_whole_system_and_leaves_nothing(shown: Demo) -> None:
    started = time.monotonic()
    shown.read_to("[9/11]")
    failed = shown.text
    status = shown.end()
    print(f"the demo: {time.monotonic() - started:.1f} s")
    text = shown.text
    assert status == 0, text
    assert shown.left() == []
    assert shown.cgroup
    assert gpus(text) == [
        ["4/15", "4/15", "4/15", "0/15", "12/60"],
        ["4/15", "4/15", "4/15", "0/15", "12/60"],
        ["8/15", "4/15", "8/15", "4/15", "24/60"],
    ]
    assert "ALIYUN_COM_GPU_MEM_CONTAINER=4\n" in text
    assert "NVIDIA_VISIBLE_DEVICES=GPU-" in text
    assert "GPU 1 (GPU-1) is unhealthy and takes nothing new; 4 of its 15 units are still" in failed
    assert "unhealthy" not in text.removeprefix(failed)
    assert held(failed, "during-the-failure") == [[0, 0, 0, 4], [0, 0, 4, 0], [4, 0, 0, 0]]
    assert held(text, "packed") == [[0, 4, 0, 0], [4, 0, 0, 0], [4, 0, 0, 0]]
    assert len(held(text, "tensorflow-mnist-spread")) == 3
    assert not TIMESTAMP.search(text), "a library's log line"
    assert "\r" not in text
    assert "\033" not in text
    assert "\n\n\n" not in text


ENDS = {
    "Ctrl-C, while the control plane starts": ("  etcd", signal.SIGINT, 130),
    "kill, when the node has just started": ("$ kubectl get nodes", signal.SIGTERM, 143),
    "kill -9, while pods run": ("[6/11]", signal.SIGKILL, -9),
}


@pytest.mark.node
@pytest.mark.parametrize("how", ENDS)
def test_ended_half_way_it_leaves_nothing(shown: Demo, how: str) -> None:
    line, number, status = ENDS[how]
    shown.read_to(line)
    assert ours(shown.folder), "nothing was left to clean up: the test shows nothing"
    shown.process.send_signal(number)
    if number is signal.SIGKILL:  # the cluster's keeper sees that its owner is gone
        wait_for(lambda: not ours(shown.folder), 20, "the keeper has ended everything")
    assert shown.end() == status
    assert shown.left() == []
    if number is not signal.SIGKILL:
        assert "Interrupted: everything is taken down." in shown.text
        assert "Traceback" not in shown.text


@pytest.mark.node
def test_when_nobody_reads_it_any_more_it_ends(shown: Demo) -> None:
    shown.read_to("$ gpushare-testcluster up")
    assert shown.process.stdout is not None
    shown.process.stdout.close()
    assert shown.process.wait(30) != 0
    assert shown.left() == []


@pytest.mark.cluster
def test_a_step_that_fails_says_where_the_logs_are(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def start(stage: Stage, folder: Path) -> None:
        stage.cluster = Cluster.start(folder, say=stage.say)

    def stumble(stage: Stage, folder: Path) -> None:
        stage.wait("a node", "nodes", bool, timeout_s=0.1)

    monkeypatch.setattr(story, "STEPS", (start, stumble))
    monkeypatch.setattr("gpushare_testcluster.node.requirements.why_not", lambda: "")
    monkeypatch.setattr("gpushare_testcluster.node.requirements.require", lambda say: None)
    folder = tmp_path / "c"
    assert demo.run(folder) == 1
    said = capsys.readouterr().out
    assert "The demo failed: a node: not within 0.1 s. The nodes were last:\n  there is" in said
    assert f"The logs are in {folder / 'logs'}" in said
    assert (folder / "logs" / "kube-apiserver.log").exists()
    assert ours(folder) == []
    assert main(["down", "--dir", str(folder)]) == 0
    assert not folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it says that it needs Linux")
def test_without_root_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotRun, match="sudo make demo-cluster"):
        demo.run()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it says that it needs Linux")
def test_a_folder_with_something_in_it_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare_testcluster.node.requirements.why_not", lambda: "")
    (tmp_path / "mine").touch()
    with pytest.raises(TestClusterError, match="not empty"):
        demo.run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


class SilentCluster:
    """A cluster whose watch tells of one waiting pod, and then of nothing."""

    @property
    def admin(self) -> SilentCluster:
        return self

    def watch(self, resource: str, *, labels: str, timeout_s: float) -> Iterator[dict[str, Any]]:
        unschedulable = {"type": "PodScheduled", "status": "False", "message": "no room"}
        status = {"phase": "Pending", "conditions": [unschedulable]}
        pod = {"metadata": {"uid": "1", "name": "p"}, "status": status}
        yield {"type": "ADDED", "object": pod}
        time.sleep(min(timeout_s, 0.2))


def test_a_wait_that_takes_too_long_says_how_things_were(tmp_path: Path) -> None:
    stage = Stage(Output(io.StringIO()), tmp_path, 1)
    stage.cluster = SilentCluster()  # type: ignore[assignment]
    with pytest.raises(TimedOut, match=r"(?s)p runs: not within 0.3 s.*\n  p: Pending; no room"):
        stage.wait("p runs", "pods", lambda pods: False, timeout_s=0.3)
