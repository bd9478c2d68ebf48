"""`gpushare simulate`: wiring."""

import gc
import io
import os
import sys
from collections.abc import Sequence
from itertools import chain

from gpushare.kube.selector import SelectorError, parse_selector
from gpushare.simulate.arguments import Arguments, parse
from gpushare.simulate.compare import compare
from gpushare.simulate.engine import run
from gpushare.simulate.errors import InputError
from gpushare.simulate.intake import gather
from gpushare.simulate.nodespec import parse_nodes
from gpushare.simulate.outage import without
from gpushare.simulate.output import (
    comparison_json,
    comparison_table,
    printable,
    report,
    tables,
)
from gpushare.simulate.progress import Progress
from gpushare.simulate.scene import Scene
from gpushare.simulate.source import read
from gpushare.simulate.staging import Options, stage
from gpushare.view import json

EXIT_PLACED, EXIT_NO_PLACE, EXIT_UNUSABLE = 0, 1, 2


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Places pods, prints the outcome and returns the exit status (0, 1, 2; see the help).

    argv   arguments without the program's name; the process's own where None
    prog   the program's name in its help

    Raises SystemExit after help (0) and for wrong usage (2).
    """
    arguments = parse(argv, prog)
    collecting = gc.isenabled()
    gc.disable()  # nothing read here is garbage before it is printed
    progress = Progress()
    try:
        return _run(arguments, progress)
    except InputError as error:
        progress.clear()
        sys.stderr.write(printable(f"error: {error}\n"))
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        progress.clear()
        return 130
    except BrokenPipeError:  # head, or a pager that was left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PLACED
    finally:
        if collecting:
            gc.enable()


def _run(arguments: Arguments, progress: Progress) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 is no reason to fail
    scene = _scene(arguments, progress)
    if arguments.compare:
        return _compare(scene, arguments, progress)
    outcome = run(scene, node_ranking=arguments.node_ranking, heard=progress.placing)
    found = report(outcome)
    progress.clear()
    if arguments.output == "json":
        sys.stdout.write(json.encode(found).decode())
    else:
        sys.stdout.write(tables(found, wide=arguments.output == "wide"))
        _note(found.warnings)
    sys.stdout.flush()
    return EXIT_NO_PLACE if outcome.refused else EXIT_PLACED


def _scene(arguments: Arguments, progress: Progress) -> Scene:
    """The scene that the arguments describe. Raises InputError."""
    share = None
    if arguments.share is not None:
        try:
            share = parse_selector(arguments.share)
        except SelectorError as error:
            raise InputError(f"--share {error}") from None
    given = list(chain.from_iterable(parse_nodes(spec) for spec in arguments.nodes))
    documents = read(arguments.files, recursive=arguments.recursive, heard=progress.reading)
    taken = gather(documents, given)
    if not taken.nodes and not taken.work:
        raise InputError(
            f"{', '.join(arguments.files)}: nothing there that the simulator knows; give Nodes and "
            "Pods, Jobs or other workloads, or the output of kubectl get nodes,pods -A -o json"
        )
    if not taken.nodes:
        raise InputError(
            "there is no node to place pods on; add a dump (kubectl get nodes,pods -A -o json) or "
            "describe one: --node name=a,gpus=4x15,placement=spread"
        )
    options = Options(share=share, unit=arguments.unit, gpu_policy=arguments.gpu_policy)
    return without(stage(taken, options), arguments.without)


def _compare(scene: Scene, arguments: Arguments, progress: Progress) -> int:
    rows = []
    total, unit = 0, ""
    for row, outcome in compare(scene, arguments.compare, arguments.node_ranking, progress.placing):
        rows.append(row)
        unit = outcome.unit
        total = max(total, sum(outcome.ledger.books(name).node.units for name in outcome.shown))
    progress.clear()
    if arguments.output == "json":
        sys.stdout.write(comparison_json(rows))
    else:
        sys.stdout.write(comparison_table(rows, total, unit))
        _note(scene.warnings)
    sys.stdout.flush()
    return EXIT_NO_PLACE if any(row.unscheduled for row in rows) else EXIT_PLACED


def _note(lines: Sequence[str]) -> None:
    sys.stdout.flush()
    if lines:
        sys.stderr.write(printable("\n" + "".join(f"note: {line}\n" for line in lines)))


if __name__ == "__main__":
    sys.exit(main())
