"""Who uses how much GPU memory: by namespace, or by the application that owns the pods."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from gpushare.contract.units import Unit
from gpushare.model.ledger import Ledger
from gpushare.view.columns import Row, align
from gpushare.view.table import NOBODY, SUMMARY_RULE, percent, total


class By(StrEnum):
    """What usage is added up by."""

    NAMESPACE = "namespace"
    OWNER = "owner"


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one namespace, or one owner in it, holds."""

    namespace: str
    pods: int
    gpus: int
    """Distinct GPUs its pods are known to be on."""
    units: int
    owner: str | None = None
    """Kind/name of the controller (a ReplicaSet's Deployment), or of a bare pod."""


class UsageReport(msgspec.Struct, frozen=True):
    """Everybody's usage, the largest first. Amounts are units of `unit`."""

    unit: str
    by: str
    usage: list[Usage]
    allocated: int
    total: int
    version: int = 1


def build_usage(
    ledger: Ledger, nodes: Iterable[str], unit: Unit, by: By, *, namespace: str | None = None
) -> UsageReport:
    """Usage on the named nodes. `namespace` filters the rows, never the sums.

    Raises KeyError for a node that is unknown.
    """
    held: dict[tuple[str, str | None], tuple[set[str], set[tuple[str, int]], int]] = {}
    """(namespace, owner) -> (pod UIDs, (node, GPU index), units)"""
    allocated = units_in_all = 0
    for name in nodes:
        books = ledger.books(name)
        allocated += books.used + books.pending
        units_in_all += books.node.units
        for pod in ledger.pods_on(name):
            owner = pod.holding.owner
            key = (owner.namespace, str(owner) if by is By.OWNER else None)
            pods, gpus, units = held.get(key, (set(), set(), 0))
            pods.add(pod.uid)
            gpus.update((name, index) for index, _, _ in pod.holding.gpus)
            held[key] = (pods, gpus, units + pod.holding.units)
    usage = [
        Usage(namespace=space, owner=owner, pods=len(pods), gpus=len(gpus), units=units)
        for (space, owner), (pods, gpus, units) in held.items()
        if namespace is None or space == namespace
    ]
    usage.sort(key=lambda entry: (-entry.units, entry.namespace, entry.owner or ""))
    return UsageReport(unit, by.value, usage, allocated, units_in_all)


def usage_table(report: UsageReport, *, headers: bool = True, colour: bool = False) -> str:
    """One row per namespace or owner, its units and their share of the cluster, then the sum."""
    by_owner = report.by == By.OWNER
    rows: list[Row] = []
    if headers:
        owner = ["OWNER"] if by_owner else []
        rows.append(["NAMESPACE", *owner, "PODS", "GPUS", f"GPU Memory({report.unit})", "SHARE"])
    rows.extend(
        [
            entry.namespace or NOBODY,
            *([entry.owner or NOBODY] if by_owner else []),
            str(entry.pods),
            str(entry.gpus),
            str(entry.units),
            f"{percent(entry.units, report.total)}%",
        ]
        for entry in report.usage
    )
    lines = [
        *align(rows, colour=colour),
        SUMMARY_RULE,
        "Allocated/Total GPU Memory In Cluster:",
        total(report),
    ]
    return "\n".join(lines) + "\n"
