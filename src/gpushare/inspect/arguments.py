"""The command line of `kubectl inspect cgpu`.

Options that say which cluster, and as whom, are kubectl's own and are handed on to it as they are.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

KUBECTL_OPTIONS = (
    "--as",
    "--as-group",
    "--as-uid",
    "--cache-dir",
    "--certificate-authority",
    "--client-certificate",
    "--client-key",
    "--cluster",
    "--context",
    "--kubeconfig",
    "--request-timeout",
    "--server",
    "--tls-server-name",
    "--token",
    "--user",
)
KUBECTL_FLAGS = ("--insecure-skip-tls-verify", "--disable-compression")

_USAGE = (
    "%(prog)s [NODE] [-d] [-o table|wide|json|yaml] [-f FILE] [-l SELECTOR] [-n NAMESPACE]\n"
    "       [--by namespace|owner] [--no-headers] [--unit UNIT] [-w [--interval SECONDS]]\n"
    "       [option of kubectl]..."
)

_DESCRIPTION = """\
Show GPU memory by node and GPU: allocated / total, in the cluster's unit.

The cluster is read through kubectl, with its logins. With -f a dump is read
instead, and no cluster is needed:
  kubectl get nodes,pods -A -o json > dump.json; kubectl inspect cgpu -f dump.json
"""

_EPILOG = """\
The table goes to stdout, notes (what is unhealthy, cordoned, pending, unprotected)
to stderr. A node is listed when it offers aliyun.com/gpu-mem, publishes its GPUs,
or has a live pod that asks for GPU memory. Sums are over the nodes that are listed.
Exit status: 0 shown, 1 not (the message says why), 2 usage.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for on the command line."""

    node: str | None
    files: tuple[str, ...]
    details: bool
    output: str
    selector: str | None
    namespace: str | None
    by: str | None
    headers: bool
    unit: str
    watch: bool
    interval_s: float
    kubectl: tuple[str, ...]
    """Options to hand on to kubectl."""


def parse(argv: Sequence[str] | None, prog: str | None) -> Options:
    """The options in `argv`, or the process's own. Exits with status 2 on wrong usage, and with 0
    after help or the version."""
    parser = _parser(prog)
    found = parser.parse_args(argv)
    handed_on: list[str] = []
    for option in KUBECTL_OPTIONS:
        handed_on.extend(f"{option}={value}" for value in getattr(found, _dest(option)) or ())
    handed_on.extend(flag for flag in KUBECTL_FLAGS if getattr(found, _dest(flag)))
    if found.file and found.watch:
        parser.error("-w watches a cluster; a file (-f) does not change")
    if found.file and handed_on:
        parser.error(f"{handed_on[0].partition('=')[0]} is about a cluster; -f reads a file")
    if found.by and found.details:
        parser.error("-d lists pods by node, --by adds them up: use one of them")
    if found.node and found.selector:
        parser.error("a node's name or a selector of nodes (-l): use one of them")
    return Options(
        node=found.node,
        files=tuple(found.file or ()),
        details=found.details,
        output=found.output,
        selector=found.selector,
        namespace=found.namespace,
        by=found.by,
        headers=not found.no_headers,
        unit=found.unit,
        watch=found.watch,
        interval_s=found.interval,
        kubectl=tuple(handed_on),
    )


def _parser(prog: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog or "kubectl inspect cgpu",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("node", nargs="?", metavar="NODE", help="show this node only")
    parser.add_argument("-d", "--details", action="store_true", help="list the pods of each node")
    parser.add_argument(
        "-f",
        "--file",
        "--filename",
        action="append",
        metavar="FILE",
        help="read a dump (JSON or YAML) instead of a cluster; - is stdin; may be given again",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json", "yaml"),
        default="table",
        help="wide adds mode, placement, isolation and the largest free amount on one GPU, with "
        "-d also the memory limits of each pod's containers",
    )
    parser.add_argument("-l", "--selector", metavar="SELECTOR", help="only nodes with these labels")
    parser.add_argument(
        "-n", "--namespace", metavar="NAMESPACE", help="list only its pods; sums stay the cluster's"
    )
    parser.add_argument(
        "--by", choices=("namespace", "owner"), help="who uses how much, instead of nodes"
    )
    parser.add_argument("--no-headers", action="store_true", help="leave out the column names")
    parser.add_argument(
        "--unit",
        choices=("GiB", "128MiB"),
        default="GiB",
        help="the unit of nodes that publish none (default: GiB)",
    )
    parser.add_argument("-w", "--watch", action="store_true", help="keep showing it, until Ctrl-C")
    parser.add_argument(
        "--interval",
        type=_interval,
        default=3.0,
        metavar="SECONDS",
        help="with -w: how often to look (default: 3)",
    )
    parser.add_argument("-A", "--all-namespaces", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version")
    group = parser.add_argument_group("handed on to kubectl")
    for option in KUBECTL_OPTIONS:
        short = ("-s",) if option == "--server" else ()
        group.add_argument(*short, option, action="append", dest=_dest(option), metavar="VALUE")
    for flag in KUBECTL_FLAGS:
        group.add_argument(flag, action="store_true", dest=_dest(flag))
    return parser


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """argparse makes one for every argument, and to find the terminal's width it imports modules
    that cost more than all the rest of the start."""

    def __init__(self, prog: str, **more: Any) -> None:
        more.setdefault("width", _width() - 2)
        super().__init__(prog, **more)


def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or 80
    except (OSError, ValueError):
        return 80


def _dest(option: str) -> str:
    return "kubectl" + option.replace("-", "_")


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.2 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.2 to 3600")
    return seconds


class _ShowVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from importlib.metadata import version  # slow to import, and seldom needed

        parser.exit(message=f"gpushare {version('kube-gpushare')}\n")
