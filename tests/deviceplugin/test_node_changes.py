"""What the node shows of its GPUs, and what labels, administrators and hardware change there."""

from __future__ import annotations

import json

import pytest

from gpushare.contract import names
from gpushare.contract.names import ANNOTATION_CORDONED, LABEL_MODE, RESOURCE_COUNT
from gpushare.contract.units import Unit
from tests.deviceplugin.conftest import GpuFile, Plugins
from tests.deviceplugin.fake_kubelet import FakeKubelet
from tests.deviceplugin.fake_node_api import NODE, FakeNodeApi, never, node, pod
from tests.kube.fake_api import eventually


def inventory(api: FakeNodeApi) -> dict[str, tuple[int, bool]]:
    """UUID -> (index, healthy), as published."""
    value = api.annotation(names.ANNOTATION_DEVICES)
    return {d["uuid"]: (d["index"], d["healthy"]) for d in json.loads(value)} if value else {}


def indexes(api: FakeNodeApi) -> dict[str, int]:
    return {uuid: index for uuid, (index, _) in inventory(api).items()}


def count(api: FakeNodeApi) -> tuple[object, object]:
    status = api.nodes[NODE]["status"]
    return status["capacity"].get(RESOURCE_COUNT), status["allocatable"].get(RESOURCE_COUNT)


# -- what is published ---------------------------------------------------------------------------


async def test_the_inventory_is_published(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node(labels={"other": "label"}))
    await plugins.start()
    await eventually(lambda: count(api) == ("2", "2"))
    assert json.loads(api.annotation(names.ANNOTATION_DEVICES) or "") == [
        {
            "index": index,
            "uuid": uuid,
            "model": "Tesla T4",
            "memory_mib": 16130,
            "units": 15,
            "healthy": True,
        }
        for index, uuid in enumerate(("GPU-a", "GPU-b"))
    ]
    assert json.loads(api.annotation(names.ANNOTATION_NODE) or "") == {
        "version": 1,
        "unit": "GiB",
        "attests": True,
        "injection": "fake",
    }
    labels = api.nodes[NODE]["metadata"]["labels"]
    assert labels == {
        LABEL_MODE: "share",
        "other": "label",
        "aliyun.accelerator/nvidia_name": "Tesla-T4",
        "aliyun.accelerator/nvidia_mem": "16130MiB",
        "aliyun.accelerator/nvidia_count": "2",
        "gpushare.dev/isolation": "none",
    }
    assert api.nodes[NODE]["status"]["capacity"]["cpu"] == "4"
    assert all(write.body["metadata"]["uid"] == "uid-n1" for write in api.writes)


