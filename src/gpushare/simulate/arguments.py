"""The command line of `gpushare simulate`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.contract.units import Unit
from gpushare.policy import GPU_POLICIES
from gpushare.policy.rank import DEFAULT_NODE_RANKING, NODE_RANKINGS

_DESCRIPTION = """\
Where would these pods go? Places the pods of manifests, or of a dump of a live cluster,
on its nodes' GPUs by GPU memory, as the scheduler would. Needs no cluster and changes none.
"""

_EPILOG = """\
examples:
  a Job on a node that you describe, without any YAML for the node:
    gpushare simulate --node name=a,gpus=4x15,placement=spread job.yaml
  your cluster as it is, and a Job on top of it:
    kubectl get nodes,pods -A -o json > dump.json
    gpushare simulate dump.json job.yaml
  your cluster does not share GPUs yet; what if the nodes of a pool did?
    gpushare simulate dump.json job.yaml --share pool=gpu
  which policy?
    gpushare simulate dump.json job.yaml --compare binpack,spread
  is there room if a node, or GPU 1 of a node, fails?
    gpushare simulate dump.json --without gpu-node-1
    gpushare simulate dump.json --without gpu-node-1:1

input:
  Nodes, Pods, Jobs, CronJobs, Deployments, ReplicaSets, StatefulSets, DaemonSets and
  PriorityClasses, as YAML or JSON, several in a file, or List objects. Pods on a node stay
  where they are. A controller adds the pods it lacks. Other kinds are skipped.

--node name=NAME,gpus=COUNTxUNITS[+COUNTxUNITS],...
  placement=binpack|spread  mode=share|cgpu|core_mem  cpu=32  memory=128Gi
  count=10 (nodes NAME-0 to NAME-9)  label:KEY=VALUE
  e.g. gpus=4x15 (four GPUs of 15 GiB), gpus=2x15+1x40

The tables go to stdout, notes to stderr; with -o json the notes are in "warnings".
Exit status: 0 every pod that asks for GPU memory has a place, 1 one of them has none,
2 the input cannot be used (the message says where, and what would be right).
"""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What was asked for on the command line."""

    files: tuple[str, ...]
    recursive: bool
    nodes: tuple[str, ...]
    share: str | None
    without: tuple[str, ...]
    gpu_policy: str | None
    node_ranking: str
    unit: Unit | None
    compare: tuple[str, ...]
    output: str


def parse(argv: Sequence[str] | None, prog: str | None) -> Arguments:
    """The arguments in `argv`, or the process's own. Exits with status 2 on wrong usage, and with
    0 after help."""
    parser = _parser(prog)
    found = parser.parse_args(argv)
    if not found.files and not found.node:
        parser.error(
            "nothing to place: give files (- is stdin), nodes (--node name=a,gpus=4x15), or both; "
            "-h has examples"
        )
    for option, values in (
        ("--node", found.node),
        ("--without", found.without),
        ("--share", found.share),
    ):
        if values is not None and "--" in _flat(values):
            parser.error(f"{option} needs a value")
    if found.compare and found.gpu_policy:
        parser.error("--compare runs each policy in turn, --gpu-policy sets one: use one of them")
    return Arguments(
        files=tuple(found.files),
        recursive=found.recursive,
        nodes=tuple(found.node or ()),
        share=found.share,
        without=tuple(found.without or ()),
        gpu_policy=found.gpu_policy,
        node_ranking=found.node_ranking,
        unit=Unit(found.unit) if found.unit else None,
        compare=found.compare or (),
        output=found.output,
    )


def _parser(prog: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog or "gpushare simulate",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="manifests or dumps, YAML or JSON; a folder (its .yaml, .yml, .json); - is stdin",
    )
    parser.add_argument(
        "-R", "--recursive", action="store_true", help="read folders in folders too"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json"),
        default="table",
        help="wide lists the pods of each node too",
    )
    parser.add_argument(
        "--node", action="append", metavar="SPEC", help="a node without YAML (see below)"
    )
    parser.add_argument(
        "--share",
        metavar="SELECTOR",
        help="treat the nodes with these labels as sharing; their GPUs come from their labels",
    )
    parser.add_argument(
        "--without",
        action="append",
        metavar="NODE[:GPU]",
        help="this fails or is drained: what is on it must find another place",
    )
    parser.add_argument(
        "--gpu-policy",
        choices=tuple(GPU_POLICIES),
        help="which GPU of a node; overrides the nodes' label ack.node.gpu.placement",
    )
    parser.add_argument(
        "--node-ranking",
        choices=tuple(NODE_RANKINGS),
        default=DEFAULT_NODE_RANKING,
        help=f"which node of those that fit (default: {DEFAULT_NODE_RANKING})",
    )
    parser.add_argument(
        "--unit",
        choices=tuple(Unit),
        help=f"the unit of nodes that publish none (default: {Unit.GIB})",
    )
    parser.add_argument(
        "--compare",
        type=_policies,
        metavar="POLICY,POLICY",
        help="the same input under several GPU policies, side by side",
    )
    return parser


def _flat(values: object) -> list[object]:
    """The values of an option; argparse makes an empty list of `--node=--`."""
    if not isinstance(values, list):
        return [values]
    return [flat for value in values for flat in _flat(value)] or ["--"]


def _policies(text: str) -> tuple[str, ...]:
    policies = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [policy for policy in policies if policy not in GPU_POLICIES]
    if unknown or not policies:
        raise argparse.ArgumentTypeError(
            f"{text!r}: use one or several of {', '.join(GPU_POLICIES)}, separated by commas"
        )
    return policies
