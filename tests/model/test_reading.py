"""API objects as clusters really hold them, read into the model."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gpushare.contract import names
from gpushare.contract.names import Mode, Reason
from gpushare.contract.units import Unit
from gpushare.kube import objects
from gpushare.kube.reading import (
    NodeReading,
    read_assignment,
    read_bound_pod,
    read_node,
    read_owner,
    read_request,
)
from gpushare.model.gpus import Assignment
from gpushare.model.request import RequestError
from gpushare.policy import GPU_POLICIES


def node(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    capacity: dict[str, Any] | None = None,
    allocatable: dict[str, Any] | None = None,
    unit: Unit = Unit.GIB,
) -> NodeReading:
    manifest = {
        "metadata": {"name": "a", "labels": labels or {}, "annotations": annotations or {}},
        "status": {"capacity": capacity or {}, "allocatable": allocatable or capacity or {}},
    }
    return read_node(msgspec.convert(manifest, objects.Node), GPU_POLICIES, unit)


def pod(spec: dict[str, Any], **metadata: Any) -> objects.Pod:
    manifest = {"metadata": {"name": "p", "namespace": "ns", **metadata}, "spec": spec}
    return msgspec.convert(manifest, objects.Pod)


def container(**limits: Any) -> dict[str, Any]:
    resources = {"mem": names.RESOURCE_MEM, "core": names.RESOURCE_CORE}
    return {"name": "c", "resources": {"limits": {resources[k]: v for k, v in limits.items()}}}


@pytest.mark.parametrize(
    ("labels", "mode", "problem"),
    [
        ({}, Mode.DEFAULT, None),
        ({names.LABEL_MODE: "cgpu"}, Mode.CGPU, None),
        ({names.LABEL_MODE: "cgpus"}, Mode.DEFAULT, "UnknownMode"),
        ({names.LABEL_OLD_SHARE: "true"}, Mode.SHARE, None),
        ({names.LABEL_OLD_SHARE: "false"}, Mode.DEFAULT, None),
        (
            {names.LABEL_OLD_SHARE: "true", names.LABEL_MODE: "default"},
            Mode.DEFAULT,
            "ContradictingLabels",
        ),
        ({names.LABEL_OLD_SHARE: "true", names.LABEL_MODE: "share"}, Mode.SHARE, None),
    ],
)
def test_the_mode_of_a_node(labels: dict[str, str], mode: Mode, problem: str | None) -> None:
    reading = node(labels)
    assert reading.node.mode is mode
    assert [p.reason for p in reading.problems] == ([problem] if problem else [])


def test_a_placement_label_with_a_typo_falls_back_to_binpack_and_says_so() -> None:
    reading = node({names.LABEL_PLACEMENT: "spraed"})
    assert reading.node.placement == "binpack"
    assert "spraed" in reading.problems[0].message
    assert "binpack, spread" in reading.problems[0].message


def test_a_node_without_inventory_has_equal_gpus() -> None:
    reading = node(capacity={names.RESOURCE_MEM: "60", names.RESOURCE_COUNT: "4"})
    assert [gpu.units for gpu in reading.node.gpus] == [15] * 4
    assert reading.node.advertised == 60


def test_a_node_whose_plugin_is_gone_keeps_its_gpus() -> None:
    amounts = {names.RESOURCE_MEM: "60", names.RESOURCE_COUNT: "4"}
    reading = node(capacity=amounts, allocatable={**amounts, names.RESOURCE_MEM: "0"})
    assert reading.node.units == 60
    assert reading.node.advertised == 0


def test_a_garbled_inventory_is_named_and_the_sum_is_used() -> None:
    reading = node(
        annotations={names.ANNOTATION_DEVICES: "[{}]"},
        capacity={names.RESOURCE_MEM: "30", names.RESOURCE_COUNT: "2"},
    )
    assert [gpu.units for gpu in reading.node.gpus] == [15, 15]
    assert names.ANNOTATION_DEVICES in reading.problems[0].message


def test_the_unit_is_what_the_node_says_and_never_guessed() -> None:
    devices = [{"index": 0, "uuid": "g", "model": "H200", "memory_mib": 144384, "units": 141}]
    inventory = {names.ANNOTATION_DEVICES: json.dumps(devices)}
    assert node(annotations=inventory).node.unit is Unit.GIB
    assert node(annotations=inventory, unit=Unit.MIB128).node.unit is Unit.MIB128
    told = {**inventory, names.ANNOTATION_NODE: '{"version":1,"unit":"GiB","attests":true}'}
    assert node(annotations=told, unit=Unit.MIB128).node.unit is Unit.GIB


def test_a_cordon_that_names_no_gpu_is_reported() -> None:
    devices = [{"index": 0, "uuid": "g", "model": "T4", "memory_mib": 16130, "units": 15}]
    reading = node(
        annotations={
            names.ANNOTATION_DEVICES: json.dumps(devices),
            names.ANNOTATION_CORDONED: "0,7",
        }
    )
    assert reading.node.gpus[0].cordoned
    assert "7" in reading.problems[0].message


@pytest.mark.parametrize("value", ["4.5", "-1", "99999999999999999999", "4GiB"])
def test_an_unusable_amount_names_its_field(value: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(pod({"containers": [container(mem="1"), container(mem=value)]}))
    assert caught.value.reason is Reason.BAD_REQUEST
    assert caught.value.field == f"spec.containers[1].resources.limits[{names.RESOURCE_MEM}]"
    assert caught.value.value == value


def test_zero_asks_for_nothing() -> None:
    assert read_request(pod({"containers": [container(mem="0")]})) is None


def test_requests_count_where_there_is_no_limit() -> None:
    spec = {"containers": [{"name": "c", "resources": {"requests": {names.RESOURCE_MEM: "3"}}}]}
    request = read_request(pod(spec))
    assert request is not None
    assert request.units == 3


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "1000", ""])
def test_a_gpu_count_that_is_no_number_of_gpus_is_refused(value: str) -> None:
    spec = {"containers": [container(mem="4")]}
    with pytest.raises(RequestError, match="number of GPUs"):
        read_request(pod(spec, labels={names.LABEL_GPU_COUNT: value}))


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"core": "50"}, "without aliyun.com/gpu-mem"),
        ({"mem": "4", "core": "7"}, "steps of 5"),
    ],
)
def test_compute_that_cannot_be_given_is_refused(limits: dict[str, str], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        read_request(pod({"containers": [container(**limits)]}))


def test_a_running_pod_with_an_impossible_request_stays_on_the_books() -> None:
    spec = {"containers": [container(mem="5")], "nodeName": "a"}
    record, error = read_bound_pod(pod(spec, labels={names.LABEL_GPU_COUNT: "2"}))
    assert error is not None
    assert record is not None
    assert record.request.units == 5


def test_the_first_generation_wins_and_the_old_one_is_read_where_it_is_garbled() -> None:
    both = {names.ANNOTATION_ALLOCATION: '{"0":{"1":4}}', names.ANNOTATION_OLD_IDX: "0"}
    assert read_assignment(both) == (Assignment({0: {1: 4}}, {}), None)
    garbled = {**both, names.ANNOTATION_ALLOCATION: "{"}
    assert read_assignment(garbled) == (Assignment({}, {}, single_gpu=0), None)
    neither = {names.ANNOTATION_ALLOCATION: "{", names.ANNOTATION_OLD_IDX: "-1"}
    assignment, problem = read_assignment(neither)
    assert assignment is None
    assert problem is not None
    assert names.ANNOTATION_ALLOCATION in problem.message


def test_pods_of_two_revisions_of_a_deployment_have_one_owner() -> None:
    def replica(template_hash: str) -> str:
        reference = {"kind": "ReplicaSet", "name": f"web-{template_hash}", "controller": True}
        meta = {"ownerReferences": [reference], "labels": {"pod-template-hash": template_hash}}
        return str(read_owner(pod({"containers": []}, **meta).metadata))

    assert replica("5d4f") == replica("77c9") == "Deployment/web"
