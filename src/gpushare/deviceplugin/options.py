"""The command line of `gpushare device-plugin`."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import gpushare
from gpushare.contract.names import (
    ENV_DISABLE_ISOLATION,
    LABEL_MODE,
    PLUGIN_METRICS_PORT,
    Mode,
)
from gpushare.contract.units import Unit
from gpushare.deviceplugin.injection.choosing import Choice
from gpushare.deviceplugin.injection.edits import HOOK_NAME
from gpushare.deviceplugin.sources import ALL_SOURCES
from gpushare.isolation.backend import LIBRARY_NAME
from gpushare.isolation.limits import DEFAULT_RESERVE_MIB
from gpushare.node.cdi import DIRECTORIES
from gpushare.node.kubelet import DEVICE_PLUGINS
from gpushare.node.podresources import SOCKET
from gpushare.view.address import listen_address

MAX_RESERVE_MIB: Final = 65536
NODE_VARIABLE: Final = "NODE_NAME"
HOOK_VARIABLE: Final = "GPUSHARE_HOOK"
LIBRARY_VARIABLE: Final = "GPUSHARE_LIBRARY"
HOME: Final = Path("/var/lib/gpushare")
REGIONS: Final = Path("/run/gpushare")
_NATIVE: Final = Path(gpushare.__file__).parent / "native"
SHIPPED_HOOK: Final = _NATIVE / HOOK_NAME
SHIPPED_LIBRARY: Final = _NATIVE / LIBRARY_NAME


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
    beside_whole_gpus: bool = False
    injection: Choice = Choice.AUTO
    hook: Path | None = None
    home: Path = HOME
    cdi_directories: tuple[Path, ...] = DIRECTORIES
    library: Path | None = None
    regions: Path = REGIONS
    reserve_mib: int = DEFAULT_RESERVE_MIB
    allow_unisolated: bool = False
    allow_cgpu_disable: bool = False


def parse(argv: Sequence[str], prog: str = "gpushare device-plugin") -> Options:
    """The options of a command line. Ends the process with a message if it is wrong."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Offers the GPU memory of a node to the kubelet, and gives each pod the GPU "
        "that was decided for it. One runs on every GPU node.",
        epilog=f"{prog} usage shows what the containers of a node use, while one runs there.",
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
        help=f"for /metrics, /usage and /healthz (default 127.0.0.1:{PLUGIN_METRICS_PORT})",
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
        "--beside-whole-gpus",
        action="store_true",
        help="offer GPU memory although another device plugin offers nvidia.com/gpu on this node",
    )
    parser.add_argument(
        "--injection",
        type=Choice,
        choices=list(Choice),
        default=Choice.AUTO,
        help="how containers get their GPUs: by CDI devices; or by the environment alone, for "
        "nodes where NVIDIA's runtime is the default (default auto: CDI, where the container "
        "runtime does it and a specification names the GPUs)",
    )
    parser.add_argument(
        "--hook",
        type=_file,
        default=os.environ.get(HOOK_VARIABLE) or (SHIPPED_HOOK if SHIPPED_HOOK.exists() else None),
        metavar="FILE",
        help=f"the program {HOOK_NAME}, which is installed on the node and checks before a "
        f"container starts that it has its GPU (default ${HOOK_VARIABLE}, else as shipped)",
    )
    parser.add_argument(
        "--home",
        type=Path,
        default=HOME,
        metavar="DIRECTORY",
        help="where the hook and what it writes are kept; the same path here and on the node "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--cdi-directories",
        type=_directories,
        default=DIRECTORIES,
        metavar="LIST",
        help="where the container runtime looks for CDI specifications; ours are written to the "
        f"last (default {','.join(map(str, DIRECTORIES))})",
    )
    parser.add_argument(
        "--library",
        type=_file,
        default=os.environ.get(LIBRARY_VARIABLE)
        or (SHIPPED_LIBRARY if SHIPPED_LIBRARY.exists() else None),
        metavar="FILE",
        help=f"{LIBRARY_NAME}, which is installed on the node and holds containers to their GPU "
        f"memory where {LABEL_MODE}={Mode.CGPU} (default ${LIBRARY_VARIABLE}, else as shipped)",
    )
    parser.add_argument(
        "--regions",
        type=Path,
        default=REGIONS,
        metavar="DIRECTORY",
        help="where containers' limits and what they use are kept: a small tmpfs, which is mounted "
        "if it is none; the same path here and on the node (default %(default)s)",
    )
    parser.add_argument(
        "--reserve-mib",
        type=_mib,
        default=DEFAULT_RESERVE_MIB,
        metavar="N",
        help="charged within a container's limit for each CUDA context, which takes about that "
        "much by itself (default %(default)s)",
    )
    parser.add_argument(
        "--allow-unisolated",
        action="store_true",
        help=f"take pods where {LABEL_MODE}={Mode.CGPU} and nothing can hold them to their share",
    )
    parser.add_argument(
        "--allow-cgpu-disable",
        action="store_true",
        help=f"let containers with {ENV_DISABLE_ISOLATION}=true use the whole GPU",
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
        beside_whole_gpus=given.beside_whole_gpus,
        injection=given.injection,
        hook=given.hook,
        home=given.home,
        cdi_directories=given.cdi_directories,
        library=given.library,
        regions=given.regions,
        reserve_mib=given.reserve_mib,
        allow_unisolated=given.allow_unisolated,
        allow_cgpu_disable=given.allow_cgpu_disable,
    )


def _file(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is no file")
    return Path(text)


def _mib(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > MAX_RESERVE_MIB:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give MiB, a whole number up to {MAX_RESERVE_MIB}"
        )
    return int(text)


def _directories(text: str) -> tuple[Path, ...]:
    paths = tuple(Path(part.strip()) for part in text.split(",") if part.strip())
    if not paths or not all(path.is_absolute() for path in paths):
        raise argparse.ArgumentTypeError(f"{text!r}: give absolute paths, separated by commas")
    return paths


def _sources(text: str) -> frozenset[str]:
    chosen = frozenset(part.strip() for part in text.split(",") if part.strip())
    unknown = chosen - set(ALL_SOURCES)
    if unknown or not chosen:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give one or more of {', '.join(ALL_SOURCES)}, separated by commas"
        )
    return chosen
