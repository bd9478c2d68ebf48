"""The demo's beginning and end: what it needs, what a signal does, and that nothing is left."""

from __future__ import annotations

import os
import platform
import secrets
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any, Self

from gpushare_testcluster import deploying, lifecycle
from gpushare_testcluster.cache import cache_dir
from gpushare_testcluster.demo import story
from gpushare_testcluster.demo.output import Output
from gpushare_testcluster.demo.stage import Stage
from gpushare_testcluster.errors import CannotRun, TestClusterError
from gpushare_testcluster.node import requirements
from gpushare_testcluster.processes import MARK
from gpushare_testcluster.procfs import marked
from gpushare_testcluster.state import StateDir

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NEEDS_ROOT = "the demo has a real node, and a kubelet needs root: run 'sudo make demo-cluster'"
ELSEWHERE = "'make demo' shows on any machine, without root, where pods would go"


class Interrupted(KeyboardInterrupt):
    """A signal has told the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def run(folder: Path | None = None) -> int:
    """Shows everything and takes it down; the exit status: 0, 1 (it failed, said why and where
    the logs are) or 128 and the number of the signal that ended it.

    folder: the cluster's; default a new one under /tmp. Raises CannotRun where this machine lacks
    something, TestClusterError where there is a cluster in the folder.
    """
    if reason := requirements.why_not():
        linux = platform.system() == "Linux"
        raise CannotRun(f"{NEEDS_ROOT if linux and os.geteuid() else reason}. {ELSEWHERE}.")
    clone = deploying.find_deploy_dir().parent
    # Named, not made: the start makes it, and from then on there is something that removes it.
    state = StateDir(folder or Path(tempfile.gettempdir(), f"gpushare-demo-{secrets.token_hex(3)}"))
    if state.exists() or state.strangers():
        raise TestClusterError(f"{state.path} is not empty; give the demo a folder of its own")
    output = Output(sys.stdout)
    stage = Stage(output, clone, len(story.STEPS) + 1)
    with Signals(output) as signals:
        try:
            _play(stage, state)
        except Interrupted as stop:
            output.muted = False
            stage.tell("Interrupted: everything is taken down.")
            _take_down(stage, state)
            return 128 + stop.number
        except Exception as error:
            signals.ignore()
            _fail(stage, state, error, output)
            if not isinstance(error, (TestClusterError, OSError)):
                raise
            return 1
        signals.ignore()
        stage.step("Everything is taken down.")
        stage.line(f"$ gpushare-testcluster down --dir {state.path}")
        _take_down(stage, state)
        stage.tell(
            f"Nothing is left: no process, no mount, no {state.path}. Only the built programs "
            f"stay, in {cache_dir()}. Next: docs/install.md for a cluster of yours; 'make cluster' "
            "and testcluster/README.md for one like this that stays."
        )
    return 0


def _play(stage: Stage, state: StateDir) -> None:
    stage.tell(
        "The whole of gpushare on a machine without a GPU. It takes about half a minute; Ctrl-C "
        "ends it and leaves nothing behind. A '$' begins what you would type yourself, with "
        f"{Path(sys.executable).parent} in the PATH."
    )
    requirements.require(stage.say)
    for step in story.STEPS:
        step(stage, state.path)


def _take_down(stage: Stage, state: StateDir) -> None:
    """Ends and removes everything. Raises TestClusterError when something is left."""
    lifecycle.take_down(state, stage.say, timeout_s=30)
    left = marked(f"{MARK}={state.path}")
    if left or state.path.exists():
        raise TestClusterError(f"left behind: processes {left}, folder {state.path}")


def _fail(stage: Stage, state: StateDir, error: Exception, output: Output) -> None:
    """Says what went wrong; ends everything but the logs, and those too where nobody listens."""
    stage.line(f"\nThe demo failed: {error}")
    lifecycle.take_down(state, stage.say, timeout_s=30, keep_logs=not output.broken)
    if state.logs.is_dir():
        stage.line(
            f"The logs are in {state.logs}; 'gpushare-testcluster down --dir {state.path}' removes "
            "them. Nothing of it runs any more."
        )


class Signals:
    """The first signal raises Interrupted and mutes the output. Those after it change nothing:
    what is left to do then is taking everything down, which takes a second.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._ignored = False
        self._before: dict[signal.Signals, Any] = {}

    def ignore(self) -> None:
        """From now on no signal interrupts."""
        self._ignored = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._ignored:
            self._ignored = self._output.muted = True
            raise Interrupted(number)

    def __enter__(self) -> Self:
        for number in SIGNALS:
            # whoever runs it under nohup means it
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
