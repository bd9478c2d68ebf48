"""Input that cannot be used: exit status 2, and a message that says where, what, what instead."""

from __future__ import annotations

import pytest

from tests.simulate.conftest import Simulate
from tests.simulate.objects import node, pod, waiting

NODE = ("--node", "name=a,gpus=4x15")


def manifest(value: str) -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: fine
---
apiVersion: v1
kind: Pod
metadata:
  name: p
spec:
  containers:
    - name: app
      resources:
        limits:
          aliyun.com/gpu-mem: {value}
"""


FIELD = "spec.containers[0].resources.limits[aliyun.com/gpu-mem]"


@pytest.mark.parametrize(
    ("value", "shown", "cure"),
    [
        ("4.5", "4.5", "ask for whole units, e.g. 4"),
        ("10Gi", "'10Gi'", "10737418240 units; amounts are whole units of GPU memory: write 10"),
        ("10737418240", "10737418240", "whole units of GPU memory, no bytes"),
        ("-1", "-1", "ask for 0 or more"),
        ("99999999999999999999", "99999999999999999999", "beyond 64 bits"),
        ('"four"', "'four'", "not a quantity such as 4"),
        ("true", "true", "an amount such as 4, 500m or 10Gi is needed"),
        ("[4]", "[4]", "an amount such as 4, 500m or 10Gi is needed"),
        ("", "null", "an amount such as 4, 500m or 10Gi is needed"),
        ("0x" + "f" * 3000, "2290593203500326442498", "that is no quantity"),
        ("9" * 3000, "9999", "that is no quantity"),
    ],
    ids=lambda text: text[:12] or "nothing",
)
def test_an_amount_that_cannot_be_used(
    simulate: Simulate, value: str, shown: str, cure: str
) -> None:
    ran = simulate(manifest(value), *NODE)
    assert ran.status == 2
    assert ran.out == ""
    assert f"input.yaml, document 2, line 15 (Pod p): {FIELD} is {shown}" in ran.err
    assert cure in ran.err
    assert len(ran.err) < 700


def test_0_asks_for_nothing_and_is_said_to(simulate: Simulate) -> None:
    ran = simulate(manifest("0"), *NODE)
    assert ran.status == 0
    assert ran.warned("aliyun.com/gpu-mem is 0 in default/p: that asks for nothing")


@pytest.mark.parametrize("value", ["4.5", "10Gi", "-1", "99999999999999999999"])
def test_in_a_live_object_it_costs_that_pod_its_place_and_no_more(
    simulate: Simulate, value: str
) -> None:
    live = waiting("p", value)
    live["metadata"]["resourceVersion"] = "17"
    ran = simulate([node(), live, waiting("q", 4)])
    assert ran.status == 1
    assert ran.no_place == {"p": "bad-request"}
    assert value in ran.message("p")
    assert sum(ran.held("a")) == 4


def test_a_template_with_a_bad_amount_is_named_by_its_path(simulate: Simulate) -> None:
    text = """\
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  jobTemplate:
    spec:
      template:
        spec:
          containers:
            - name: a
            - name: b
              resources: {limits: {aliyun.com/gpu-mem: 1.5}}
