"""`kubectl inspect cgpu`, `kubectl inspect gpushare`, `gpushare inspect`: wiring."""

import gc
import os
import sys
from collections.abc import Sequence

from gpushare.inspect.arguments import Options, parse


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
    # Only now: help is there at once, and a cluster's objects cost their own imports.
    from gpushare.inspect.errors import InspectError
    from gpushare.inspect.output import Rendering, render
    from gpushare.inspect.terminal import show, tolerate, wants_colour

    for stream in (sys.stdout, sys.stderr):
        tolerate(stream)
    colour = wants_colour(sys.stdout)

    def take() -> Rendering:
        if options.files:
            from gpushare.inspect.dump import read_dumps

            return render(read_dumps(options.files), options, colour=colour)
        from gpushare.inspect.kubectl import read_live

        return render(read_live(options.kubectl), options, colour=colour)

    try:
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


if __name__ == "__main__":
    sys.exit(main())
