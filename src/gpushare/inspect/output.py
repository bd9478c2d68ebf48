"""Objects and options -> what is printed where.

Standard output is a promise (CONTRACT: kubectl inspect cgpu): the table, or JSON or YAML, and
nothing else. Notes go to stderr, or into the JSON's `warnings`.
"""

from dataclasses import dataclass

import msgspec

from gpushare.contract import names
from gpushare.contract.units import Unit
from gpushare.inspect.arguments import Options
from gpushare.inspect.decode import Objects
from gpushare.inspect.errors import InspectError
from gpushare.kube.cluster import Cluster, read_cluster
from gpushare.policy import GPU_POLICIES
from gpushare.view import table
from gpushare.view.notes import hidden_notes, notes, stray_notes
from gpushare.view.report import PodShare, Report, build_report

NAMES_IN_ERROR = 20
"""Nodes that an error about an unknown one names."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What to print: `text` on stdout, `notes` on stderr, a line each."""

    text: str
    notes: tuple[str, ...] = ()


def render(objects: Objects, options: Options, *, colour: bool = False) -> Rendering:
    """What `options` ask to see of a cluster's objects.

    Raises InspectError for a node that is not there, or a selector that cannot be read.
    """
    unit = Unit(options.unit)
    cluster = read_cluster(objects.nodes, objects.pods, tuple(GPU_POLICIES), unit)
    shown = _chosen(cluster, options)
    unit = cluster.unit(shown, unit)
    lines = notes(cluster, shown, unit)
    if options.node is None and options.selector is None:
        lines += [*hidden_notes(cluster, shown), *stray_notes(cluster)]
    if not shown:
        lines.append(_nothing_to_show(options))
    if not objects.pods and options.files:
        lines.append("there is no pod in the dump; make it with kubectl get nodes,pods -A -o json")
    structured = options.output in ("json", "yaml")
    if options.by is not None:
        from gpushare.view.usage import By, build_usage, usage_table

        usage = build_usage(
            cluster.ledger, shown, unit, By(options.by), namespace=options.namespace
        )
        if structured:
            return Rendering(_encoded(usage, options.output), tuple(lines))
        return Rendering(usage_table(usage, headers=options.headers, colour=colour), tuple(lines))
    report = build_report(cluster.ledger, shown, unit, warnings=lines if structured else ())
    if options.namespace is not None:
        report = only_namespace(report, options.namespace)
    if structured:
        return Rendering(_encoded(report, options.output))
    draw = table.details if options.details else table.summary
    wide = options.output == "wide"
    return Rendering(draw(report, wide=wide, headers=options.headers, colour=colour), tuple(lines))


def only_namespace(report: Report, namespace: str) -> Report:
    """The report with the pods of one namespace only. Sums stay as they are."""

    def own(pods: list[PodShare]) -> list[PodShare]:
        return [pod for pod in pods if pod.namespace == namespace]

    replace = msgspec.structs.replace
    return replace(
        report,
        nodes=[
            replace(
                node,
                pending_pods=own(node.pending_pods),
                gpus=[replace(gpu, pods=own(gpu.pods)) for gpu in node.gpus],
            )
            for node in report.nodes
        ],
    )


def _chosen(cluster: Cluster, options: Options) -> list[str]:
    """The nodes to show, by name."""
    sharing = cluster.sharing_nodes()
    if options.node is not None:
        if options.node not in sharing:
            raise InspectError(_no_such_node(cluster, sharing, options.node))
        return [options.node]
    if options.selector is not None:
        from gpushare.kube.selector import SelectorError, parse_selector

        try:
            selector = parse_selector(options.selector)
        except SelectorError as error:
            raise InspectError(f"-l {error}") from None
        return [name for name in sharing if selector.matches(cluster.nodes[name].metadata.labels)]
    return sharing


def _no_such_node(cluster: Cluster, sharing: list[str], wanted: str) -> str:
    there = ", ".join(sharing[:NAMES_IN_ERROR])
    if len(sharing) > NAMES_IN_ERROR:
        there += f" and {len(sharing) - NAMES_IN_ERROR} more"
    what = "shares no GPU memory" if wanted in cluster.nodes else "is no node of this cluster"
    if not sharing:
        return f"{wanted} {what}, and no node offers {names.RESOURCE_MEM}"
    return f"{wanted} {what}; nodes with GPU memory: {there}"


def _nothing_to_show(options: Options) -> str:
    if options.selector is not None:
        return f"no node that offers {names.RESOURCE_MEM} has the labels {options.selector}"
    return (
        f"no node offers {names.RESOURCE_MEM}: label one {names.LABEL_MODE}=cgpu (or share) and "
        "see that the device plugin runs on it"
    )


def _encoded(report: msgspec.Struct, output: str) -> str:
    from gpushare.view import json

    return (json.encode_yaml if output == "yaml" else json.encode)(report).decode()
