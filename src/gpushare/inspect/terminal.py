"""Where output goes: colour on a terminal only, notes on stderr, pipes that are closed early."""

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from gpushare.inspect.output import Rendering

NOTES_SHOWN = 40
"""Notes written to stderr; the rest are counted."""

CLEAR = "\x1b[H\x1b[2J"


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour what goes to a stream (no-color.org; a pipe never gets colour)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "") == "dumb":
        return False
    if os.name == "nt" and not (os.environ.get("WT_SESSION") or os.environ.get("TERM")):
        return False
    return stream.isatty()


def tolerate(stream: TextIO) -> None:
    """Characters that the stream's encoding lacks are written as escapes instead of failing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def show(rendering: "Rendering") -> None:
    """Prints it: the text, then the notes."""
    sys.stdout.write(rendering.text)
    sys.stdout.flush()
    write_notes(rendering.notes)


def write_notes(notes: tuple[str, ...]) -> None:
    """Notes to stderr, a line each."""
    start, end = ("\x1b[33mnote:\x1b[0m", "") if wants_colour(sys.stderr) else ("note:", "")
    for note in notes[:NOTES_SHOWN]:
        sys.stderr.write(f"{start} {note}{end}\n")
    if len(notes) > NOTES_SHOWN:
        sys.stderr.write(f"{start} {len(notes) - NOTES_SHOWN} more; -o json lists them all\n")
    sys.stderr.flush()
