"""List and watch against an API server that ends, breaks, forgets and falls silent."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from gpushare.kube.backoff import Backoff
from gpushare.kube.connection import Connection
from gpushare.kube.objects import Pod
from gpushare.kube.reflector import FRUITLESS_UNTIL_LIST, Reflector
from gpushare.kube.resources import ALL, PODS, Ref, Selector

from .fake_api import FakeApi, Json, drop, eventually, hang, pod, refuse, status


class Books:
    """What a handler would keep: every call in order, and the state they add up to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.state: dict[str, str] = {}  # uid -> name@version

    def changed(self, obj: Pod) -> None:
        meta = obj.metadata
        self.calls.append(f"changed {meta.uid}@{meta.resource_version}")
        self.state[meta.uid] = f"{meta.name}@{meta.resource_version}"

    def deleted(self, ref: Ref) -> None:
        self.calls.append(f"deleted {ref.uid}")
        del self.state[ref.uid]

    def listed(self) -> None:
        self.calls.append("listed")


@asynccontextmanager
async def following(
    connection: Connection, books: Any, selector: Selector = ALL, **options: Any
) -> AsyncIterator[Reflector[Pod]]:
    options.setdefault("backoff", Backoff(first_s=0.01, cap_s=0.05))
    reflector = Reflector(connection, PODS, books, selector, **options)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector
        if task.done():
            task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_first_list_then_changes_arrive_in_order(
    api: FakeApi, connection: Connection
) -> None:
    api.pods = [pod("a", 1), pod("b", 2)]
    books = Books()
    async with following(connection, books) as reflector:
        assert not reflector.synced.is_set()
        watch = await api.next_watch()
        assert reflector.synced.is_set()
        assert reflector.count() == 2
        await watch.send("ADDED", pod("c", 101))
        await watch.send("MODIFIED", pod("a", 102))
        await watch.send("DELETED", pod("b", 103))
        await eventually(lambda: "deleted u-b" in books.calls)
    assert books.calls == [
        "changed u-a@1",
        "changed u-b@2",
        "listed",
        "changed u-c@101",
        "changed u-a@102",
        "deleted u-b",
    ]
    assert watch.query["resourceVersion"] == "100"
    assert watch.query["allowWatchBookmarks"] == "true"
    assert 300 <= int(watch.query["timeoutSeconds"]) <= 600


async def test_watch_resumes_after_orderly_end(api: FakeApi, connection: Connection) -> None:
    books = Books()
    async with following(connection, books) as reflector:
        watch = await api.next_watch()
        await watch.send("ADDED", pod("a", 105))
        await watch.end()
        watch = await api.next_watch()
        assert watch.query["resourceVersion"] == "105"
        assert reflector.counters.errors == 0
    assert len(api.lists()) == 1


async def test_watch_resumes_after_disconnect(api: FakeApi, connection: Connection) -> None:
    books = Books()
    async with following(connection, books) as reflector:
        watch = await api.next_watch()
        await watch.send("ADDED", pod("a", 105))
        await eventually(lambda: books.state)
        watch.cut()
        watch = await api.next_watch()
        assert watch.query["resourceVersion"] == "105"
        await watch.send("MODIFIED", pod("a", 106))
        await eventually(lambda: books.state["u-a"] == "a@106")
        assert reflector.counters.errors == 1
        assert reflector.last_error is None
    assert len(api.lists()) == 1


async def test_half_an_event_before_a_disconnect_is_not_an_event(
    api: FakeApi, connection: Connection
) -> None:
    books = Books()
    async with following(connection, books):
        watch = await api.next_watch()
        await watch.send("ADDED", pod("a", 105))
        await watch.send_raw(b'{"type":"ADDED","object":{"metadata":{"name":"b"')
        await eventually(lambda: books.state)
        watch.cut()
        watch = await api.next_watch()
        assert watch.query["resourceVersion"] == "105"
    assert set(books.state) == {"u-a"}


async def test_bookmarks_advance_resume_point(api: FakeApi, connection: Connection) -> None:
    books = Books()
    async with following(connection, books) as reflector:
        watch = await api.next_watch()
        await watch.bookmark(250)
        await watch.end()
        watch = await api.next_watch()
        assert watch.query["resourceVersion"] == "250"
        assert reflector.counters.bookmarks == 1
    assert books.calls == ["listed"]


async def _gone_as_answer(api: FakeApi, books: Books) -> None:
    watch = await api.next_watch()
    await watch.send("MODIFIED", pod("kept", 101))
    await eventually(lambda: books.state["u-kept"] == "kept@101")
    api.once("GET", "/api/v1/pods", refuse(410, "Expired", "too old resource version"))
    await watch.end()


