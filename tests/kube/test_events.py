"""Events: counted, spaced, lost rather than in anybody's way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpushare.kube.connection import Connection
from gpushare.kube.events import About, Recorder, Severity

from .fake_api import FakeApi, eventually, hang, refuse

EVENTS = r"/api/v1/namespaces/[^/]+/events"
POD = About("Pod", "a", "u-a", "team", "v1")
NODE = About("Node", "n1", "u-n1", "", "v1")


class Clock:
    """Time that moves when told; the recorder's waiting is cut to match."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def recorder(connection: Connection, clock: Clock) -> AsyncIterator[Recorder]:
    recorder = Recorder(
        connection, "gpushare-test", "host", max_per_s=1000, clock=clock, now=clock.now
    )
    task = asyncio.create_task(recorder.run())
    yield recorder
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def tell(
    recorder: Recorder, message: str = "no room", about: About = POD, reason: str = "Full"
) -> None:
    recorder.event(about, Severity.WARNING, reason, message)


def posts(api: FakeApi) -> list[Any]:
    return [r.body for r in api.seen("POST", EVENTS)]


def patches(api: FakeApi) -> list[Any]:
    return [r.body for r in api.seen("PATCH", EVENTS + "/.*")]


async def test_event_as_the_api_server_wants_it(api: FakeApi, recorder: Recorder) -> None:
    tell(recorder, "no GPU has 8 free")
    await eventually(lambda: posts(api))
    (request,) = api.seen("POST", EVENTS)
    assert request.path == "/api/v1/namespaces/team/events"
    name = request.body["metadata"].pop("name")
    assert name.startswith("a.")
    assert request.body == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "team"},
        "involvedObject": {
            "kind": "Pod",
            "name": "a",
            "uid": "u-a",
            "namespace": "team",
            "apiVersion": "v1",
        },
        "reason": "Full",
        "type": "Warning",
        "source": {"component": "gpushare-test", "host": "host"},
        "reportingComponent": "gpushare-test",
        "reportingInstance": "host",
        "message": "no GPU has 8 free",
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }


async def test_event_about_a_node_goes_to_the_default_namespace(
    api: FakeApi, recorder: Recorder
) -> None:
    tell(recorder, about=NODE)
    await eventually(lambda: posts(api))
    assert api.requests[0].path == "/api/v1/namespaces/default/events"
    assert "namespace" not in posts(api)[0]["involvedObject"]


async def test_repetitions_within_the_interval_are_counted_into_one_patch(
    api: FakeApi, recorder: Recorder, clock: Clock
) -> None:
    tell(recorder, "first")
    await eventually(lambda: recorder.written == 1)
    for i in range(50):
        clock.seconds += 1
        tell(recorder, f"again {i}")
    await asyncio.sleep(0.05)
    assert (len(posts(api)), len(patches(api))) == (1, 0)
    assert len(recorder._due) == 1
    clock.seconds += 11
    tell(recorder, "last")
    recorder._wake.set()
    await eventually(lambda: patches(api))
    await asyncio.sleep(0.05)
    assert patches(api) == [
        {"message": "last", "count": 52, "lastTimestamp": "2026-01-01T00:01:01Z"}
    ]
    name = posts(api)[0]["metadata"]["name"]
    assert api.seen("PATCH", EVENTS + "/.*")[0].path.endswith(f"/team/events/{name}")


async def test_reasons_and_objects_are_series_of_their_own(
    api: FakeApi, recorder: Recorder
) -> None:
    tell(recorder)
    tell(recorder, reason="Other")
    tell(recorder, about=About("Pod", "a", "another uid", "team", "v1"))
    tell(recorder, about=NODE)
    await eventually(lambda: len(posts(api)) == 4)


async def test_a_part_of_an_object_is_a_series_of_its_own(api: FakeApi, recorder: Recorder) -> None:
    for gpu in ("GPU-a", "GPU-b"):
        recorder.event(NODE, Severity.WARNING, "GPUFailed", f"{gpu} has failed", gpu)
    await eventually(lambda: len(posts(api)) == 2)
    assert {body["message"] for body in posts(api)} == {"GPU-a has failed", "GPU-b has failed"}


async def test_expired_event_is_created_anew(
    api: FakeApi, recorder: Recorder, clock: Clock
) -> None:
    tell(recorder)
    await eventually(lambda: recorder.written == 1)
    clock.seconds += 4000
    tell(recorder, "still")  # the fake API server answers the PATCH with 404
    await eventually(lambda: len(posts(api)) == 2)
    assert posts(api)[1]["message"] == "still"
    assert posts(api)[1]["count"] == 1
    assert posts(api)[1]["firstTimestamp"] == "2026-01-01T01:06:40Z"


async def test_caller_is_never_held_up(api: FakeApi, recorder: Recorder) -> None:
    api.always.append(("POST", EVENTS, hang))
    loop = asyncio.get_running_loop()
    began = loop.time()
    for i in range(2000):
        tell(recorder, about=About("Pod", f"p{i}", f"u{i}", "team", "v1"))
        await asyncio.sleep(0)
    assert loop.time() - began < 1


async def test_memory_is_bounded(api: FakeApi, connection: Connection) -> None:
    recorder = Recorder(connection, "gpushare-test", max_series=10)
    for i in range(1000):
        tell(recorder, about=About("Pod", f"p{i}", f"u{i}", "team", "v1"))
    assert len(recorder._series) == 10
    assert recorder.dropped == 990
    recorder.max_per_s = 1000
    task = asyncio.create_task(recorder.run())
    await eventually(lambda: recorder.written == 10)
    task.cancel()
    assert not recorder._due


async def test_writes_are_spaced(api: FakeApi, connection: Connection) -> None:
    recorder = Recorder(connection, "gpushare-test", max_per_s=20)
    task = asyncio.create_task(recorder.run())
    for i in range(100):
        tell(recorder, about=About("Pod", f"p{i}", f"u{i}", "team", "v1"))
    await asyncio.sleep(0.5)
    task.cancel()
    assert 5 <= len(posts(api)) <= 11


async def test_failure_is_logged_once_and_not_raised(
    api: FakeApi, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = ("POST", EVENTS, refuse(403, "Forbidden", 'cannot create resource "events"'))
    api.always.append(refusal)
    for reason in ("A", "B", "C"):
        tell(recorder, reason=reason)
    await eventually(lambda: recorder.dropped == 3)
    assert caplog.text.count("cannot write Events") == 1
    assert 'cannot create resource "events"' in caplog.text
    api.always.remove(refusal)
    tell(recorder, reason="D")
    await eventually(lambda: recorder.written == 1)
    api.always.append(refusal)
    tell(recorder, reason="E")
    await eventually(lambda: recorder.dropped == 4)
    assert caplog.text.count("cannot write Events") == 2


async def test_namespace_gone_is_no_failure(
    api: FakeApi, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    message = "unable to create new content in namespace team because it is being terminated"
    api.once("POST", EVENTS, refuse(403, "Forbidden", message), refuse(404, "NotFound"))
    tell(recorder, reason="A")
    tell(recorder, reason="B")
    await eventually(lambda: recorder.dropped == 2)
    assert "cannot write" not in caplog.text


async def test_long_message_is_cut_where_the_api_server_would_refuse(
    api: FakeApi, recorder: Recorder
) -> None:
    tell(recorder, "ö" * 2000)
    await eventually(lambda: posts(api))
    message = posts(api)[0]["message"]
    assert len(message.encode()) <= 1024
    assert message.endswith("ö…")
