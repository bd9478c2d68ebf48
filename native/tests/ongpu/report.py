"""What the script prints: tables for people, and every check with what was expected."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence

MIB = 1 << 20


class Report:
    """Collects the checks of a run; it goes on after one has failed."""

    def __init__(self, budget_s: float) -> None:
        self.failures: list[str] = []
        self.left_out: list[str] = []
        self.checks = 0
        self._started = time.monotonic()
        self._budget_s = budget_s

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def check(self, what: str, good: bool, expected: str, found: object) -> None:
        """One fact that must hold."""
        self.checks += 1
        if not good:
            self.failures.append(f"{what}: expected {expected}, found {found}")
            print(f"FAILED {self.failures[-1]}", flush=True)

    def equal(self, what: str, found: object, expected: object) -> None:
        self.check(what, found == expected, str(expected), found)

    def omit(self, what: str) -> None:
        """Says what this run does not show."""
        self.left_out.append(what)
        print(f"left out: {what}", flush=True)

    def group(self, title: str, check: Callable[[], None]) -> None:
        """A group of checks; what goes wrong in it fails it and not the ones behind it."""
        print(f"\n## {title}\n", flush=True)
        if self.elapsed_s >= self._budget_s:
            self.check(title, False, f"to start within {self._budget_s:.0f} s", "no time left")
            return
        try:
            check()
        except Exception as error:
            self.check(title, False, "to be run to its end", f"{type(error).__name__}: {error}")

    def table(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        text = [[str(cell) for cell in row] for row in rows]
        widths = [max(len(row[i]) for row in [list(head), *text]) for i in range(len(head))]
        for row in [list(head), ["-" * width for width in widths], *text]:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("| " + " | ".join(cells) + " |")
        print(flush=True)

    def end(self) -> int:
        """Says how it went, loudly; the exit status."""
        print(f"\n{self.checks} checks in {self.elapsed_s:.0f} s.")
        for text in self.left_out:
            print(f"Left out: {text}")
        if not self.failures:
            print("All of them hold.", flush=True)
            return 0
        sys.stdout.flush()
        print(f"\n{len(self.failures)} FAILED:", file=sys.stderr)
        for text in self.failures:
            print(f"  {text}", file=sys.stderr)
        return 1


def mib(amount: float) -> str:
    """Bytes as MiB, with a fraction only where there is one."""
    return f"{amount / MIB:.3f}".rstrip("0").rstrip(".")
