"""Binding: what is reserved, what is written, and what becomes of it when things go wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from gpushare.contract import names
from gpushare.extender.bind import Binder
from gpushare.extender.main import App
from gpushare.extender.outcome import Bind
from gpushare.extender.wire import BindingArgs
from gpushare.kube.connection import Connection
from tests.extender.fake_cluster import FakeCluster, Json, allocation, lost, node, pod, refused
from tests.kube.fake_api import eventually


def args(name: str, node: str = "n1", uid: str | None = None) -> BindingArgs:
    return BindingArgs(name, "default", uid or f"uid-{name}", node)


def used(app: App, name: str = "n1") -> list[int]:
    return [gpu.used for gpu in app.extender.state.ledger.books(name).gpus]


async def ready(app: App, api: FakeCluster, *manifests: Json) -> None:
    """Put these into the cluster and wait until the extender knows."""
    state = app.extender.state
    for manifest in manifests:
        (api.put_pod if "containers" in manifest["spec"] else api.put_node)(manifest)
    last = manifests[-1]["metadata"]
    await eventually(
        lambda: (
            last["name"] in state.ledger
            or last["uid"] in state.waiting
            or state.standing(last["uid"]) is not None
        )
    )


async def test_one_write_with_the_decision(app: App, api: FakeCluster) -> None:
    await ready(app, api, node("n1", [15, 15]), pod("p", 4))
    assert await app.extender.binder.bind(args("p")) == Bind()
    (binding,) = api.bindings
    assert binding["target"]["name"] == "n1"
    assert binding["metadata"]["uid"] == "uid-p"
    annotations = binding["metadata"]["annotations"]
    assert json.loads(annotations[names.ANNOTATION_ALLOCATION]) == {"0": {"0": 4}}
    assert annotations[names.ANNOTATION_ASSIGNED] == "false"
    assert annotations[names.ANNOTATION_OLD_IDX] == "0"
    await eventually(lambda: not app.extender.state.reservations)
    assert used(app) == [4, 0]


async def test_init_containers_get_an_annotation_of_their_own(app: App, api: FakeCluster) -> None:
    init = [{"name": "i", "resources": {"limits": {names.RESOURCE_MEM: "8"}}}]
    await ready(app, api, node("n1", [15]), pod("p", 4, initContainers=init))
    assert await app.extender.binder.bind(args("p")) == Bind()
    annotations = api.bindings[0]["metadata"]["annotations"]
    assert json.loads(annotations[names.ANNOTATION_ALLOCATION]) == {"0": {"0": 4}}
    assert json.loads(annotations[names.ANNOTATION_INIT_ALLOCATION]) == {"0": {"0": 8}}
    assert used(app) == [8]
    await eventually(lambda: not app.extender.state.reservations)
    assert used(app) == [8]


async def test_concurrent_binds_to_one_node_see_each_other(app: App, api: FakeCluster) -> None:
    pods = [pod(f"p{i}", 6) for i in range(6)]
    await ready(app, api, node("n1", [15, 15]), *pods)
    results = await asyncio.gather(
        *(app.extender.binder.bind(args(p["metadata"]["name"])) for p in pods)
    )
    assert [r.error for r in results].count("") == 4
    assert {r.reason for r in results} == {"", "no-gpu-fits"}
    assert used(app) == [12, 12]
    assert len(api.bindings) == 4


async def test_the_time_of_binds_is_never_the_same_twice(
    app: App, api: FakeCluster, connection: Connection
) -> None:
    await ready(app, api, node("n1", [15]), pod("p1", 1), pod("p2", 1))
    binder = Binder(app.extender.state, connection, app.extender.clock, now_ns=lambda: 7)
    for name in ("p1", "p2"):
        await binder.bind(args(name))
    times = [b["metadata"]["annotations"][names.ANNOTATION_ASSUME_TIME] for b in api.bindings]
    assert times == ["7", "8"]


async def test_a_pod_the_watch_has_not_shown_is_fetched(app: App, api: FakeCluster) -> None:
    await ready(app, api, node("n1", [15]))
    api.hold()
    api.put_pod(pod("late", 4))
    assert await app.extender.binder.bind(args("late")) == Bind()
    assert api.gets == ["late"]
    assert used(app) == [4]
    api.release()
    await eventually(lambda: not app.extender.state.reservations)
    assert used(app) == [4]


async def test_an_event_of_the_time_before_does_not_undo_a_reservation(
    app: App, api: FakeCluster
) -> None:
    await ready(app, api, node("n1", [15]), pod("p", 4))
    api.hold()
    api.change_pod("p", status={"conditions": [{"type": "PodScheduled", "status": "False"}]})
    assert await app.extender.binder.bind(args("p")) == Bind()
    held, api._held = api._held, None
    assert held is not None
    api._tell(*held[0])
    await eventually(lambda: app.pods.counters.events >= 2)
    assert used(app) == [4]
    assert not [p for p in app.extender.state.still_waiting() if p.name == "p"]


REFUSALS: list[tuple[dict[str, Any], BindingArgs, str]] = [
    ({}, args("nobody"), "gone"),
    ({}, args("p", node="unknown"), "no-node"),
    ({}, args("p", uid="another"), "gone"),
    ({}, BindingArgs("p", "../..", "x", "n1"), "api"),
    ({}, BindingArgs("other", "default", "uid-p", "n1"), "gone"),
    ({"labels": {names.LABEL_GPU_COUNT: "3"}}, args("p"), "gpu-count"),
    ({"labels": {names.LABEL_GPU_COUNT: "4"}}, args("p"), "gpu-count"),
    ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, args("p"), "gone"),
]


@pytest.mark.parametrize(("metadata", "asked", "reason"), REFUSALS)
async def test_what_cannot_be_bound_is_refused_without_a_write(
    app: App, api: FakeCluster, metadata: dict[str, Any], asked: BindingArgs, reason: str
) -> None:
    await ready(app, api, pod("p", 4, metadata=metadata), node("n1", [15]))
    result = await app.extender.binder.bind(asked)
    assert result.error
    assert result.reason == reason
    assert api.bindings == []
    assert used(app) == [0]


async def test_no_room_is_refused_with_the_constant_reason(app: App, api: FakeCluster) -> None:
    await ready(app, api, node("n1", [15, 15]), pod("p", 16))
    result = await app.extender.binder.bind(args("p"))
    assert result == Bind("no single GPU has enough free memory", "no-gpu-fits")


async def test_a_refused_write_is_rolled_back(app: App, api: FakeCluster) -> None:
    await ready(app, api, node("n1", [15]), pod("p", 4))
    api.on_bind = refused
    result = await app.extender.binder.bind(args("p"))
    assert result.reason == "api"
    assert used(app) == [0]
    api.on_bind = None
    assert await app.extender.binder.bind(args("p")) == Bind()


async def test_a_repeated_bind_is_answered_the_same_way(app: App, api: FakeCluster) -> None:
    await ready(app, api, node("n1", [15, 15]), node("n2", [15]), pod("p", 4))
    api.hold()
    assert await app.extender.binder.bind(args("p")) == Bind()
    assert await app.extender.binder.bind(args("p")) == Bind()
    api.release()
    await eventually(lambda: not app.extender.state.reservations)
    assert await app.extender.binder.bind(args("p")) == Bind()
    assert len(api.bindings) == 1
    elsewhere = await app.extender.binder.bind(args("p", "n2"))
    assert elsewhere.reason == "bound-already"
    assert elsewhere.conflict
    assert used(app) == [4, 0]


async def test_a_bind_in_flight_is_joined(app: App, api: FakeCluster) -> None:
    await ready(app, api, node("n1", [15]), node("n2", [15]), pod("p", 4))
    go_on = asyncio.Event()

    async def slow(name: str, body: Json) -> web.StreamResponse | None:
        await go_on.wait()
        return None

    api.on_bind = slow
    binder = app.extender.binder
    both = [asyncio.ensure_future(binder.bind(args("p"))) for _ in range(2)]
    await eventually(lambda: api.bindings)
    assert (await binder.bind(args("p", "n2"))).reason == "busy"
    go_on.set()
    assert await asyncio.gather(*both) == [Bind(), Bind()]
    assert len(api.bindings) == 1
    await binder.drain()


async def test_a_caller_that_hangs_up_stops_nothing(app: App, api: FakeCluster) -> None:
    await ready(app, api, node("n1", [15]), pod("p", 4))
    call = asyncio.ensure_future(app.extender.binder.bind(args("p")))
    await asyncio.sleep(0)
    call.cancel()
    await app.extender.binder.drain()
    assert api.pods["p"]["spec"]["nodeName"] == "n1"
    assert used(app) == [4]


async def test_a_pod_bound_by_somebody_else_meanwhile_is_booked_where_it_is(
    app: App, api: FakeCluster
) -> None:
    await ready(app, api, node("n2", [15, 15]), node("n1", [15]), pod("p", 4))
    api.hold()
    where = {"nodeName": "n2"}
    api.change_pod("p", metadata={"annotations": allocation(1)}, spec=where)
    result = await app.extender.binder.bind(args("p"))
    assert result.reason == "bound-already"
    assert result.conflict
    assert used(app) == [0]
    assert used(app, "n2") == [0, 4]
    api.release()
    await eventually(lambda: not app.extender.state.reservations)
    assert used(app, "n2") == [0, 4]


async def test_a_pod_bound_here_by_hand_is_no_success(app: App, api: FakeCluster) -> None:
    await ready(app, api, node("n1", [15]), pod("p", 4, nodeName="n1"))
    result = await app.extender.binder.bind(args("p"))
    assert result.reason == "bound-already"
    assert app.extender.state.ledger.books("n1").pending == 4


async def test_a_lost_answer_keeps_the_reservation_and_the_repeat_finds_out(
    app: App, api: FakeCluster, connection: Connection
) -> None:
    await ready(app, api, node("n1", [15]), node("n2", [15]), pod("p", 4))
    state = app.extender.state
    binder = Binder(state, connection, app.extender.clock, deadline_s=0.4)
    api.hold()

    async def bound_but_silent(name: str, body: Json) -> web.StreamResponse:
        api.bind(name, body)
        return await lost(name, body)

    api.on_bind = bound_but_silent
    result = await binder.bind(args("p"))
    assert result.reason == "undecided"
    assert used(app) == [4]
    # The scheduler asks about it again: only the node it may be bound to is right.
    assert (await binder.bind(args("p", "n2"))).reason == "undecided"
    assert used(app, "n2") == [0]
    api.on_bind = None
    assert await binder.bind(args("p")) == Bind(conflict=True)
    api.release()
    await eventually(lambda: not state.reservations)
    assert used(app) == [4]


async def test_the_deadline_holds_whatever_the_api_server_does(
    app: App, api: FakeCluster, connection: Connection
) -> None:
    await ready(app, api, node("n1", [15]), pod("p", 4))
    api.on_bind = lost
    binder = Binder(app.extender.state, connection, app.extender.clock, deadline_s=0.5)
    began = asyncio.get_running_loop().time()
    await binder.bind(args("p"))
    assert asyncio.get_running_loop().time() - began < 1.5


async def test_a_pod_that_asks_for_nothing_is_bound_plainly(app: App, api: FakeCluster) -> None:
    await ready(app, api, node("n1", [15]))
    api.put_pod(pod("p"))
    assert await app.extender.binder.bind(args("p")) == Bind()
    assert api.bindings[0]["metadata"]["annotations"] == {}


async def test_a_pod_deleted_during_its_bind_leaves_nothing(app: App, api: FakeCluster) -> None:
    await ready(app, api, node("n1", [15]), pod("p", 4))

    async def deleted(name: str, body: Json) -> web.StreamResponse | None:
        api.delete_pod(name)
        api.put_pod(pod("p", 4, uid="uid-new"))  # as a StatefulSet does
        return None

    api.on_bind = deleted
    result = await app.extender.binder.bind(args("p"))
    assert result.reason == "gone"
    assert used(app) == [0]
    await eventually(lambda: "uid-new" in app.extender.state.waiting)
    assert used(app) == [0]
    assert not app.extender.state.reservations
