"""The command line of `gpushare device-plugin`."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.contract.names import PLUGIN_METRICS_PORT
from gpushare.contract.units import Unit
from gpushare.deviceplugin.sources import ALL_SOURCES
from gpushare.node.kubelet import DEVICE_PLUGINS
from gpushare.node.podresources import SOCKET
from gpushare.view.address import listen_address

NODE_VARIABLE = "NODE_NAME"


@dataclass(frozen=True)
class Options:
    """What the process was started with."""

    kubeconfig: Path | None
    context: str | None
    node: str
    fake_gpus: Path | None
    unit: Unit
    host: str
    port: int
    device_plugins: Path
    pod_resources: Path
    attest_by: frozenset[str]
    log_level: str
    log_format: str


def parse(argv: Sequence[str], prog: str = "gpushare device-plugin") -> Options:
    """The options of a command line. Ends the process with a message if it is wrong."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Offers the GPU memory of a node to the kubelet, and gives each pod the GPU "
        "that was decided for it. One runs on every GPU node.",
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="how to reach the API server; without it, the pod's own service account",
    )
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig; default its current")
    parser.add_argument(
        "--node",
        metavar="NAME",
        default=os.environ.get(NODE_VARIABLE),
        help=f"of the Node object this runs on (default ${NODE_VARIABLE})",
    )
    parser.add_argument(
        "--fake-gpus",
        type=Path,
        metavar="FILE",
        help="pretend to have the GPUs that FILE lists, for trying it out on a machine without any",
    )
    parser.add_argument(
        "--unit",
        type=Unit,
        choices=list(Unit),
        default=Unit.GIB,
        help="of aliyun.com/gpu-mem (default GiB); the same on all nodes of a cluster",
    )
    parser.add_argument(
        "--listen",
        type=listen_address(PLUGIN_METRICS_PORT),
        default=("127.0.0.1", PLUGIN_METRICS_PORT),
        metavar="ADDRESS:PORT",
        help=f"for /metrics and /healthz (default 127.0.0.1:{PLUGIN_METRICS_PORT})",
    )
    parser.add_argument(
        "--device-plugins",
        type=Path,
        default=DEVICE_PLUGINS,
        metavar="DIRECTORY",
        help="where the kubelet has its socket for device plugins (default %(default)s)",
    )
    parser.add_argument(
        "--pod-resources",
        type=Path,
        default=SOCKET,
        metavar="SOCKET",
        help="of the kubelet's PodResources API (default %(default)s)",
    )
    parser.add_argument(
        "--attest-by",
        type=_sources,
        default=frozenset(ALL_SOURCES),
        metavar="LIST",
        help="how to find out which pod got which GPU, for tests and for kubelets of an unknown "
        f"kind (default {','.join(ALL_SOURCES)})",
    )
    parser.add_argument(
        "--log-level", choices=["debug", "info", "warning", "error"], default="info"
    )
    parser.add_argument("--log-format", choices=["text", "json"], default="text")
    given = parser.parse_args(argv)
    if not given.node:
        parser.error(f"which node is this? Give --node NAME, or set ${NODE_VARIABLE}")
    host, port = given.listen
    return Options(
        kubeconfig=given.kubeconfig,
        context=given.context,
        node=given.node,
        fake_gpus=given.fake_gpus,
        unit=given.unit,
        host=host,
        port=port,
        device_plugins=given.device_plugins,
        pod_resources=given.pod_resources,
        attest_by=given.attest_by,
        log_level=given.log_level,
        log_format=given.log_format,
    )


def _sources(text: str) -> frozenset[str]:
    chosen = frozenset(part.strip() for part in text.split(",") if part.strip())
    unknown = chosen - set(ALL_SOURCES)
    if unknown or not chosen:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give one or more of {', '.join(ALL_SOURCES)}, separated by commas"
        )
    return chosen
