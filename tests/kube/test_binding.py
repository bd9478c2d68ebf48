"""Binding: one write, and every way it can be refused or lost."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.kube.binding import (
    Bound,
    BoundOtherwise,
    Outcome,
    PodGone,
    PodReplaced,
    Rejected,
    Undecided,
    bind,
)
from gpushare.kube.config import Config
from gpushare.kube.connection import Connection
from gpushare.kube.credentials import FixedHeader
from gpushare.kube.errors import Conflict, Forbidden, InvalidName, TooManyRequests

from .fake_api import Answer, FakeApi, Json, drop, hang, pod, refuse

POD = "/api/v1/namespaces/default/pods/a"
BINDING = POD + "/binding"
OURS = {"allocation": '{"0":{"1":4}}', "assume-time": "17"}


async def try_to_bind(
    connection: Connection,
    *,
    node: str = "n1",
    annotations: Mapping[str, str] = OURS,
    deadline_s: float = 2.0,
) -> Outcome:
    return await bind(
        connection,
        "default",
        "a",
        "u-a",
        node,
        annotations,
        decision_keys=frozenset({"allocation"}),
        deadline_s=deadline_s,
    )


def on_node(node: str, annotations: Mapping[str, str], **metadata: Any) -> Json:
    bound = pod("a", 5, node=node)
    bound["metadata"] |= {"annotations": dict(annotations), **metadata}
    return bound


async def test_bind_is_one_post_with_uid_and_annotations(
    api: FakeApi, connection: Connection
) -> None:
    assert await try_to_bind(connection) == Bound()
    (request,) = api.requests
    assert (request.method, request.path) == ("POST", BINDING)
    assert request.body["kind"] == "Binding"
    assert request.body["metadata"]["uid"] == "u-a"
    assert request.body["metadata"]["annotations"] == OURS
    assert request.body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}


CONFLICT = refuse(409, "Conflict", 'pod a is already assigned to node "n1"')


async def test_bind_conflict_with_our_own_decision_is_success(
    api: FakeApi, connection: Connection
) -> None:
    api.once("POST", BINDING, CONFLICT)
    api.objects[POD] = on_node("n1", {**OURS, "assume-time": "16", "other": "x"})
    assert await try_to_bind(connection) == Bound(before=True)


@pytest.mark.parametrize(
    ("node", "annotations"),
    [("n2", OURS), ("n1", {"allocation": '{"0":{"0":4}}'}), ("n1", {})],
    ids=["other node", "other decision", "no decision"],
)
async def test_bind_conflict_with_another_decision_tells_it(
    api: FakeApi, connection: Connection, node: str, annotations: dict[str, str]
) -> None:
    api.once("POST", BINDING, CONFLICT)
    api.objects[POD] = on_node(node, annotations)
    assert await try_to_bind(connection) == BoundOtherwise(node, annotations)


async def test_bind_conflict_of_a_recreated_pod_tells_its_uid(
    api: FakeApi, connection: Connection
) -> None:
    api.once("POST", BINDING, CONFLICT)
    api.objects[POD] = on_node("n1", OURS, uid="another")
    assert await try_to_bind(connection) == PodReplaced("another")


async def test_bind_conflict_of_a_terminating_pod(api: FakeApi, connection: Connection) -> None:
    api.once("POST", BINDING, CONFLICT)
    api.objects[POD] = pod("a", 5)
    api.objects[POD]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert await try_to_bind(connection) == PodGone(terminating=True)


async def test_bind_conflict_of_a_gated_pod_is_rejected(
    api: FakeApi, connection: Connection
) -> None:
    api.once("POST", BINDING, refuse(409, "Conflict", "pod a has non-empty .spec.schedulingGates"))
    api.objects[POD] = pod("a", 5)
    outcome = await try_to_bind(connection)
    assert isinstance(outcome, Rejected)
    assert isinstance(outcome.error, Conflict)


@pytest.mark.parametrize("code", [404, 409])
async def test_bind_of_a_deleted_pod(api: FakeApi, connection: Connection, code: int) -> None:
    api.once("POST", BINDING, refuse(code, "NotFound"))
    assert await try_to_bind(connection) == PodGone()


async def test_bind_forbidden_is_rejected_at_once(api: FakeApi, connection: Connection) -> None:
    api.once("POST", BINDING, refuse(403, "Forbidden", "cannot create resource pods/binding"))
    outcome = await try_to_bind(connection)
    assert isinstance(outcome, Rejected)
    assert isinstance(outcome.error, Forbidden)
    assert len(api.requests) == 1


def _applied_but_lost(api: FakeApi, how: Answer) -> Answer:
    async def respond(request: Any) -> Any:
        api.objects[POD] = on_node("n1", OURS)
        api.once("POST", BINDING, CONFLICT)
        return await how(request)

    return respond


@pytest.mark.parametrize(
    "how", [drop, hang, refuse(500, "InternalError"), refuse(504, "Timeout")],
    ids=["reset", "no answer", "500", "504"],
)  # fmt: skip
async def test_bind_that_went_through_without_an_answer_is_success(
    api: FakeApi, connection: Connection, how: Answer
) -> None:
    api.once("POST", BINDING, _applied_but_lost(api, how))
    assert await try_to_bind(connection, deadline_s=1.0) == Bound(before=True)


async def test_bind_on_a_half_open_connection_succeeds_with_the_second_try(
    api: FakeApi, connection: Connection
) -> None:
    api.once("POST", BINDING, hang)
    assert await try_to_bind(connection, deadline_s=0.6) == Bound()


async def test_bind_without_any_answer_is_undecided_within_the_deadline(
    api: FakeApi, connection: Connection
) -> None:
    api.always.append(("POST", BINDING, hang))
    loop = asyncio.get_running_loop()
    began = loop.time()
    outcome = await try_to_bind(connection, deadline_s=0.5)
    assert isinstance(outcome, Undecided)
    assert 0.3 < loop.time() - began < 0.6


@pytest.mark.parametrize("how", [drop, refuse(500, "InternalError")], ids=["reset", "500"])
async def test_bind_lost_then_forbidden_is_undecided(
    api: FakeApi, connection: Connection, how: Answer
) -> None:
    # The first POST may have gone through: the reservation must stay.
    api.once("POST", BINDING, how, refuse(403, "Forbidden"))
    assert isinstance(await try_to_bind(connection), Undecided)


async def test_bind_conflict_whose_pod_cannot_be_read_is_undecided(
    api: FakeApi, connection: Connection
) -> None:
    api.always.append(("POST", BINDING, CONFLICT))
    api.always.append(("GET", POD, refuse(503, "ServiceUnavailable")))
    assert isinstance(await try_to_bind(connection, deadline_s=0.3), Undecided)


async def test_bind_waits_as_told_when_the_api_server_sheds_load(
    api: FakeApi, connection: Connection
) -> None:
    busy = refuse(429, "TooManyRequests", "", **{"Retry-After": "1"})
    api.once("POST", BINDING, busy)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await try_to_bind(connection, deadline_s=2) == Bound()
    assert loop.time() - began > 0.95
    api.always.append(("POST", BINDING, busy))
    outcome = await try_to_bind(connection, deadline_s=0.5)
    assert isinstance(outcome, Rejected)
    assert isinstance(outcome.error, TooManyRequests)


async def test_bind_to_a_closed_port_is_rejected_not_undecided(api: FakeApi) -> None:
    url = api.url
    await api.stop()
    async with Connection(Config(url, FixedHeader(None), "test")) as connection:
        assert isinstance(await try_to_bind(connection, deadline_s=0.2), Rejected)


async def test_bind_to_an_impossible_name_never_leaves(
    api: FakeApi, connection: Connection
) -> None:
    with pytest.raises(InvalidName):
        await try_to_bind(connection, node="../n1")
    assert api.requests == []
