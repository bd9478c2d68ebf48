"""`--node`: nodes without YAML."""

from __future__ import annotations

import pytest

from gpushare.simulate.errors import InputError
from gpushare.simulate.nodespec import parse_nodes
from tests.simulate.conftest import Simulate
from tests.simulate.objects import controller, node, waiting


@pytest.mark.parametrize(
    ("gpus", "units"),
    [("4x15", [15] * 4), ("2x15+1x40", [15, 15, 40]), ("15", [15]), ("15+40+15", [15, 40, 15])],
)
def test_gpus_of_any_number_and_size(gpus: str, units: list[int]) -> None:
    (given,) = parse_nodes(f"name=a,gpus={gpus}")
    assert [gpu.units for gpu in given.gpus] == units
    assert [gpu.index for gpu in given.gpus] == list(range(len(units)))


def test_the_job_of_the_documentation_without_yaml_for_the_node(simulate: Simulate) -> None:
    job = controller("Job", parallelism=3)
    job["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "a"}
    ran = simulate([job], "--node", "name=a,gpus=4x15,placement=spread")
    assert ran.status == 0
    assert sorted(ran.held("a")) == [0, 4, 4, 4]


def test_several_nodes_and_copies(simulate: Simulate) -> None:
    ran = simulate(None, "--node", "name=a,gpus=15", "--node", "name=b,gpus=2x40,count=2")
    assert [n["name"] for n in ran.json["nodes"]] == ["a", "b-0", "b-1"]


def test_modes_and_labels(simulate: Simulate) -> None:
    pods = [waiting("p", 4, nodeSelector={"zone": "x"})]
    spec = "name=a,gpus=15,mode=cgpu,label:zone=x"
    ran = simulate(pods, "--node", "name=b,gpus=15", "--node", spec)
    assert ran.pods("a") == {"p": [0]}
    assert [n["mode"] for n in ran.json["nodes"]] == ["cgpu", "share"]


def test_a_name_that_is_there_already(simulate: Simulate) -> None:
    ran = simulate([node("a")], "--node", "name=a,gpus=15")
    assert ran.status == 2
    assert "--node name=a: there is a node of this name already" in ran.err


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "'' is not KEY=VALUE"),
        ("a", "'a' is not KEY=VALUE"),
        ("gpus=4x15", "name=… is missing"),
        ("name=<NODE>,gpus=4", "name='<NODE>' is no node's name"),
        ("name=a", "gpus=… is missing"),
        ("name=a,gpus=4x15GiB", "'4x15GiB' is not COUNTxUNITS"),
        ("name=a,gpus=4x1.5", "'4x1.5' is not COUNTxUNITS"),
        ("name=a,gpus=-4", "'-4' is not COUNTxUNITS"),
        ("name=a,gpus=0x15", "no node has 0x15"),
        ("name=a,gpus=65x15", "no node has 65x15"),
        ("name=a,gpus=40x15+40x15", "80 GPUs; a node has at most 64"),
        ("name=a,gpus=1x99999999", "no node has 1x99999999"),
        ("name=a,gpus=15,placement=spred", "placement='spred' is not one of binpack, spread"),
        ("name=a,gpus=15,mode=cgup", "mode='cgup' is not one of default, share, cgpu"),
        ("name=a,gpus=15,colour=red", "'colour' is not known; use name, gpus"),
        ("name=a,name=b,gpus=15", "'name' is given twice"),
        ("name=a,gpus=15,cpu=many", "cpu: 'many' is not a quantity"),
        ("name=a,gpus=15,cpu=-1", "cpu='-1' is negative"),
        ("name=a,gpus=15,count=0", "count='0' is not a number from 1"),
    ],
)
def test_a_description_that_is_wrong_is_answered_with_what_is_right(spec: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        parse_nodes(spec)
    assert said in str(error.value)
    assert "Example: --node name=a,gpus=4x15,placement=spread" in str(error.value)