async def test_what_stands_already_is_not_written_again(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    before = await plugins.start()
    await eventually(lambda: count(api) == ("2", "2"))
    await before.stop()
    api.writes.clear()
    await plugins.start()
    await never(lambda: api.writes, for_s=0.2)


async def test_what_somebody_removed_is_published_again(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    await plugins.start()
    await eventually(lambda: count(api) == ("2", "2"))
    api.change_node(
        annotations={names.ANNOTATION_DEVICES: None}, labels={names.LABEL_ACCELERATOR_NAME: None}
    )
    await eventually(lambda: indexes(api) == {"GPU-a": 0, "GPU-b": 1})
    labels = api.nodes[NODE]["metadata"]["labels"]
    assert labels[names.LABEL_ACCELERATOR_NAME] == "Tesla-T4"


# -- indexes stay --------------------------------------------------------------------------------


async def test_indexes_stay_over_a_restart_in_another_order(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, gpus: GpuFile
) -> None:
    api.put_node(node())
    before = await plugins.start()
    await eventually(lambda: count(api) == ("2", "2"))
    await before.stop()
    gpus.write("GPU-new", "GPU-b", "GPU-a")
    await plugins.start()
    await eventually(lambda: count(api) == ("3", "3"))
    assert indexes(api) == {"GPU-a": 0, "GPU-b": 1, "GPU-new": 2}


async def test_a_node_object_that_was_created_anew_is_told_everything_again(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, gpus: GpuFile
) -> None:
    api.put_node(node(**{names.ANNOTATION_DEVICES: json.dumps([_device(3, "GPU-a")])}))
    plugin = await plugins.start()
    await eventually(lambda: count(api) == ("2", "2"))
    assert indexes(api) == {"GPU-a": 3, "GPU-b": 0}
    api.delete_node()
    api.put_node(node(uid="uid-again"))
    await eventually(lambda: count(api) == ("2", "2"))
    assert indexes(api) == {"GPU-a": 3, "GPU-b": 0}
    assert names.LABEL_ACCELERATOR_NAME in api.nodes[NODE]["metadata"]["labels"]
    assert plugin.app.not_ready() is None


async def test_a_gpu_that_vanished_keeps_its_index_while_a_pod_holds_it(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, gpus: GpuFile
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=0))
    before = await plugins.start()
    await kubelet.admit(api.pods["p"])
    await before.stop()
    gpus.write("GPU-b", "GPU-c")
    await plugins.start()
    await eventually(lambda: len(inventory(api)) == 3)
    assert inventory(api) == {"GPU-a": (0, False), "GPU-b": (1, True), "GPU-c": (2, True)}
    api.delete_pod("p")
    await eventually(lambda: inventory(api) == {"GPU-b": (1, True), "GPU-c": (2, True)})
    await eventually(lambda: count(api) == ("2", "2"))


async def test_a_gpu_that_vanished_goes_at_once_when_nobody_holds_it(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, gpus: GpuFile
) -> None:
    api.put_node(node())
    before = await plugins.start()
    await eventually(lambda: count(api) == ("2", "2"))
    await before.stop()
    gpus.write("GPU-b")
    await plugins.start()
    await eventually(lambda: count(api) == ("1", "1"))
    assert inventory(api) == {"GPU-b": (1, True)}
    assert set(kubelet.devices) == {f"GPU-b::{slot}" for slot in range(15)}


# -- failed and cordoned GPUs --------------------------------------------------------------------


async def test_only_free_ids_of_a_cordoned_gpu_are_unhealthy(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=0))
    await plugins.start()
    await kubelet.admit(api.pods["p"])
    held = kubelet.ids_of("uid-p")
    api.change_node(annotations={ANNOTATION_CORDONED: "GPU-a"})
    other = {f"GPU-b::{slot}" for slot in range(15)}
    await eventually(lambda: kubelet.healthy == held | other)
    assert len(kubelet.devices) == 30
    assert inventory(api)["GPU-a"] == (0, True)  # it is not ill

    # What is released then follows.
    kubelet.forget("uid-p")
    api.delete_pod("p")
    await eventually(lambda: kubelet.healthy == other)

    api.change_node(annotations={ANNOTATION_CORDONED: None})
    await eventually(lambda: len(kubelet.healthy) == 30)


async def test_only_free_ids_of_a_failed_gpu_are_unhealthy_until_it_recovers(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, gpus: GpuFile
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=0))
    await plugins.start()
    await kubelet.admit(api.pods["p"])
    held = kubelet.ids_of("uid-p")
    gpus.write("GPU-a", "GPU-b", ill=("GPU-a",))
    other = {f"GPU-b::{slot}" for slot in range(15)}
    await eventually(lambda: kubelet.healthy == held | other)
    await eventually(lambda: inventory(api)["GPU-a"] == (0, False))
    assert count(api) == ("2", "2")
    gpus.write("GPU-a", "GPU-b")
    await eventually(lambda: len(kubelet.healthy) == 30)
    await eventually(lambda: inventory(api)["GPU-a"] == (0, True))


# -- labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["default", "core_mem"])
async def test_another_mode_offers_nothing_and_leaves_running_pods_alone(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, mode: str
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=0))
    plugin = await plugins.start()
    await kubelet.admit(api.pods["p"])
    await eventually(lambda: count(api) == ("2", "2"))
    api.change_node(labels={LABEL_MODE: mode})
    await eventually(lambda: not kubelet.healthy)
    assert len(kubelet.devices) == 30  # until no allocation can be under way any more
    await eventually(lambda: kubelet.devices == {})
    await eventually(lambda: count(api) == ("0", "0"))
    assert indexes(api) == {"GPU-a": 0, "GPU-b": 1}
    assert plugin.app.not_ready() is None
    assert 'pod="p",uuid="GPU-a"} 4.0' in plugin.metrics
    api.change_node(labels={LABEL_MODE: "share"})
    await eventually(lambda: len(kubelet.healthy) == 30)
    await eventually(lambda: count(api) == ("2", "2"))
    assert len(kubelet.registrations) == 1


