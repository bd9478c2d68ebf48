"""Text in columns, two spaces apart, and colour that leaves the text as it is.

The one place that lays out tables. Cells are padded by the characters people see, colour is put
around the padded text, and no line ends in spaces.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

GAP = "  "


class Style(StrEnum):
    """A colour, as the ANSI code that starts it."""

    PLAIN = ""
    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    ALARM = "1;31"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table."""

    text: str
    style: Style = Style.PLAIN

    def __post_init__(self) -> None:
        """A name from a file may hold anything; a table holds no line breaks or escape codes."""
        if not self.text.isprintable():
            shown = "".join(c if c.isprintable() else "?" for c in self.text)
            object.__setattr__(self, "text", shown)


Row = Sequence[str | Cell]


def painted(text: str, style: Style) -> str:
    """`text` in a colour, for a terminal."""
    return f"\x1b[{style.value}m{text}\x1b[0m" if style is not Style.PLAIN and text else text


def align(rows: Iterable[Row], *, colour: bool = False) -> list[str]:
    """The lines of a table. Rows may have fewer cells than others."""
    table = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    widths: list[int] = []
    for row in table:
        for position, cell in enumerate(row):
            if position == len(widths):
                widths.append(0)
            widths[position] = max(widths[position], len(cell.text))
    lines: list[str] = []
    for row in table:
        parts: list[str] = []
        padding = ""
        for cell, width in zip(row, widths, strict=False):
            parts.append(padding)
            parts.append(painted(cell.text, cell.style) if colour else cell.text)
            padding = " " * (width - len(cell.text)) + GAP
        lines.append("".join(parts).rstrip())
    return lines
