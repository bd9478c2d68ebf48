"""What a run prints: tables for people, JSON for programs (shapes: view.report, compare)."""

import textwrap
from collections.abc import Sequence

from gpushare.contract.names import Reason
from gpushare.simulate.advice import advice
from gpushare.simulate.compare import Comparison, Row
from gpushare.simulate.engine import Outcome, Refused
from gpushare.view import json, table
from gpushare.view.columns import align
from gpushare.view.report import Report, Unscheduled, build_report

WIDTH = 100

LISTED = 20
"""Candidates that the table lists per explanation, those with the most free."""


def report(outcome: Outcome) -> Report:
    """The outcome as every rendering takes it."""
    return build_report(
        outcome.ledger,
        outcome.shown,
        outcome.unit,
        unscheduled=[_unscheduled(refused) for refused in outcome.refused],
        warnings=advice(outcome),
    )


def _unscheduled(refused: Refused) -> Unscheduled:
    return Unscheduled(
        namespace=refused.pod.namespace,
        name=refused.pod.name,
        reason=refused.why.reason,
        message=refused.why.message,
        candidates=list(refused.why.candidates),
    )


def tables(found: Report, *, wide: bool) -> str:
    """The summary, with `wide` the details too, and the pods that found no place."""
    text = table.summary(found, wide=wide)
    if wide and found.nodes:
        text += "\n" + table.details(found)
    return text + no_place(found.unscheduled)


def no_place(unscheduled: Sequence[Unscheduled]) -> str:
    """The pods without a place: those of the same reason together, then what was looked at."""
    if not unscheduled:
        return ""
    groups: dict[tuple[str, str], list[Unscheduled]] = {}
    """(reason, message) -> pods."""
    for pod in unscheduled:
        groups.setdefault((pod.reason, pod.message), []).append(pod)
    count = len(unscheduled)
    lines = ["", f"No place for {count} {'pod' if count == 1 else 'pods'}:"]
    for (reason, message), pods in groups.items():
        lines += ["", *_wrapped([f"{pod.namespace}/{pod.name}" for pod in pods])]
        lines += textwrap.wrap(
            f"{reason}: {message}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        candidates = pods[0].candidates
        if candidates and reason != Reason.BAD_REQUEST:
            listed = candidates[:LISTED]
            rows = [["NODE", "LARGEST-FREE"], *([c.node, str(c.largest_free)] for c in listed)]
            lines += [f"    {line}" for line in align(rows)]
            if len(candidates) > LISTED:
                lines.append("    … and others, with no more than these (-o json lists more)")
    return printable("\n".join(lines)) + "\n"


def _wrapped(names: Sequence[str]) -> list[str]:
    """Names separated by commas, in lines that are not too long."""
    lines: list[str] = []
    for name in names:
        if lines and len(lines[-1]) + len(name) + 2 <= WIDTH:
            lines[-1] += f", {name}"
        else:
            if lines:
                lines[-1] += ","
            lines.append(name)
    return lines


def comparison_table(rows: Sequence[Row], total: int, unit: str) -> str:
    """Policies side by side; `total` is the units there are in all."""
    lines = align(
        [
            [
                "POLICY",
                "PLACED",
                f"ALLOCATED({unit})",
                "NO PLACE",
                "LARGEST PLACEABLE",
                "ONE FAILING GPU TAKES AT MOST",
            ],
            *([*_cells(row, total)] for row in rows),
        ]
    )
    legend = (
        "new: pods on a node stay, the others are placed. all: everything is placed afresh.\n"
        "LARGEST PLACEABLE: on one GPU. The share is of one owner's pods (a Job's, a "
        "Deployment's).\n"
    )
    return "\n".join(lines) + "\n\n" + legend


def _cells(row: Row, total: int) -> Sequence[str]:
    pods = f"{row.blast_pods} {'pod' if row.blast_pods == 1 else 'pods'}"
    return (
        row.gpu_policy,
        row.scope,
        f"{row.allocated}/{total} ({table.percent(row.allocated, total)}%)",
        str(row.unscheduled),
        str(row.largest_placeable),
        f"{pods}, {int(row.blast_owner_share * 100)}% of one owner's" if row.blast_pods else pods,
    )


def comparison_json(rows: Sequence[Row]) -> str:
    return json.encode(Comparison(list(rows))).decode()


def printable(text: str) -> str:
    """Names from a file may hold anything; a terminal gets no control codes."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
