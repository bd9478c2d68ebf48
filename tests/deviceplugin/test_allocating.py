"""A pod's way through a running plugin: what its container is told, what the API server is told."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from gpushare.contract import names
from gpushare.contract.names import LABEL_PLACEMENT
from gpushare.contract.units import Unit
from gpushare.deviceplugin import publisher
from gpushare.deviceplugin.core import publishing
from tests.deviceplugin.conftest import GpuFile, Plugins
from tests.deviceplugin.fake_kubelet import FakeKubelet, Rejected
from tests.deviceplugin.fake_node_api import NODE, FakeNodeApi, Write, container, node, pod
from tests.kube.fake_api import eventually


def assigned(api: FakeNodeApi, name: str) -> bool:
    return api.annotation(names.ANNOTATION_ASSIGNED, pod=name) == "true"


def allocation(api: FakeNodeApi, name: str) -> dict[str, dict[str, int]]:
    value = api.annotation(names.ANNOTATION_ALLOCATION, pod=name)
    return json.loads(value) if value else {}


def gpus_of(kubelet: FakeKubelet, name: str) -> set[str]:
    """UUIDs of the GPUs whose ids a pod has."""
    return {i.partition("::")[0] for i in kubelet.ids_of(f"uid-{name}")}


# -- what was decided is done --------------------------------------------------------------------


async def test_a_container_is_told_of_the_gpu_that_was_decided(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=1))
    plugin = await plugins.start()
    answers = await kubelet.admit(api.pods["p"])
    assert dict(answers["c0"].envs) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_UNIT": "GiB",
    }
    assert gpus_of(kubelet, "p") == {"GPU-b"}
    await eventually(lambda: assigned(api, "p"))
    assert api.annotation(names.ANNOTATION_OLD_ASSIGNED, pod="p") == "true"
    assert allocation(api, "p") == {"0": {"1": 4}}
    assert api.annotation(names.ANNOTATION_CORRECTIONS) is None
    metrics = plugin.metrics
    assert 'gpushare_allocations_total{outcome="allocated"} 1.0' in metrics
    held = f'{{container="c0",gpu="1",namespace="default",node="{NODE}",pod="p",uuid="GPU-b"}} 4.0'
    assert f"gpushare_container_allocated_units{held}" in metrics


async def test_the_status_is_where_pods_are_annotated(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    """A node's plugin may not change pods' specs."""
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=1))
    await plugins.start()
    await kubelet.admit(api.pods["p"])
    await eventually(lambda: assigned(api, "p"))
    writes = [write for write in api.writes if write.kind == "pods"]
    assert [write.sub for write in writes] == ["status"]
    assert writes[0].body["metadata"]["uid"] == "uid-p"


async def test_containers_are_told_their_own_amounts(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, 2, gpu=1))
    await plugins.start()
    answers = await kubelet.admit(api.pods["p"])
    told = [(a.envs[names.ENV_MEM_CONTAINER], a.envs[names.ENV_MEM_POD]) for a in answers.values()]
    assert told == [("4", "6"), ("2", "6")]
    await eventually(lambda: assigned(api, "p"))


async def test_a_container_on_two_gpus_is_told_of_both(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 8, gpus=(0, 1)))
    await plugins.start()
    answers = await kubelet.admit(api.pods["p"])
    assert dict(answers["c0"].envs) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "15,15",
        "ALIYUN_COM_GPU_MEM_POD": "8",
        "ALIYUN_COM_GPU_MEM_IDX": "0,1",
        "ALIYUN_COM_GPU_MEM_UNIT": "GiB",
    }
    by_gpu = [i.partition("::")[0] for i in kubelet.ids_of("uid-p")]
    assert (by_gpu.count("GPU-a"), by_gpu.count("GPU-b")) == (4, 4)
    await eventually(lambda: assigned(api, "p"))
    assert api.annotation(names.ANNOTATION_OLD_IDX, pod="p") is None


async def test_an_init_containers_ids_are_handed_on(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    manifest = pod("p", 8, gpu=1)
    manifest["spec"]["initContainers"] = [container("init", 4)]
    manifest["metadata"]["annotations"][names.ANNOTATION_INIT_ALLOCATION] = '{"0":{"1":4}}'
    api.put_node(node())
    api.put_pod(manifest)
    await plugins.start()
    answers = await kubelet.admit(api.pods["p"])
    assert {a.envs[names.ENV_VISIBLE_DEVICES] for a in answers.values()} == {"GPU-b"}
    assert len(kubelet.ids_of("uid-p")) == 8
    await eventually(lambda: assigned(api, "p"))


async def test_units_of_128_mib(api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 32, gpu=1))
    await plugins.start(unit=Unit.MIB128)
    assert len(kubelet.devices) == 2 * 126  # 16130 MiB
    assert "GPU-b::128MiB::0" in kubelet.devices
    answers = await kubelet.admit(api.pods["p"])
    told = answers["c0"].envs
    assert told[names.ENV_MEM_UNIT] == "128MiB"
    assert (told[names.ENV_MEM_CONTAINER], told[names.ENV_MEM_DEV]) == ("32", "126")
    await eventually(lambda: assigned(api, "p"))


# -- the kubelet gives pods each other's ids -----------------------------------------------------


@pytest.mark.parametrize("slow", [False, True], ids=["in one go", "with time between"])
async def test_pods_taken_for_each_other_are_put_right_in_one_write(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, slow: bool
) -> None:
    api.put_node(node())
    api.put_pod(pod("first", 4, gpu=0, age=0))
    api.put_pod(pod("second", 4, gpu=1, age=5))
    plugin = await plugins.start()
    api.writes.clear()
    answers = await kubelet.admit(api.pods["second"])  # the younger first
    assert answers["c0"].envs[names.ENV_VISIBLE_DEVICES] == "GPU-a"
    if slow:
        await eventually(lambda: assigned(api, "second"))
    await kubelet.admit(api.pods["first"])
    await eventually(lambda: assigned(api, "first") and assigned(api, "second"))
    assert gpus_of(kubelet, "second") == {"GPU-a"}
    assert gpus_of(kubelet, "first") == {"GPU-b"}
    assert allocation(api, "second") == {"0": {"0": 4}}
    assert allocation(api, "first") == {"0": {"1": 4}}
    assert api.annotation(names.ANNOTATION_OLD_IDX, pod="first") == "1"
    assert api.annotation(names.ANNOTATION_OLD_IDX, pod="second") == "0"

    first = api.writes[0]
    assert first.kind == "nodes"
    corrections = first.annotations[names.ANNOTATION_CORRECTIONS]
    assert corrections is not None
    assert json.loads(corrections) == {
        "uid-first": {"0": {"1": 4}},
        "uid-second": {"0": {"0": 4}},
    }
    assert api.annotation(names.ANNOTATION_CORRECTIONS) == corrections  # it lingers
    assert "gpushare_attest_corrections_total 1.0" in plugin.metrics


async def test_pods_put_right_while_the_node_is_written_wait_for_their_correction(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("first", 4, gpu=0, age=0))
    api.put_pod(pod("second", 4, gpu=1, age=5))
    plugin = await plugins.start()
    await eventually(lambda: api.nodes[NODE]["status"]["capacity"].get(names.RESOURCE_COUNT))
    go_on = asyncio.Event()

    async def slow(write: Write) -> None:
        if write.kind == "nodes":
            await go_on.wait()

    api.on_patch = slow
    api.writes.clear()
    api.change_node(labels={names.LABEL_ACCELERATOR_NAME: None})  # it is written again
    await eventually(lambda: api.writes)
    for name in ("second", "first"):
        await kubelet.admit(api.pods[name])
    books = plugin.app.state.books
    assert books is not None
    await eventually(lambda: all(known.attested for known in books.pods.values()))
    go_on.set()
    await eventually(lambda: assigned(api, "first") and assigned(api, "second"))
    corrected = [names.ANNOTATION_CORRECTIONS in write.annotations for write in api.writes]
    kinds = [write.kind for write in api.writes]
    assert corrected.index(True) < kinds.index("pods")


async def test_a_correction_goes_some_time_after_the_pods_agree(
    api: FakeNodeApi,
    kubelet: FakeKubelet,
    plugins: Plugins,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "LINGER_NS", 400_000_000)
    monkeypatch.setattr(publisher, "TICK_S", 0.05)
    api.put_node(node())
    api.put_pod(pod("first", 4, gpu=0, age=0))
    api.put_pod(pod("second", 4, gpu=1, age=5))
    await plugins.start()
    for name in ("second", "first"):
        await kubelet.admit(api.pods[name])
    await eventually(lambda: assigned(api, "first") and assigned(api, "second"))
    agreed = time.monotonic()
    assert api.annotation(names.ANNOTATION_CORRECTIONS) is not None
    await eventually(lambda: api.annotation(names.ANNOTATION_CORRECTIONS) is None)
    assert time.monotonic() - agreed > 0.2


async def test_without_a_checkpoint_the_kubelet_is_asked(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    """A checkpoint of a form that is not known: PodResources tell, by name."""
    kubelet.checkpoints = False
    api.put_node(node())
    api.put_pod(pod("first", 4, gpu=0, age=0))
    api.put_pod(pod("second", 4, gpu=1, age=5))
    await plugins.start()
    for name in ("second", "first"):
        await kubelet.admit(api.pods[name])
    await eventually(lambda: assigned(api, "first") and assigned(api, "second"))
    assert kubelet.lists
    assert allocation(api, "second") == {"0": {"0": 4}}
    assert allocation(api, "first") == {"0": {"1": 4}}


async def test_with_a_checkpoint_the_kubelet_is_not_disturbed(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=0))
    await plugins.start()
    await kubelet.admit(api.pods["p"])
    await eventually(lambda: assigned(api, "p"))
    assert kubelet.lists == 0


# -- pods that nobody decided --------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "gpu"), [("binpack", 0), ("spread", 1)])
async def test_a_pod_that_nobody_decided_gets_a_gpu_by_the_nodes_policy(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, policy: str, gpu: int
) -> None:
    api.put_node(node(labels={LABEL_PLACEMENT: policy}))
    api.put_pod(pod("other", 4, gpu=0))
    plugin = await plugins.start()
    await kubelet.admit(api.pods["other"])
    api.put_pod(pod("stray", 6))
    await eventually(lambda: "uid-stray" in plugin.app.state.pods)
    answers = await kubelet.admit(api.pods["stray"])
    assert answers["c0"].envs[names.ENV_MEM_IDX] == str(gpu)
    await eventually(lambda: assigned(api, "stray"))
    assert allocation(api, "stray") == {"0": {str(gpu): 6}}
    assert api.annotation(names.ANNOTATION_OLD_IDX, pod="stray") == str(gpu)
    await eventually(lambda: api.reasons("Pod", "stray"))
    (event,) = [e for e in api.events if e.get("reason") == "GPUDecidedByNode"]
    assert event["type"] == "Warning"
    assert event["involvedObject"]["uid"] == "uid-stray"
    assert f"GPU {gpu}" in event["message"]
    assert "default-scheduler" in event["message"]
    assert api.reasons("Pod", "other") == []


async def test_room_that_was_promised_is_not_given_to_a_stray_pod(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("promised", 10, gpu=0, age=5))
    api.put_pod(pod("stray", 6))
    await plugins.start()
    await kubelet.admit(api.pods["stray"])
    await kubelet.admit(api.pods["promised"])
    assert gpus_of(kubelet, "stray") == {"GPU-b"}
    assert gpus_of(kubelet, "promised") == {"GPU-a"}


async def test_a_pod_whose_gpu_has_failed_meanwhile_gets_another(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, gpus: GpuFile
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=0))
    await plugins.start()
    gpus.write("GPU-a", "GPU-b", ill=("GPU-a",))
    await eventually(lambda: kubelet.devices["GPU-a::0"] == "Unhealthy")
    await kubelet.admit(api.pods["p"])
    assert gpus_of(kubelet, "p") == {"GPU-b"}
    await eventually(lambda: assigned(api, "p"))
    assert allocation(api, "p") == {"0": {"1": 4}}
    await eventually(lambda: api.reasons("Pod", "p") == ["GPUDecidedAnew"])


# -- refusals ------------------------------------------------------------------------------------


async def test_a_refusal_reaches_the_pods_status_an_event_and_a_metric(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("big", 20))  # fits the sum of 30, and no GPU
    plugin = await plugins.start()
    with pytest.raises(Rejected) as rejected:
        await kubelet.admit(api.pods["big"])
    text = str(rejected.value)
    assert "desc = gpushare: no GPU of this node has 20 GiB free" in text
    assert "most on one GPU: 15 GiB" in text
    await eventually(lambda: api.reasons("Pod", "big") == ["GPUMemoryRefused"])
    (event,) = api.events
    assert event["type"] == "Warning"
    assert "no GPU of this node has 20 GiB free" in event["message"]
    assert 'gpushare_allocations_total{outcome="no-room"} 1.0' in plugin.metrics
    assert 'gpushare_allocations_total{outcome="allocated"} 0.0' in plugin.metrics
    assert not assigned(api, "big")


async def test_a_pod_that_the_api_server_does_not_know_is_refused(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    plugin = await plugins.start()
    api.lists.clear()
    with pytest.raises(Rejected, match="no pod of this node is known to wait for 4 GiB"):
        await kubelet.admit(pod("static", 4))
    assert api.lists == ["pods"]
    await eventually(lambda: api.reasons("Node", NODE) == ["GPUMemoryRefused"])
    assert 'gpushare_allocations_total{outcome="unknown-pod"} 1.0' in plugin.metrics


async def test_a_bad_request_is_refused_with_its_own_reason(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    manifest = pod("odd", 5)
    manifest["metadata"]["labels"][names.LABEL_GPU_COUNT] = "2"
    api.put_node(node())
    api.put_pod(manifest)
    plugin = await plugins.start()
    with pytest.raises(Rejected, match="desc = gpushare: "):
        await kubelet.admit(api.pods["odd"])
    await eventually(lambda: api.reasons("Pod", "odd") == ["GPUMemoryRefused"])
    assert 'gpushare_allocations_total{outcome="bad-request"} 1.0' in plugin.metrics


# -- what the plugin knows is old ----------------------------------------------------------------


async def test_a_pod_the_watch_has_not_told_of_yet_is_served_after_one_fresh_list(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    await plugins.start()
    await eventually(lambda: len(api._streams) == 2)
    api.hold()
    api.lists.clear()
    api.put_pod(pod("p", 4, gpu=1))
    answers = await kubelet.admit(api.pods["p"])
    assert answers["c0"].envs[names.ENV_VISIBLE_DEVICES] == "GPU-b"
    assert api.lists == ["pods"]
    await eventually(lambda: assigned(api, "p"))
    api.release()
    api.put_pod(pod("q", 4, gpu=1))
    await kubelet.admit(api.pods["q"])
    await eventually(lambda: assigned(api, "q"))
    assert allocation(api, "p") == {"0": {"1": 4}}


async def test_known_pods_need_no_list(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=1))
    await plugins.start()
    api.lists.clear()
    await kubelet.admit(api.pods["p"])
    assert api.lists == []


async def test_room_of_a_pod_that_has_just_gone_is_given_out_though_the_watch_lags(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("old", 12, gpu=0))
    plugin = await plugins.start()
    await kubelet.admit(api.pods["old"])
    await eventually(lambda: assigned(api, "old"))
    api.put_pod(pod("new", 12, gpu=0, age=9))
    await eventually(lambda: "uid-new" in plugin.app.state.pods)
    api.hold()
    api.delete_pod("old")
    kubelet.forget("uid-old")
    await kubelet.admit(api.pods["new"])
    assert gpus_of(kubelet, "new") == {"GPU-a"}
    api.release()
    await eventually(lambda: assigned(api, "new"))
    assert allocation(api, "new") == {"0": {"0": 12}}


async def test_the_api_server_is_away_known_pods_are_served_and_told_of_later(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("known", 4, gpu=1))
    plugin = await plugins.start()
    api.away = True
    began = time.monotonic()
    answers = await kubelet.admit(api.pods["known"])
    assert answers["c0"].envs[names.ENV_VISIBLE_DEVICES] == "GPU-b"
    api.put_pod(pod("unknown", 8, gpu=0))
    with pytest.raises(Rejected, match="no pod of this node is known to wait for 8 GiB"):
        await kubelet.admit(api.pods["unknown"])
    assert time.monotonic() - began < 3
    assert plugin.app.not_ready() is None
    api.put_pod(pod("later", 2, gpu=0))
    api.away = False
    await eventually(lambda: assigned(api, "known"))
    await eventually(lambda: "uid-later" in plugin.app.state.pods)


# -- a plugin that was away ----------------------------------------------------------------------


async def test_a_new_plugin_knows_who_has_what(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 12, gpu=0))
    before = await plugins.start()
    await kubelet.admit(api.pods["p"])
    await eventually(lambda: assigned(api, "p"))
    await before.stop()
    plugin = await plugins.start()
    assert 'pod="p",uuid="GPU-a"} 12.0' in plugin.metrics
    api.put_pod(pod("stray", 6))
    await kubelet.admit(api.pods["stray"])
    assert gpus_of(kubelet, "stray") == {"GPU-b"}


async def test_what_was_handed_out_unattested_is_attested_by_the_next_plugin(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    """Killed between Allocate and the look; the pods were swapped."""
    api.put_node(node())
    api.put_pod(pod("first", 4, gpu=0, age=0))
    api.put_pod(pod("second", 4, gpu=1, age=5))
    before = await plugins.start()
    before.app.attester.sources.enabled = frozenset()
    for name in ("second", "first"):
        await kubelet.admit(api.pods[name])
    await before.stop()
    assert not assigned(api, "first")
    await plugins.start()
    await eventually(lambda: assigned(api, "first") and assigned(api, "second"))
    assert allocation(api, "second") == {"0": {"0": 4}}
    assert allocation(api, "first") == {"0": {"1": 4}}
