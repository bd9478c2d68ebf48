"""Cached answers are the fresh ones, whatever happened to the ledger in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract.names import Reason
from gpushare.model.gpus import Node
from gpushare.model.holding import Placement
from gpushare.model.ledger import Ledger
from gpushare.policy.fit import Refusal, place, why_not
from gpushare.policy.preempt import helps
from gpushare.policy.promises import Asker, Promise, counted, with_promises
from gpushare.policy.rank import NODE_RANKINGS
from gpushare.policy.verdicts import Ranks, Verdicts
from tests import strategies as some


@given(some.nodes(), st.lists(some.requests(), max_size=6), some.requests(), st.integers(0, 6))
def test_why_not_says_what_place_says(
    node: Node, before: list[some.Request], request: some.Request, unknown: int
) -> None:
    ledger = Ledger()
    ledger.put_node(node)
    for number, other in enumerate(before):
        answer = place(ledger.books(node.name), other, some.OWNERS[0])
        if isinstance(answer, Placement):
            known = answer if number != unknown else None
            ledger.put_pod(some.record(f"p{number}", node.name, other, known))
    books = ledger.books(node.name)
    answer = place(books, request, some.OWNERS[1])
    assert why_not(books, request) == (answer.reason if isinstance(answer, Refusal) else None)


@given(st.data())
def test_verdicts_and_ranks_follow_the_ledger(data: st.DataObject) -> None:
    ledger = Ledger()
    request, owner = data.draw(some.requests()), some.OWNERS[0]
    verdicts = Verdicts(ledger, request)
    ranking = NODE_RANKINGS[data.draw(st.sampled_from(["binpack", "spread"]))]
    ranks = {who: Ranks(ledger, request, ranking, who) for who in some.OWNERS}
    names = ["a", "b", "c"]
    version, answers = verdicts.version, (set[str](), dict[str, Reason]())
    for number in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from(names))
        match data.draw(st.sampled_from(["node", "gone", "pod", "pod", "pod gone", "ask"])):
            case "node":
                ledger.put_node(data.draw(some.nodes(name)))
            case "gone":
                ledger.remove_node(name)
            case "pod":
                who = data.draw(st.sampled_from(some.OWNERS))
                books = ledger.get_books(name)
                answer = place(books, request, who) if books else None
                if isinstance(answer, Placement):
                    ledger.put_pod(some.record(f"p{number}", name, request, answer, who))
            case "pod gone":
                ledger.remove_pod(f"p{data.draw(st.integers(0, 12))}")
            case _:
                continue
        if data.draw(st.booleans()):
            continue
        verdicts.refresh()
        fresh = {n: why_not(ledger.books(n), request) for n in ledger}
        assert verdicts.fits == {n for n, reason in fresh.items() if reason is None}
        assert verdicts.reasons == {n: reason for n, reason in fresh.items() if reason}
        now = (set(verdicts.fits), dict(verdicts.reasons))
        assert (verdicts.version != version) == (now != answers)
        version, answers = verdicts.version, now
        for who in some.OWNERS:
            expected = {}
            for n in ledger:
                answer = place(ledger.books(n), request, who)
                if isinstance(answer, Placement):
                    expected[n] = ranking(ledger.books(n), request, answer)
            assert ranks[who].keys([*names, "unknown"]) == expected
    counts: dict[some.Owner, dict[str, int]] = {}
    for name in ledger:
        for pod in ledger.pods_on(name):
            of = counts.setdefault(pod.holding.owner, {})
            of[name] = of.get(name, 0) + 1
    assert {who: dict(ledger.nodes_of(who)) for who in counts} == counts
    assert dict(ledger.nodes_of(owner)) == counts.get(owner, {})


def promise(uid: str, units: int, priority: int = 0, since: int = 0) -> Promise:
    request = some.compile_request([some.ContainerAsk(0, units)])
    assert request is not None
    return Promise(uid, request, some.OWNERS[0], priority, since)


def books_of(*units: int, held: tuple[int, int] | None = None) -> tuple[Ledger, str]:
    ledger = Ledger()
    ledger.put_node(Node("n", gpus=tuple(some.Gpu(i, u) for i, u in enumerate(units))))
    if held:
        gpu, amount = held
        request = promise("x", amount).request
        ledger.put_pod(some.record("held", "n", request, Placement(((gpu,),))))
    return ledger, "n"


def test_promises_count_against_lower_and_equal_priority_only() -> None:
    promises = [promise("low", 1, 1), promise("high", 1, 9), promise("mid", 1, 5)]
    assert [p.uid for p in counted(promises, Asker("me", 5))] == ["high", "mid"]
    assert [p.uid for p in counted(promises, Asker("me", 10))] == []
    assert [p.uid for p in counted(promises, Asker("me", 0))] == ["high", "mid", "low"]


def test_of_two_nominated_pods_only_one_counts_against_the_other() -> None:
    first, second = promise("first", 8, since=1), promise("second", 8, since=2)
    assert counted([second, first], Asker("first", 0)) == []
    assert counted([second, first], Asker("second", 0)) == [first]


def test_a_promise_takes_the_gpu_it_would_get() -> None:
    ledger, n = books_of(15, 15, held=(0, 4))
    books = with_promises(ledger.books(n), [promise("p", 8)])
    assert [gpu.used for gpu in books.gpus] == [12, 0]


def test_room_that_victims_still_hold_is_kept_for_the_pod_they_were_evicted_for() -> None:
    ledger, n = books_of(15, held=(0, 10))
    victim = ledger.holding("held")
    assert victim is not None
    books = ledger.books(n)
    asked = promise("x", 5).request
    assert why_not(with_promises(books, [promise("p", 15)]), asked) is None
    assert why_not(with_promises(books, [promise("p", 15)], [victim]), asked) is Reason.NODE_FULL


def test_eviction_helps_only_where_it_frees_one_gpu() -> None:
    ledger, n = books_of(15, 15, held=(0, 8))
    request = promise("x", 8).request
    ledger.put_pod(some.record("other", "n", request, Placement(((1,),))))
    books, one, two = ledger.books(n), ledger.holding("held"), ledger.holding("other")
    assert one is not None
    assert two is not None
    assert helps(books, promise("p", 15).request, [one])
    assert not helps(books, promise("p", 16).request, [one, two])
    assert not helps(books, promise("p", 8).request, [])


@given(st.data())
def test_a_recount_finds_nothing_in_sound_books_and_mends_broken_ones(data: st.DataObject) -> None:
    ledger = Ledger()
    ledger.put_node(data.draw(some.nodes("a")))
    for number in range(data.draw(st.integers(1, 8))):
        request = data.draw(some.requests())
        answer = place(ledger.books("a"), request, some.OWNERS[0])
        known = answer if isinstance(answer, Placement) and data.draw(st.booleans()) else None
        ledger.put_pod(some.record(f"p{number}", "a", request, known))
        if data.draw(st.booleans()):
            ledger.remove_pod(f"p{data.draw(st.integers(0, number))}")
    assert ledger.recount("a") == 0
    sound = ledger.books("a")
    for pod in ledger.pods_on("a")[:1]:
        ledger._books["a"] = sound.release(pod.holding)
        assert ledger.recount("a") == pod.holding.units
        assert ledger.books("a") == sound
