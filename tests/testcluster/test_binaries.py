"""What is built, and where it is kept."""

import pytest

from gpushare_testcluster import binaries, toolchain
from gpushare_testcluster.errors import BuildFailed


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSHARE_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", [*binaries.CONTROL_PLANE, *binaries.NODE])
def test_each_binary_has_a_place_named_for_its_version(name, own_cache):
    path = binaries.path_of(name)
    assert path.name == name
    assert path.is_relative_to(own_cache / "bin")
    assert path.parent.name.startswith(f"{name}-v")


def test_versions_are_read_from_the_pinned_modules():
    assert binaries.KUBERNETES.version == "v1.36.3"
    assert binaries.ETCD.version == "v3.6.16"
    assert binaries.CONTAINERD.version == "v2.4.2"


def test_a_changed_input_gives_another_place(monkeypatch):
    before = binaries.path_of("etcd")
    monkeypatch.setattr(binaries.Module, "flags", ["-trimpath"])
    assert binaries.path_of("etcd") != before


def test_the_cost_names_only_what_is_missing():
    cost = binaries.cost_of(binaries.CONTROL_PLANE)
    assert "7 minutes" in cost
    assert "kubelet" not in cost
    path = binaries.path_of("etcd")
    path.parent.mkdir(parents=True)
    path.touch()
    assert "etcd" not in binaries.cost_of(binaries.CONTROL_PLANE)
    assert binaries.missing(binaries.CONTROL_PLANE) == [
        name for name in binaries.CONTROL_PLANE if name != "etcd"
    ]


def test_no_module_file_names_a_registry_host():
    for module in binaries.MODULES:
        assert b"://" not in module.file("go.mod") + module.file("go.sum")


def test_an_unknown_binary_is_refused():
    with pytest.raises(BuildFailed, match="no module builds 'helm'"):
        binaries.path_of("helm")


@pytest.mark.parametrize(
    ("version", "taken"),
    [("go1.26.8", True), ("go1.27", True), ("go1.25.3", False), ("go1.28rc1", False), ("", False)],
)
def test_go_from_the_path_is_taken_when_it_builds_our_modules(tmp_path, version, taken):
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho {version}\n")
    go.chmod(0o755)
    found = toolchain.find_go({"PATH": str(tmp_path)})
    assert found == (go if taken else None)