"""
    ran = simulate(text, *NODE)
    assert ran.status == 2
    field = "spec.jobTemplate.spec.template.spec.containers[1].resources.limits[aliyun.com/gpu-mem]"
    assert f"line 12 (CronJob nightly): {field} is 1.5" in ran.err


def test_requests_without_limits_are_refused_as_the_api_server_does(simulate: Simulate) -> None:
    found = waiting("p", 4)
    resources = found["spec"]["containers"][0]["resources"]
    del resources["limits"]["aliyun.com/gpu-mem"]
    ran = simulate([node(), found])
    assert ran.status == 2
    assert "dump.json, document 1, item 2 (Pod p)" in ran.err
    assert "requests[aliyun.com/gpu-mem] is '4'; it needs a limit too" in ran.err


def test_an_unquoted_label_is_shown_with_quotes(simulate: Simulate) -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  labels:\n    aliyun.com/gpu-count: 2\n"
    )
    ran = simulate(text, *NODE)
    assert ran.status == 2
    assert "line 6 (Pod p): metadata.labels[aliyun.com/gpu-count] is 2" in ran.err
    assert 'write "2", in quotes' in ran.err


@pytest.mark.parametrize("placeholder", ["<NODE_NAME>", "<your-node>", "${NODE}", "{{ .node }}"])
@pytest.mark.parametrize("where", ["nodeSelector", "nodeName", "affinity"])
def test_a_placeholder_is_said_to_be_one_with_the_nodes_there_are(
    simulate: Simulate, where: str, placeholder: str
) -> None:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [placeholder]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    spec = {
        "nodeSelector": {"nodeSelector": {"kubernetes.io/hostname": placeholder}},
        "nodeName": {"nodeName": placeholder},
        "affinity": {
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
            }
        },
    }[where]
    ran = simulate([node("gpu-1"), node("gpu-2"), waiting("p", 4, **spec)])
    assert ran.status == 2
    assert f"is '{placeholder}'; that is a placeholder" in ran.err
    assert "Nodes: gpu-1, gpu-2" in ran.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Pod\n", "apiVersion is missing; write apiVersion: v1"),
        ("apiVersion: v1\n", "`kind` is missing"),
        ("apiVersion: v1\nkind: Job\nmetadata: {name: j}\n", "write apiVersion: batch/v1"),
        ("apiVersion: v1\nkind: Pod\n", "metadata is missing"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {}\n", "every object needs a name"),
        ("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {}\n", "spec.template"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: p, name: q}\n", "'name' is given twice"),
        ("a: [1\n", "line 2: not YAML"),
        ("a:\n\t- b\n", "line 2: not YAML"),
        ("- 1\n", "a mapping (key: value) is needed"),
        ("[" * 5000, "not YAML"),
        ("&a [*a]", "a mapping"),
        ("", "nothing there that the simulator knows"),
        ("kind: ConfigMap\napiVersion: v1\n", "nothing there that the simulator knows"),
    ],
)
def test_documents_that_are_none(simulate: Simulate, text: str, said: str) -> None:
    ran = simulate(text)
    assert ran.status == 2
    assert ran.out == ""
    assert said in ran.err


def test_nothing_half_read_is_used(simulate: Simulate) -> None:
    ran = simulate("apiVersion: v1\nkind: Node\nmetadata: {name: a}\n---\nkind: [\n")
    assert ran.status == 2
    assert ran.out == ""
    assert "document 2" in ran.err


def test_an_affinity_operator_with_a_typo(simulate: Simulate) -> None:
    expression = {"key": "gpu", "operator": "Inn", "values": ["a"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    ran = simulate([node(), waiting("p", 4, affinity=affinity)])
    assert ran.status == 2
    assert "matchExpressions[0].operator is 'Inn'; use one of In, NotIn" in ran.err


def test_the_same_object_twice_counts_once_and_two_that_differ_are_refused(
    simulate: Simulate,
) -> None:
    assert simulate([node(), pod("p", 4, 0), pod("p", 4, 0)]).held("a") == [4, 0]
    ran = simulate([node(), pod("p", 4, 0), pod("p", 5, 0)])
    assert ran.status == 2
    assert "item 3 (Pod p): another Pod of this name" in ran.err
    assert "dump.json, document 1, item 2" in ran.err


def test_files_that_cannot_be_read(simulate: Simulate) -> None:
    assert "no-such.yaml cannot be read: No such file" in simulate(None, "no-such.yaml").err
    assert "holds no file that ends in .yaml" in simulate(None, ".").err


def test_without_a_node_there_is_nothing_to_say(simulate: Simulate) -> None:
    ran = simulate([waiting("p", 4)])
    assert ran.status == 2
    assert "there is no node to place pods on" in ran.err
    assert "--node name=a,gpus=4x15" in ran.err
