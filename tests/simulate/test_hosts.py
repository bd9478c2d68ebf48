"""CPU, memory, pod count and other resources, by Kubernetes' rule of effective requests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpushare.simulate.hosts import effective_ask
from gpushare.simulate.objects import SimPodSpec
from tests.simulate.conftest import Simulate
from tests.simulate.objects import Object, controller, node, plain_node, pod, waiting


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}, **more}


def cpu_of(**spec: Any) -> int:
    return dict(effective_ask(msgspec.convert(spec, SimPodSpec))).get("cpu", 0)


ALWAYS = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("init", "app", "milli"),
    [
        ([], ["1", "500m"], 1500),
        ([("4", {})], ["1"], 4000),
        ([("1", {}), ("3", {})], ["2"], 3000),
        ([("1", ALWAYS)], ["2"], 3000),
        ([("1", ALWAYS), ("4", {})], ["2"], 5000),
        ([("4", {}), ("1", ALWAYS)], ["2"], 4000),
        ([("1", ALWAYS), ("2", ALWAYS)], ["3"], 6000),
    ],
)
def test_the_effective_request(init: list[Any], app: list[str], milli: int) -> None:
    inits = [container(cpu, **more) for cpu, more in init]
    assert cpu_of(initContainers=inits, containers=[container(cpu) for cpu in app]) == milli


def test_overhead_comes_on_top() -> None:
    assert cpu_of(containers=[container("1")], overhead={"cpu": "250m"}) == 1250


def test_requests_of_the_pod_as_a_whole_win() -> None:
    assert cpu_of(containers=[container("1")], resources={"requests": {"cpu": "3"}}) == 3000


def test_a_limit_without_a_request_is_the_request() -> None:
    assert cpu_of(containers=[{"resources": {"limits": {"cpu": "2"}}}]) == 2000


def asking(name: str, **requests: str) -> Object:
    found = waiting(name, 1)
    resources = found["spec"]["containers"][0]["resources"]
    resources["limits"] |= requests
    resources["requests"] |= requests
    return found


@pytest.mark.parametrize(
    ("resource", "offered", "asked"),
    [
        ("cpu", "1500m", "1"),
        ("memory", "3Gi", "2Gi"),
        ("ephemeral-storage", "3Gi", "2Gi"),
        ("example.com/dongle", "1", "1"),
    ],
)
def test_a_resource_that_is_used_up(
    simulate: Simulate, resource: str, offered: str, asked: str
) -> None:
    one = node()
    one["status"]["allocatable"][resource] = offered
    ran = simulate([one, asking("p", **{resource: asked}), asking("q", **{resource: asked})])
    assert ran.status == 1
    assert list(ran.no_place) == ["q"]
    assert f"1 with too little {resource}" in ran.message("q")


def test_pods_without_gpu_memory_take_resources_too(simulate: Simulate) -> None:
    one = node()
    one["status"]["allocatable"]["cpu"] = "2"
    ran = simulate([one, pod("other", None), waiting("p", 1), waiting("q", 1)])
    assert list(ran.no_place) == ["q"]


def test_finished_pods_take_none(simulate: Simulate) -> None:
    one = node()
    one["status"]["allocatable"]["cpu"] = "1"
    ran = simulate([one, pod("done", None, phase="Succeeded"), waiting("p", 1)])
    assert ran.status == 0


def test_the_number_of_pods_is_limited(simulate: Simulate) -> None:
    one = node(gpus=[80])
    one["status"]["allocatable"]["pods"] = "3"
    ran = simulate([one, pod("other", None), controller("Job", parallelism=5, units=1)])
    assert len(ran.no_place) == 3
    assert "with too little pods" in ran.message("x-4")


def test_capacity_counts_where_there_is_no_allocatable(simulate: Simulate) -> None:
    one = node()
    one["status"]["capacity"]["cpu"] = "1"
    del one["status"]["allocatable"]["cpu"]
    ran = simulate([one, waiting("p", 1), waiting("q", 1)])
    assert list(ran.no_place) == ["q"]


def test_a_node_without_figures_limits_neither(simulate: Simulate) -> None:
    one = node()
    for which in ("capacity", "allocatable"):
        del one["status"][which]["cpu"]
    assert simulate([one, asking("p", cpu="10000", memory="10Ti")]).status == 0
    assert simulate([waiting("p", 1)], "--node", "name=a,gpus=15").status == 0


def test_a_node_that_is_described_has_the_room_it_says(simulate: Simulate) -> None:
    ran = simulate([asking("p", memory="3Gi")], "--node", "name=a,gpus=15,cpu=2,memory=2Gi")
    assert "1 with too little memory" in ran.message("p")


def test_an_extended_resource_that_a_node_does_not_list_is_not_there(simulate: Simulate) -> None:
    ran = simulate([node(), plain_node(), asking("p", **{"nvidia.com/gpu": "1"})])
    assert "1 with too little nvidia.com/gpu" in ran.message("p")
