"""Which process belongs to which container, by the names that runtimes give their cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.node.processes import container_id, owners_of, processes_of
from tests.isolation.fake_proc import FakeProc

A, B, C = "a1" * 32, "b2" * 32, "c3" * 32
POD = "pod8d6c6d54-6e26-4b43-a1a9-9a2cf2e0a9f1"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


@pytest.mark.parametrize(
    "cgroup",
    [
        f"/kubepods/burstable/{POD}/{A}",
        f"/kubepods.slice/kubepods-pod8d6c.slice/cri-containerd-{A}.scope",
        f"/system.slice/containerd.service/kubepods-pod8d6c.slice:cri-containerd:{A}",
        f"/kubepods.slice/kubepods-pod8d6c.slice/crio-{A}.scope",
        f"/kubepods.slice/kubepods-pod8d6c.slice/crio-{A}.scope/container",
        f"/kubepods.slice/kubepods-pod8d6c.slice/docker-{A}.scope",
        f"/kubepods/{POD}/{A}/system.slice/docker-{B}.scope",  # a container in the container
        f"/docker/{C}/kubelet.slice/cri-containerd-{A}.scope",  # a node that is a container
        f"/../cri-containerd-{A}.scope",  # seen from a cgroup namespace
        f"12:pids:/kubepods/{POD}/{A}\n4:memory:/kubepods/{POD}/{A}/x\n0::/\n",  # version 1
    ],
)
def test_a_process_is_its_containers_by_the_outermost_id(proc: FakeProc, cgroup: str) -> None:
    proc.add(7, cgroup=cgroup)
    proc.add(6, cgroup=cgroup)
    seen = processes_of({A, B}, proc.path)
    assert seen.pids == {A: (6, 7)}
    assert seen.others


@pytest.mark.parametrize(
    "cgroup",
    [
        f"/kubepods.slice/crio-conmon-{A}.scope",
        f"/kubepods/{POD}/{A}0",
        f"/kubepods/{POD}/{A[:63]}",
        "/system.slice/kubelet.service",
        "/",
    ],
)
def test_what_only_looks_like_it_is_not(proc: FakeProc, cgroup: str) -> None:
    proc.add(7, cgroup=cgroup)
    seen = processes_of({A}, proc.path)
    assert seen.pids == {}
    assert not seen.others


def test_in_a_pid_namespace_of_its_own_no_others_are_seen(proc: FakeProc) -> None:
    proc.own(f"/kubepods/{POD}/{C}")
    proc.add(1, cgroup=f"/kubepods/{POD}/{C}")
    assert not processes_of({A}, proc.path).others
    proc.add(2, cgroup=f"/kubepods/{POD}/{B}")
    assert processes_of({A}, proc.path).others


def test_a_process_that_ends_meanwhile_is_passed_over(proc: FakeProc) -> None:
    proc.add(7, cgroup=f"/{A}")
    (proc.path / "8").mkdir()
    assert processes_of({A}, proc.path).pids == {A: (7,)}


def test_whose_a_process_is(proc: FakeProc) -> None:
    proc.add(5, cgroup=f"/kubepods/{POD}/{A}")
    proc.add(6, cgroup=f"/kubepods/{POD}/{B}/docker-{C}.scope")
    proc.add(7, cgroup=f"/kubepods/{POD}/{C}")
    proc.add(8, cgroup="/system.slice/Xorg")
    assert owners_of([5, 6, 7, 8, 9], {A, B}, proc.path) == {5: A, 6: B}


def test_this_machines_own_processes_can_be_read() -> None:
    assert processes_of({A}).pids == {}


def test_without_proc_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        processes_of({A}, tmp_path / "none")


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (f"containerd://{A}", A),
        (f"cri-o://{A}", A),
        (f"containerd://{A[:-1]}", None),
        (A, None),
        ("", None),
        (None, None),
    ],
)
def test_the_id_of_a_pods_status(reference: str | None, expected: str | None) -> None:
    assert container_id(reference) == expected
