"""Where the demo's text goes: one stream, in order, that can be muted and may be closed early."""

from __future__ import annotations

import io
import os
import signal
from typing import TextIO


class Output(io.TextIOBase):
    """Standard output, for the demo's own text and for `Say`.

    muted: nothing is written. When the reader is gone (`make demo-cluster | head`), it mutes
    itself and ends the demo by a SIGTERM to this process, which takes everything down.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.muted = False
        self.broken = False

    def write(self, text: str) -> int:
        if not (self.muted or self.broken):
            try:
                self._stream.write(text)
            except BrokenPipeError:
                self._give_up()
        return len(text)

    def flush(self) -> None:
        if not self.broken:
            try:
                self._stream.flush()
            except BrokenPipeError:
                self._give_up()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def _give_up(self) -> None:
        self.broken = True
        # Python flushes standard output once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        os.kill(os.getpid(), signal.SIGTERM)
