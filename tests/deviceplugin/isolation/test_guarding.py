"""Containers that run unprotected are found by looking at them, and people are told."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web

from gpushare.contract import names
from gpushare.deviceplugin.announce import NOT_HELD
from gpushare.deviceplugin.isolation import guarding
from gpushare.isolation.backend import PRELOAD_IN_CONTAINER
from gpushare.node.mailbox import Record
from tests.deviceplugin.conftest import Plugin, Plugins
from tests.deviceplugin.fake_kubelet import FakeKubelet
from tests.deviceplugin.fake_node_api import FakeNodeApi, Write, node, pod
from tests.isolation.fake_proc import HELD, LIBCUDA, LIMITS, FakeProc, Root
from tests.kube.fake_api import eventually

FIRST, SECOND, OTHER = "a1" * 32, "b2" * 32, "0f" * 32


@dataclass
class Node:
    """A plugin, and the machine it looks at."""

    api: FakeNodeApi
    kubelet: FakeKubelet
    plugin: Plugin
    proc: FakeProc
    root: Root

    async def run(self, name: str, *ids: str, limits: bool = True) -> None:
        """A pod of one container for each id is admitted and runs."""
        self.api.put_pod(pod(name, *(2 for _ in ids), gpu=0))
        await self.kubelet.admit(self.api.pods[name])
        uid = f"uid-{name}"
        for given in self.kubelet.pods[uid].allocated.values():
            told = tuple((one.uuid, one.limit_bytes, one.reserve_bytes) for one in LIMITS)
            self.plugin.app.guard.mailboxes.renew(
                Record(
                    ids=tuple(sorted(given)),
                    env={},
                    limits=told if limits else (),
                    library=str(self.root.library),
                )
            )
        await self.started(name, *ids)
        await eventually(lambda: self.api.annotation(names.ANNOTATION_ASSIGNED, pod=name) == "true")

    async def started(self, name: str, *ids: str) -> None:
        """Its containers are these now."""
        statuses = [
            {"name": f"c{index}", "containerID": f"containerd://{id_}"}
            for index, id_ in enumerate(ids)
        ]
        self.api.change_pod(name, status={"phase": "Running", "containerStatuses": statuses})
        state = self.plugin.app.state
        await eventually(
            lambda: any(
                one.container_id == f"containerd://{ids[-1]}"
                for status in [state.pods[f"uid-{name}"].status]
                for one in (status and status.container_statuses) or ()
            )
        )

    def process(self, pid: int, of: str, *maps: str) -> None:
        self.proc.add(pid, cgroup=f"/kubepods/pod1/{of}", root=self.root.path, maps=maps)

    async def look(self, times: int = 2) -> None:
        for _ in range(times):
            await self.plugin.app.guard.look()

    def note(self, name: str = "p") -> str | None:
        return self.api.annotation(names.ANNOTATION_UNPROTECTED, pod=name)

    @property
    def notes(self) -> list[Write]:
        """Every write of the annotation."""
        return [w for w in self.api.writes if names.ANNOTATION_UNPROTECTED in w.annotations]


@pytest.fixture
async def begin(
    api: FakeNodeApi,
    kubelet: FakeKubelet,
    plugins: Plugins,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], Awaitable[Node]]:
    monkeypatch.setattr(guarding, "POLL_S", 1000)
    monkeypatch.setattr(os, "fstatvfs", lambda file: SimpleNamespace(f_flag=os.ST_RDONLY))

    async def start() -> Node:
        api.put_node(node())
        plugin = await plugins.start()
        proc = FakeProc(tmp_path / "proc")
        proc.add(1, cgroup=f"/kubepods/pod0/{OTHER}")
        plugin.app.guard.proc = proc.path
        root = Root(tmp_path / "root", tmp_path / "host" / "library.so")
        return Node(api, kubelet, plugin, proc, root)

    return start


Begin = Callable[[], Awaitable[Node]]


async def test_a_container_that_is_held_is_not_written_about(begin: Begin) -> None:
    n1 = await begin()
    await n1.run("p", FIRST)
    n1.process(7, FIRST, *HELD)
    await n1.look(4)
    assert n1.notes == []
    assert n1.plugin.app.guard.unprotected == {}
    assert n1.plugin.app.guard.trouble is None


async def test_an_unprotected_container_is_told_of_once_after_two_looks(begin: Begin) -> None:
    n1 = await begin()
    await n1.run("p", FIRST)
    n1.process(7, FIRST, LIBCUDA)
    await n1.look(1)
    assert n1.plugin.app.guard.unprotected == {}
    await n1.look(3)
    why = n1.plugin.app.guard.unprotected["uid-p", "c0"]
    assert "uses the GPU without the library" in why
    assert n1.note() == f"c0: {why}"
    assert len(n1.notes) == 1
    await eventually(lambda: NOT_HELD in n1.api.reasons("Pod", "p"))
    assert n1.api.reasons("Pod", "p").count(NOT_HELD) == 1
    await eventually(lambda: "unprotected" in n1.plugin.metrics)


async def test_what_is_seen_once_only_is_not_told(begin: Begin) -> None:
    n1 = await begin()
    await n1.run("p", FIRST)
    n1.process(7, FIRST, LIBCUDA)
    await n1.look(1)
    n1.proc.map(7, *HELD)
    await n1.look(1)
    n1.proc.map(7, LIBCUDA)
    await n1.look(1)
    assert n1.notes == []


async def test_it_stays_so_until_the_container_was_started_again(begin: Begin) -> None:
    n1 = await begin()
    await n1.run("p", FIRST)
    n1.process(7, FIRST, LIBCUDA)
    await n1.look()
    n1.proc.map(7, *HELD)
    await n1.look()
    assert n1.note() is not None
    await n1.started("p", SECOND)
    await n1.look()  # nothing runs yet
    assert n1.note() is not None
    n1.process(8, SECOND, *HELD)
    await n1.look(1)
    assert n1.note() is not None
    await n1.look(1)
    assert n1.note() is None
    assert n1.plugin.app.guard.unprotected == {}
    assert len(n1.notes) == 2


async def test_every_container_of_a_pod_is_named(begin: Begin) -> None:
    n1 = await begin()
    await n1.run("p", FIRST, SECOND)
    n1.process(7, FIRST, LIBCUDA)
    n1.process(8, SECOND, *HELD)
    await n1.look()
    assert (n1.note() or "").startswith("c0: its program")
    n1.root.at(PRELOAD_IN_CONTAINER).unlink()
    await n1.look()
    assert f"; c1: it has no {PRELOAD_IN_CONTAINER}" in (n1.note() or "")
    assert len(n1.notes) == 2


async def test_a_container_without_limits_is_let_be(begin: Begin) -> None:
    n1 = await begin()
    await n1.run("p", FIRST, limits=False)
    n1.process(7, FIRST, LIBCUDA)
    await n1.look()
    assert n1.notes == []


async def test_a_write_that_failed_is_done_again(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    n1 = await begin()
    await n1.run("p", FIRST)
    n1.process(7, FIRST, LIBCUDA)
    n1.api.away = True
    await n1.look(3)
    assert caplog.text.count(f"cannot write {names.ANNOTATION_UNPROTECTED}") == 1
    n1.api.away = False
    await n1.look(1)
    assert n1.note() is not None


async def test_a_write_is_done_again_though_the_container_has_ended(begin: Begin) -> None:
    n1 = await begin()
    await n1.run("p", FIRST)
    n1.process(7, FIRST, LIBCUDA)
    n1.api.away = True
    await n1.look()
    n1.api.away = False
    (n1.proc.path / "7" / "cgroup").unlink()
    await n1.look(1)
    assert n1.note() is not None


async def test_a_pod_that_may_not_be_written_is_in_nobodys_way(begin: Begin) -> None:
    n1 = await begin()
    await n1.run("p", FIRST)
    await n1.run("q", SECOND)
    n1.process(7, FIRST, LIBCUDA)
    n1.process(8, SECOND, LIBCUDA)

    async def refuse(write: Write) -> None:
        if write.name == "p":
            raise web.HTTPForbidden

    n1.api.on_patch = refuse
    await n1.look()
    assert n1.note("p") is None
    assert n1.note("q") is not None


async def test_a_pod_that_is_gone_is_forgotten(begin: Begin) -> None:
    n1 = await begin()
    await n1.run("p", FIRST)
    n1.process(7, FIRST, LIBCUDA)
    n1.api.hold()
    n1.api.delete_pod("p")
    await n1.look()  # the patch finds no pod
    assert n1.plugin.app.guard.unprotected != {}
    n1.api.release()
    await eventually(lambda: not n1.plugin.app.state.pods)
    await n1.look(1)
    assert n1.plugin.app.guard.unprotected == {}


async def test_what_an_earlier_plugin_wrote_goes_once_the_pod_was_seen_in_order(
    begin: Begin,
) -> None:
    n1 = await begin()
    await n1.run("p", FIRST)
    metadata = {"annotations": {names.ANNOTATION_UNPROTECTED: "c0: of old"}}
    n1.api.change_pod("p", metadata=metadata)
    known = n1.plugin.app.state.pods
    await eventually(
        lambda: names.ANNOTATION_UNPROTECTED in (known["uid-p"].metadata.annotations or {})
    )
    await n1.look()
    assert n1.note() == "c0: of old"  # nothing of it runs
    n1.process(7, FIRST, *HELD)
    await n1.look(1)
    assert n1.note() == "c0: of old"
    await n1.look(1)
    assert n1.note() is None


async def test_without_the_hosts_processes_it_says_so_once(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    n1 = await begin()
    await n1.run("p", FIRST)
    (n1.proc.path / "1" / "cgroup").write_text("0::/\n")
    await n1.look(3)
    assert caplog.text.count("run the device plugin with hostPID") == 1
    assert n1.notes == []
    assert n1.plugin.app.guard.trouble is not None


async def test_without_the_right_to_look_it_says_so_once(
    begin: Begin, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    n1 = await begin()
    await n1.run("p", FIRST)
    n1.process(7, FIRST, LIBCUDA)
    real = os.open

    def refuse(path: object, *args: object, **kwargs: object) -> int:
        if str(path).endswith("/root"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    await n1.look(3)
    assert caplog.text.count("SYS_PTRACE") == 1
    assert n1.notes == []


async def test_the_guard_looks_by_itself(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "POLL_S", 0.02)  # before the plugin starts
    n1 = await begin()
    await n1.run("p", FIRST)
    n1.process(7, FIRST, LIBCUDA)
    await eventually(lambda: n1.note() is not None)
