"""Events for people, and metrics."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from gpushare.contract import names
from gpushare.extender.announce import REPEAT_S, UNDECIDED, WAITING, Announcer
from gpushare.extender.audit import Auditor
from gpushare.extender.counters import Counters
from gpushare.extender.gauges import Gauges
from gpushare.kube.connection import Connection
from gpushare.kube.events import Recorder
from tests.extender.fake_cluster import FakeCluster, Json, allocation, node, pod
from tests.extender.state_helpers import World
from tests.kube.fake_api import eventually


class Heard(Recorder):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str]] = []

    def event(self, about, severity, reason, message):  # type: ignore[no-untyped-def]
        self.heard.append((about.name, reason, message))


def announcing() -> tuple[World, Announcer, Heard]:
    world, recorder = World(), Heard()
    announcer = Announcer(recorder, lambda: world.now)
    world.state.listener = announcer
    return world, announcer, recorder


def standing(name: str, gpu: int, units: int) -> Json:
    return pod(name, units, nodeName="n1", annotations=allocation(gpu, units=units))


def test_a_waiting_pod_is_told_the_largest_free_amount_and_what_would_help() -> None:
    world, announcer, recorder = announcing()
    world.put(node("n1", [15, 15]), standing("a", 0, 8), standing("b", 1, 8), pod("p", 10))
    announcer.rejected(world.ask(pod("p", 10)))
    announcer.flush(world.state, world.decider)
    ((name, reason, text),) = recorder.heard
    assert (name, reason) == ("p", WAITING)
    assert "the most any GPU can still take is 7 GiB" in text
    assert "ask for at most 7" in text


def test_it_is_told_again_only_when_it_changes_and_not_at_once() -> None:
    world, announcer, recorder = announcing()
    world.put(node("n1", [15, 15]), standing("a", 0, 8), standing("b", 1, 8), pod("p", 10))

    def rejected(after_s: float) -> int:
        world.now += after_s
        announcer.rejected(world.ask(pod("p", 10)))
        announcer.flush(world.state, world.decider)
        return len(recorder.heard)

    assert [rejected(0), rejected(1), rejected(REPEAT_S)] == [1, 1, 1]
    world.put(standing("c", 0, 2), standing("d", 1, 2))
    assert [rejected(1), rejected(REPEAT_S)] == [1, 2]


def test_pods_that_found_a_place_meanwhile_or_are_not_there_are_not_told() -> None:
    world, announcer, recorder = announcing()
    world.put(node("n1", [15, 15]), pod("p", 16))
    answers = [world.ask(pod("p", 16)), world.ask(pod("nobody", 16))]
    world.put(standing("p", 0, 15))
    for answer in answers:
        announcer.rejected(answer)
    announcer.flush(world.state, world.decider)
    assert recorder.heard == []


def test_a_bad_request_names_the_field() -> None:
    world, announcer, recorder = announcing()
    bad = pod("p", 5, labels={names.LABEL_GPU_COUNT: "2"})
    world.put(node("n1", [15]), bad)
    announcer.rejected(world.ask(bad))
    announcer.flush(world.state, world.decider)
    assert recorder.heard[0][2].startswith(f"{names.LABEL_GPU_COUNT}: 5 units")


def test_a_pod_nobody_decided_is_told_once_with_the_setting_that_would_have_helped() -> None:
    world, _, recorder = announcing()
    for labels in ({}, {"v": "2"}):
        world.put(node("n1", [15]), pod("p", 4, nodeName="n1", labels=labels))
    ((name, reason, text),) = recorder.heard
    assert (name, reason) == ("p", UNDECIDED)
    assert "`ignorable: false`" in text


def test_a_nodes_typo_is_told_on_the_node() -> None:
    world, _, recorder = announcing()
    world.put(node("n1", [15], labels={names.LABEL_PLACEMENT: "speard"}))
    assert [(name, reason) for name, reason, _ in recorder.heard] == [("n1", "UnknownPlacement")]


async def test_events_reach_the_api(api: FakeCluster, connection: Connection) -> None:
    world = World()
    recorder = Recorder(connection, "gpushare-extender", host="h")
    world.state.listener = Announcer(recorder, lambda: world.now)
    writing = asyncio.ensure_future(recorder.run())
    world.put(node("n1", [15]), pod("p", 4, nodeName="n1"))
    await eventually(lambda: api.events)
    writing.cancel()
    assert api.events[0]["involvedObject"]["uid"] == "uid-p"
    assert api.events[0]["type"] == "Warning"


# --- metrics -------------------------------------------------------------------------------------


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """(name, label values in the order of the text…) -> value."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_one_series_per_gpu_current_at_each_scrape() -> None:
    world = World()
    world.put(node("n1", [15, 12], **{names.ANNOTATION_CORDONED: "1"}), standing("a", 0, 4))
    gauges = Gauges(world.state.ledger)
    first = samples(gauges.text())
    assert first["gpushare_gpu_allocated_units", "n1", "0", "GPU-n1-0"] == 4
    assert first["gpushare_gpu_capacity_units", "n1", "1", "GPU-n1-1"] == 12
    assert first["gpushare_gpu_cordoned", "n1", "1", "GPU-n1-1"] == 1
    assert first["gpushare_gpu_healthy", "n1", "1", "GPU-n1-1"] == 1
    assert first["gpushare_gpu_pods", "n1", "0", "GPU-n1-0"] == 1
    world.put(node("n2", [8]), pod("p", 3, nodeName="n1"))
    second = samples(gauges.text())
    assert second["gpushare_node_pending_units", "n1"] == 3
    assert second["gpushare_gpu_capacity_units", "n2", "0", "GPU-n2-0"] == 8
    world.gone(node("n2", [8]))
    assert not [key for key in samples(gauges.text()) if "n2" in key]


