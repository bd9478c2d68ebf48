"""CONTRACT's own examples of the tables, character by character."""

from __future__ import annotations

import re

from gpushare.view.report import GpuReport, NodeReport, PodShare, Report
from gpushare.view.table import details, summary

SUMMARY = """\
NAME                     IPADDRESS    GPU0(Allocated/Total)  GPU1(Allocated/Total)  \
GPU2(Allocated/Total)  GPU3(Allocated/Total)  GPU Memory(GiB)
cn-shanghai.192.0.2.109  192.0.2.109  4/15                   4/15                   \
0/15                   4/15                   12/60
--------------------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
12/60 (20%)
"""

DETAILS = """\
NAME:       cn-hangzhou.192.168.2.167
IPADDRESS:  192.168.2.167

NAME         NAMESPACE  GPU0(Allocated)
app-3g-v1-0  default    4
app-3g-v1-1  default    4
Allocated :  8 (53%)
Total :      15
--------------------------------------------------------

Allocated/Total GPU Memory In Cluster:  8/15 (53%)
"""


def gpu(index: int, pods: dict[str, int], total: int = 15) -> GpuReport:
    return GpuReport(
        index=index,
        uuid=f"GPU-{index}",
        total=total,
        allocated=sum(pods.values()),
        healthy=True,
        cordoned=False,
        pods=[PodShare("default", name, units) for name, units in pods.items()],
    )


def report(name: str, address: str, gpus: list[GpuReport]) -> Report:
    allocated = sum(gpu.allocated for gpu in gpus)
    total = sum(gpu.total for gpu in gpus)
    node = NodeReport(name, address, "cgpu", "spread", None, allocated, total, 15, 0, [], gpus)
    return Report("GiB", [node], allocated, total)


SHANGHAI = report(
    "cn-shanghai.192.0.2.109",
    "192.0.2.109",
    [gpu(0, {"m-0": 4}), gpu(1, {"m-1": 4}), gpu(2, {}), gpu(3, {"m-2": 4})],
)
HANGZHOU = report(
    "cn-hangzhou.192.168.2.167",
    "192.168.2.167",
    [gpu(0, {"app-3g-v1-0": 4, "app-3g-v1-1": 4})],
)


def test_the_summary_is_the_contracts() -> None:
    assert summary(SHANGHAI) == SUMMARY


def test_the_details_are_the_contracts() -> None:
    assert details(HANGZHOU) == DETAILS


def test_wide_adds_its_columns_behind_the_contracts() -> None:
    lines = summary(SHANGHAI, wide=True).splitlines()
    assert lines[0].endswith("GPU Memory(GiB)  MODE  PLACEMENT  ISOLATION  LARGEST-FREE")
    assert lines[1].endswith("12/60            cgpu  spread     -          15")
    assert lines[-1] == "12/60 (20%)"


def test_wide_details_have_one_column_more() -> None:
    plain, wide = details(HANGZHOU).splitlines(), details(HANGZHOU, wide=True).splitlines()
    at = plain.index("NAME         NAMESPACE  GPU0(Allocated)")
    assert wide[-len(plain) + at :][:5] == [
        "NAME         NAMESPACE  GPU0(Allocated)  LIMIT(MiB)",
        "app-3g-v1-0  default    4                -",
        "app-3g-v1-1  default    4                -",
        *plain[at + 3 : at + 5],
    ]


def test_wide_details_say_how_the_node_shares() -> None:
    assert details(HANGZHOU, wide=True).startswith(
        "NAME:          cn-hangzhou.192.168.2.167\n"
        "IPADDRESS:     192.168.2.167\n"
        "MODE:          cgpu\n"
        "PLACEMENT:     spread\n"
        "ISOLATION:     -\n"
        "LARGEST-FREE:  15\n\n"
    )


def test_without_headers_only_the_line_of_column_names_is_missing() -> None:
    assert summary(SHANGHAI, headers=False).splitlines()[0].startswith("cn-shanghai.192.0.2.109  ")
    assert "NAMESPACE" not in details(HANGZHOU, headers=False)
    assert summary(SHANGHAI, headers=False).endswith(
        "Allocated/Total GPU Memory In Cluster:\n12/60 (20%)\n"
    )


def test_colour_changes_no_text_and_no_alignment() -> None:
    full = report("a", "192.0.2.1", [gpu(0, {"p": 15}), gpu(1, {"q": 20}), gpu(3, {})])
    for node in (full, HANGZHOU):
        for draw in (summary, details):
            coloured = draw(node, colour=True)
            assert "\x1b[" in coloured or node is HANGZHOU
            assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == draw(node)


def test_percentages_are_truncated() -> None:
    almost = report("a", "192.0.2.1", [gpu(0, {"p": 299}, total=300)])
    assert summary(almost).endswith("299/300 (99%)\n")


def test_a_cluster_without_gpus_has_a_table_of_nothing() -> None:
    assert summary(Report("GiB", [], 0, 0)).splitlines()[0] == ("NAME  IPADDRESS  GPU Memory(GiB)")
    assert summary(Report("GiB", [], 0, 0)).endswith("\n0/0 (0%)\n")
    assert details(Report("GiB", [], 0, 0)) == "Allocated/Total GPU Memory In Cluster:  0/0 (0%)\n"
