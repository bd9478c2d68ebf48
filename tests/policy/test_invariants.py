"""The invariants of the placement core, over random nodes, requests and event orders.

test_mutations.py shows that each of them fails on one mutated line of the core.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract.allocation import binding_annotations
from gpushare.contract.names import Reason
from gpushare.kube.reading import read_assignment
from gpushare.model.gpus import Assignment, Gpu, Node, NodeBooks
from gpushare.model.holding import Placement, gpu_units, placement_of
from gpushare.model.ledger import Ledger, PodRecord
from gpushare.model.request import ContainerAsk, Request, RequestError, compile_request
from gpushare.policy.fit import Refusal, place
from gpushare.policy.rank import NODE_RANKINGS
from gpushare.policy.survey import Contest, Survey
from tests import strategies as some


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Node], list[PodRecord], Ledger]:
    """Two nodes, pods placed on them by the core (some of unknown GPU), some finished or gone."""
    nodes = [draw(some.nodes(name)) for name in ("a", "b")]
    ledger = Ledger()
    for node in nodes:
        ledger.put_node(node)
    standing: dict[str, PodRecord] = {}
    for number in range(draw(st.integers(0, 10))):
        request, owner = draw(some.requests()), draw(st.sampled_from(some.OWNERS))
        name = draw(st.sampled_from(["a", "b"]))
        answer = place(ledger.books(name), request, owner)
        if isinstance(answer, Refusal):
            continue
        known = draw(st.integers(0, 5)) > 0
        pod = some.record(f"p{number}", name, request, answer if known else None, owner)
        ledger.put_pod(pod)
        standing[pod.uid] = pod
        fate = draw(st.sampled_from(["stays", "stays", "finishes", "goes"]))
        victim = draw(st.sampled_from(sorted(standing)))
        if fate == "goes":
            ledger.remove_pod(victim)
            del standing[victim]
        elif fate == "finishes":
            done = some.record(
                victim, standing[victim].node, standing[victim].request, None, finished=True
            )
            ledger.put_pod(done)
            standing[victim] = done
    return nodes, list(standing.values()), ledger


def books_of(ledger: Ledger) -> dict[str, NodeBooks]:
    return {name: ledger.books(name) for name in sorted(ledger)}


@given(histories())
def test_no_gpu_is_above_its_units(history: tuple[list[Node], list[PodRecord], Ledger]) -> None:
    _, _, ledger = history
    for books in books_of(ledger).values():
        for gpu in books.gpus:
            assert 0 <= gpu.used <= gpu.gpu.units
            assert gpu.core_used <= 100


@given(histories())
def test_units_held_are_the_sum_over_pods(
    history: tuple[list[Node], list[PodRecord], Ledger],
) -> None:
    _, pods, ledger = history
    for name, books in books_of(ledger).items():
        live = [pod for pod in pods if pod.node == name and not pod.finished]
        assert books.used + books.pending == sum(pod.request.units for pod in live)
        assert sum(gpu.used for gpu in books.gpus) == books.used
        assert books.memory_pods + books.core_pods == len(live)


@given(histories(), some.requests())
def test_release_restores_the_state_exactly(
    history: tuple[list[Node], list[PodRecord], Ledger], request: Request
) -> None:
    _, _, ledger = history
    before = books_of(ledger)
    answer = place(ledger.books("a"), request, some.OWNERS[0])
    placement = answer if isinstance(answer, Placement) else None
    ledger.put_pod(some.record("new", "a", request, placement))
    ledger.put_pod(some.record("new", "a", request, placement))  # adding twice counts once
    ledger.remove_pod("new")
    assert books_of(ledger) == before


@given(histories(), st.randoms(use_true_random=False))
def test_the_order_of_events_does_not_matter_and_a_rebuilt_ledger_equals_the_live_one(
    history: tuple[list[Node], list[PodRecord], Ledger], rng: random.Random
) -> None:
    nodes, pods, live = history
    facts: list[Node | PodRecord] = [*nodes, *pods]
    rng.shuffle(facts)
    rebuilt = Ledger()
    for fact in facts:
        if isinstance(fact, Node):
            rebuilt.put_node(fact)
        else:
            rebuilt.put_pod(fact)
    assert books_of(rebuilt) == books_of(live)


@given(histories(), st.lists(some.requests(), min_size=1, max_size=4))
def test_the_same_input_gives_the_same_placement_and_the_best_node_is_the_best_of_all(
    history: tuple[list[Node], list[PodRecord], Ledger], arriving: list[Request]
) -> None:
    nodes, pods, live = history
    other = Ledger()
    for pod in pods:
        other.put_pod(pod)
    for node in reversed(nodes):
        other.put_node(node)
    ranking = NODE_RANKINGS["binpack"]
    owner = some.OWNERS[0]
    contests = {
        request: Contest(Survey(live, request, owner, ranking), live, lambda _: True)
        for request in arriving
    }
    for number, request in enumerate([*arriving, *arriving]):
        kept = contests[request].best()
        fresh = Contest(Survey(other, request, owner, ranking), other, lambda _: True).best()
        assert kept == fresh
        answers = {name: place(books, request, owner) for name, books in books_of(live).items()}
        fits = {n: answer for n, answer in answers.items() if isinstance(answer, Placement)}
        if kept is None:
            assert not fits
            continue
        keys = {n: ranking(live.books(n), request, answer) for n, answer in fits.items()}
        assert kept[0] == min(keys, key=lambda n: (keys[n], n))
        for ledger in (live, other):
            ledger.put_pod(some.record(f"new{number}", kept[0], request, kept[1]))


@given(some.container_asks())
def test_a_pod_holds_kubernetes_effective_request(asks: list[ContainerAsk]) -> None:
    """kubernetes.io/docs/concepts/workloads/pods/sidecar-containers, resource sharing."""
    sidecars = peak = 0
    for ask in asks:
        if ask.init and ask.sidecar:
            sidecars += ask.units
            peak = max(peak, sidecars)
        elif ask.init:
            peak = max(peak, sidecars + ask.units)
    effective = max(peak, sidecars + sum(ask.units for ask in asks if not ask.init))
    request = compile_request(asks)
    assert (request.units if request else 0) == effective


@given(some.container_asks(), some.gpus(), st.randoms(use_true_random=False))
def test_no_container_straddles_gpus_when_the_kubelet_reuses_init_ids(
    asks: list[ContainerAsk], gpus: tuple[Gpu, ...], rng: random.Random
) -> None:
    """A model kubelet: ids of finished init containers first, at random, then preferred ones."""
    request = compile_request(asks)
    node = Node("a", gpus=gpus)
    answer = place(NodeBooks.empty(node), request, some.OWNERS[0]) if request else None
    if not isinstance(answer, Placement) or request is None:
        return
    app, init = answer.allocation(request, init=False), answer.allocation(request, init=True)
    taken = dict.fromkeys((gpu.index for gpu in gpus), 0)
    reusable: list[int] = []  # the GPU of each id handed on
    for ask in (ask for ask in asks if ask.units):
        (gpu,) = (init if ask.init else app)[ask.index]
        rng.shuffle(reusable)
        got = [reusable.pop() for _ in range(min(ask.units, len(reusable)))]
        fresh = ask.units - len(got)
        taken[gpu] += fresh
        got += [gpu] * fresh
        assert set(got) == {gpu}
        if ask.init and not ask.sidecar:
            reusable += got
    assert {g: n for g, n in taken.items() if n} == {
        g: units for g, (units, _) in answer.held(request).items()
    }


@given(some.gpus(), st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_a_split_is_found_whenever_there_is_one(gpus: tuple[Gpu, ...], amounts: list[int]) -> None:
    request = compile_request([ContainerAsk(i, units) for i, units in enumerate(amounts)])
    assert request is not None
    node = Node("a", gpus=gpus)
    answer = place(NodeBooks.empty(node), request, some.OWNERS[0])
    open_gpus = [gpu for gpu in gpus if gpu.open]
    possible = any(
        all(
            sum(units for units, at in zip(amounts, where, strict=True) if at is gpu) <= gpu.units
            for gpu in open_gpus
        )
        for where in itertools.product(open_gpus, repeat=len(amounts))
    )
    assert isinstance(answer, Placement) == possible
    if isinstance(answer, Placement):
        one_takes_all = any(gpu.units >= sum(amounts) for gpu in open_gpus)
        assert (len(answer.held(request)) == 1) == one_takes_all


@given(histories(), some.requests())
def test_a_decision_survives_its_annotations(
    history: tuple[list[Node], list[PodRecord], Ledger], request: Request
) -> None:
    _, _, ledger = history
    books = ledger.books("a")
    answer = place(books, request, some.OWNERS[0])
    if not isinstance(answer, Placement):
        return
    held = {gpu: units for gpu, (units, _) in answer.held(request).items()}
    annotations = binding_annotations(
        app=answer.allocation(request, init=False),
        init=answer.allocation(request, init=True),
        core=answer.core_allocation(request),
        held=held,
        gpu_units=gpu_units(books.node),
        assume_time_ns=1,
    )
    assignment, problem = read_assignment(annotations)
    assert problem is None
    assert assignment is not None
    assert placement_of(request, assignment, books.node) == answer


@given(histories(), some.requests())
def test_a_pod_of_unknown_gpu_is_never_overcommitted_against(
    history: tuple[list[Node], list[PodRecord], Ledger], request: Request
) -> None:
    """Wherever the unattributed units really are, what is placed beside them fits."""
    _, _, ledger = history
    books = ledger.books("a")
    answer = place(books, request, some.OWNERS[0])
    if isinstance(answer, Placement):
        for gpu in books.gpus:
            units, _ = answer.held(request).get(gpu.gpu.index, (0, 0))
            if units:
                assert gpu.used + books.pending + units <= gpu.gpu.units
                assert gpu.gpu.open


@given(histories(), some.requests())
def test_a_refusal_says_the_largest_free_amount(
    history: tuple[list[Node], list[PodRecord], Ledger], request: Request
) -> None:
    _, _, ledger = history
    books = ledger.books("a")
    answer = place(books, request, some.OWNERS[0])
    if isinstance(answer, Refusal):
        free = [
            gpu.gpu.units - gpu.used - books.pending
            for gpu in books.gpus
            if gpu.gpu.healthy and not gpu.gpu.cordoned
        ]
        assert answer.largest_free == max([0, *free])


def test_corrections_win_over_annotations_and_charge_pods_that_are_gone() -> None:
    (gpu0, gpu1) = (_gpu(0), _gpu(1))
    four = compile_request([ContainerAsk(0, 4)])
    assert four is not None
    ledger = Ledger()
    ledger.put_pod(some.record("here", "a", four, Placement(((0,),))))
    corrections = {
        "here": Assignment({0: {1: 4}}, {}),
        "gone": Assignment({0: {0: 6}}, {0: {0: 8}}),
    }
    ledger.put_node(Node("a", gpus=(gpu0, gpu1), corrections=corrections))
    assert [gpu.used for gpu in ledger.books("a").gpus] == [8, 4]
    ledger.put_node(Node("a", gpus=(gpu0, gpu1)))
    assert [gpu.used for gpu in ledger.books("a").gpus] == [4, 0]


def test_a_pod_stays_on_its_gpu_when_the_inventory_loses_another() -> None:
    four = compile_request([ContainerAsk(0, 4)])
    assert four is not None
    ledger = Ledger()
    ledger.put_node(Node("a", gpus=(_gpu(0), _gpu(1))))
    ledger.put_pod(some.record("p", "a", four, Placement(((1,),))))
    ledger.put_node(Node("a", gpus=(_gpu(1),)))
    assert [(gpu.gpu.index, gpu.used) for gpu in ledger.books("a").gpus] == [(1, 4)]
    ledger.put_node(Node("a", gpus=(_gpu(0),)))  # its own GPU vanishes: it could be anywhere
    assert ledger.books("a").pending == 4


def test_a_gpu_count_that_does_not_divide_is_refused_with_its_reason() -> None:
    with pytest.raises(RequestError, match="multiple of 2") as caught:
        compile_request([ContainerAsk(0, 5)], gpu_count=2)
    assert caught.value.reason is Reason.GPU_COUNT


def _gpu(index: int) -> Gpu:
    return Gpu(index, 15, f"GPU-{index}")
