"""Tells a person what the test cluster is doing and how long each step took.

Everything goes to standard error, one line a step, so that standard output stays usable
(`status`, `up --print-kubeconfig`). On a terminal a running step shows its elapsed seconds.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO


class Say:
    """Prints steps with their duration.

    quiet: only `note` lines are printed, steps are not.
    every_s: where there is no terminal, a step longer than this gets a line each so often.
    """

    def __init__(
        self, stream: TextIO | None = None, *, quiet: bool = False, every_s: float = 60
    ) -> None:
        self._stream = stream
        self.quiet = quiet
        self.every_s = every_s

    @property
    def stream(self) -> TextIO:
        # looked up late: pytest replaces sys.stderr for each test
        return self._stream if self._stream is not None else sys.stderr

    def note(self, text: str) -> None:
        """Prints one line, always."""
        print(text, file=self.stream, flush=True)

    def line(self, text: str) -> None:
        """Prints one line unless quiet."""
        if not self.quiet:
            self.note(text)

    @contextlib.contextmanager
    def step(self, text: str, detail: Callable[[], str] | None = None) -> Iterator[None]:
        """Times the block; prints `text` with the seconds it took when it is done.

        detail: called while the step runs, its answer is shown beside the elapsed seconds.
        """
        start = time.monotonic()
        done = threading.Event()
        ticker: threading.Thread | None = None
        if not self.quiet:
            terminal = self.stream.isatty()
            ticker = threading.Thread(
                target=self._tick, args=(text, detail, start, done, terminal), daemon=True
            )
            ticker.start()
        outcome = "failed after"
        try:
            yield
            outcome = ""
        finally:
            done.set()
            if ticker is not None:
                ticker.join()
            if not self.quiet or outcome:
                seconds = f"{time.monotonic() - start:.1f} s"
                self.note(f"  {text:<58} {outcome + ' ' if outcome else ''}{seconds:>8}")

    def _tick(
        self,
        text: str,
        detail: Callable[[], str] | None,
        start: float,
        done: threading.Event,
        terminal: bool,
    ) -> None:
        stream = self.stream
        while not done.wait(1 if terminal else self.every_s):
            more = f" ({detail()})" if detail else ""
            elapsed = f"{time.monotonic() - start:.0f} s"
            if terminal:
                stream.write(f"\r\033[K  {text} … {elapsed}{more}")
                stream.flush()
            else:
                print(f"  {text} … {elapsed}{more}", file=stream, flush=True)
        if terminal:
            stream.write("\r\033[K")
            stream.flush()
