"""Patience: waiting for something to come true, and saying how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from gpushare_testcluster.errors import TimedOut

T = TypeVar("T")


def wait_for(
    predicate: Callable[[], T],
    timeout_s: float,
    what: str = "",
    *,
    every_s: float = 0.03,
    quiet: bool = False,
) -> T:
    """Calls `predicate` until it answers something true, and returns that.

    what: for the printed line (`what: 0.21 s`) and for the error; nothing is printed without it.
    An AssertionError inside the predicate counts as "not yet": its text is in the error at the end.
    Raises TimedOut after timeout_s seconds, with the last answer in the text.
    """
    start = time.monotonic()
    while True:
        answer: object
        try:
            value = predicate()
            answer = value
            if value:
                if what and not quiet:
                    print(f"{what}: {time.monotonic() - start:.2f} s")
                return value
        except AssertionError as error:
            answer = error
        if time.monotonic() - start > timeout_s:
            name = what or getattr(predicate, "__name__", "condition")
            raise TimedOut(f"{name}: not within {timeout_s:g} s; last answer: {answer!r}")
        time.sleep(every_s)
