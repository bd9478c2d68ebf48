"""Binds that wait for the kubelet, and reservations that nobody confirms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from gpushare.contract import names
from gpushare.extender import classwait
from gpushare.extender.bind import Binder
from gpushare.extender.main import App
from gpushare.extender.outcome import Bind
from gpushare.extender.settle import Settler
from gpushare.kube.config import Config
from gpushare.kube.connection import Connection
from gpushare.kube.credentials import FixedHeader
from tests.extender.fake_cluster import FakeCluster, Json, allocation, lost, node, pod
from tests.extender.test_bind import args, ready, used
from tests.kube.fake_api import eventually

ATTESTS = {names.ANNOTATION_NODE: '{"version":1,"unit":"GiB","attests":true,"injection":"fake"}'}
TWO = {"labels": {names.LABEL_GPU_COUNT: "2"}}


def standing(name: str, units: int, *, attested: bool = False, **metadata: Any) -> Json:
    annotations = {
        **allocation(0, units=units),
        names.ANNOTATION_ASSIGNED: "true" if attested else "false",
    }
    return pod(name, units, nodeName="n1", annotations=annotations, **metadata)


@pytest.fixture
def binder(app: App, connection: Connection) -> Binder:
    return Binder(app.extender.state, connection, app.extender.clock, deadline_s=2.0)


# --- the class wait ------------------------------------------------------------------------------


async def test_a_bind_waits_until_a_confusable_pod_is_attested(
    app: App, api: FakeCluster, binder: Binder
) -> None:
    n1 = node("n1", [15, 15, 15], **ATTESTS)
    await ready(app, api, n1, standing("one", 8), pod("two", 8, metadata=TWO))
    binder.deadline_s = 30.0
    bind = asyncio.ensure_future(binder.bind(args("two")))
    await asyncio.sleep(0.1)
    assert api.bindings == []
    api.put_pod(standing("one", 8, attested=True))
    assert await asyncio.wait_for(bind, 5) == Bind()  # woken by the event, not by its deadline


async def test_at_the_deadline_it_fails_with_one_constant_reason(
    app: App, api: FakeCluster, binder: Binder
) -> None:
    n1 = node("n1", [15, 15, 15], **ATTESTS)
    await ready(app, api, n1, standing("one", 8), pod("two", 8, metadata=TWO))
    binder.deadline_s = 1.6
    assert await binder.bind(args("two")) == Bind(classwait.REASON, "class-wait")
    assert api.bindings == []
    assert app.extender.state.reservations == {}


FREE: dict[str, tuple[Json, Json, Json]] = {
    "equal pods": (node("n1", [15] * 3, **ATTESTS), standing("one", 8), pod("two", 8)),
    "other sizes": (
        node("n1", [15] * 3, **ATTESTS),
        standing("one", 8),
        pod("two", 4, metadata=TWO),
    ),
    "attested": (
        node("n1", [15] * 3, **ATTESTS),
        standing("one", 8, attested=True),
        pod("two", 8, metadata=TWO),
    ),
    "finished": (
        node("n1", [15] * 3, **ATTESTS),
        standing("one", 8, phase="Succeeded"),
        pod("two", 8, metadata=TWO),
    ),
    "no plugin": (node("n1", [15] * 3), standing("one", 8), pod("two", 8, metadata=TWO)),
}


@pytest.mark.parametrize("case", FREE)
async def test_nothing_else_waits(app: App, api: FakeCluster, binder: Binder, case: str) -> None:
    await ready(app, api, *FREE[case])
    binder.deadline_s = 1.51  # no time to wait
    assert await binder.bind(args("two")) == Bind()


async def test_a_bind_waits_for_a_pod_that_left_until_the_plugin_must_know(
    app: App, api: FakeCluster, binder: Binder
) -> None:
    n1 = node("n1", [15, 15, 15], **ATTESTS)
    await ready(app, api, n1, standing("one", 8), pod("two", 8, metadata=TWO))
    api.delete_pod("one")
    await eventually(lambda: "uid-one" in app.extender.state.leavers)
    binder.deadline_s = 30.0
    assert await binder.bind(args("two")) == Bind()
    assert "uid-one" not in app.extender.state.leavers


async def test_waiting_binds_are_served_in_order_of_arrival(
    app: App, api: FakeCluster, binder: Binder
) -> None:
    """A stream of pods of the class that is being served does not keep out the other."""
    n1 = node("n1", [15] * 4, **ATTESTS)
    later = [pod(f"later{i}", 8) for i in range(3)]
    await ready(app, api, n1, standing("one", 8), pod("two", 8, metadata=TWO), *later)
    binder.deadline_s = 5.0
    first = asyncio.ensure_future(binder.bind(args("two")))
    await asyncio.sleep(0.05)
    stream = [asyncio.ensure_future(binder.bind(args(f"later{i}"))) for i in range(3)]
    await asyncio.sleep(0.05)
    assert api.bindings == []
    api.put_pod(standing("one", 8, attested=True))
    assert await first == Bind()
    assert [b["metadata"]["name"] for b in api.bindings] == ["two"]
    annotations = {**api.pods["two"]["metadata"]["annotations"], names.ANNOTATION_ASSIGNED: "true"}
    api.change_pod("two", metadata={"annotations": annotations})
    assert await asyncio.gather(*stream) == [Bind()] * 3
    assert app.extender.state.subscribers == []


# --- settling ------------------------------------------------------------------------------------


async def undecided(
    app: App, api: FakeCluster, binder: Binder, bound: bool, **annotations: str
) -> None:
    """A bind whose answer got lost; the watch does not tell either."""
    n1 = node("n1", [15], **annotations)
    await ready(app, api, n1, node("n2", [15]), pod("p", 4))
    api.hold()

    async def silent(name: str, body: Json) -> web.StreamResponse:
        if bound:
            api.bind(name, body)
        return await lost(name, body)

    api.on_bind = silent
    binder.deadline_s = 0.3
    assert (await binder.bind(args("p"))).reason == "undecided"
    assert used(app) == [4]


FATES: dict[str, tuple[bool, Callable[[FakeCluster], object], list[int], list[int]]] = {
    "it went through": (True, lambda api: None, [4], [0]),
    "it did not": (False, lambda api: None, [0], [0]),
    "the pod is gone": (True, lambda api: api.delete_pod("p"), [0], [0]),
    "another pod bears the name": (
        True,
        lambda api: (api.delete_pod("p"), api.put_pod(pod("p", 4, uid="uid-new"))),
        [0],
        [0],
    ),
    "somebody else bound it": (
        False,
        lambda api: api.change_pod(
            "p", metadata={"annotations": allocation(0)}, spec={"nodeName": "n2"}
        ),
        [0],
        [4],
    ),
}


@pytest.mark.parametrize("fate", FATES)
async def test_a_reservation_nobody_confirms_is_looked_up(
    app: App, api: FakeCluster, binder: Binder, connection: Connection, fate: str
) -> None:
    bound, happens, on_n1, on_n2 = FATES[fate]
    await undecided(app, api, binder, bound)
    happens(api)
    settler = Settler(app.extender.state, connection, app.extender.clock, grace_s=0.0)
    await settler.round()
    assert used(app, "n1") == on_n1
    assert used(app, "n2") == on_n2
    api.release()
    await eventually(lambda: not app.extender.state.reservations)
    assert used(app, "n1") == on_n1
    assert used(app, "n2") == on_n2


async def test_a_pod_gone_before_its_bind_was_seen_leaves_as_every_other(
    app: App, api: FakeCluster, binder: Binder, connection: Connection
) -> None:
    await undecided(app, api, binder, bound=True, **ATTESTS)
    api.delete_pod("p")
    settler = Settler(app.extender.state, connection, app.extender.clock, grace_s=0.0)
    await settler.round()
    assert app.extender.state.reservations == {}
    assert used(app) == [4]  # until the plugin cannot have taken it for another (leaving)


async def test_nothing_is_settled_before_its_time_or_while_the_api_server_is_away(
    app: App, api: FakeCluster, binder: Binder, connection: Connection
) -> None:
    await undecided(app, api, binder, bound=False)
    state = app.extender.state
    patient = Settler(state, connection, app.extender.clock, grace_s=60.0)
    await patient.round()
    assert api.gets == []
    nowhere = Config("http://127.0.0.1:9", FixedHeader(None), "the test's configuration")
    async with Connection(nowhere) as away:
        await Settler(state, away, app.extender.clock, grace_s=0.0).round()
    assert used(app) == [4]
