"""What is not modelled is named once per kind, with a count, for pods that ask for GPU memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulate.conftest import Simulate
from tests.simulate.objects import node, pod, waiting

TERM = {"topologyKey": "zone"}


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (
            {"affinity": {"podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [TERM]
            }}},
            "inter-pod affinity",
        ),
        (
            {"affinity": {"podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]
            }}},
            "inter-pod anti-affinity",
        ),
        (
            {"affinity": {"nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]
            }}},
            "preferred node affinity",
        ),
        ({"topologySpreadConstraints": [TERM]}, "topology spread constraints"),
        ({"volumes": [{"persistentVolumeClaim": {"claimName": "x"}}]}, "volumes"),
        ({"volumes": [{"ephemeral": {}}, {"ephemeral": {"a": 1}}]}, "volumes"),
        ({"resourceClaims": [{"name": "x"}]}, "resource claims"),
        ({"schedulingGates": [{"name": "x"}]}, "scheduling gates"),
        ({"containers": [{"name": "c", "ports": [{"hostPort": 80}],
          "resources": {"limits": {"aliyun.com/gpu-mem": 1}}}]}, "host ports"),
    ],
)  # fmt: skip
def test_it_is_named_once_with_a_count(simulate: Simulate, spec: dict[str, Any], kind: str) -> None:
    ran = simulate([node(), waiting("p", 1, **spec), waiting("q", 1, **spec), waiting("r", 1)])
    assert ran.status == 0
    (warning,) = [w for w in ran.json["warnings"] if w.startswith("not modelled")]
    assert warning.startswith(f"not modelled: {kind}")
    assert "2 pods that ask for GPU memory use it" in warning


def test_other_pods_and_volumes_that_tie_to_no_place_are_not_named(simulate: Simulate) -> None:
    plain = {"volumes": [{"emptyDir": {}}, {"configMap": {"name": "x"}}]}
    other = waiting("web", None, topologySpreadConstraints=[TERM])
    standing = pod("standing", 1, 0)
    standing["spec"]["topologySpreadConstraints"] = [TERM]
    ran = simulate([node(), waiting("p", 1, **plain), other, standing])
    assert not ran.warned("not modelled")


def test_taints_that_only_prefer_are_named(simulate: Simulate) -> None:
    tainted = node()
    tainted["spec"]["taints"] = [{"key": "k", "effect": "PreferNoSchedule"}]
    assert simulate([tainted]).warned("not modelled: taints PreferNoSchedule")
