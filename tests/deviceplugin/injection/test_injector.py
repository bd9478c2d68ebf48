"""What the kubelet is told of a container's GPU, and what changes it while the plugin runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.contract import names
from gpushare.deviceplugin.injection import injector
from gpushare.deviceplugin.injection.choosing import Choice
from gpushare.deviceplugin.sources import HOOK
from gpushare.node.cdi import read_specs
from gpushare.node.mailbox import allocation_id
from tests.deviceplugin.conftest import GpuFile, Plugins
from tests.deviceplugin.fake_kubelet import FakeKubelet, Rejected
from tests.deviceplugin.fake_node_api import NODE, FakeNodeApi, never, node, pod
from tests.kube.fake_api import eventually

CONTAINERD = "containerd://2.1.4"
NVIDIA = {"GPU-a": "nvidia.com/gpu=GPU-a", "GPU-b": "nvidia.com/gpu=GPU-b"}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injector, "POLL_S", 0.02)


@pytest.fixture
def specify(folder: Path) -> Callable[..., None]:
    """Writes NVIDIA's specification, with devices of these GPUs; of none: removes it."""

    def write(*uuids: str) -> None:
        path = folder / "cdi" / "nvidia.json"
        path.parent.mkdir(exist_ok=True)
        if not uuids:
            path.unlink()
            return
        devices = [
            {"name": u, "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}} for u in uuids
        ]
        fresh = path.with_suffix(".new")
        fresh.write_text(
            json.dumps({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices})
        )
        fresh.replace(path)

    return write


def mailbox(folder: Path, ids: set[str]) -> Path:
    return folder / "home" / "allocations" / allocation_id(ids)


def why_not(api: FakeNodeApi) -> list[str]:
    """The messages of the node's Events that nothing is offered."""
    return [
        event["message"]
        for event in api.events
        if event.get("reason") == "GPUMemoryNotOffered" and event["involvedObject"]["name"] == NODE
    ]


def published(api: FakeNodeApi) -> str | None:
    value = api.annotation(names.ANNOTATION_NODE)
    return json.loads(value)["injection"] if value else None


async def test_the_gpus_device_and_one_of_our_own_are_answered(
    api: FakeNodeApi,
    kubelet: FakeKubelet,
    plugins: Plugins,
    folder: Path,
    specify: Callable[..., None],
) -> None:
    specify("GPU-a", "GPU-b")
    api.put_node(node(runtime=CONTAINERD))
    api.put_pod(pod("p", 4, gpu=1))
    await plugins.start(fake=False)
    answers = await kubelet.admit(api.pods["p"])
    ids = kubelet.ids_of("uid-p")
    own = f"gpushare.dev/allocation={allocation_id(ids)}"
    assert [d.name for d in answers["c0"].cdi_devices] == [NVIDIA["GPU-b"], own]
    assert answers["c0"].envs[names.ENV_VISIBLE_DEVICES] == "GPU-b"
    assert own in read_specs([folder / "cdi"]).files
    assert mailbox(folder, ids).is_dir()
    await eventually(lambda: published(api) == "cdi")


async def test_two_gpus_are_two_devices(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, specify: Callable[..., None]
) -> None:
    specify("GPU-a", "GPU-b")
    api.put_node(node(runtime=CONTAINERD))
    api.put_pod(pod("p", 8, gpus=(0, 1)))
    await plugins.start(fake=False)
    answers = await kubelet.admit(api.pods["p"])
    assert [d.name for d in answers["c0"].cdi_devices][:2] == [NVIDIA["GPU-a"], NVIDIA["GPU-b"]]


@pytest.mark.parametrize(("fake", "way"), [(True, "fake"), (False, "env")])
async def test_with_the_environment_alone_no_device_is_named(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, folder: Path, fake: bool, way: str
) -> None:
    api.put_node(node(runtime=CONTAINERD))
    api.put_pod(pod("p", 4, gpu=1))
    await plugins.start(fake=fake, injection=Choice.ENV)
    answers = await kubelet.admit(api.pods["p"])
    assert list(answers["c0"].cdi_devices) == []
    assert answers["c0"].envs[names.ENV_VISIBLE_DEVICES] == "GPU-b"
    assert not (folder / "home").exists()
    await eventually(lambda: published(api) == way)


async def test_without_a_specification_nothing_is_offered_until_there_is_one(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, specify: Callable[..., None]
) -> None:
    api.put_node(node(runtime=CONTAINERD))
    await plugins.start(fake=False)
    await eventually(lambda: why_not(api) != [])
    assert "2 of 2 GPUs" in why_not(api)[0]
    assert not kubelet.healthy
    specify("GPU-a", "GPU-b")
    await eventually(lambda: len(kubelet.healthy) == 30)
    specify()
    await eventually(lambda: kubelet.devices == {})
    await eventually(lambda: api.nodes[NODE]["status"]["capacity"][names.RESOURCE_COUNT] == "0")


async def test_a_specification_that_is_away_for_a_moment_stops_nothing(
    api: FakeNodeApi,
    kubelet: FakeKubelet,
    plugins: Plugins,
    specify: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    specify("GPU-a", "GPU-b")
    api.put_node(node(runtime=CONTAINERD))
    monkeypatch.setattr(injector, "POLL_S", 60)
    plugin = await plugins.start(fake=False)
    pushes = kubelet.pushes
    specify()
    await plugin.app.injector.probe()
    specify("GPU-a", "GPU-b")
    await plugin.app.injector.probe()
    await never(lambda: kubelet.pushes > pushes, for_s=0.1)
    assert why_not(api) == []


async def test_a_failed_gpu_that_the_specification_leaves_out_does_not_stop_the_others(
    api: FakeNodeApi,
    kubelet: FakeKubelet,
    plugins: Plugins,
    gpus: GpuFile,
    specify: Callable[..., None],
) -> None:
    specify("GPU-b")
    gpus.write("GPU-a", "GPU-b", ill=("GPU-a",))
    api.put_node(node(runtime=CONTAINERD))
    await plugins.start(fake=False)
    await eventually(lambda: len(kubelet.healthy) == 15)
    assert why_not(api) == []


async def test_a_device_that_cannot_be_made_refuses_the_container(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, folder: Path
) -> None:
    api.put_node(node(runtime=CONTAINERD))
    api.put_pod(pod("p", 4, gpu=1))
    await plugins.start()
    (folder / "home").write_text("no directory")
    with pytest.raises(Rejected, match="its files on the node cannot be made"):
        await kubelet.admit(api.pods["p"])
    await eventually(lambda: "GPUMemoryRefused" in api.reasons("Pod", "p"))


async def test_after_a_reboot_the_devices_are_there_before_it_registers(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, folder: Path
) -> None:
    api.put_node(node(runtime=CONTAINERD))
    api.put_pod(pod("p", 4, gpu=1))
    before = await plugins.start()
    await kubelet.admit(api.pods["p"])
    await before.stop()
    shutil.rmtree(folder / "cdi")
    shutil.rmtree(folder / "home")  # even so: the kubelet knows the ids
    there: list[list[str]] = []
    register = kubelet.register

    async def registering(request: object) -> None:
        there.append([*read_specs([folder / "cdi"]).files])
        await register(request)

    kubelet.register = registering  # type: ignore[method-assign,assignment]
    await plugins.start()
    assert there == [[f"gpushare.dev/allocation={allocation_id(kubelet.ids_of('uid-p'))}"]]


async def test_the_hooks_letters_attest(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, folder: Path
) -> None:
    """Two of a class, of whom the kubelet takes the younger first."""
    api.put_node(node(runtime=CONTAINERD))
    api.put_pod(pod("old", 4, gpu=0))
    api.put_pod(pod("young", 4, gpu=1, age=1))
    await plugins.start(attest_by=frozenset({HOOK}))
    for name in ("young", "old"):
        await kubelet.admit(api.pods[name])
    await never(lambda: api.annotation(names.ANNOTATION_ASSIGNED, pod="old") == "true", 0.1)
    for name in ("young", "old"):
        box = mailbox(folder, kubelet.ids_of(f"uid-{name}"))
        (box / "x.json").write_text(
            json.dumps({"version": 1, "podUid": f"uid-{name}", "container": "c0"})
        )
    for name, gpu in (("young", "0"), ("old", "1")):
        await eventually(
            lambda name=name: api.annotation(names.ANNOTATION_ASSIGNED, pod=name) == "true"
        )
        assert json.loads(api.annotation(names.ANNOTATION_ALLOCATION, pod=name) or "") == {
            "0": {gpu: 4}
        }


@pytest.mark.parametrize("does", [True, False])
async def test_a_runtime_that_ignores_our_devices_is_found_out(
    api: FakeNodeApi,
    kubelet: FakeKubelet,
    plugins: Plugins,
    folder: Path,
    specify: Callable[..., None],
    does: bool,
) -> None:
    """The pod runs, and the hook has not written."""
    specify("GPU-a", "GPU-b")
    (folder / "gpushare-hook").write_text("a program")
    api.put_node(node(runtime=CONTAINERD))
    api.put_pod(pod("p", 4, gpu=0))
    await plugins.start(fake=False, hook=folder / "gpushare-hook")
    await kubelet.admit(api.pods["p"])
    if does:
        letter = {"version": 1, "podUid": "uid-p", "container": "c0"}
        box = mailbox(folder, kubelet.ids_of("uid-p"))
        (box / "uid-p_c0.json").write_text(json.dumps(letter))
    api.change_pod("p", status={"phase": "Running"})
    if does:
        await never(lambda: why_not(api), for_s=0.7)
    else:
        await eventually(lambda: why_not(api) != [])
        assert "were ignored" in why_not(api)[0]
        await eventually(lambda: kubelet.devices == {})


async def test_the_hook_is_installed_once_and_named_in_the_device(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, folder: Path
) -> None:
    (folder / "gpushare-hook").write_text("a program")
    api.put_node(node(runtime=CONTAINERD))
    api.put_pod(pod("p", 4, gpu=0))
    await plugins.start(hook=folder / "gpushare-hook")
    await kubelet.admit(api.pods["p"])
    (installed,) = (folder / "home" / "bin").glob("*/gpushare-hook")
    assert installed.read_text() == "a program"
    assert installed.stat().st_mode & 0o111
    (spec,) = (folder / "cdi").glob("gpushare.dev-allocation_*.json")
    assert f'"{installed}"' in spec.read_text()
