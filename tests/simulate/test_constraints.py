"""nodeSelector, node affinity, taints and cordons, by kube-scheduler's rules."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpushare.kube.objects import Taint
from gpushare.simulate.constraints import NodeFace, compile_constraints, obstacle
from gpushare.simulate.objects import SimPodSpec
from tests.simulate.conftest import Simulate
from tests.simulate.objects import node, waiting

LABELS = {"zone": "a", "size": "16", "gpu": "t4"}


def kept_off(spec: dict[str, Any], **face: Any) -> str | None:
    constraints = compile_constraints(msgspec.convert(spec, SimPodSpec))
    return obstacle(
        constraints,
        NodeFace(**{"name": "n", "labels": LABELS, "taints": (), "unschedulable": False} | face),
    )


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    }


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "met"),
    [
        ({}, True),
        ({"zone": "a"}, True),
        ({"zone": "a", "gpu": "t4"}, True),
        ({"zone": "b"}, False),
        ({"zone": "a", "none": ""}, False),
    ],
)
def test_every_pair_of_a_node_selector_must_be_there(selector: dict[str, str], met: bool) -> None:
    assert (kept_off({"nodeSelector": selector}) is None) is met


@pytest.mark.parametrize(
    ("term", "met"),
    [
        (expression("zone", "In", "a", "b"), True),
        (expression("zone", "In", "b"), False),
        (expression("none", "In", "b"), False),
        (expression("zone", "NotIn", "b"), True),
        (expression("zone", "NotIn", "a"), False),
        (expression("none", "NotIn", "a"), True),
        (expression("zone", "Exists"), True),
        (expression("none", "Exists"), False),
        (expression("none", "DoesNotExist"), True),
        (expression("zone", "DoesNotExist"), False),
        (expression("size", "Gt", "15"), True),
        (expression("size", "Gt", "16"), False),
        (expression("size", "Lt", "17"), True),
        (expression("size", "Lt", "-1"), False),
        (expression("zone", "Gt", "1"), False),
        (expression("none", "Lt", "1"), False),
        ({}, False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}, False),
        ({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["m"]}]}, True),
    ],
)
def test_a_term_of_required_affinity(term: dict[str, Any], met: bool) -> None:
    assert kept_off(affinity(term)) == (None if met else "affinity")


def test_terms_are_alternatives_and_expressions_are_not() -> None:
    no, yes = expression("zone", "In", "b"), expression("zone", "In", "a")
    assert kept_off(affinity(no, yes)) is None
    both = {"matchExpressions": no["matchExpressions"] + yes["matchExpressions"]}
    assert kept_off(affinity(both)) == "affinity"
    assert kept_off(affinity()) == "affinity"


TAINT = Taint(key="k", value="5", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Equal", "value": "5"}, True),
        ({"key": "k", "value": "5"}, True),
        ({"key": "k", "value": "6"}, False),
        ({"key": "k"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "k", "operator": "Gt", "value": "4"}, True),
        ({"key": "k", "operator": "Gt", "value": "5"}, False),
        ({"key": "k", "operator": "Lt", "value": "6"}, True),
        ({"key": "k", "operator": "Lt", "value": "x"}, False),
    ],
)
def test_a_toleration(toleration: dict[str, str], tolerated: bool) -> None:
    """Gt and Lt: the taint's number is greater, or less, than the toleration's."""
    found = kept_off({"tolerations": [toleration]}, taints=(TAINT,))
    assert found == (None if tolerated else "taint")


def test_no_execute_holds_off_and_prefer_no_schedule_does_not() -> None:
    assert kept_off({}, taints=(Taint(key="k", effect="NoExecute"),)) == "taint"
    assert kept_off({}, taints=(Taint(key="k", effect="PreferNoSchedule"),)) is None


def test_a_cordoned_node_takes_nothing_new_but_from_who_tolerates_it() -> None:
    taint = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
    assert kept_off({}, unschedulable=True) == "cordoned"
    assert kept_off({}, unschedulable=True, taints=(taint,)) == "cordoned"
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    tolerant = {"tolerations": [toleration]}
    assert kept_off(tolerant, unschedulable=True, taints=(taint,)) is None


def test_the_message_counts_what_kept_the_pod_off(simulate: Simulate) -> None:
    tainted, small = node("tainted"), node("small")
    tainted["spec"]["taints"] = [{"key": "team", "value": "x", "effect": "NoSchedule"}]
    small["status"]["allocatable"]["cpu"] = "500m"
    nodes = [node("full", [3]), node("cordoned", unschedulable=True), tainted, small]
    other = node("other", labels={"pool": "no"})
    ran = simulate([*nodes, other, waiting("p", 4, nodeSelector={"kubernetes.io/os": "linux"})])
    assert ran.status == 1
    for n in nodes:
        n["metadata"]["labels"]["pool"] = "gpu"
    ran = simulate([*nodes, other, waiting("p", 4, nodeSelector={"pool": "gpu"})])
    assert ran.no_place == {"p": "node-full"}
    message = ran.message("p")
    assert message.startswith("0 of 5 nodes: ")
    for part in (
        "1 cordoned",
        "1 with the untolerated taint team=x:NoSchedule",
        "1 not matching its nodeSelector",
        "1 with too little cpu",
        "1 with too little GPU memory in all",
        "(largest free 3 on node full)",
    ):
        assert part in message
    (pod,) = ran.json["unscheduled"]
    assert pod["candidates"] == [{"node": "full", "largest_free": 3}]


def test_where_only_rules_keep_a_pod_off_the_code_is_not_ready(simulate: Simulate) -> None:
    ran = simulate([node("a"), waiting("p", 4, nodeSelector={"kubernetes.io/hostname": "b"})])
    assert ran.no_place == {"p": "not-ready"}
    assert "no node has the label kubernetes.io/hostname=b" in ran.message("p")


def test_where_no_node_shares_the_code_is_not_sharing(simulate: Simulate) -> None:
    ran = simulate([node("a", mode=None), waiting("p", 4)])
    assert ran.no_place == {"p": "not-sharing"}
    assert "1 not sharing GPU memory" in ran.message("p")
