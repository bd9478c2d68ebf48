"""A node that promises isolation: what its containers are given, and what it does if it cannot."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gpushare.contract import names
from gpushare.deviceplugin.injection.choosing import Choice
from gpushare.deviceplugin.isolation import isolator
from gpushare.isolation.limits import MIB, decode_limits
from gpushare.isolation.region import RegionError
from gpushare.node.mailbox import Mailboxes, allocation_id
from tests.deviceplugin.conftest import GpuFile, Plugin, Plugins
from tests.deviceplugin.fake_kubelet import FakeKubelet, Rejected
from tests.deviceplugin.fake_node_api import NODE, FakeNodeApi, Json, node, pod
from tests.kube.fake_api import eventually

UUID = "GPU-00000000-0000-4000-8000-00000000000{}"

Start = Callable[..., Awaitable[Plugin]]


@pytest.fixture
def library(folder: Path) -> Path:
    path = folder / "libgpushare-interposer.so"
    build(path)
    return path


def build(library: Path, contents: bytes = b"as it was built") -> None:
    library.write_bytes(contents)


def installed(folder: Path) -> set[Path]:
    return set((folder / "home" / "bin").glob("*/*.so"))


def lose(library: Path) -> None:
    """Here, and where it was installed."""
    library.unlink()
    for path in (library.parent / "home" / "bin").glob(f"*/{library.name}"):
        path.unlink()


@pytest.fixture
def start(
    api: FakeNodeApi,
    plugins: Plugins,
    gpus: GpuFile,
    folder: Path,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Start:
    """Starts a plugin on a node that promises isolation; its files lie in a plain directory."""
    monkeypatch.setattr(isolator, "POLL_S", 0.05)
    gpus.write(UUID.format(1), UUID.format(2))

    async def started(*, mode: str = "cgpu", cdi: bool = True, **options: object) -> Plugin:
        runtime = "containerd://2.1.4" if cdi else ""
        api.put_node(node(labels={names.LABEL_MODE: mode}, runtime=runtime))
        return await plugins.start(**{"library": library, **options})

    return started


def label(api: FakeNodeApi) -> str | None:
    value: str | None = api.nodes[NODE]["metadata"]["labels"].get(names.LABEL_ISOLATION)
    return value


def opting_out(one: Json) -> Json:
    one["spec"]["containers"][0]["env"] = [{"name": "CGPU_DISABLE", "value": "true"}]
    return one


async def test_a_container_is_given_its_limit(
    api: FakeNodeApi, kubelet: FakeKubelet, start: Start, folder: Path
) -> None:
    await start()
    await eventually(lambda: label(api) == "interposer")
    api.put_pod(pod("p", 3, gpu=1))
    answer = (await kubelet.admit(api.pods["p"]))["c0"]
    assert not answer.mounts  # its CDI device brings them
    name = allocation_id(kubelet.ids_of("uid-p"))
    (limit,) = decode_limits((folder / "run" / name / "limits").read_text())
    assert (limit.uuid, limit.limit_bytes) == (UUID.format(2), 3226 * MIB)
    assert limit.reserve_bytes == 512 * MIB
    assert "/etc/ld.so.preload" in (next((folder / "cdi").glob(f"*{name}*"))).read_text()


async def test_without_cdi_the_answer_brings_the_files(
    api: FakeNodeApi, kubelet: FakeKubelet, start: Start
) -> None:
    await start(injection=Choice.ENV, cdi=False)
    api.put_pod(pod("p", 3, gpu=1))
    answer = (await kubelet.admit(api.pods["p"]))["c0"]
    assert {mount.container_path: mount.read_only for mount in answer.mounts} == {
        "/usr/lib/gpushare/libgpushare-interposer.so": True,
        "/etc/ld.so.preload": True,
        "/etc/gpushare/limits": True,
        "/etc/gpushare/region": False,
    }
    assert all(map(os.path.isfile, (mount.host_path for mount in answer.mounts)))


async def test_mode_share_holds_nobody(
    api: FakeNodeApi, kubelet: FakeKubelet, start: Start, folder: Path
) -> None:
    await start(mode="share")
    await eventually(lambda: label(api) == "none")
    api.put_pod(pod("p", 3, gpu=1))
    await kubelet.admit(api.pods["p"])
    name = allocation_id(kubelet.ids_of("uid-p"))
    assert "ld.so.preload" not in (next((folder / "cdi").glob(f"*{name}*"))).read_text()
    assert not (folder / "run").exists()


async def test_the_label_is_followed_and_what_runs_keeps_its_limit(
    api: FakeNodeApi, kubelet: FakeKubelet, start: Start, folder: Path
) -> None:
    plugin = await start()
    api.put_pod(pod("p", 3, gpu=1))
    await kubelet.admit(api.pods["p"])
    name = allocation_id(kubelet.ids_of("uid-p"))
    api.change_node(labels={names.LABEL_MODE: "share"})
    await eventually(lambda: label(api) == "none")
    plugin.app.injector.tend()
    assert (folder / "run" / name / "region").exists()
    assert len(kubelet.healthy) == 30


async def test_a_share_no_larger_than_a_context_is_refused_with_a_sentence(
    api: FakeNodeApi, kubelet: FakeKubelet, start: Start
) -> None:
    await start(reserve_mib=1100)
    api.put_pod(pod("p", 1, gpu=1))
    with pytest.raises(Rejected, match=r"1 of 15 units of GPU .* are 1075 MiB, and a CUDA context"):
        await kubelet.admit(api.pods["p"])
    await eventually(lambda: "GPUMemoryRefused" in api.reasons("Pod", "p"))


@pytest.mark.parametrize("allowed", [False, True])
async def test_opting_out_is_for_the_administrator_to_allow(
    api: FakeNodeApi, kubelet: FakeKubelet, start: Start, folder: Path, allowed: bool
) -> None:
    await start(allow_cgpu_disable=allowed)
    api.put_pod(opting_out(pod("p", 3, gpu=1)))
    api.put_pod(pod("q", 3, gpu=1, age=1))
    await kubelet.admit(api.pods["p"])
    await kubelet.admit(api.pods["q"])
    held = {
        name: (folder / "run" / allocation_id(kubelet.ids_of(f"uid-{name}"))).exists()
        for name in "pq"
    }
    assert held == {"p": not allowed, "q": True}


async def test_a_node_that_cannot_isolate_takes_no_new_pods(
    api: FakeNodeApi, kubelet: FakeKubelet, start: Start, library: Path
) -> None:
    await start()
    api.put_pod(pod("p", 3, gpu=1))
    await kubelet.admit(api.pods["p"])
    api.change_node(labels={names.LABEL_MODE: "share"})
    await eventually(lambda: label(api) == "none")
    lose(library)
    api.change_node(labels={names.LABEL_MODE: "cgpu"})
    await eventually(lambda: len(kubelet.healthy) == 3)
    assert kubelet.healthy == kubelet.ids_of("uid-p")
    assert len(kubelet.devices) == 30
    assert label(api) == "none"
    await eventually(lambda: "GPUMemoryNotIsolated" in api.reasons("Node", NODE))
    build(library)
    await eventually(lambda: len(kubelet.healthy) == 30)
    await eventually(lambda: label(api) == "interposer")


async def test_what_the_kubelet_asks_before_it_has_heard_of_it_is_refused(
    api: FakeNodeApi,
    kubelet: FakeKubelet,
    start: Start,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rather than started without a limit."""
    plugin = await start()
    api.put_pod(pod("p", 3, gpu=1))
    await eventually(lambda: "uid-p" in plugin.app.state.pods)
    assert len(kubelet.healthy) == 30
    lose(library)
    with pytest.raises(Rejected, match="cannot hold containers to their share"):
        await kubelet.admit(api.pods["p"])
    # Its ids count for it until the kubelet has told that it failed; nothing else is free.
    await eventually(lambda: len(kubelet.healthy) == 3)


