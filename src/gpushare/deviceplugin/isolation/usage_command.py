"""`gpushare device-plugin usage`: what the containers of this node use, asked of its plugin."""

import argparse
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Final

import msgspec

from gpushare.contract.names import PLUGIN_METRICS_PORT
from gpushare.deviceplugin.isolation.usage import PATH, VERSION, ContainerUse, UsageReport
from gpushare.isolation.limits import MIB
from gpushare.view import json
from gpushare.view.address import listen_address
from gpushare.view.columns import Row, align
from gpushare.view.table import NOBODY

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 64 << 20

COLUMNS: Final = (
    *("NAMESPACE", "POD", "CONTAINER", "GPU", "UNITS"),
    *("LIMIT", "USED", "REAL", "PEAK", "REFUSED", "NOTE"),
)

_DESCRIPTION: Final = """\
Show what each container of this node uses of its GPUs, as the device plugin
that runs here reads it: a line for each container and GPU.

LIMIT, USED, REAL and PEAK are MiB; a part of one counts as one. USED is
what counts within the limit, REAL what the driver said some seconds ago.
REFUSED are allocations beyond the limit. - is what is not known, or no limit.
"""

_EPILOG: Final = """\
In the plugin's own container (kubectl exec) it works as well.
Exit status: 0 shown, 1 not (the message says why), 2 usage.
"""


class _Failure(Exception):
    """Why nothing can be shown, in a sentence."""


class _Version(msgspec.Struct):
    version: int


def main(argv: Sequence[str], prog: str = "gpushare device-plugin usage") -> int:
    """Shows it and returns the exit status: 0, or 1 with a message on stderr.

    Raises SystemExit after help (0) and for wrong usage (2).
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen",
        type=listen_address(PLUGIN_METRICS_PORT),
        default=("127.0.0.1", PLUGIN_METRICS_PORT),
        metavar="ADDRESS:PORT",
        help=f"what the plugin was told to listen on (default 127.0.0.1:{PLUGIN_METRICS_PORT})",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--no-headers", action="store_true", help="leave out the column names")
    options = parser.parse_args(argv)
    try:
        report = ask(*options.listen)
    except _Failure as failure:
        print(f"{prog}: {failure}", file=sys.stderr)
        return 1
    if options.output == "json":
        sys.stdout.write(json.encode(report).decode())
    else:
        sys.stdout.write(table(report, headers=not options.no_headers))
    return 0


def ask(host: str, port: int, timeout_s: float = TIMEOUT_S) -> UsageReport:
    """What the plugin at an address tells. Raises _Failure."""
    where = f"{host}:{port}" if ":" not in host else f"[{host}]:{port}"
    # Never by a proxy: the plugin is here.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{where}{PATH}", timeout=timeout_s) as answer:
            body: bytes = answer.read(MAX_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            raise _Failure(_refused(where, error)) from None
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        why = cause.strerror if isinstance(cause, OSError) and cause.strerror else cause
        raise _Failure(
            f"no device plugin answers at {where}: {why}; is one running on this node? If it "
            "listens elsewhere, say where with --listen ADDRESS:PORT"
        ) from None
    return _decoded(where, body)


def _refused(where: str, error: urllib.error.HTTPError) -> str:
    if error.code == 404:
        return (
            f"what answers at {where} knows no {PATH}: a device plugin older than this command, "
            f"whose http://{where}/metrics may still tell something, or another program"
        )
    if error.code == 503:
        said = error.read(1000).decode(errors="replace").strip()
        return f"the device plugin at {where} cannot tell yet: {said}"
    return f"{where} answers {error.code} {error.reason}"


def _decoded(where: str, body: bytes) -> UsageReport:
    try:
        version = msgspec.json.decode(body, type=_Version).version
        if version == VERSION:
            return msgspec.json.decode(body, type=UsageReport)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise _Failure(f"what answers at {where} is no device plugin of gpushare's") from None
    raise _Failure(
        f"the device plugin at {where} answers in version {version} of the format, and this "
        f"command reads {VERSION}: use the command of the plugin's own version"
    )


def table(report: UsageReport, *, headers: bool = True) -> str:
    """A row for each container and GPU."""
    rows: list[Row] = [COLUMNS] if headers else []
    rows.extend(_row(use) for use in report.containers)
    return "".join(line + "\n" for line in align(rows))


def _row(use: ContainerUse) -> Row:
    amounts = (use.limit_bytes, use.used_bytes, use.real_bytes, use.peak_bytes)
    return [
        use.namespace,
        use.pod,
        use.container,
        str(use.gpu),
        str(use.units),
        *(NOBODY if amount is None else f"{-(-amount // MIB)}MiB" for amount in amounts),
        NOBODY if use.refused is None else str(use.refused),
        _note(use) or NOBODY,
    ]


def _note(use: ContainerUse) -> str:
    notes = []
    if use.unprotected is not None:
        notes.append(f"runs without its limit: {use.unprotected or 'no reason given'}")
    elif use.limit_bytes is None:
        notes.append("has no limit")
    if use.missing is not None:
        notes.append(use.missing)
    return "; ".join(notes)
