"""One fresh list, and what can go wrong in the middle of it."""

import asyncio
from typing import Any

import pytest

from gpushare.kube.connection import Connection
from gpushare.kube.errors import Gone, Malformed, TimedOut
from gpushare.kube.listing import list_all
from gpushare.kube.resources import PODS, Selector

from .fake_api import FakeApi, answer, hang, pod, refuse


async def test_fresh_list_of_one_nodes_pods(api: FakeApi, connection: Connection) -> None:
    api.pods = [pod("a", 1, node="n1"), pod("b", 2, node="n1")]
    listing = await list_all(connection, PODS, Selector(fields="spec.nodeName=n1"))
    assert [p.metadata.name for p in listing.items] == ["a", "b"]
    assert listing.items[0].spec.node_name == "n1"
    assert listing.resource_version == "100"
    query = api.lists()[0].query
    assert query == {"fieldSelector": "spec.nodeName=n1", "limit": "500"}


async def test_paging_of_1200_pods_names_each_once(api: FakeApi, connection: Connection) -> None:
    api.pods = [pod(f"p{i}", i) for i in range(1200)]
    listing = await list_all(connection, PODS)
    assert [p.metadata.name for p in listing.items] == [f"p{i}" for i in range(1200)]
    assert len(api.lists()) == 3


async def test_410_while_paging_voids_the_pages_before(
    api: FakeApi, connection: Connection
) -> None:
    api.pods = [pod(f"p{i}", i) for i in range(25)]

    async def first_page(request: Any) -> Any:
        page = api._list(request)
        api.once("GET", "/api/v1/pods", refuse(410, "Expired"))
        api.pods = [pod("only", 1)]
        return page

    api.once("GET", "/api/v1/pods", first_page)
    listing = await list_all(connection, PODS, page_size=10)
    assert [p.metadata.name for p in listing.items] == ["only"]
    assert [r.query.get("limit") for r in api.lists()] == ["10", "10", None]


async def test_410_for_ever_is_an_error(api: FakeApi, connection: Connection) -> None:
    api.always.append(("GET", "/api/v1/pods", refuse(410, "Expired")))
    with pytest.raises(Gone):
        await list_all(connection, PODS)


async def test_time_limit_is_for_the_whole_list(api: FakeApi, connection: Connection) -> None:
    api.pods = [pod(f"p{i}", i) for i in range(3)]
    slow = [_slowly(api)] * 3
    api.once("GET", "/api/v1/pods", *slow)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimedOut, match=r"/api/v1/pods.* within 0.3 s"):
        await list_all(connection, PODS, page_size=1, timeout_s=0.3)
    assert loop.time() - began < 0.6
    api.once("GET", "/api/v1/pods", hang)
    with pytest.raises(TimedOut):
        await list_all(connection, PODS, timeout_s=0.1)


def _slowly(api: FakeApi) -> Any:
    async def respond(request: Any) -> Any:
        await asyncio.sleep(0.2)
        return api._list(request)

    return respond


async def test_null_items_are_no_items(api: FakeApi, connection: Connection) -> None:
    api.once(
        "GET", "/api/v1/pods", answer(200, {"metadata": {"resourceVersion": "5"}, "items": None})
    )
    assert (await list_all(connection, PODS)).items == []


@pytest.mark.parametrize("body", [{"items": []}, {"metadata": {"resourceVersion": 5}}, "<html>"])
async def test_a_list_that_cannot_be_read_is_malformed(
    api: FakeApi, connection: Connection, body: Any
) -> None:
    api.once("GET", "/api/v1/pods", answer(200, body))
    with pytest.raises(Malformed, match="/api/v1/pods"):
        await list_all(connection, PODS)
