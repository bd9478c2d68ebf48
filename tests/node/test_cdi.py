"""CDI specifications: which device is a GPU, and writing ours."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.node import cdi
from gpushare.node.cdi import (
    ALLOCATION_KIND,
    CdiDevices,
    CdiError,
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    Mount,
    encode_spec,
    parse_spec,
    read_specs,
    remove_spec,
    spec_name,
    write_spec,
    written_specs,
)

UUID = "GPU-00000000-0000-4000-8000-000000000001"
OTHER = "GPU-00000000-0000-4000-8000-000000000002"
EDITS = {"deviceNodes": [{"path": "/dev/nvidia0"}]}
ENV = ContainerEdits(env=("A=b",))


def spec(*names: str, kind: str = "nvidia.com/gpu", **more: Any) -> dict[str, Any]:
    devices = [{"name": name, "containerEdits": EDITS} for name in names]
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": devices, **more}


def put(directory: Path, name: str, content: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / name
    file.write_text(yaml.safe_dump(content) if name.endswith(".yaml") else json.dumps(content))
    return file


@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.json"])
def test_a_gpu_is_found_by_its_uuid(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, spec("0", OTHER, UUID, "all"))
    devices = read_specs([tmp_path])
    assert devices.device_for(UUID) == f"nvidia.com/gpu={UUID}"
    assert devices.device_for("GPU-00000000") is None
    assert devices.problems == ()


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ([f"management.nvidia.com/gpu={UUID}"], 0),
        ([f"management.nvidia.com/gpu={UUID}", f"nvidia.com/gpu={UUID}"], 1),
        ([f"vendor.com/b={UUID}", f"vendor.com/a={UUID}"], 1),
        ([f"nvidia.com/gpu=gpu:{UUID}"], 0),
        ([f"vendor.com/a=gpu.{UUID}", f"nvidia.com/gpu=gpu.{UUID}"], 1),
        ([f"nvidia.com/gpu=gpu_{UUID}", f"vendor.com/a={UUID}"], 1),
        ([f"nvidia.com/gpu={UUID}:0", "nvidia.com/gpu=0", f"nvidia.com/gpu={OTHER}"], None),
        ([f"nvidia.com/gpu=x{UUID}", f"nvidia.com/gpu={UUID}-1"], None),
        ([f"gpushare.dev/allocation={UUID}", f"gpushare.dev/gpu={UUID}"], None),
        ([], None),
    ],
)
def test_the_device_that_is_the_gpu_is_preferred(names: list[str], chosen: int | None) -> None:
    expected = None if chosen is None else names[chosen]
    assert CdiDevices(dict.fromkeys(names, "file")).device_for(UUID) == expected


def test_a_later_directory_wins(tmp_path: Path) -> None:
    put(tmp_path / "etc", "a.json", spec(UUID, OTHER))
    late = put(tmp_path / "run", "z.yaml", spec(UUID))
    devices = read_specs([tmp_path / "etc", tmp_path / "run"])
    assert devices.files[f"nvidia.com/gpu={UUID}"] == str(late)
    assert devices.files[f"nvidia.com/gpu={OTHER}"].endswith("etc/a.json")
    assert devices.problems == ()


def test_a_name_in_two_files_of_one_directory_is_nobodys(tmp_path: Path) -> None:
    one = put(tmp_path / "etc", "a.json", spec(UUID, OTHER))
    two = put(tmp_path / "etc", "b.yaml", spec(UUID))
    put(tmp_path / "run", "c.json", spec(UUID))
    devices = read_specs([tmp_path / "etc", tmp_path / "run"])
    assert devices.device_for(UUID) is None
    assert devices.device_for(OTHER) == f"nvidia.com/gpu={OTHER}"
    (problem,) = devices.problems
    assert problem.file == str(two)
    assert str(one) in problem.reason


def test_the_same_device_of_another_kind_is_no_conflict(tmp_path: Path) -> None:
    put(tmp_path, "a.json", spec(UUID))
    put(tmp_path, "b.json", spec(UUID, kind="management.nvidia.com/gpu"))
    devices = read_specs([tmp_path])
    assert len(devices.files) == 2
    assert devices.problems == ()


INVALID: dict[str, tuple[Any, str]] = {
    "not an object": ([], "Expected `object`"),
    "no version": ({"kind": "a.b/c", "devices": []}, "`cdiVersion`"),
    "a version that is none": (spec("x") | {"cdiVersion": "new"}, "cdiVersion is 'new'"),
    "a kind without a class": (spec("x", kind="nvidia.com"), "kind 'nvidia.com'"),
    "a kind with two": (spec("x", kind="nvidia.com/gpu/x"), "kind 'nvidia.com/gpu/x'"),
    "a kind of two lines": (spec("x", kind="nvidia.com/gpu\n"), "kind 'nvidia.com/gpu\\n'"),
    "no devices": (spec(), "it has no devices"),
    "null for devices": (spec() | {"devices": None}, "`$.devices`"),
    "a device without a name": (spec(""), "device name ''"),
    "a device with a strange name": (spec("x", "a=b"), "device name 'a=b'"),
    "a device with a trailing dash": (spec("x-"), "device name 'x-'"),
    "a device twice": (spec("x", "y", "x"), "device x is in it twice"),
    "a device without edits": (
        spec() | {"devices": [{"name": "x", "containerEdits": {}}]},
        "device x has no containerEdits",
    ),
    "a device whose name is a number": (
        spec() | {"devices": [{"name": 0, "containerEdits": EDITS}]},
        "Expected `str`, got `int`",
    ),
}


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
@pytest.mark.parametrize(("content", "reason"), INVALID.values(), ids=INVALID)
def test_an_invalid_file_is_left_out_with_a_reason(
    tmp_path: Path, content: Any, reason: str, suffix: str
) -> None:
    file = put(tmp_path, f"bad{suffix}", content)
    put(tmp_path, "good.json", spec(UUID))
    devices = read_specs([tmp_path])
    assert list(devices.files) == [f"nvidia.com/gpu={UUID}"]
    (problem,) = devices.problems
    assert problem.file == str(file)
    assert reason in problem.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "Expected `object`, got `null`"),
        (b'{"cdiVersion": "0.5.0", "kind": "a.b/c"', "neither JSON nor YAML: .*line 1"),
        (b"kind: [\n:", "neither JSON nor YAML: .*line 2"),
        (b"\xff\xfe\x00", "neither JSON nor YAML"),
        (b"[" * 100_000, "nested"),
        (b"kind: 2001-13-45", "neither JSON nor YAML: month"),
        (b"kind: !!python/name:os.system", "neither JSON nor YAML: could not determine"),
    ],
)
def test_what_cannot_be_decoded_says_why(text: bytes, reason: str) -> None:
    with pytest.raises(CdiError, match=reason):
        parse_spec(text)


def test_what_later_versions_add_is_let_pass() -> None:
    content = spec("x", annotations={"a": "b"}, containerEdits={"netDevices": []})
    content["cdiVersion"] = "1.1.0"
    assert parse_spec(json.dumps(content).encode()) == ("nvidia.com/gpu=x",)


def test_a_name_with_aliases_within_aliases_costs_nothing() -> None:
    lines = ["cdiVersion: 0.6.0", "kind: a.b/c", "devices:", "- name: x", "  containerEdits:"]
    lines += ["    z0: &z0 [1, 1]"]
    lines += [f"    z{n}: &z{n} [*z{n - 1}, *z{n - 1}]" for n in range(1, 60)]
    assert parse_spec("\n".join(lines).encode()) == ("a.b/c=x",)


def test_what_is_no_specification_is_not_looked_at(tmp_path: Path) -> None:
    for name in ("notes.txt", "nvidia.json.bak", "nvidia.yml", ".nvidia.json.x.tmp"):
        put(tmp_path, name, "nothing")
    (tmp_path / "folder.json").mkdir()
    put(tmp_path / "deeper", "nvidia.json", spec(UUID))
    assert read_specs([tmp_path, tmp_path / "missing"]) == CdiDevices({})


def test_what_cannot_be_read_is_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "a.json")
    (tmp_path / "b.json").symlink_to(tmp_path / "nowhere")
    put(tmp_path, "c.json", spec(UUID))
    limit = (tmp_path / "c.json").stat().st_size
    put(tmp_path, "d.json", spec(OTHER + "0"))
    monkeypatch.setattr(cdi, "MAX_SPEC_BYTES", limit)
    devices = read_specs([tmp_path, tmp_path / "c.json"])
    assert list(devices.files) == [f"nvidia.com/gpu={UUID}"]
    reasons = {Path(problem.file).name: problem.reason for problem in devices.problems}
    assert reasons == {
        "a.json": "it is not a regular file",
        "b.json": "it cannot be read: No such file or directory",
        "c.json": "it cannot be listed: Not a directory",
        "d.json": "it is larger than 0 MiB",
    }


def test_a_file_behind_a_link_is_read(tmp_path: Path) -> None:
    real = put(tmp_path / "elsewhere", "nvidia", spec(UUID))
    (tmp_path / "nvidia.json").symlink_to(real)
    assert read_specs([tmp_path]).device_for(UUID) is not None


@given(st.binary() | st.text("{}[]:,-&*!<>|'\"kind 0\n").map(str.encode))
def test_any_bytes_are_a_specification_or_a_cdi_error(data: bytes) -> None:
    try:
        parse_spec(data)
    except CdiError as error:
        assert str(error)


ALLOCATION = Device(
    "pod-1.container",
    ContainerEdits(
        env=("NVIDIA_VISIBLE_DEVICES=void", "EMPTY="),
        device_nodes=(DeviceNode(path="/dev/nvidia0", host_path="/dev/nvidia1", permissions="rw"),),
        mounts=(
            Mount(
                host_path="/var/lib/gpushare/limits",
                container_path="/etc/gpushare/limits",
                options=("ro", "bind"),
            ),
        ),
        hooks=(
            Hook(
                hook_name="createRuntime",
                path="/opt/gpushare/hook",
                args=("hook", "attest"),
                env=("A=b",),
                timeout=5,
            ),
        ),
    ),
)


def test_our_specification_has_the_fields_of_cdi(tmp_path: Path) -> None:
    file = write_spec(tmp_path, ALLOCATION_KIND, [ALLOCATION, Device("b", ENV)], "u1")
    assert json.loads(file.read_bytes()) == {
        "cdiVersion": "0.6.0",
        "kind": "gpushare.dev/allocation",
        "devices": [
            {
                "name": "pod-1.container",
                "containerEdits": {
                    "env": ["NVIDIA_VISIBLE_DEVICES=void", "EMPTY="],
                    "deviceNodes": [
                        {"path": "/dev/nvidia0", "hostPath": "/dev/nvidia1", "permissions": "rw"}
                    ],
                    "mounts": [
                        {
                            "hostPath": "/var/lib/gpushare/limits",
                            "containerPath": "/etc/gpushare/limits",
                            "options": ["ro", "bind"],
                        }
                    ],
                    "hooks": [
                        {
                            "hookName": "createRuntime",
                            "path": "/opt/gpushare/hook",
                            "args": ["hook", "attest"],
                            "env": ["A=b"],
                            "timeout": 5,
                        }
                    ],
                },
            },
            {"name": "b", "containerEdits": {"env": ["A=b"]}},
        ],
    }
    assert set(read_specs([tmp_path]).files) == {
        "gpushare.dev/allocation=pod-1.container",
        "gpushare.dev/allocation=b",
    }


def test_a_file_that_everybody_may_read_is_put_in_place_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "var" / "cdi"
    before = os.umask(0o077)
    try:
        file = write_spec(directory, ALLOCATION_KIND, [Device("a", ENV)], "u1")
    finally:
        os.umask(before)
    assert file == directory / "gpushare.dev-allocation_u1.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    old = file.read_bytes()
    replace, seen = os.replace, []

    def watched(source: str, target: Path) -> None:
        seen.append((Path(source).suffix, Path(source).parent, Path(target).read_bytes()))
        assert parse_spec(Path(source).read_bytes())
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    assert write_spec(directory, ALLOCATION_KIND, [Device("b", ENV)], "u1") == file
    assert seen == [(".tmp", directory, old)]
    assert parse_spec(file.read_bytes()) == ("gpushare.dev/allocation=b",)
    assert [path.name for path in directory.iterdir()] == [file.name]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_spec(tmp_path, ALLOCATION_KIND, [Device("a", ENV)], "u1")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_spec(tmp_path, ALLOCATION_KIND, [Device("b", ENV)], "u1")
    assert parse_spec(file.read_bytes()) == ("gpushare.dev/allocation=a",)
    assert list(tmp_path.iterdir()) == [file]


def test_what_was_written_is_listed_and_removed(tmp_path: Path) -> None:
    assert written_specs(tmp_path / "missing", ALLOCATION_KIND) == []
    write_spec(tmp_path, ALLOCATION_KIND, [Device("a", ENV)], "u1")
    write_spec(tmp_path, ALLOCATION_KIND, [Device("b", ENV)], "u2_b")
    put(tmp_path, "nvidia.json", spec(UUID))
    put(tmp_path, ".gpushare.dev-allocation_u1.json.x.tmp", {})
    assert written_specs(tmp_path, ALLOCATION_KIND) == ["u1", "u2_b"]
    assert remove_spec(tmp_path, ALLOCATION_KIND, "u1") is True
    assert remove_spec(tmp_path, ALLOCATION_KIND, "u1") is False
    assert written_specs(tmp_path, ALLOCATION_KIND) == ["u2_b"]
    assert read_specs([tmp_path]).device_for(UUID) is not None


@pytest.mark.parametrize("suffix", ["", "a/b", "../x", "a b", "é", "x" * 200])
def test_a_suffix_cannot_lead_elsewhere(tmp_path: Path, suffix: str) -> None:
    for act in (
        lambda: write_spec(tmp_path, ALLOCATION_KIND, [Device("a", ENV)], suffix),
        lambda: remove_spec(tmp_path, ALLOCATION_KIND, suffix),
    ):
        with pytest.raises(CdiError, match="part of a file's name"):
            act()
    assert list(tmp_path.iterdir()) == []


def test_a_files_name_needs_a_kind() -> None:
    with pytest.raises(CdiError, match="not <vendor>/<class>"):
        spec_name("../../etc", "u1")


@pytest.mark.parametrize(
    ("edits", "fault"),
    [
        (ContainerEdits(), "it has no containerEdits"),
        (ContainerEdits(env=("A",)), "env 'A' is not NAME=value"),
        (ContainerEdits(env=("=b",)), "env '=b' is not NAME=value"),
        (ContainerEdits(device_nodes=(DeviceNode(path="dev"),)), "device node 'dev'"),
        (
            ContainerEdits(device_nodes=(DeviceNode(path="/dev/x", permissions="rx"),)),
            "permissions 'rx'",
        ),
        (ContainerEdits(mounts=(Mount(host_path="", container_path="/x"),)), "mount: ''"),
        (ContainerEdits(mounts=(Mount(host_path="/x", container_path="x"),)), "mount: 'x'"),
        (ContainerEdits(hooks=(Hook(hook_name="start", path="/x"),)), "hook 'start' is not one"),
        (ContainerEdits(hooks=(Hook(hook_name="prestart", path="x"),)), "'x' is not an absolute"),
        (
            ContainerEdits(hooks=(Hook(hook_name="prestart", path="/x", env=("A",)),)),
            "env 'A' is not NAME=value",
        ),
        (
            ContainerEdits(hooks=(Hook(hook_name="prestart", path="/x", timeout=0),)),
            "a time-out of 0 s",
        ),
    ],
)
def test_what_a_runtime_would_refuse_is_not_written(edits: ContainerEdits, fault: str) -> None:
    with pytest.raises(CdiError, match=f"device bad: .*{re.escape(fault)}"):
        encode_spec(ALLOCATION_KIND, [Device("good", ENV), Device("bad", edits)])


@pytest.mark.parametrize(
    ("kind", "names", "fault"),
    [
        ("gpushare", ["a"], "kind 'gpushare'"),
        (ALLOCATION_KIND, [], "no devices"),
        (ALLOCATION_KIND, ["a/b"], "device name 'a/b'"),
        (ALLOCATION_KIND, ["a", "a"], "device a is in it twice"),
    ],
)
def test_nor_are_wrong_names(kind: str, names: list[str], fault: str) -> None:
    with pytest.raises(CdiError, match=fault):
        encode_spec(kind, [Device(name, ENV) for name in names])