def test_odd_values_cannot_break_the_format() -> None:
    world = World()
    odd = node("n1", [15])
    devices = odd["metadata"]["annotations"][names.ANNOTATION_DEVICES]
    quoted = devices.replace("GPU-n1-0", 'G\\"\\n\\\\')
    odd["metadata"]["annotations"][names.ANNOTATION_DEVICES] = quoted
    world.put(odd)
    found = samples(Gauges(world.state.ledger).text())
    assert found["gpushare_gpu_capacity_units", "n1", "0", 'G"\n\\'] == 15


def test_the_extenders_own_metrics() -> None:
    counters = Counters()
    counters.watch(lambda: {"no-gpu-fits": 2}, lambda: {"pods": 1.5}, lambda: 0)
    counters.decision("filter", "rejected", "no-gpu-fits")
    counters.decision("filter", "rejected", "no-gpu-fits")
    counters.took("filter", 0.0007)
    counters.conflict()
    found = samples(counters.text())
    assert found["gpushare_decisions_total", "rejected", "no-gpu-fits", "filter"] == 2
    assert found["gpushare_pods_waiting", "no-gpu-fits"] == 2
    assert found["gpushare_watch_age_seconds", "pods"] == 1.5
    assert found["gpushare_ledger_drift_units",] == 0
    assert found["gpushare_bind_conflicts_total",] == 1
    assert found["gpushare_request_duration_seconds_bucket", "0.001", "filter"] == 1
    assert not [key for key in found if key[0].endswith("_created")]


async def test_the_audit_finds_and_mends_a_fault() -> None:
    world = World()
    world.put(node("n1", [15]), standing("a", 0, 4))
    auditor = Auditor(world.state)
    await auditor.round()
    assert auditor.drift == 0
    ledger = world.state.ledger
    ledger._books["n1"] = ledger.books("n1").release(ledger.pods_on("n1")[0].holding)
    await auditor.round()
    assert auditor.drift == 4
    assert ledger.books("n1").used == 4
    await auditor.round()
    assert auditor.drift == 0
