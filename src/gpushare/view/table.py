"""The tables of `kubectl inspect cgpu` and `gpushare simulate` (CONTRACT: kubectl inspect cgpu).

People parse them, some take the last line: column and cell text are a promise. Whatever is not in
these tables belongs to view.notes, the wide columns or the JSON.

Amounts are whole units, percentages are truncated. Columns are GPU indexes: a node without a GPU of
that index, beyond its last or in a gap, shows `0/0` there.
"""

from typing import Protocol

from gpushare.view.columns import Cell, Row, Style, align
from gpushare.view.report import GpuReport, NodeReport, Report

SUMMARY_RULE = "-" * 86
DETAILS_RULE = "-" * 56
"""As long as they always were; their length is no part of the contract."""

UNKNOWN_ADDRESS = "unknown"
NOBODY = "-"
"""Stands for what has no value in a column, so that every row has the same number of words."""

WIDE_COLUMNS = ("MODE", "PLACEMENT", "ISOLATION", "LARGEST-FREE")
LIMIT_COLUMN = "LIMIT(MiB)"


def summary(
    report: Report, *, wide: bool = False, headers: bool = True, colour: bool = False
) -> str:
    """One row per node, then the cluster's sum as the last line.

    wide     adds MODE, PLACEMENT, ISOLATION and LARGEST-FREE (units a single GPU could still take)
    headers  False leaves out the line of column names (`--no-headers`)
    colour   marks full, failed, cordoned and overcommitted GPUs, for a terminal
    """
    gpus = max((_columns(node) for node in report.nodes), default=0)
    pending = any(node.pending for node in report.nodes)
    rows: list[Row] = []
    if headers:
        rows.append(
            [
                "NAME",
                "IPADDRESS",
                *(f"GPU{index}(Allocated/Total)" for index in range(gpus)),
                *(["PENDING(Allocated)"] if pending else []),
                f"GPU Memory({report.unit})",
                *(WIDE_COLUMNS if wide else ()),
            ]
        )
    rows.extend(_summary_row(node, gpus, pending, wide) for node in report.nodes)
    lines = align(rows, colour=colour)
    lines += [SUMMARY_RULE, "Allocated/Total GPU Memory In Cluster:", total(report)]
    return "\n".join(lines) + "\n"


def details(
    report: Report, *, wide: bool = False, headers: bool = True, colour: bool = False
) -> str:
    """One block per node with its pods and the units each holds on every GPU, then the sum.

    wide     adds lines for mode, placement, isolation and the largest free amount to each node,
             and to each pod the limits that its containers are held to: a comma between containers
             on one GPU, a semicolon between GPUs
    headers  False leaves out the lines of column names
    """
    blocks = [_node_details(node, wide, headers, colour) for node in report.nodes]
    blocks.append(f"Allocated/Total GPU Memory In Cluster:  {total(report)}")
    return "\n\n".join(blocks) + "\n"


class HasTotal(Protocol):
    """A report with the cluster's sums, in units."""

    @property
    def allocated(self) -> int: ...

    @property
    def total(self) -> int: ...


def total(report: HasTotal) -> str:
    """The cluster's sum, `12/60 (20%)`."""
    return f"{report.allocated}/{report.total} ({percent(report.allocated, report.total)}%)"


def percent(part: int, whole: int) -> int:
    """Truncated; 0 of nothing is 0."""
    return part * 100 // whole if whole else 0


def _columns(node: NodeReport) -> int:
    return max((gpu.index for gpu in node.gpus), default=-1) + 1


def _summary_row(node: NodeReport, gpus: int, pending: bool, wide: bool) -> Row:
    by_index = {gpu.index: gpu for gpu in node.gpus}
    row: list[str | Cell] = [node.name, node.address or UNKNOWN_ADDRESS]
    row.extend(_gpu_cell(by_index.get(index)) for index in range(gpus))
    if pending:
        row.append(Cell(str(node.pending), Style.YELLOW if node.pending else Style.PLAIN))
    row.append(f"{node.allocated}/{node.total}")
    if wide:
        row.extend(_wide_cells(node))
    return row


def _wide_cells(node: NodeReport) -> tuple[str, ...]:
    return node.mode, node.placement, node.isolation or NOBODY, str(node.largest_free)


def _gpu_cell(gpu: GpuReport | None) -> Cell:
    if gpu is None:
        return Cell("0/0", Style.DIM)
    return Cell(f"{gpu.allocated}/{gpu.total}", _gpu_style(gpu))


def _gpu_style(gpu: GpuReport) -> Style:
    if gpu.allocated > gpu.total:
        return Style.ALARM
    if not gpu.healthy:
        return Style.RED
    if gpu.cordoned or (gpu.total and gpu.allocated == gpu.total):
        return Style.YELLOW
    return Style.PLAIN


def _node_details(node: NodeReport, wide: bool, headers: bool, colour: bool) -> str:
    gpus = _columns(node)
    about: list[Row] = [
        ["NAME:", Cell(node.name, Style.BOLD)],
        ["IPADDRESS:", node.address or UNKNOWN_ADDRESS],
    ]
    if wide:
        about.extend(zip((f"{name}:" for name in WIDE_COLUMNS), _wide_cells(node), strict=True))
    lines = align(about, colour=colour)
    rows: list[Row] = []
    if headers:
        rows.append(
            [
                "NAME",
                "NAMESPACE",
                *(f"GPU{index}(Allocated)" for index in range(gpus)),
                *(["Pending(Allocated)"] if node.pending else []),
                *([LIMIT_COLUMN] if wide else []),
            ]
        )
    rows.extend(_pod_rows(node, gpus, wide))
    rows.append(["Allocated :", f"{node.allocated} ({percent(node.allocated, node.total)}%)"])
    rows.append(["Total :", str(node.total)])
    return "\n".join([*lines, "", *align(rows, colour=colour), DETAILS_RULE])


def _pod_rows(node: NodeReport, gpus: int, wide: bool) -> list[Row]:
    """A row per pod: its name, and its units on every GPU; by namespace and name."""
    held: dict[tuple[str, str], dict[int, int]] = {}
    """(namespace, name) -> GPU index, or `gpus` for pending -> units"""
    limits: dict[tuple[str, str], list[str]] = {}
    """(namespace, name) -> its containers' limits, one text for each GPU"""
    places = [*((gpu.index, gpu.pods) for gpu in node.gpus), (gpus, node.pending_pods)]
    for index, pods in places:
        for pod in pods:
            units = held.setdefault((pod.namespace, pod.name), {})
            units[index] = units.get(index, 0) + pod.units
            if pod.containers:
                text = ",".join(str(container.limit_mib) for container in pod.containers)
                limits.setdefault((pod.namespace, pod.name), []).append(text)
    columns = gpus + (1 if node.pending else 0)
    return [
        [
            name,
            namespace or NOBODY,
            *(
                Cell(str(units.get(index, 0)), Style.PLAIN if index in units else Style.DIM)
                for index in range(columns)
            ),
            *([";".join(limits.get((namespace, name), [NOBODY]))] if wide else []),
        ]
        for (namespace, name), units in sorted(held.items())
    ]