async def test_unless_it_is_told_to(api: FakeNodeApi, kubelet: FakeKubelet, start: Start) -> None:
    await start(library=None, allow_unisolated=True)
    assert len(kubelet.healthy) == 30
    await eventually(lambda: label(api) == "none")
    await eventually(lambda: "GPUMemoryNotIsolated" in api.reasons("Node", NODE))
    assert "--allow-unisolated allows" in api.messages("Node", NODE)[-1]


async def test_what_has_no_tmpfs_is_told(
    api: FakeNodeApi, kubelet: FakeKubelet, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(path: Path) -> None:
        raise RegionError(f"no tmpfs can be mounted on {path}")

    monkeypatch.setattr(isolator, "provide", none)
    await start()
    await eventually(lambda: any("no tmpfs" in m for m in api.messages("Node", NODE)))
    assert not kubelet.healthy


async def test_a_gpu_that_cannot_be_isolated_takes_nothing_the_others_do(
    api: FakeNodeApi, kubelet: FakeKubelet, start: Start, gpus: GpuFile
) -> None:
    gpus.write(UUID.format(1), "GPU-b")
    await start()
    await eventually(lambda: len(kubelet.healthy) == 15)
    await eventually(lambda: any("cannot be isolated" in m for m in api.messages("Node", NODE)))


async def test_a_sandbox_that_was_never_tested_is_refused(
    api: FakeNodeApi, kubelet: FakeKubelet, start: Start
) -> None:
    await start()
    one = pod("p", 3, gpu=1)
    one["spec"]["runtimeClassName"] = "kata-qemu"
    api.put_pod(one)
    with pytest.raises(Rejected, match="runtime class kata-qemu is a sandbox"):
        await kubelet.admit(api.pods["p"])


async def test_an_upgrade_leaves_a_container_its_own_library(
    api: FakeNodeApi, kubelet: FakeKubelet, start: Start, folder: Path, library: Path
) -> None:
    before = await start()
    api.put_pod(pod("p", 3, gpu=1))
    await kubelet.admit(api.pods["p"])
    ids = kubelet.ids_of("uid-p")
    first = before.app.isolator.library
    assert first is not None
    await before.stop()
    build(library, b"of the next version")
    after = await start()
    api.put_pod(pod("q", 3, gpu=1, age=1))
    await kubelet.admit(api.pods["q"])
    second = after.app.isolator.library
    assert second is not None
    assert second != first
    specs = {
        name: next(
            (folder / "cdi").glob(f"*{allocation_id(kubelet.ids_of(f'uid-{name}'))}*")
        ).read_text()
        for name in "pq"
    }
    assert str(first) in specs["p"]
    assert str(second) in specs["q"]
    after.app.retiring.retire()
    assert installed(folder) == {first, second}
    api.delete_pod("p")
    kubelet.forget("uid-p")
    Mailboxes(folder / "home" / "allocations").remove(allocation_id(ids))
    after.app.retiring.retire()
    assert installed(folder) == {second}


@pytest.mark.parametrize("how", ["removed", "emptied", "a directory"])
async def test_a_library_that_somebody_broke_is_installed_again(
    api: FakeNodeApi, kubelet: FakeKubelet, start: Start, library: Path, how: str
) -> None:
    plugin = await start()
    installed = plugin.app.isolator.library
    assert installed is not None
    spoil(installed, how)
    api.put_pod(pod("p", 3, gpu=1))
    await kubelet.admit(api.pods["p"])
    assert contents(installed) == contents(library)
    spoil(installed, how)
    plugin.app.injector.tend()
    assert contents(installed) == contents(library)


def spoil(library: Path, how: str) -> None:
    library.unlink()
    if how == "emptied":
        library.write_bytes(b"")
    elif how == "a directory":
        library.mkdir()


def contents(library: Path) -> bytes:
    return library.read_bytes()
