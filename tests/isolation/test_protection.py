"""What a container looks like from outside that is held to its limit, and one that is not."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare.isolation import protection
from gpushare.isolation.backend import (
    LIBRARY_IN_CONTAINER,
    LIMITS_IN_CONTAINER,
    PRELOAD_IN_CONTAINER,
)
from gpushare.isolation.limits import MIB, GpuLimit, encode_limits
from gpushare.isolation.protection import Ended, Given, NotAllowed, why_unprotected
from tests.isolation.fake_proc import HELD, LIBC, LIBCUDA, LIMITS, FakeProc, Root


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root", tmp_path / "host" / "library.so")


@pytest.fixture
def given(root: Root) -> Given:
    return Given(LIMITS, root.library)


@pytest.fixture(autouse=True)
def _read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as mounted read-only, unless a test says otherwise."""
    monkeypatch.setattr(os, "fstatvfs", lambda file: SimpleNamespace(f_flag=os.ST_RDONLY))


def look(proc: FakeProc, root: Root, given: Given) -> str | None:
    """At one process that does nothing with a GPU."""
    return why_unprotected(proc.path, [proc.add(7, root=root.path, maps=(LIBC,))], given)


# -- files ---------------------------------------------------------------------------------------


def test_with_all_files_in_place_it_is_protected(proc: FakeProc, root: Root, given: Given) -> None:
    assert look(proc, root, given) is None


def test_limits_that_can_be_written_to_are_none(
    proc: FakeProc, root: Root, given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fstatvfs", lambda file: SimpleNamespace(f_flag=0))
    assert "read-only" in (look(proc, root, given) or "")


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        (PRELOAD_IN_CONTAINER, "/lib/mine.so\n", "is another"),
        (PRELOAD_IN_CONTAINER, f"/lib/mine.so {LIBRARY_IN_CONTAINER}\n", "is another"),
        (PRELOAD_IN_CONTAINER, f"{LIBRARY_IN_CONTAINER}.old", "is another"),
        (PRELOAD_IN_CONTAINER, "", "is another"),
        (PRELOAD_IN_CONTAINER, f" {LIBRARY_IN_CONTAINER}:/lib/mine.so\n", None),
        (LIBRARY_IN_CONTAINER, "another library", "not the node's"),
        (LIBRARY_IN_CONTAINER, "", "not the node's"),
        (LIBRARY_IN_CONTAINER, "\x7fELF and so on", None),
        (LIMITS_IN_CONTAINER, "no limits", "something else"),
        (
            LIMITS_IN_CONTAINER,
            encode_limits([GpuLimit(LIMITS[0].uuid, 9999 * MIB, 512 * MIB)]),
            "something else",
        ),
    ],
)
def test_what_stands_in_the_files_counts(
    proc: FakeProc, root: Root, given: Given, path: str, text: str, expected: str | None
) -> None:
    root.write(path, text)
    why = look(proc, root, given)
    assert why == expected if expected is None else (why and expected in why)


@pytest.mark.parametrize("path", [PRELOAD_IN_CONTAINER, LIBRARY_IN_CONTAINER, LIMITS_IN_CONTAINER])
def test_a_missing_file_is_named(proc: FakeProc, root: Root, given: Given, path: str) -> None:
    root.at(path).unlink()
    assert path in (look(proc, root, given) or "")


@pytest.mark.parametrize("path", [PRELOAD_IN_CONTAINER, LIBRARY_IN_CONTAINER, LIMITS_IN_CONTAINER])
def test_no_fifo_holds_it_up(proc: FakeProc, root: Root, given: Given, path: str) -> None:
    root.at(path).unlink()
    os.mkfifo(root.at(path))
    assert "no regular file" in (look(proc, root, given) or "")


