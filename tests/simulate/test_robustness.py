"""Whatever a file holds: an answer, or status 2 and a message; never another exception."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpushare.contract import names
from gpushare.simulate.main import main
from tests.simulate.objects import Object, controller, node, pod, waiting

KINDS = ("Node", "Pod", "Job", "CronJob", "Deployment", "StatefulSet", "DaemonSet", "PriorityClass")

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["4", "10Gi", "<NODE_NAME>", "In", "a", "Succeeded", "v1"])
)
FIELDS = (
    "metadata", "spec", "status", "name", "namespace", "labels", "annotations", "items", "kind",
    "apiVersion", "template", "containers", "initContainers", "resources", "limits", "requests",
    "nodeName", "nodeSelector", "affinity", "nodeAffinity", "tolerations", "taints", "replicas",
    "parallelism", "completions", "phase", "allocatable", "capacity", "overhead", "jobTemplate",
    "priority", "priorityClassName", "ownerReferences", "uid", "resourceVersion",
    "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", "matchExpressions",
    names.RESOURCE_MEM, names.LABEL_GPU_COUNT, names.ANNOTATION_DEVICES, names.LABEL_MODE,
    names.ANNOTATION_ALLOCATION, names.RESOURCE_CORE, names.ANNOTATION_NODE, names.LABEL_PLACEMENT,
)  # fmt: skip
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=15,
)

SOUND: list[Object] = [
    node(),
    pod("p", 4, 0),
    waiting("q", 5, nodeSelector={"a": "b"}, tolerations=[{"key": "k", "operator": "Exists"}]),
    controller("Job", "j", parallelism=2),
    controller("Deployment", "d", replicas=2),
    controller("CronJob", "c"),
    controller("DaemonSet", "e"),
]


def places(thing: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside."""
    found = [path] if path else []
    if isinstance(thing, dict):
        for key, value in thing.items():
            found += places(value, (*path, key))
    elif isinstance(thing, list):
        for index, value in enumerate(thing):
            found += places(value, (*path, index))
    return found


PLACES = places(SOUND)


def run(path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
    status = main([str(path), *arguments])
    printed = capsys.readouterr()
    assert status in (0, 1, 2)
    if status == 2:
        assert printed.out == ""
        assert printed.err.startswith("error: ")
        assert "Traceback" not in printed.err
        assert printed.err.count("\n") == 1
        assert len(printed.err) < 2000


common = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@common
@given(
    data=st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "ignore"))
)
def test_any_bytes(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x.yaml", "x.json"):
        (tmp_path / name).write_bytes(data)
        run(tmp_path / name, capsys)


@common
@given(kind=st.sampled_from(KINDS), body=st.dictionaries(st.sampled_from(FIELDS), anything))
def test_any_object(
    kind: str, body: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = {"Node": "v1", "Pod": "v1", "Job": "batch/v1", "CronJob": "batch/v1"}
    api_version = version.get(kind, "scheduling.k8s.io/v1" if kind[:2] == "Pr" else "apps/v1")
    (tmp_path / "x.yaml").write_text(
        json.dumps({**body, "kind": kind, "apiVersion": api_version}), "utf-8"
    )
    run(tmp_path / "x.yaml", capsys, "--node", "name=n,gpus=2x15")


@settings(common, max_examples=300)
@given(place=st.sampled_from(PLACES), value=anything, output=st.sampled_from(["wide", "json"]))
def test_a_sound_dump_with_anything_put_in_one_place(
    place: tuple[Any, ...],
    value: Any,
    output: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    objects = json.loads(json.dumps(SOUND))
    *way, last = place
    target = objects
    for step in way:
        target = target[step]
    target[last] = value
    text = json.dumps({"kind": "List", "apiVersion": "v1", "items": objects})
    (tmp_path / "x.json").write_text(text, "utf-8")
    run(tmp_path / "x.json", capsys, "-o", output)


@common
@given(text=st.text(st.sampled_from("name=a,gpus4x15+placmentdu:/ -_"), max_size=40))
def test_any_node_description(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text(json.dumps(waiting("p", 1)))
    assume(text != "--")  # no value at all, to argparse: wrong usage
    run(tmp_path / "x.json", capsys, f"--node={text}")


@pytest.mark.parametrize("depth", [100, 1_000, 100_000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_deep_nesting(
    depth: int, brackets: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opening = brackets[0] if brackets == "[]" else '{"a":'
    text = opening * depth + "1" + brackets[1] * depth
    for name in ("x.json", "x.yaml"):
        (tmp_path / name).write_text(text)
        run(tmp_path / name, capsys)


def test_a_bomb_of_aliases_ends_soon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["a0: &a0 {kind: List, apiVersion: v1, items: []}"]
    lines += [
        f"a{i}: &a{i} {{kind: List, apiVersion: v1, items: [{', '.join([f'*a{i - 1}'] * 50)}]}}"
        for i in range(1, 9)
    ]
    (tmp_path / "x.yaml").write_text(
        "\n".join([*lines, "kind: List", "apiVersion: v1", "items: [*a8]"])
    )
    run(tmp_path / "x.yaml", capsys)
