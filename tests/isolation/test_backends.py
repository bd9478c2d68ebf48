"""Deciding for a backend, preparing an allocation, installing on the host."""

from pathlib import Path

import pytest

from gpushare.isolation.backend import Interposer, NoIsolation
from gpushare.isolation.installing import install, remove_others
from gpushare.isolation.limits import MIB, GpuLimit, decode_limits
from gpushare.isolation.probe import Backend, Facts, GpuFacts, decide
from gpushare.isolation.region import RegionError

UUIDS = [f"GPU-00000000-0000-4000-8000-00000000000{i}" for i in (1, 2)]
T4 = GpuFacts(UUIDS[0], 14917)
LIMITS = [GpuLimit("GPU-00000000-0000-4000-8000-000000000001", 4096 * MIB, 320 * MIB)]


@pytest.mark.parametrize(
    ("facts", "backend", "problem"),
    [
        (Facts((T4,), library="/l"), Backend.INTERPOSER, None),
        (Facts((T4,)), Backend.NONE, "not installed"),
        (Facts((), library="/l"), Backend.NONE, "no GPU"),
        (Facts((GpuFacts(UUIDS[0], 0),), library="/l"), Backend.NONE, "no memory"),
        (Facts((GpuFacts("GPU-1", 14917),), library="/l"), Backend.NONE, "no UUID"),
        (
            Facts((GpuFacts(UUIDS[0], 96000, host_page_tables=True),), library="/l"),
            Backend.NONE,
            "operating system manages",
        ),
        (Facts((T4,), library="/l", region_problem="no tmpfs"), Backend.NONE, "no tmpfs"),
    ],
)
def test_the_backend_of_a_node(facts: Facts, backend: Backend, problem: str | None) -> None:
    answer = decide(facts)
    assert answer.backend is backend
    assert (problem is None) == (not answer.problems)
    if problem:
        assert problem in " ".join(answer.problems)


def test_one_gpu_that_cannot_be_isolated_does_not_cost_the_others() -> None:
    answer = decide(Facts((T4, GpuFacts(UUIDS[1], 0)), library="/l"))
    assert answer.backend is Backend.INTERPOSER
    assert list(answer.refused) == [UUIDS[1]]


@pytest.mark.parametrize(
    ("version", "function", "cgroup_v2", "mig", "expected"),
    [
        ("615.10", True, True, False, True),
        ("614.99", True, True, False, False),
        ("615.10", False, True, False, False),
        ("615.10", True, False, False, False),
        ("615.10", True, True, True, False),
        ("", True, True, False, False),
    ],
)
def test_the_drivers_own_limits_are_detected_and_not_used(
    version: str, function: bool, cgroup_v2: bool, mig: bool, expected: bool
) -> None:
    answer = decide(
        Facts((GpuFacts(UUIDS[0], 14917, mig=mig),), version, function, cgroup_v2, "/l")
    )
    assert answer.backend is Backend.INTERPOSER
    assert bool(answer.notes) is expected


def test_an_allocation_is_prepared_once_and_found_again(tmp_path: Path) -> None:
    backend = Interposer(Path("/opt/lib.so"), tmp_path / "files")
    edits = backend.prepare("a1", LIMITS)
    inodes = {mount.host_path: Path(mount.host_path).stat().st_ino for mount in edits.mounts[1:]}
    assert backend.prepare("a1", LIMITS) == edits
    assert inodes == {path: Path(path).stat().st_ino for path in inodes}
    mounts = {mount.container_path: mount for mount in edits.mounts}
    assert decode_limits(Path(mounts["/etc/gpushare/limits"].host_path).read_text()) == (LIMITS[0],)
    assert [m.container_path for m in edits.mounts if not m.read_only] == ["/etc/gpushare/region"]
    backend.forget("a1")
    backend.forget("a1")
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden"])
def test_no_allocation_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(RegionError):
        Interposer(Path("/opt/lib.so"), tmp_path).prepare(name, LIMITS)


def test_without_isolation_a_container_gets_nothing() -> None:
    assert NoIsolation().prepare("a1", LIMITS).mounts == ()


def test_each_build_has_a_directory_of_its_own(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"one")
    first = install([library], tmp_path / "home")
    assert install([library], tmp_path / "home") == first
    library.write_bytes(b"two")
    second = install([library], tmp_path / "home")
    assert (first / "lib.so").read_bytes() == b"one"
    assert (second / "lib.so").read_bytes() == b"two"
    assert remove_others(tmp_path / "home", [second]) == [first]


def test_a_broken_installation_is_done_again(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"one")
    folder = install([library], tmp_path / "home")
    (folder / "lib.so").chmod(0o644)
    (folder / "lib.so").write_bytes(b"on")
    assert install([library], tmp_path / "home") == folder
    assert (folder / "lib.so").read_bytes() == b"one"
