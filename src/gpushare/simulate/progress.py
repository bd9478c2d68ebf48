"""A bar on the terminal, for runs that take longer than a second. Never in a pipe."""

import sys
import time
from typing import TextIO

PATIENCE_S = 1.0
WIDTH = 30
REDRAW_S = 0.1


class Progress:
    """Draws `label [####    ] 40%` on a terminal, and wipes it away at the end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._start = self._last = time.monotonic()
        self._drawn = 0
        """Characters that stand on the line."""

    def show(self, label: str, done: int, total: int) -> None:
        """How far it is. Cheap to call often."""
        if not self._terminal:
            return
        now = time.monotonic()
        if now - self._start < PATIENCE_S or now - self._last < REDRAW_S:
            return
        self._last = now
        part = min(1.0, done / total) if total else 1.0
        filled = int(part * WIDTH)
        text = f"{label} [{'#' * filled}{' ' * (WIDTH - filled)}] {int(part * 100)}%"
        self._stream.write(f"\r{text.ljust(self._drawn)}")
        self._stream.flush()
        self._drawn = len(text)

    def placing(self, done: int, total: int) -> None:
        self.show("placing pods", done, total)

    def reading(self, name: str, done: int, total: int) -> None:
        self.show(f"reading {name}", done, total)

    def clear(self) -> None:
        """Nothing of it is left on the line."""
        if self._drawn:
            self._stream.write(f"\r{' ' * self._drawn}\r")
            self._stream.flush()
            self._drawn = 0
