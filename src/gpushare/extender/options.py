"""The command line of `gpushare extender`."""

import argparse
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.contract.names import EXTENDER_PORT
from gpushare.contract.units import Unit
from gpushare.extender.bind import DEADLINE_S
from gpushare.policy.rank import DEFAULT_NODE_RANKING, NODE_RANKINGS
from gpushare.view.address import listen_address


@dataclass(frozen=True)
class Options:
    """What the process was started with."""

    kubeconfig: Path | None
    context: str | None
    host: str
    port: int
    node_ranking: str
    unit: Unit
    bind_deadline_s: float
    nudge: bool
    log_level: str
    log_format: str

    @property
    def on_loopback(self) -> bool:
        """Whether only this host can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse(argv: Sequence[str], prog: str = "gpushare extender") -> Options:
    """The options of a command line. Ends the process with a message if it is wrong."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Decides for kube-scheduler which GPU a pod gets (its HTTP extender).",
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="how to reach the API server; without it, the pod's own service account",
    )
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig; default its current")
    parser.add_argument(
        "--listen",
        type=listen_address(EXTENDER_PORT),
        default=("127.0.0.1", EXTENDER_PORT),
        metavar="ADDRESS:PORT",
        help="where kube-scheduler asks; whoever reaches it can bind pods, so keep it on loopback "
        f"(default 127.0.0.1:{EXTENDER_PORT})",
    )
    parser.add_argument(
        "--node-ranking",
        choices=sorted(NODE_RANKINGS),
        default=DEFAULT_NODE_RANKING,
        help="which node of those with room: the fullest that fits, or the emptiest "
        "(default %(default)s). Which GPU of the node, its own label says",
    )
    parser.add_argument(
        "--unit",
        type=Unit,
        choices=list(Unit),
        default=Unit.GIB,
        help="of aliyun.com/gpu-mem on nodes whose plugin does not say (default GiB)",
    )
    parser.add_argument(
        "--bind-deadline",
        type=_seconds,
        default=DEADLINE_S,
        metavar="SECONDS",
        help="a bind ends by then, well or badly; keep it under half of the scheduler's "
        "httpTimeout (default %(default)s)",
    )
    parser.add_argument(
        "--no-nudge",
        action="store_true",
        help="do not wake waiting pods when there is room; they wait until the scheduler "
        "looks again (for tests)",
    )
    parser.add_argument(
        "--log-level", choices=["debug", "info", "warning", "error"], default="info"
    )
    parser.add_argument("--log-format", choices=["text", "json"], default="text")
    given = parser.parse_args(argv)
    host, port = given.listen
    return Options(
        kubeconfig=given.kubeconfig,
        context=given.context,
        host=host,
        port=port,
        node_ranking=given.node_ranking,
        unit=given.unit,
        bind_deadline_s=given.bind_deadline,
        nudge=not given.no_nudge,
        log_level=given.log_level,
        log_format=given.log_format,
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.5 <= seconds <= 30:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.5 to 30")
    return seconds
