"""Objects of a whole cluster -> its books, in whatever order and number they come."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract.units import Unit
from gpushare.kube.cluster import Cluster, read_cluster
from gpushare.kube.objects import Node, Pod
from gpushare.model.gpus import NodeBooks
from gpushare.model.ledger import Ledger
from gpushare.policy import GPU_POLICIES
from tests.inspect.objects import Object, node, plain_node, pod
from tests.strategies import nodes as model_nodes
from tests.strategies import record, requests

OBJECTS = [
    node("a"),
    node("b", unit="128MiB"),
    plain_node("c"),
    pod("p", 4, gpu=1),
    pod("q", 2, gpu="garbled"),
    pod("r", 2, node="gone", gpu=0),
    pod("s", "4.5"),
    pod("t", 3, gpu=0, phase="Succeeded"),
    pod("u", node="c"),
]


def read(*objects: Object) -> Cluster:
    return read_cluster(
        [msgspec.convert(o, Node) for o in objects if o["kind"] == "Node"],
        [msgspec.convert(o, Pod) for o in objects if o["kind"] == "Pod"],
        tuple(GPU_POLICIES),
    )


def test_the_books_and_what_is_wrong() -> None:
    cluster = read(*OBJECTS)
    assert [gpu.used for gpu in cluster.ledger.books("a").gpus] == [0, 4]
    assert cluster.ledger.books("a").pending == 2
    assert cluster.sharing_nodes() == ["a", "b"]
    assert list(cluster.pod_problems) == ["uid-default-q"]
    assert list(cluster.uncharged) == ["default/s"]
    assert [pod.name for pod in cluster.ledger.pods_without_node()] == ["r"]


@given(st.permutations([*OBJECTS, *OBJECTS]))
def test_order_and_repetition_do_not_matter(objects: list[Object]) -> None:
    cluster, expected = read(*objects), read(*OBJECTS)
    for name in expected.ledger:
        ours, theirs = cluster.ledger.books(name), expected.ledger.books(name)
        assert (ours.gpus, ours.pending) == (theirs.gpus, theirs.pending)
    assert cluster.sharing_nodes() == expected.sharing_nodes()
    assert cluster.pod_problems == expected.pod_problems


def test_the_last_object_of_a_name_counts() -> None:
    cluster = read(pod("p", 4, gpu="garbled"), pod("p", 4, gpu=1), node("a", placement="x"), node())
    assert cluster.pod_problems == {}
    assert cluster.node_problems == {}
    assert cluster.ledger.books("a").used == 4


@pytest.mark.parametrize(
    ("units", "default", "expected"),
    [
        ([], Unit.GIB, Unit.GIB),
        ([], Unit.MIB128, Unit.MIB128),
        (["128MiB"], Unit.GIB, Unit.MIB128),
        (["128MiB", "GiB"], Unit.GIB, Unit.GIB),
        (["128MiB", "GiB", "128MiB"], Unit.GIB, Unit.MIB128),
    ],
)
def test_the_clusters_unit_is_what_most_nodes_publish(
    units: list[str], default: Unit, expected: Unit
) -> None:
    cluster = read(*(node(f"n{i}", unit=unit) for i, unit in enumerate(units)), plain_node())
    assert cluster.unit([*cluster.ledger], default) is expected


@given(model_nodes(), st.data())
def test_books_built_in_one_go_are_those_charged_one_by_one(
    node: object, data: st.DataObject
) -> None:
    """NodeBooks.of is a short cut; the ledger may take either way."""
    from gpushare.model.gpus import Node as ModelNode
    from gpushare.policy.fit import Placement, place

    assert isinstance(node, ModelNode)
    ledger = Ledger()
    ledger.put_node(node)
    for uid in range(data.draw(st.integers(0, 6))):
        request = data.draw(requests())
        pod = record(str(uid), node.name, request, None)
        answer = place(ledger.books(node.name), request, pod.owner)
        if isinstance(answer, Placement):
            pod = record(str(uid), node.name, request, answer)
        ledger.put_pod(pod)
    holdings = [held.holding for held in ledger.pods_on(node.name)]
    assert NodeBooks.of(node, holdings) == ledger.books(node.name)
