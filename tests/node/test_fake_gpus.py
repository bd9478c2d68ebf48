"""GPUs out of a file: what it says, what changes, and what it does when the file is no good."""

import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract.units import Unit
from gpushare.deviceplugin.core.ids import MAX_ID_LENGTH, device_id
from gpushare.node.fake_gpus import MAX_MEMORY_MIB, MAX_UUID_LENGTH, FakeGpus, parse_machine
from gpushare.node.gpus import FoundGpu, GpusUnavailable

T4 = "Tesla T4"


def gpu(uuid: str, memory_mib: int = 16130, model: str = T4) -> dict[str, Any]:
    return {"uuid": uuid, "model": model, "memory_mib": memory_mib}


class Bench:
    """A file, fake GPUs out of it, and a clock that only a pause moves on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 1000.0
        self.at: list[tuple[float, Callable[[], None]]] = []
        """What somebody does to the file while the other waits."""
        self.gpus = FakeGpus(path, clock=lambda: self.now, pause=self.pause)

    def pause(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        while self.at and self.at[0][0] <= self.now:
            self.at.pop(0)[1]()

    def write(self, *gpus: dict[str, Any], events: list[dict[str, Any]] | None = None) -> None:
        content: dict[str, Any] = {"gpus": list(gpus)}
        if events is not None:
            content["events"] = events
        as_json = self.path.suffix == ".json"
        self.path.write_text(json.dumps(content) if as_json else yaml.safe_dump(content))

    def problems(self) -> dict[str, str | None]:
        return {gpu.uuid: gpu.problem for gpu in self.gpus.look()}

    def waited(self, timeout_s: float) -> tuple[bool, float]:
        """Whether something happened, and after how many seconds."""
        start = self.now
        return self.gpus.wait(timeout_s), round(self.now - start, 3)


@pytest.fixture(params=["gpus.yaml", "gpus.json"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(tmp_path / request.param)


def test_the_gpus_are_in_the_order_of_the_file(bench: Bench) -> None:
    bench.write(gpu("GPU-b"), gpu("GPU-a", 81559, "NVIDIA H100"))
    assert bench.gpus.look() == (
        FoundGpu("GPU-b", T4, 16130, "00000000:00:00.0", 0),
        FoundGpu("GPU-a", "NVIDIA H100", 81559, "00000000:01:00.0", 1),
    )


def test_more_gpus_than_a_pci_bus_has_numbers_stay_in_order(bench: Bench) -> None:
    uuids = [f"GPU-{number}" for number in range(300)]
    bench.write(*map(gpu, uuids))
    assert [found.uuid for found in bench.gpus.look()] == uuids


def test_a_node_without_gpus_is_one(bench: Bench) -> None:
    bench.write()
    assert bench.gpus.look() == ()


def test_looking_comes_before_waiting(bench: Bench) -> None:
    bench.write()
    with pytest.raises(RuntimeError, match="look comes first"):
        bench.gpus.wait(0)


def test_nothing_happens_for_a_while(bench: Bench) -> None:
    bench.write(gpu("GPU-a"))
    bench.gpus.look()
    assert bench.waited(5) == (False, 5)


def test_events_come_when_they_are_due(bench: Bench) -> None:
    events = [
        {"after_s": 60.1, "uuid": "GPU-a", "healthy": True},
        {"after_s": 30, "uuid": "GPU-a", "healthy": False, "xid": 79},
        {"after_s": 60.1, "uuid": "GPU-b", "healthy": False},
    ]
    bench.write(gpu("GPU-a"), gpu("GPU-b"), events=events)
    assert bench.problems() == {"GPU-a": None, "GPU-b": None}
    assert bench.waited(600) == (True, 30)
    assert bench.problems() == {
        "GPU-a": "Xid 79, a critical error; see the node's kernel log",
        "GPU-b": None,
    }
    assert bench.waited(600) == (True, 30.1)
    assert bench.problems() == {"GPU-a": None, "GPU-b": "it does not answer"}
    assert bench.waited(1)[0] is False


def test_events_at_one_time_come_in_the_order_of_the_file(bench: Bench) -> None:
    events = [
        {"after_s": 0, "uuid": "GPU-a", "healthy": False, "xid": 79},
        {"after_s": 0, "uuid": "GPU-a", "healthy": True},
        {"after_s": 0, "uuid": "GPU-a", "healthy": False, "xid": 48},
    ]
    bench.write(gpu("GPU-a"), events=events)
    assert str(bench.problems()["GPU-a"]).startswith("Xid 48,")


def test_what_happened_before_the_wait_is_not_missed(bench: Bench) -> None:
    bench.write(gpu("GPU-a"), events=[{"after_s": 3, "uuid": "GPU-a", "healthy": False}])
    bench.gpus.look()
    bench.now += 10
    assert bench.waited(5) == (True, 0)


def test_a_changed_file_is_noticed_while_waiting(bench: Bench) -> None:
    bench.write(gpu("GPU-a"))
    bench.gpus.look()
    bench.at.append((bench.now + 2.5, lambda: bench.write(gpu("GPU-a", 8000), gpu("GPU-b"))))
    happened, after_s = bench.waited(60)
    assert happened
    assert 2.5 <= after_s <= 2.8
    assert [(found.uuid, found.memory_mib) for found in bench.gpus.look()] == [
        ("GPU-a", 8000),
        ("GPU-b", 16130),
    ]


def test_a_change_of_the_same_size_and_time_is_noticed(bench: Bench) -> None:
    bench.write(gpu("GPU-a"))
    os.utime(bench.path, ns=(1, 1))
    bench.gpus.look()
    bench.write(gpu("GPU-b"))
    os.utime(bench.path, ns=(1, 1))
    assert bench.gpus.wait(0) is True


def test_a_file_put_in_its_place_is_noticed(bench: Bench) -> None:
    bench.write(gpu("GPU-a"))
    bench.gpus.look()
    old, bench.path = bench.path, bench.path.with_name(f"new-{bench.path.name}")
    bench.write(gpu("GPU-a"), gpu("GPU-b"))
    bench.path.rename(old)
    assert bench.gpus.wait(0) is True
    assert list(bench.problems()) == ["GPU-a", "GPU-b"]


def test_a_file_written_anew_with_the_same_content_changes_nothing(bench: Bench) -> None:
    events = [{"after_s": 10, "uuid": "GPU-a", "healthy": False}]
    bench.write(gpu("GPU-a"), events=events)
    bench.gpus.look()
    bench.now += 6
    bench.write(gpu("GPU-a"), events=events)
    assert bench.gpus.wait(0) is False
    assert bench.waited(60) == (True, 4)


def test_a_new_content_is_a_new_beginning(bench: Bench) -> None:
    events = [{"after_s": 10, "uuid": "GPU-a", "healthy": False, "xid": 79}]
    bench.write(gpu("GPU-a"), events=events)
    bench.gpus.look()
    bench.now += 20
    assert bench.problems()["GPU-a"] is not None
    bench.write(gpu("GPU-a"), gpu("GPU-b"), events=events)
    assert bench.gpus.wait(0) is True
    assert bench.problems() == {"GPU-a": None, "GPU-b": None}
    assert bench.waited(60) == (True, 10)


def test_a_gpu_that_leaves_the_file_stays_known_and_comes_back_well(bench: Bench) -> None:
    bench.write(gpu("GPU-a", 11000), gpu("GPU-b"))
    before = bench.gpus.look()
    bench.write(gpu("GPU-c"), gpu("GPU-b"))
    seen = {found.uuid: found for found in bench.gpus.look()}
    assert "fallen off the bus" in str(seen["GPU-a"].problem)
    assert seen["GPU-a"].memory_mib == 11000
    assert seen["GPU-b"] == before[1]
    assert seen["GPU-c"].problem is None
    assert len({found.pci_bus_id for found in seen.values()}) == 3
    assert len({found.minor for found in seen.values()}) == 3
    bench.write(gpu("GPU-a", 11000), gpu("GPU-b"))
    assert bench.gpus.look()[:2] == before
    assert "fallen off the bus" in str(bench.problems()["GPU-c"])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("half", [b"", b'{"gpus": [{"uuid": "GPU-b', b"gpus:\n- {uuid: GPU-b\n"])
def test_a_half_written_file_changes_nothing_and_is_said_once(
    bench: Bench, half: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(gpu("GPU-a"), events=[{"after_s": 50, "uuid": "GPU-a", "healthy": False}])
    bench.gpus.look()
    good = bench.path.read_bytes()
    bench.path.write_bytes(half)
    happened, after_s = bench.waited(20)
    assert not happened
    assert after_s == pytest.approx(20, abs=0.3)
    assert bench.problems() == {"GPU-a": None}
    (warning,) = warnings(caplog)
    assert str(bench.path) in warning
    bench.path.write_bytes(good)
    assert bench.gpus.wait(0) is False
    happened, after_s = bench.waited(60)
    assert happened
    assert after_s == pytest.approx(30, abs=0.5)
    assert len(warnings(caplog)) == 1


def test_a_file_that_is_bad_again_is_said_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(gpu("GPU-a"))
    bench.gpus.look()
    for _ in range(2):
        bench.write(gpu("GPU-a", 0))
        bench.gpus.look()
        bench.write(gpu("GPU-a"))
        bench.gpus.look()
    assert len(warnings(caplog)) == 2


def test_a_file_that_is_gone_changes_nothing_and_is_said_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(gpu("GPU-a"))
    bench.gpus.look()
    bench.path.unlink()
    assert bench.waited(2)[0] is False
    assert bench.problems() == {"GPU-a": None}
    assert warnings(caplog) == [
        f"{bench.path} cannot be read: No such file or directory; make it a file that can be "
        "(the fake GPUs stay as they were)"
    ]


def test_half_a_list_is_not_taken_for_a_list(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "gpus.yaml")
    bench.write(gpu("GPU-a"), gpu("GPU-b"))
    bench.gpus.look()
    bench.path.write_text("gpus:\n- {uuid: GPU-a, model: T4, memory_mib: 1024}\n")
    bench.at.append(
        (bench.now + 0.03, lambda: bench.write(gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c")))
    )
    assert bench.problems() == {"GPU-a": None, "GPU-b": None, "GPU-c": None}


BAD = {
    "an unknown key": ({"gpus": [], "devices": []}, "unknown field `devices`"),
    "an unknown key of a GPU": (
        {"gpus": [gpu("GPU-a") | {"memory": 1}]},
        "`memory` - at `$.gpus[0",
    ),
    "an unknown key of an event": (
        {"gpus": [], "events": [{"after_s": 1, "uuid": "GPU-a", "healthy": True, "when": 1}]},
        "`when` - at `$.events[0",
    ),
    "a missing key": ({"gpus": [{"uuid": "GPU-a", "model": T4}]}, "`memory_mib` - at `$.gpus[0"),
    "no GPUs at all": ({}, "missing required field `gpus`"),
    "null": (None, "Expected `object`, got `null`"),
    "a UUID of another kind": ({"gpus": [gpu("MIG-a")]}, "gpus[0].uuid is 'MIG-a'; make it"),
    "a UUID that is only its kind": ({"gpus": [gpu("GPU-")]}, "gpus[0].uuid is 'GPU-'; make it"),
    "a UUID with a strange character": ({"gpus": [gpu("GPU-é")]}, "gpus[0].uuid is 'GPU-é'"),
    "a UUID of two lines": ({"gpus": [gpu("GPU-a\n")]}, "gpus[0].uuid is 'GPU-a\\n'"),
    "a UUID that is too long": (
        {"gpus": [gpu("GPU-".ljust(MAX_UUID_LENGTH + 1, "0"))]},
        "48 characters at most",
    ),
    "a UUID given twice": ({"gpus": [gpu("GPU-a"), gpu("GPU-a")]}, "gpus[1].uuid is GPU-a again"),
    "no model": ({"gpus": [gpu("GPU-a", model=" ")]}, "gpus[0].model is empty"),
    "no memory": ({"gpus": [gpu("GPU-a", 0)]}, "gpus[0].memory_mib is 0; give 1 to"),
    "a memory below zero": ({"gpus": [gpu("GPU-a", -1)]}, "gpus[0].memory_mib is -1; give 1 to"),
    "more memory than ids can say": (
        {"gpus": [gpu("GPU-a", MAX_MEMORY_MIB + 1)]},
        "gpus[0].memory_mib is 12800001; give 1 to",
    ),
    "a memory that is no number": (
        {"gpus": [gpu("GPU-a") | {"memory_mib": "16 GiB"}]},
        "Expected `int`, got `str` - at `$.gpus[0].memory_mib`",
    ),
    "an event of no GPU": (
        {"gpus": [gpu("GPU-a")], "events": [{"after_s": 1, "uuid": "GPU-b", "healthy": True}]},
        "events[0].uuid is 'GPU-b'; name a GPU",
    ),
    "an event before the beginning": (
        {"gpus": [gpu("GPU-a")], "events": [{"after_s": -1, "uuid": "GPU-a", "healthy": True}]},
        "events[0].after_s is -1.0; give seconds",
    ),
    "an event at no time": (
        {
            "gpus": [gpu("GPU-a")],
            "events": [{"after_s": float("nan"), "uuid": "GPU-a", "healthy": True}],
        },
        "events[0].after_s is nan; give seconds",
    ),
    "an Xid of a healthy GPU": (
        {
            "gpus": [gpu("GPU-a")],
            "events": [{"after_s": 1, "uuid": "GPU-a", "healthy": True, "xid": 79}],
        },
        "events[0].xid is 79; give a number above 0, and only with healthy: false",
    ),
}


@pytest.mark.parametrize(("content", "reason"), BAD.values(), ids=BAD)
def test_the_first_file_must_be_good(bench: Bench, content: Any, reason: str) -> None:
    as_json = bench.path.suffix == ".json"
    bench.path.write_text(json.dumps(content) if as_json else yaml.safe_dump(content))
    with pytest.raises(GpusUnavailable, match=re.escape(reason)) as raised:
        bench.gpus.look()
    assert str(bench.path) in str(raised.value)
    bench.write(gpu("GPU-a"))
    assert bench.problems() == {"GPU-a": None}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("gpus.yaml", "gpus: [\n{uuid: GPU-a]\n", "it is not YAML: .* line 2,"),
        ("gpus.json", '{"gpus": [\n{"uuid": }]}', "it is not JSON: .* line 2 "),
        ("gpus.json", "gpus: []", "it is not JSON: .* line 1 "),
        ("gpus.json", "[" * 100_000, "nested too deeply"),
        ("gpus.yaml", "gpus: &a [*a]", r"\$\.gpus"),
        ("gpus.yaml", "gpus: [2001-13-45]", "it is not YAML: month must be in 1..12"),
        ("gpus.yaml", "#" * 300_000, "is it the right file"),
    ],
)
def test_what_is_no_such_file_at_all_says_where(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(GpusUnavailable, match=reason):
        FakeGpus(tmp_path / name).look()


def test_no_file_and_what_is_no_file_are_refused_without_blocking(tmp_path: Path) -> None:
    with pytest.raises(GpusUnavailable, match="No such file"):
        FakeGpus(tmp_path / "none").look()
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(GpusUnavailable, match="not a regular file"):
            FakeGpus(path).look()


def test_the_longest_device_id_is_one_the_kubelet_takes() -> None:
    uuid = "GPU-".ljust(MAX_UUID_LENGTH, "0")
    machine = parse_machine(json.dumps({"gpus": [gpu(uuid, MAX_MEMORY_MIB)]}).encode())
    last = Unit.MIB128.units_of(machine.gpus[0].memory_mib) - 1
    assert len(device_id(machine.gpus[0].uuid, Unit.MIB128, last)) == MAX_ID_LENGTH


@given(
    st.binary() | st.text("{}[]:,-&*!<>|'\"gpus 0\n").map(str.encode),
    st.booleans(),
)
def test_any_bytes_are_a_machine_or_a_value_error(data: bytes, as_json: bool) -> None:
    try:
        parse_machine(data, as_json=as_json)
    except ValueError as error:
        assert "gpus" in str(error)


def test_it_waits_on_the_real_clock_too(tmp_path: Path) -> None:
    path = tmp_path / "gpus.yaml"
    path.write_text(
        "gpus: [{uuid: GPU-a, model: T4, memory_mib: 1024}]\n"
        "events: [{after_s: 0.1, uuid: GPU-a, healthy: false}]\n"
    )
    gpus = FakeGpus(path)
    gpus.look()
    assert gpus.wait(5) is True
    assert gpus.look()[0].problem == "it does not answer"
    assert gpus.wait(0.01) is False
    gpus.close()
