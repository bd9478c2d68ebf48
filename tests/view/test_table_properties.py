"""Whatever the ledger holds: it renders, columns stay aligned, and sums agree everywhere."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract.units import Unit
from gpushare.model.gpus import Assignment, Node
from gpushare.model.holding import Placement
from gpushare.model.ledger import Ledger, PodRecord
from gpushare.model.owner import Owner
from gpushare.view.json import encode, encode_yaml
from gpushare.view.report import Report, build_report
from gpushare.view.table import details, summary
from gpushare.view.usage import By, build_usage, usage_table
from tests.strategies import nodes, requests

NAMES = st.text(min_size=1, max_size=12) | st.sampled_from(["a", "b", "web-0", "x" * 60])


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    """Up to three nodes of any kind and pods of any kind on them: on GPUs that are there or not,
    more than fits, finished, without a GPU, on nodes that are not there."""
    ledger = Ledger()
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    for name in names:
        isolation = draw(st.sampled_from([None, "none", "interposer", "driver"]))
        ledger.put_node(with_memory(replace(draw(nodes(name=name)), isolation=isolation)))
    for number in range(draw(st.integers(0, 8))):
        request = draw(requests())
        gpus = draw(st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True))
        chosen = tuple(gpus[: request.gpus_per_chunk])
        assignment = None
        if len(chosen) == request.gpus_per_chunk and draw(st.booleans()):
            placement = Placement((chosen,) * len(request.chunks))
            assignment = Assignment(placement.allocation(request, init=False), {})
        elif draw(st.booleans()):
            assignment = Assignment({}, {}, single_gpu=gpus[0])
        ledger.put_pod(
            PodRecord(
                uid=str(number),
                namespace=draw(NAMES),
                name=draw(NAMES),
                node=draw(st.sampled_from([*names, "gone"])),
                owner=Owner(draw(NAMES), "Job", draw(NAMES)),
                request=request,
                assignment=assignment,
                finished=draw(st.booleans()),
            )
        )
    return ledger


def with_memory(node: Node) -> Node:
    """A node whose GPUs of odd index say how many MiB they have."""
    sized = (replace(gpu, memory_mib=gpu.units * 1024 + 770) for gpu in node.gpus)
    return replace(
        node,
        gpus=tuple(
            new if old.index % 2 else old for old, new in zip(node.gpus, sized, strict=True)
        ),
    )


def report_of(ledger: Ledger) -> Report:
    return build_report(ledger, list(ledger), Unit.GIB)


def table_lines(text: str) -> list[str]:
    return text.split("\n" + "-" * 56)[0].split("\n")


@given(ledgers(), st.booleans(), st.booleans(), st.booleans())
def test_any_ledger_renders(ledger: Ledger, wide: bool, headers: bool, colour: bool) -> None:
    report = report_of(ledger)
    for text in (
        summary(report, wide=wide, headers=headers, colour=colour),
        details(report, wide=wide, headers=headers, colour=colour),
        *(usage_table(build_usage(ledger, list(ledger), Unit.GIB, by)) for by in By),
    ):
        assert text.endswith("\n")
        assert not any(line.endswith(" ") for line in text.split("\n"))
        if not colour:
            assert text.replace("\n", "").isprintable()


@given(ledgers())
def test_columns_are_aligned_two_spaces_apart(ledger: Ledger) -> None:
    header, *rows = table_lines(summary(report_of(ledger), wide=True))
    columns = [match.start() for match in re.finditer(r"(?<=  )\S|^\S", header)]
    for row in rows:
        for column in columns[1:]:
            assert row[column - 2 : column] == "  "
            assert row[column] != " "


@given(ledgers())
def test_the_tables_sums_are_the_jsons(ledger: Ledger) -> None:
    report = report_of(ledger)
    decoded = msgspec.json.decode(encode(report))
    said = f"{decoded['allocated']}/{decoded['total']}"
    assert summary(report).splitlines()[-1].startswith(f"{said} (")
    assert details(report).splitlines()[-1].endswith(summary(report).splitlines()[-1])
    assert decoded["allocated"] == sum(node["allocated"] for node in decoded["nodes"])
    assert decoded["total"] == sum(node["total"] for node in decoded["nodes"])
    for node in decoded["nodes"]:
        assert node["allocated"] == node["pending"] + sum(g["allocated"] for g in node["gpus"])
        assert node["pending"] == sum(pod["units"] for pod in node["pending_pods"])
        for gpu in node["gpus"]:
            assert gpu["allocated"] == sum(pod["units"] for pod in gpu["pods"])


@given(ledgers())
def test_limits_are_parts_of_the_gpus_memory(ledger: Ledger) -> None:
    for node in report_of(ledger).nodes:
        memory = {gpu.index: gpu.memory_mib for gpu in ledger.books(node.name).node.gpus}
        isolated = node.isolation in ("interposer", "driver")
        assert not any(pod.containers for pod in node.pending_pods)
        for gpu in node.gpus:
            for pod in gpu.pods:
                for container in pod.containers:
                    assert isolated
                    whole = memory[gpu.index]
                    assert whole is not None
                    part = container.limit_mib / whole
                    assert abs(part - container.units / gpu.total) <= 1 / whole
                assert bool(pod.containers) == bool(
                    isolated and memory[gpu.index] and gpu.total and pod.units
                )


@given(ledgers())
def test_usage_adds_up_to_the_same_sums(ledger: Ledger) -> None:
    report = report_of(ledger)
    for by in By:
        usage = build_usage(ledger, list(ledger), Unit.GIB, by)
        assert sum(entry.units for entry in usage.usage) == usage.allocated == report.allocated
        assert usage.total == report.total


@given(ledgers())
def test_yaml_says_what_json_says(ledger: Ledger) -> None:
    report = report_of(ledger)
    assert yaml.safe_load(encode_yaml(report)) == msgspec.json.decode(encode(report))


@given(ledgers())
def test_the_rows_are_in_order_of_name(ledger: Ledger) -> None:
    names = [node.name for node in report_of(ledger).nodes]
    assert names == sorted(names)


def test_a_name_with_a_line_break_or_an_escape_code_stays_in_its_cell() -> None:
    ledger = Ledger()
    ledger.put_node(Node(name="a\n\x1b[31mb", address="192.0.2.1"))
    assert summary(report_of(ledger)).splitlines()[1].startswith("a??[31mb  192.0.2.1")
