"""What a step of the demo does: say a line, show a command and what it prints, wait."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TextIO, cast

from gpushare_testcluster.api import Object
from gpushare_testcluster.cluster import Cluster
from gpushare_testcluster.demo.output import Output
from gpushare_testcluster.errors import TestClusterError, TimedOut
from gpushare_testcluster.node.machine import Node
from gpushare_testcluster.say import Say

COMMAND_S = 60.0
"""How long a command may take."""
WAIT_S = 60.0
"""How long the cluster may take to follow; usually it is a second."""
_WIDTH = 96


class Stage:
    """The demo's voice and hands. `cluster` is there once the first step has started it."""

    def __init__(self, output: Output, clone: Path, steps: int) -> None:
        """clone: where the shown commands run; steps: how many there will be, for the headings."""
        self.clone = clone
        self.say = Say(cast(TextIO, output))
        self._output = output
        self._steps = steps
        self._step = 0
        self._after_empty_line = False
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None, "the first step starts it"
        return self._cluster

    @cluster.setter
    def cluster(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def node(self) -> Node:
        return self.cluster.node

    # -- saying --------------------------------------------------------------------------------

    def step(self, text: str) -> None:
        """Opens the next step with what it does."""
        self._step += 1
        self.tell(f"[{self._step}/{self._steps}] {text}")

    def tell(self, text: str) -> None:
        """A paragraph, with an empty line on either side."""
        joined = " ".join(text.split())
        lines = textwrap.wrap(joined, _WIDTH, break_long_words=False, break_on_hyphens=False)
        self.line(("" if self._after_empty_line else "\n") + "\n".join(lines) + "\n")
        self._after_empty_line = True

    def line(self, text: str) -> None:
        """Text as it is."""
        print(text, file=self._output, flush=True)
        self._after_empty_line = False

    # -- commands ------------------------------------------------------------------------------

    def show(self, command: str, *, on_node: bool = False) -> None:
        """Prints a shell command as a user types it, runs it, and lets its output be seen.

        on_node: in the node's file system, as if logged in there. Raises TestClusterError when it
        fails or does not end.
        """
        self.line(f"{f'{self.node.name}$' if on_node else '$'} {command}")
        own = {key: self.cluster.environ()[key] for key in ("KUBECONFIG", "PATH")}
        # kubectl keeps what it learns of each API server, by default in the user's home.
        cache = self.node.layout.root / "kubectl-cache"
        environ = self.cluster.processes.environ({**own, "KUBECACHEDIR": str(cache)})
        argv = [*(self.node.enter() if on_node else ()), "/bin/sh", "-c", command]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                env=environ,
                cwd=self.clone,
                timeout=COMMAND_S,
            )
        except subprocess.TimeoutExpired:
            raise TimedOut(f"the command above did not end within {COMMAND_S:g} s") from None
        if done.returncode:
            raise TestClusterError(f"the command above failed with exit status {done.returncode}")

    def show_program(self, argv: Sequence[str], *, on_node: bool = False) -> list[str]:
        """Prints how a gpushare program is started in the background; returns what to start.

        argv: `gpushare` and its arguments.
        """
        words = [shlex.quote(word) for word in argv]
        options = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
        pairs = [" ".join(words[i : i + 2]) for i in range(options, len(words), 2)]
        lines = " \\\n    ".join([" ".join(words[:options]), *pairs])
        self.line(f"{f'{self.node.name}$' if on_node else '$'} {lines} &")
        return [sys.executable, "-m", *argv]

    def ready(self, name: str, seconds: float) -> None:
        """Says that a program in the background is ready, and where its log is."""
        self.line(f"  ready after {seconds:.1f} s; its log: {self.cluster.processes.log_of(name)}")

    # -- waiting -------------------------------------------------------------------------------

    def wait(
        self,
        what: str,
        resource: str,
        done: Callable[[list[Object]], bool],
        *,
        labels: str = "",
        timeout_s: float = WAIT_S,
    ) -> list[Object]:
        """Watches the objects of a resource until `done` says so of them all; returns them.

        Raises TimedOut, with how they were last.
        """
        deadline = time.monotonic() + timeout_s
        known: dict[str, Object] = {}
        while (left := deadline - time.monotonic()) > 0:
            known.clear()  # a new watch begins with all that there are
            with contextlib.suppress(TimeoutError):  # of a connection on which nothing happened
                for event in self.cluster.admin.watch(resource, labels=labels, timeout_s=left):
                    obj = event["object"]
                    if event["type"] == "ERROR":
                        break
                    if event["type"] == "DELETED":
                        known.pop(obj["metadata"]["uid"], None)
                    elif event["type"] in ("ADDED", "MODIFIED"):
                        known[obj["metadata"]["uid"]] = obj
                    if done(list(known.values())):
                        return list(known.values())
                    if time.monotonic() > deadline:
                        break
        last = "\n".join(f"  {line}" for line in _states(known.values())) or "  there is none"
        raise TimedOut(f"{what}: not within {timeout_s:g} s. The {resource} were last:\n{last}")


def is_running(pod: Object) -> bool:
    """Running with all its containers ready."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    return all(status.get("ready") for status in statuses)


def _states(objects: Iterable[Object]) -> Iterable[str]:
    """A line for each object: what its status says, as far as it is of use to a reader."""
    for obj in objects:
        status = obj.get("status", {})
        reasons = [
            str(condition["message"])
            for condition in status.get("conditions") or ()
            if condition.get("status") != "True" and condition.get("message")
        ]
        said = [status.get("phase"), status.get("message"), *reasons, *_offered(status)]
        yield f"{obj['metadata']['name']}: {'; '.join(filter(None, said)) or 'no status yet'}"


def _offered(status: Object) -> list[str]:
    allocatable = status.get("allocatable", {})
    return [f"offers {amount} of {name}" for name, amount in allocatable.items() if "/" in name]
