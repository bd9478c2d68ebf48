"""The kubelet's checkpoint of device allocations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpushare.node.checkpoint import FILE, read_checkpoint
from gpushare.node.containers import ContainerDevices, SourceUnavailable

MEM = "aliyun.com/gpu-mem"


def entry(uid: str, resource: str = MEM, **ids: list[str]) -> dict[str, Any]:
    """As the kubelet writes it; ids by NUMA node."""
    return {
        "PodUID": uid,
        "ContainerName": "c",
        "ResourceName": resource,
        "DeviceIDs": {numa.replace("none", "-1").replace("node", ""): i for numa, i in ids.items()},
        "AllocResp": "CgsKA2ZvbxIEYmFyYg==",
    }


def write(folder: Path, content: object) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / FILE).write_text(text)


def checkpoint(*entries: dict[str, Any]) -> dict[str, Any]:
    data = {"PodDeviceEntries": list(entries), "RegisteredDevices": {MEM: ["GPU-a::0"]}}
    return {"Data": data, "Checksum": 1584390512}


def test_every_containers_ids_by_the_pods_uid(tmp_path: Path) -> None:
    write(
        tmp_path,
        checkpoint(
            entry("u", none=["GPU-a::0", "GPU-a::1"]),
            entry("v", none=["GPU-b::0"]),
            entry("u", "example.com/other", none=["x"]),
        ),
    )
    assert read_checkpoint(tmp_path, MEM) == [
        ContainerDevices("c", frozenset({"GPU-a::0", "GPU-a::1"}), uid="u", resource=MEM),
        ContainerDevices("c", frozenset({"GPU-b::0"}), uid="v", resource=MEM),
    ]


def test_several_resources_at_once(tmp_path: Path) -> None:
    write(
        tmp_path, checkpoint(entry("u", none=["a"]), entry("u", "x/y", none=["b"]), entry("v", "z"))
    )
    found = read_checkpoint(tmp_path, "x/y", MEM)
    assert [(one.resource, set(one.ids)) for one in found] == [(MEM, {"a"}), ("x/y", {"b"})]


def test_ids_of_all_numa_nodes_together(tmp_path: Path) -> None:
    write(tmp_path, checkpoint(entry("u", node0=["a"], node1=["b"])))
    (found,) = read_checkpoint(tmp_path, MEM)
    assert found.ids == {"a", "b"}


@pytest.mark.parametrize("entries", [None, []])
def test_nobody_has_anything(tmp_path: Path, entries: object) -> None:
    write(tmp_path, {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}})
    assert read_checkpoint(tmp_path, MEM) == []


def test_a_kubelet_that_has_never_allocated_has_no_file(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path, MEM) == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        {"Data": None},
        {"Data": {}},
        {"Data": {"PodDeviceEntries": {}}},
        # Before Kubernetes 1.20: a list of ids, not by NUMA node.
        {
            "Data": {
                "PodDeviceEntries": [
                    {
                        "PodUID": "u",
                        "ContainerName": "c",
                        "ResourceName": MEM,
                        "DeviceIDs": ["a"],
                        "AllocResp": "",
                    }
                ]
            }
        },
        {"Data": {"PodDeviceEntries": [{"PodUID": "u", "ContainerName": "c"}]}},
        "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
    ],
)
def test_another_form_is_not_guessed_at(tmp_path: Path, content: object) -> None:
    write(tmp_path, content)
    with pytest.raises(SourceUnavailable, match=FILE):
        read_checkpoint(tmp_path, MEM)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(SourceUnavailable, match=FILE):
        read_checkpoint(tmp_path, MEM)