async def _gone_as_event(api: FakeApi, books: Books) -> None:
    watch = await api.next_watch()
    await watch.send("MODIFIED", pod("kept", 101))
    await eventually(lambda: books.state["u-kept"] == "kept@101")
    await watch.send("ERROR", status(410, "Expired", "too old resource version"))
    await watch.end()


@pytest.mark.parametrize("goes", [_gone_as_answer, _gone_as_event])
async def test_410_relists_and_drops_what_vanished(
    api: FakeApi,
    connection: Connection,
    goes: Callable[[FakeApi, Books], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    api.pods = [pod("vanishing", 1), pod("kept", 2), pod("stale", 3)]
    books = Books()
    async with following(connection, books) as reflector:
        await eventually(lambda: books.calls and books.calls[-1] == "listed")
        api.pods = [pod("kept", 101), pod("stale", 200), pod("new", 201)]
        api.version = 300
        books.calls.clear()
        await goes(api, books)
        watch = await api.next_watch()
        assert watch.query["resourceVersion"] == "300"
        counters = reflector.counters
    assert books.calls == [
        "changed u-kept@101",
        "deleted u-vanishing",
        "changed u-stale@200",
        "changed u-new@201",
        "listed",
    ]
    assert books.state == {"u-kept": "kept@101", "u-stale": "stale@200", "u-new": "new@201"}
    assert (counters.gone, counters.lists, counters.corrections) == (1, 2, 3)
    assert "missed: 1 gone (default/vanishing); 2 new or changed" in caplog.text


class TwoPaces(Backoff):
    """Hardly any delay at first, an hour from the second failure on."""

    def next_s(self) -> float:
        super().next_s()
        return 0.001 if self.failures == 1 else 3600


async def test_410_after_other_failures_lists_without_delay(
    api: FakeApi, connection: Connection
) -> None:
    # As after a restart of the API server: refused, then up again with an empty memory.
    async with following(connection, Books(), backoff=TwoPaces()):
        watch = await api.next_watch()
        api.once("GET", "/api/v1/pods", refuse(503, "Unavailable"), refuse(410, "Expired"))
        await watch.bookmark(200)
        await watch.end()
        await api.next_watch()
    assert len(api.lists()) == 2


async def test_410_for_ever_backs_off(api: FakeApi, connection: Connection) -> None:
    async with following(connection, Books(), backoff=TwoPaces()) as reflector:
        for _ in range(2):
            await (await api.next_watch()).send("ERROR", status(410, "Expired"))
        await eventually(lambda: reflector.counters.gone == 2)
        await asyncio.sleep(0.1)
        assert api.no_watch_waits()
        assert reflector.counters.lists == 2


async def test_recreated_under_same_name_while_away_is_a_deletion_and_a_new_pod(
    api: FakeApi, connection: Connection
) -> None:
    api.pods = [pod("web-0", 1, uid="first")]
    books = Books()
    async with following(connection, books):
        watch = await api.next_watch()
        api.pods = [pod("web-0", 150, uid="second")]
        await watch.send("ERROR", status(410, "Expired"))
        await api.next_watch()
    assert books.calls == [
        "changed first@1",
        "listed",
        "deleted first",
        "changed second@150",
        "listed",
    ]


async def test_recreated_under_same_name_in_the_watch(api: FakeApi, connection: Connection) -> None:
    api.pods = [pod("web-0", 1, uid="first")]
    books = Books()
    async with following(connection, books):
        watch = await api.next_watch()
        await watch.send("DELETED", pod("web-0", 101, uid="first"))
        await watch.send("ADDED", pod("web-0", 102, uid="second"))
        await eventually(lambda: "second" in books.state)
    assert books.state == {"second": "web-0@102"}


async def test_deletion_of_an_unknown_pod_is_not_told(api: FakeApi, connection: Connection) -> None:
    books = Books()
    async with following(connection, books):
        watch = await api.next_watch()
        await watch.send("DELETED", pod("never-seen", 101))
        await watch.send("ADDED", pod("a", 102))
        await eventually(lambda: books.state)
    assert books.calls == ["listed", "changed u-a@102"]


async def test_half_open_connection_is_noticed(
    api: FakeApi, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    books = Books()
    async with following(connection, books, idle_timeout_s=0.2) as reflector:
        watch = await api.next_watch()
        await watch.send("ADDED", pod("a", 105))
        await eventually(lambda: books.state)
        # From here on nothing: the socket stays open, no byte comes.
        watch = await api.next_watch()
        assert watch.query["resourceVersion"] == "105"
        assert reflector.counters.idle_timeouts == 1
    assert "sent no byte for 0.2 s" in caplog.text


async def test_bytes_keep_a_quiet_watch_alive(api: FakeApi, connection: Connection) -> None:
    async with following(connection, Books(), idle_timeout_s=0.3) as reflector:
        watch = await api.next_watch()
        for version in range(200, 210):
            await asyncio.sleep(0.1)
            await watch.bookmark(version)
        assert reflector.counters.idle_timeouts == 0
        assert api.no_watch_waits()


async def test_paging_collects_all_pages_into_one_state(
    api: FakeApi, connection: Connection
) -> None:
    api.pods = [pod(f"p{i}", i) for i in range(25)]
    books = Books()
    async with following(connection, books, page_size=10):
        await api.next_watch()
    assert len(books.state) == 25
    assert books.calls.count("listed") == 1
    assert [r.query.get("continue") for r in api.lists()] == [None, "10", "20"]
    assert {r.query["limit"] for r in api.lists()} == {"10"}


async def test_410_while_paging_starts_over_in_one_piece(
    api: FakeApi, connection: Connection
) -> None:
    api.pods = [pod(f"p{i}", i) for i in range(25)]

    async def expire(request: Any) -> Any:
        # What the first page named is gone by the time the list is taken anew.
        api.pods = api.pods[10:]
        return await refuse(410, "Expired", "continue token too old")(request)

    books = Books()

    async def second_page(request: Any) -> Any:
        api.once("GET", "/api/v1/pods", expire)
        return api._list(request)

    api.once("GET", "/api/v1/pods", second_page)
    async with following(connection, books, page_size=10):
        await api.next_watch()
    assert set(books.state) == {f"u-p{i}" for i in range(10, 25)}
    assert "limit" not in api.lists()[-1].query
    assert books.calls.count("listed") == 1


async def test_a_line_that_cannot_be_read_makes_it_list_again(
    api: FakeApi, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    books = Books()
    async with following(connection, books):
        watch = await api.next_watch()
        api.pods = [pod("missed", 150)]
        await watch.send_raw(b'{"type":"ADDED","object":{"metadata":7}}\n')
        await eventually(lambda: "u-missed" in books.state)
        await api.next_watch()
    assert "cannot be read" in caplog.text
    assert len(api.lists()) == 2


async def test_a_history_set_back_makes_it_list_again(api: FakeApi, connection: Connection) -> None:
    api.pods = [pod("a", 90)]
    books = Books()
    async with following(connection, books):
        watch = await api.next_watch()
        # etcd was restored from a backup: versions start lower, and the pod isn't there.
        api.pods, api.version = [], 60
        await watch.bookmark(61)
        watch = await api.next_watch()
        assert watch.query["resourceVersion"] == "60"
    assert books.state == {}


async def test_other_error_event_resumes_without_listing(
    api: FakeApi, connection: Connection
) -> None:
    async with following(connection, Books()) as reflector:
        watch = await api.next_watch()
        await watch.send("ERROR", status(500, "InternalError", "etcd has no leader"))
        await eventually(lambda: reflector.counters.errors)
        watch = await api.next_watch()
        assert watch.query["resourceVersion"] == "100"
    assert len(api.lists()) == 1


async def test_a_resume_point_that_never_works_is_given_up(
    api: FakeApi, connection: Connection
) -> None:
    books = Books()
    async with following(connection, books):
        watch = await api.next_watch()
        refusal = refuse(400, "BadRequest", "invalid resource version")
        api.once("GET", "/api/v1/pods", *[refusal] * (FRUITLESS_UNTIL_LIST - 1))
        await watch.end()  # brought nothing either
        await api.next_watch()
    assert len(api.lists()) == 2


async def test_an_unreachable_api_server_does_not_cost_a_list(
    api: FakeApi, connection: Connection
) -> None:
    books = Books()
    async with following(connection, books) as reflector:
        watch = await api.next_watch()
        await watch.send("ADDED", pod("a", 105))
        await eventually(lambda: books.state)
        # Many failures, but none of them answered: the resume point stays good.
        api.once("GET", "/api/v1/pods", *[drop] * (4 * FRUITLESS_UNTIL_LIST))
        watch.cut()
        watch = await api.next_watch()
        assert watch.query["resourceVersion"] == "105"
        assert reflector.counters.errors > FRUITLESS_UNTIL_LIST
    assert len(api.lists()) == 1


async def test_failing_first_list_is_retried_and_says_why(
    api: FakeApi, connection: Connection
) -> None:
    message = 'pods is forbidden: User "x" cannot list resource "pods" at the cluster scope'
    refusal = ("GET", "/api/v1/pods", refuse(403, "Forbidden", message))
    api.always.append(refusal)
    async with following(connection, Books()) as reflector:
        await eventually(lambda: reflector.counters.errors >= 2)
        assert not reflector.synced.is_set()
        assert reflector.last_error is not None
        assert message in reflector.last_error
        api.always.remove(refusal)
        await asyncio.wait_for(reflector.synced.wait(), 5)
        await api.next_watch()
        await eventually(lambda: reflector.last_error is None)


async def test_retry_after_is_heeded(api: FakeApi, connection: Connection) -> None:
    api.once(
        "GET", "/api/v1/pods", refuse(429, "TooManyRequests", "slow down", **{"Retry-After": "1"})
    )
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with following(connection, Books()) as reflector:
        await asyncio.wait_for(reflector.synced.wait(), 5)
    assert loop.time() - began >= 0.95


async def test_failures_back_off(api: FakeApi, connection: Connection) -> None:
    api.always.append(("GET", "/api/v1/pods", refuse(503, "ServiceUnavailable")))
    backoff = Backoff(first_s=0.02, cap_s=10, random=random.Random(1))
    async with following(connection, Books(), backoff=backoff):
        await asyncio.sleep(0.5)
    # 0.02 + 0.04 + … doubles past half a second after five or six tries.
    assert 3 <= len(api.lists()) <= 7


async def test_watch_that_ends_at_once_is_not_asked_again_at_full_speed(
    api: FakeApi, connection: Connection
) -> None:
    backoff = Backoff(first_s=0.05, cap_s=10)
    async with following(connection, Books(), backoff=backoff) as reflector:

        async def end_all() -> None:
            while True:
                await (await api.next_watch()).end()

        ender = asyncio.create_task(end_all())
        await asyncio.sleep(0.5)
        ender.cancel()
        assert 2 <= reflector.counters.watches <= 6


async def test_age_counts_from_the_last_byte(api: FakeApi, connection: Connection) -> None:
    now = 1000.0
    async with following(connection, Books(), clock=lambda: now) as reflector:
        watch = await api.next_watch()
        await eventually(lambda: reflector.counters.watches)
        now = 1042.0
        assert reflector.contact_age_s() == 42.0
        await watch.bookmark(120)
        await eventually(lambda: reflector.counters.bookmarks)
        assert reflector.contact_age_s() == 0.0


async def test_age_counts_from_the_last_page_of_a_long_list(
    api: FakeApi, connection: Connection
) -> None:
    now = 1000.0
    api.pods = [pod(f"p{i}", i) for i in range(3)]

    async def first_page(request: Any) -> Any:
        nonlocal now
        now = 1030.0
        api.once("GET", "/api/v1/pods", hang)
        return api._list(request)

    api.once("GET", "/api/v1/pods", first_page)
    async with following(connection, Books(), page_size=1, clock=lambda: now) as reflector:
        await eventually(lambda: len(api.lists()) == 2)
        now = 1035.0
        assert reflector.contact_age_s() == 5.0


async def test_selectors_go_with_list_and_watch(api: FakeApi, connection: Connection) -> None:
    selector = Selector(fields="spec.nodeName=n1", labels="a in (b,c)")
    async with following(connection, Books(), selector):
        watch = await api.next_watch()
    for query in (watch.query, api.lists()[0].query):
        assert query["fieldSelector"] == "spec.nodeName=n1"
        assert query["labelSelector"] == "a in (b,c)"


async def test_an_error_of_the_handler_ends_it(api: FakeApi, connection: Connection) -> None:
    class Broken(Books):
        def changed(self, obj: Pod) -> None:
            raise RuntimeError("the books are broken")

    reflector = Reflector(connection, PODS, Broken())
    api.pods = [pod("a", 1)]
    with pytest.raises(RuntimeError, match="the books are broken"):
        await asyncio.wait_for(reflector.run(), 5)


async def test_a_replacement_is_never_seen_half_done(api: FakeApi, connection: Connection) -> None:
    def generation(number: int) -> list[Json]:
        return [pod(f"p{i}", number, uid=f"g{number}-{i}") for i in range(50)]

    api.pods = generation(1)
    books = Books()
    seen: set[frozenset[str]] = set()

    async def look() -> None:
        while True:
            seen.add(frozenset(uid.split("-")[0] for uid in books.state))
            await asyncio.sleep(0)

    async with following(connection, books, page_size=7):
        looker = asyncio.create_task(look())
        watch = await api.next_watch()
        api.pods = generation(2)
        await watch.send("ERROR", status(410, "Expired"))
        await api.next_watch()
        looker.cancel()
    assert seen == {frozenset(), frozenset({"g1"}), frozenset({"g2"})}
