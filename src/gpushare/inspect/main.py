"""`kubectl inspect cgpu`, `kubectl inspect gpushare`, `gpushare inspect`: wiring."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpushare.inspect.arguments import Options, parse

if TYPE_CHECKING:
    from gpushare.inspect.output import Rendering


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Shows GPU memory and returns the exit status: 0, or 1 with a message on stderr.

    argv   arguments without the program's name; the process's own where None
    prog   the program's name in its help

    Raises SystemExit after help (0) and for wrong usage (2).
    """
    options = parse(argv, prog)
    collecting = gc.isenabled()
    gc.disable()  # nothing read here is garbage before it is printed
    try:
        return _run(options)
    except KeyboardInterrupt:
        return 0 if options.watch else 130
    except BrokenPipeError:  # head, or a pager that was left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        if collecting:
            gc.enable()


def _run(options: Options) -> int:
    # Imported only now: help is there at once, and while kubectl works, the rest is imported.
    from gpushare.inspect.errors import InspectError
    from gpushare.inspect.terminal import show, tolerate

    for stream in (sys.stdout, sys.stderr):
        tolerate(stream)
    try:
        take = _from_files(options) if options.files else _from_cluster(options)
        if options.watch:
            from gpushare.inspect.watch import watch

            gc.enable()
            watch(take, options.interval_s)
        else:
            show(take())
    except InspectError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _from_files(options: Options) -> "Callable[[], Rendering]":
    from gpushare.inspect.dump import read_dumps
    from gpushare.inspect.output import render
    from gpushare.inspect.terminal import wants_colour

    return lambda: render(read_dumps(options.files), options, colour=wants_colour(sys.stdout))


def _from_cluster(options: Options) -> "Callable[[], Rendering]":
    from gpushare.inspect.kubectl import Reading

    begun: list[Reading] = [Reading(options.kubectl)]

    from gpushare.inspect.output import render
    from gpushare.inspect.terminal import wants_colour

    def take() -> "Rendering":
        reading = begun.pop() if begun else Reading(options.kubectl)
        return render(reading.objects(), options, colour=wants_colour(sys.stdout))

    return take


if __name__ == "__main__":
    sys.exit(main())