def test_links_are_followed_within_the_root_only(
    proc: FakeProc, root: Root, given: Given, tmp_path: Path
) -> None:
    etc = root.at("/etc")
    etc.rename(root.at("/etc-of-the-image"))
    etc.symlink_to("/etc-of-the-image")
    assert look(proc, root, given) is None
    (tmp_path / "preload").write_text(LIBRARY_IN_CONTAINER)
    list_ = root.at("/etc-of-the-image/ld.so.preload")
    list_.unlink()
    list_.symlink_to(tmp_path / "preload")
    assert "it has no" in (why_unprotected(proc.path, [7], given) or "")


def test_a_library_that_has_gone_from_the_host_is_believed(
    proc: FakeProc, root: Root, given: Given
) -> None:
    root.library.unlink()
    assert look(proc, root, given) is None


def test_the_oldest_process_tells_of_the_files(
    proc: FakeProc, root: Root, given: Given, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    proc.add(900, root=root.path)  # pids begin anew at some time
    proc.add(8, root=tmp_path / "empty", name="sshd")
    assert why_unprotected(proc.path, [8, 900], given) is None


# -- programs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("maps", "files", "protected"),
    [
        (HELD, ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"), True),
        ((LIBC, f"{LIBRARY_IN_CONTAINER} (deleted)", LIBCUDA), (), True),
        ((LIBC,), ("/dev/null", "socket:[1]"), True),  # a glibc program without a GPU
        ((), (), True),  # a static one
        ((), ("/dev/nvidiactl", "/dev/nvidia-modeset", "/srv/dev/nvidia0"), True),
        (("/lib/ld-musl-x86_64.so.1", LIBCUDA), (), False),
        ((LIBC, LIBCUDA + " (deleted)"), (), False),
        ((LIBC, f"/tmp{LIBRARY_IN_CONTAINER}", LIBCUDA), (), False),
        ((LIBC, f"/tmp/x {LIBRARY_IN_CONTAINER}", LIBCUDA), (), False),
        (("/dev/nvidia0",), (), False),
        ((), ("/dev/nvidia13",), False),
        ((), ("/dev/null", "/dev/nvidia-uvm"), False),
    ],
)
def test_a_program_that_uses_the_gpu_must_have_the_library(
    proc: FakeProc,
    root: Root,
    given: Given,
    maps: tuple[str, ...],
    files: tuple[str, ...],
    protected: bool,
) -> None:
    shell = proc.add(7, root=root.path, name="sh")
    child = proc.add(8, root=root.path, maps=maps, files=files, name="trainer")
    why = why_unprotected(proc.path, [shell, child], given)
    assert (why is None) == protected
    assert why is None or "'trainer' uses the GPU without the library" in why


def test_a_programs_name_cannot_spoil_the_text(proc: FakeProc, root: Root, given: Given) -> None:
    proc.add(7, root=root.path, maps=(LIBCUDA,), name="a\x1b[2J\nb" * 100)
    why = why_unprotected(proc.path, [7], given)
    assert why is not None
    assert why.isprintable()
    assert len(why) < 200


# -- what cannot be told -------------------------------------------------------------------------


def test_processes_that_have_ended_do_not_count(proc: FakeProc, root: Root, given: Given) -> None:
    (proc.path / "6").mkdir()
    (proc.path / "9").mkdir()
    proc.add(7, root=root.path)
    assert why_unprotected(proc.path, [5, 6, 7, 9], given) is None
    with pytest.raises(Ended):
        why_unprotected(proc.path, [5, 6], given)


@pytest.mark.parametrize("what", ["root", "maps", "fd"])
def test_what_may_not_be_read_is_no_verdict(
    proc: FakeProc, root: Root, given: Given, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse(path: object, *args: object, **kwargs: object) -> object:
        if str(path).endswith(f"/7/{what}"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    module, name = {"root": (os, "open"), "maps": (protection, "open"), "fd": (os, "scandir")}[what]
    real = getattr(module, name, open)
    monkeypatch.setattr(module, name, refuse, raising=False)
    with pytest.raises(NotAllowed, match="SYS_PTRACE"):
        look(proc, root, given)
    if what != "root":  # another process may be seen, and found unprotected
        proc.add(8, root=root.path, maps=(LIBCUDA,))
        assert why_unprotected(proc.path, [7, 8], given) is not None
