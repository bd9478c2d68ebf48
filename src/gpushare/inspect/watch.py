"""`-w`: the table again and again.

On a terminal it is drawn anew on a cleared screen every few seconds; in a pipe it is printed again
only when something has changed. Reading a large cluster takes the API server some work, so the
pause is never shorter than four times what the last reading took.

A cluster that cannot be read at first ends it; one that could be read before is asked again.
"""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpushare.inspect.errors import ClusterError
from gpushare.inspect.terminal import CLEAR, show, write_notes

if TYPE_CHECKING:
    from gpushare.inspect.output import Rendering

PAUSE_FACTOR = 4


def watch(
    take: "Callable[[], Rendering]",
    interval_s: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Shows what `take` gives, every `interval_s` seconds or so, until it is interrupted.

    Raises what the first `take` raises, InspectError from any, and KeyboardInterrupt.
    """
    last: Rendering | None = None
    trouble = ""
    while True:
        began = clock()
        try:
            rendering = take()
        except ClusterError as error:
            if last is None:
                raise
            if str(error) != trouble:
                trouble = str(error)
                write_notes((f"{trouble}\n      Trying again; what is above is from before",))
        else:
            if sys.stdout.isatty():
                sys.stdout.write(CLEAR)
                show(rendering)
            elif rendering != last or trouble:
                if last is not None:
                    sys.stdout.write("\n")
                show(rendering)
            last, trouble = rendering, ""
        sleep(max(interval_s, PAUSE_FACTOR * (clock() - began)))
