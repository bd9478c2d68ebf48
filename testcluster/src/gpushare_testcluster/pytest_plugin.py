"""Pytest: the fixtures that start the test cluster, and the rules for tests that need it.

* Tests marked `cluster` or `node` run after all others, and a line says before the first of them
  what they cost. Where this machine cannot run them they are skipped with the reason.
* `--nothing-left-out` turns every skip into a failure.
* `rounds(few=3, full=50)` says how often a test repeats itself: the environment's ROUNDS.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from gpushare_testcluster.node.fixtures import clean_node, node_cluster  # noqa: F401

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

MARKS = ("cluster", "node")
_ANNOUNCED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nothing-left-out",
        action="store_true",
        help="a skipped test is a failed one, with the reason it was skipped for",
    )


def _rank(item: pytest.Item) -> int:
    """0 for unmarked tests, 1 for `cluster`, 2 for `node`."""
    marks = [place for place, mark in enumerate(MARKS, 1) if item.get_closest_marker(mark)]
    return max(marks, default=0)


def why_not(rank: int) -> str:
    """Why this machine cannot run tests of that rank; empty when it can."""
    if platform.system() != "Linux":
        return f"the test cluster runs on Linux, not on {platform.system()}"
    if rank == 2 and os.geteuid() != 0:
        return "a kubelet needs root"
    return ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)  # stable
    for item in items:
        rank = _rank(item)
        if rank and (reason := why_not(rank)):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Says before the first test on the cluster what is coming."""
    if not _rank(item) or item.config.stash.get(_ANNOUNCED, False):
        return
    item.config.stash[_ANNOUNCED] = True
    from gpushare_testcluster import binaries

    wanted = [*binaries.CONTROL_PLANE]
    if any(_rank(other) == 2 for other in item.session.items):
        wanted += binaries.NODE
    cost = binaries.cost_of(wanted)
    text = "the test cluster: a real Kubernetes on loopback, about 10 s to start"
    if cost:
        text += f"; to be built once first: {cost}"
    if why_not(_rank(item)):
        text = f"the test cluster is not available: {why_not(_rank(item))}"
    reporter = item.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(text)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.skipped and not hasattr(report, "wasxfail"):
        _refuse_skip(item.config, report)
    if report.failed and (cluster := getattr(item, "funcargs", {}).get("cluster")) is not None:
        for name in ("extender", "device-plugin"):
            if cluster.processes.record(name) is not None:
                report.sections.append((f"end of {name}.log", cluster.processes.tail(name, 40)))
    return report  # type: ignore[return-value]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report: pytest.CollectReport = yield  # type: ignore[assignment]
    if report.skipped:
        _refuse_skip(collector.config, report)
    return report  # type: ignore[return-value]


def _refuse_skip(config: pytest.Config, report: pytest.TestReport | pytest.CollectReport) -> None:
    if config.getoption("--nothing-left-out"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"left out, which --nothing-left-out forbids: {reason}"


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The session's one test cluster, without nodes and without an extender at first."""
    from gpushare_testcluster.cluster import Cluster
    from gpushare_testcluster.errors import CannotRun

    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None
    try:
        with capture.global_and_fixture_disabled():  # minutes may pass: let them be seen
            started = Cluster.start()
    except CannotRun as error:
        pytest.skip(str(error))
    yield started
    started.stop()


@pytest.fixture
def clean_cluster(cluster: Cluster) -> Cluster:
    """The session's cluster, emptied, with the extender stopped."""
    cluster.stop_extender(hard=True)
    cluster.reset()
    return cluster


@pytest.fixture
def rounds() -> Callable[..., int]:
    """`rounds(few=3, full=50)`: how often to repeat, by the environment's ROUNDS.

    ROUNDS=full gives `full`; a number gives that number, at most `full`; nothing gives `few`.
    """

    def choose(few: int = 3, full: int = 50) -> int:
        wish = os.environ.get("ROUNDS", "")
        if wish == "full":
            return full
        return min(int(wish), full) if wish else few

    return choose