async def test_a_node_that_has_left_keeps_its_annotations_for_its_last_pod(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node(labels={"other": "label"}))
    api.put_pod(pod("p", 4, gpu=0))
    await plugins.start()
    await kubelet.admit(api.pods["p"])
    api.change_node(labels={LABEL_MODE: "default"})
    await eventually(lambda: count(api) == ("0", "0"))
    assert indexes(api) == {"GPU-a": 0, "GPU-b": 1}
    api.delete_pod("p")
    await eventually(lambda: api.annotation(names.ANNOTATION_DEVICES) is None)
    await eventually(lambda: api.annotation(names.ANNOTATION_NODE) is None)
    assert names.LABEL_ACCELERATOR_NAME not in api.nodes[NODE]["metadata"]["labels"]
    assert api.nodes[NODE]["metadata"]["labels"]["other"] == "label"
    api.change_node(labels={LABEL_MODE: "share"})
    await eventually(lambda: indexes(api) == {"GPU-a": 0, "GPU-b": 1})


@pytest.mark.parametrize("mode", ["core_mem", "mps"])
async def test_a_mode_whose_promise_is_not_kept_is_told_in_an_event(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, mode: str
) -> None:
    api.put_node(node(labels={LABEL_MODE: mode}))
    await plugins.start()
    await eventually(lambda: api.reasons("Node", NODE) == ["GPUMemoryNotOffered"], within_s=1)
    assert mode in api.events[0]["message"]


async def test_a_label_nobody_knows_is_told_in_an_event(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node(labels={names.LABEL_PLACEMENT: "binpak"}))
    await plugins.start()
    await eventually(lambda: api.reasons("Node", NODE) == ["UnknownPlacement"])
    assert len(kubelet.healthy) == 30


async def test_nothing_is_offered_twice(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    """NVIDIA's own device plugin offers the same GPUs whole."""
    api.put_node(node())
    await plugins.start()
    await eventually(lambda: len(kubelet.healthy) == 30)
    api.change_capacity(**{"nvidia.com/gpu": "2"})
    await eventually(lambda: kubelet.devices == {})
    await eventually(lambda: api.reasons("Node", NODE) == ["GPUMemoryNotOffered"])
    assert "nvidia.com/gpu: 2" in api.events[0]["message"]
    api.change_capacity(**{"nvidia.com/gpu": "0"})
    await eventually(lambda: len(kubelet.healthy) == 30)


async def test_a_gpu_that_fails_and_recovers_is_told_of_with_its_pods(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, gpus: GpuFile
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=0))
    await plugins.start()
    await kubelet.admit(api.pods["p"])
    gpus.write("GPU-a", "GPU-b", ill=("GPU-a",))
    await eventually(lambda: api.reasons("Node", NODE) == ["GPUFailed"])
    assert "On it: default/p." in api.events[0]["message"]
    gpus.write("GPU-a", "GPU-b")
    await eventually(lambda: api.reasons("Node", NODE) == ["GPUFailed", "GPURecovered"])


# -- units ---------------------------------------------------------------------------------------


async def test_another_unit_is_refused_while_a_pod_that_asks_is_on_the_node(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=0))
    before = await plugins.start()
    await kubelet.admit(api.pods["p"])
    await eventually(lambda: api.annotation(names.ANNOTATION_NODE))
    await before.stop()
    again = await plugins.start(unit=Unit.MIB128)
    assert len(kubelet.devices) == 30
    assert "GPU-a::0" in kubelet.devices
    assert json.loads(api.annotation(names.ANNOTATION_NODE) or "")["unit"] == "GiB"
    await again.stop()

    api.delete_pod("p")
    kubelet.forget("uid-p")
    await plugins.start(unit=Unit.MIB128)
    assert len(kubelet.devices) == 2 * 126
    await eventually(
        lambda: json.loads(api.annotation(names.ANNOTATION_NODE) or "")["unit"] == "128MiB"
    )
    value = api.annotation(names.ANNOTATION_DEVICES) or ""
    assert [device["units"] for device in json.loads(value)] == [126, 126]


def _device(index: int, uuid: str) -> dict[str, object]:
    return {"index": index, "uuid": uuid, "model": "Tesla T4", "memory_mib": 16130, "units": 15}
