"""GPUs that pods hold by way of another device plugin take nothing new of ours."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gpushare.contract import names
from gpushare.contract.units import Unit
from gpushare.deviceplugin import neighbours
from gpushare.deviceplugin.core.pods import ANNOTATION_MIRROR
from gpushare.deviceplugin.neighbours import (
    LIST_EVERY_S,
    RESOURCES,
    Neighbours,
    Resident,
    Residents,
    by_key,
    taken,
)
from gpushare.deviceplugin.sources import ALL_SOURCES, CHECKPOINT, PODRESOURCES, Sources
from gpushare.deviceplugin.state import NodeState
from gpushare.kube.errors import Unreachable
from gpushare.kube.objects import Node, Pod
from gpushare.kube.resources import Ref
from gpushare.node.containers import ContainerDevices
from gpushare.node.gpus import FoundGpu
from tests.deviceplugin import fake_node_api as fake
from tests.deviceplugin.conftest import Plugins
from tests.deviceplugin.fake_kubelet import FakeKubelet
from tests.deviceplugin.fake_node_api import FakeNodeApi, never, node, pod
from tests.kube.fake_api import eventually

WHOLE, SHARED = RESOURCES

A = FoundGpu("GPU-a", "Tesla T4", 16130, "00000000:00:00.0", 0)
B = FoundGpu("GPU-b", "Tesla T4", 16130, "00000000:01:00.0", 3)


def held(*ids: str, uid: str | None = "u", pod: str = "", of: str = WHOLE) -> ContainerDevices:
    namespace = "team" if pod else ""
    return ContainerDevices("c", frozenset(ids), uid, namespace, pod, of)


def resident(*uids: str, name: str = "team/p", ended: bool = False) -> Resident:
    return Resident(name, frozenset(uids or ("u",)), asks=True, ended=ended)


HERE = by_key([resident()])


# -- the decision ---------------------------------------------------------------------------------

IDS: dict[str, tuple[ContainerDevices, dict[str, str]]] = {
    "a GPU": (held("GPU-a"), {"GPU-a": "it whole (nvidia.com/gpu)"}),
    "two GPUs": (
        held("GPU-a", "GPU-b"),
        {"GPU-a": "it whole (nvidia.com/gpu)", "GPU-b": "it whole (nvidia.com/gpu)"},
    ),
    "a replica under the plain name": (
        held("GPU-b::3"),
        {"GPU-b": "a part of it (nvidia.com/gpu)"},
    ),
    "replicas under a name of their own": (
        held("GPU-b::3", "GPU-b::0", of=SHARED),
        {"GPU-b": "a part of it (nvidia.com/gpu.shared)"},
    ),
    "by device file": (held("nvidia3"), {"GPU-b": "it whole (nvidia.com/gpu)"}),
    "a part, by device file": (held("nvidia0/gi1"), {"GPU-a": "a part of it (nvidia.com/gpu)"}),
    "a MIG device": (held("MIG-5c7d3f4e-9a1b-5c3d-8e2f-1a2b3c4d5e6f"), {}),
    "a GPU that is not here": (held("GPU-c"), {}),
    "the beginning of a UUID": (held("GPU-"), {}),
    "no device file": (held("nvidia", "nvidia9", "nvidia03x", "xnvidia0"), {}),
}


@pytest.mark.parametrize(("shown", "expected"), IDS.values(), ids=IDS.keys())
def test_which_gpu_an_id_stands_for(shown: ContainerDevices, expected: dict[str, str]) -> None:
    found = taken([A, B], [shown], HERE)
    assert found == {uuid: f"pod team/p has {what}" for uuid, what in expected.items()}


COUNTS: dict[str, tuple[ContainerDevices, list[Resident], set[str], bool]] = {
    "its pod is here": (held("GPU-a"), [resident()], set(), True),
    "its pod has ended": (held("GPU-a"), [resident(ended=True)], set(), False),
    "not known yet": (held("GPU-a"), [], set(), True),
    "gone": (held("GPU-a"), [], {"u"}, False),
    "known after all": (held("GPU-a"), [resident()], {"u"}, True),
    "by the UID of a static pod": (held("GPU-a"), [resident("object", "u")], {"u"}, True),
    "by name": (held("GPU-a", uid=None, pod="p"), [resident()], set(), True),
    "by name, ended": (held("GPU-a", uid=None, pod="p"), [resident(ended=True)], set(), False),
    "by name, one of two has ended": (
        held("GPU-a", uid=None, pod="p"),
        [resident("new"), resident("old", ended=True)],
        set(),
        True,
    ),
    "by name, gone": (held("GPU-a", uid=None, pod="p"), [], {"team/p"}, False),
}


@pytest.mark.parametrize(("shown", "pods", "gone", "counts"), COUNTS.values(), ids=COUNTS.keys())
def test_whose_entry_counts(
    shown: ContainerDevices, pods: list[Resident], gone: set[str], counts: bool
) -> None:
    assert bool(taken([A, B], [shown], by_key(pods), gone)) is counts


def test_the_holders_of_parts_are_named_up_to_a_few() -> None:
    pods = by_key(resident(f"u{i}", name=f"team/p{i}") for i in range(5))
    shown = [held(f"GPU-a::{i}", uid=f"u{i}") for i in range(5)]
    (text,) = taken([A, B], shown, pods).values()
    assert text == ", ".join(
        [*(f"pod team/p{i} has a part of it (nvidia.com/gpu)" for i in range(3)), "and 2 more"]
    )


def test_a_pod_not_known_yet_is_told_of_by_its_uid() -> None:
    assert taken([A], [held("GPU-a")], {}) == {
        "GPU-a": "a pod not known yet (u) has it whole (nvidia.com/gpu)"
    }


# -- what is known of the pods --------------------------------------------------------------------


def whole_pod(name: str, *, phase: str = "Running", init: bool = False, **meta: Any) -> Any:
    """A pod with a whole GPU, in its app container or its init container."""
    manifest = pod(name, 0)
    manifest["metadata"].update(meta)
    manifest["status"]["phase"] = phase
    (container,) = manifest["spec"]["containers"]
    if init:
        manifest["spec"]["containers"] = [{"name": "plain"}]
        manifest["spec"]["initContainers"] = [container]
    container["resources"]["limits"] = {WHOLE: "1"}
    return manifest


def as_pod(manifest: Any) -> Pod:
    return msgspec.convert(manifest, Pod)


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (whole_pod("p"), Resident("default/p", frozenset({"uid-p"}), True, False)),
        (whole_pod("p", init=True), Resident("default/p", frozenset({"uid-p"}), True, False)),
        (pod("p", 4), Resident("default/p", frozenset({"uid-p"}), False, False)),
        (
            whole_pod("p", phase="Succeeded"),
            Resident("default/p", frozenset({"uid-p"}), True, True),
        ),
        (whole_pod("p", phase="Failed"), Resident("default/p", frozenset({"uid-p"}), True, True)),
        (
            whole_pod("p", annotations={ANNOTATION_MIRROR: "hash"}),
            Resident("default/p", frozenset({"uid-p", "hash"}), True, False),
        ),
    ],
)
def test_what_is_kept_of_a_pod(manifest: Any, expected: Resident) -> None:
    assert Resident.of(as_pod(manifest)) == expected


# -- looking --------------------------------------------------------------------------------------


@dataclass
class Scene:
    """A node with GPU-a and GPU-b, whose kubelet and API server say what a test has them say."""

    kubelet: FakeKubelet
    enabled: frozenset[str] = frozenset(ALL_SOURCES)
    now: float = 1000.0
    choosing: bool = False
    on_api: list[Pod] | None = field(default_factory=list)
    """What the API server lists; None: it cannot be reached."""
    lists: int = 0
    """By the API server."""

    def __post_init__(self) -> None:
        self.state = NodeState(fake.NODE, Unit.GIB, "fake")
        manifest = node()
        manifest["metadata"]["resourceVersion"] = "1"
        self.state.node_handler.changed(msgspec.convert(manifest, Node))
        self.state.gpus_found((A, B))
        self.residents = Residents(self.state.pod_handler)
        self.neighbours = Neighbours(
            self.state,
            Sources(self.kubelet.folder, self.kubelet.pod_resources, self.enabled),
            self.residents,
            self.list_pods,
            choosing=lambda: self.choosing,
            clock=lambda: self.now,
        )

    async def list_pods(self) -> list[Pod]:
        self.lists += 1
        if self.on_api is None:
            raise Unreachable("connection refused")
        return self.on_api

    async def later(self, seconds: float) -> dict[str, str]:
        """What is taken so much later."""
        self.now += seconds
        await self.neighbours.look()
        return self.state.conditions.closed


@pytest.fixture
def scene(kubelet: FakeKubelet) -> Scene:
    return Scene(kubelet)


WHOLE_A = {"GPU-a": "pod default/p has it whole (nvidia.com/gpu)"}
UNKNOWN_A = {"GPU-a": "a pod not known yet (uid-p) has it whole (nvidia.com/gpu)"}


async def test_a_gpu_is_closed_while_a_pod_has_it(scene: Scene) -> None:
    manifest = whole_pod("p")
    scene.residents.changed(as_pod(manifest))
    assert await scene.later(0) == {}
    scene.kubelet.admit_foreign(manifest, WHOLE, "GPU-a")
    assert await scene.later(2) == WHOLE_A
    scene.residents.changed(as_pod(whole_pod("p", phase="Succeeded")))
    assert await scene.later(2) == {}  # the kubelet's checkpoint still has it
    assert scene.kubelet.lists == 0


async def test_a_stale_entry_does_not_keep_a_gpu_closed(scene: Scene) -> None:
    """Of a pod that ended before we started, on a node where nobody allocates any more."""
    scene.kubelet.admit_foreign(whole_pod("p"), WHOLE, "GPU-a")
    for _ in range(3):
        assert await scene.later(2) == {}
    assert scene.lists == 1  # UIDs do not come back
    assert scene.kubelet.lists == 0


async def test_a_pod_that_was_deleted_holds_nothing_any_more(scene: Scene) -> None:
    pod = as_pod(whole_pod("p"))
    scene.residents.changed(pod)
    scene.kubelet.admit_foreign(whole_pod("p"), WHOLE, "GPU-a")
    assert await scene.later(0) == WHOLE_A
    scene.residents.deleted(Ref.of(pod.metadata))
    assert await scene.later(2) == {}


async def test_a_pod_that_is_told_to_end_counts_until_it_has(scene: Scene) -> None:
    scene.kubelet.admit_foreign(whole_pod("p"), WHOLE, "GPU-a")
    scene.residents.changed(as_pod(whole_pod("p", deletionTimestamp="2026-01-01T00:00:00Z")))
    assert await scene.later(0) == WHOLE_A


async def test_a_pod_of_which_the_watch_has_not_told_yet_is_looked_up(scene: Scene) -> None:
    scene.kubelet.admit_foreign(whole_pod("p"), WHOLE, "GPU-a")
    scene.on_api = [as_pod(whole_pod("p"))]
    for _ in range(2):
        assert await scene.later(2) == WHOLE_A
    scene.residents.changed(as_pod(whole_pod("p")))
    assert await scene.later(2) == WHOLE_A
    assert scene.lists == 2


async def test_a_pod_that_cannot_be_looked_up_counts(scene: Scene) -> None:
    scene.kubelet.admit_foreign(whole_pod("p"), WHOLE, "GPU-a")
    scene.on_api = None
    assert await scene.later(2) == UNKNOWN_A
    assert await scene.later(3600) == UNKNOWN_A
    scene.on_api = [as_pod(whole_pod("p", phase="Failed"))]
    assert await scene.later(2) == {}


async def test_a_static_pod_counts_once_its_object_is_there(scene: Scene) -> None:
    scene.kubelet.admit_foreign(whole_pod("p", uid="hash"), WHOLE, "GPU-a")
    assert await scene.later(2) == {}
    scene.residents.changed(as_pod(whole_pod("p", annotations={ANNOTATION_MIRROR: "hash"})))
    assert await scene.later(2) == WHOLE_A


async def test_a_node_that_shares_nothing_tells_nothing(scene: Scene) -> None:
    scene.residents.changed(as_pod(whole_pod("p")))
    scene.kubelet.admit_foreign(whole_pod("p"), WHOLE, "GPU-a")
    for version, (mode, expected) in enumerate((("default", {}), ("share", WHOLE_A)), start=2):
        manifest = node(labels={names.LABEL_MODE: mode})
        manifest["metadata"]["resourceVersion"] = str(version)
        scene.state.node_handler.changed(msgspec.convert(manifest, Node))
        assert await scene.later(2) == expected


async def test_ids_that_stand_for_no_gpu_are_told_of_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.residents.changed(as_pod(whole_pod("p")))
    scene.kubelet.admit_foreign(whole_pod("p"), WHOLE, "MIG-1", "GPU-a")
    for _ in range(2):
        assert await scene.later(2) == WHOLE_A
    (record,) = caplog.records
    assert "has MIG-1 of nvidia.com/gpu" in record.getMessage()


# -- where the checkpoint does not tell -----------------------------------------------------------


@pytest.fixture
def blind(scene: Scene) -> Scene:
    """The kubelet's checkpoint is of another form; a pod has GPU-a."""
    scene.kubelet.checkpoints = False
    scene.kubelet.admit_foreign(whole_pod("p"), WHOLE, "GPU-a")
    return scene


async def test_the_kubelet_is_asked_at_most_once_a_minute(blind: Scene) -> None:
    blind.residents.changed(as_pod(whole_pod("p")))
    assert await blind.later(0) == WHOLE_A
    blind.kubelet.forget("uid-p")
    assert await blind.later(LIST_EVERY_S - 1) == WHOLE_A
    assert blind.kubelet.lists == 1
    assert await blind.later(1) == {}
    assert blind.kubelet.lists == 2


async def test_a_pod_that_ends_is_noticed_in_between(blind: Scene) -> None:
    blind.residents.changed(as_pod(whole_pod("p")))
    assert await blind.later(0) == WHOLE_A
    blind.residents.changed(as_pod(whole_pod("p", phase="Failed")))
    assert await blind.later(2) == {}
    assert blind.kubelet.lists == 1


async def test_a_pod_created_again_under_its_name_counts_though_the_earlier_one_is_gone(
    blind: Scene,
) -> None:
    pod, other = as_pod(whole_pod("p")), as_pod(whole_pod("other"))
    for each in (pod, other):
        blind.residents.changed(each)
    assert await blind.later(0) == WHOLE_A
    blind.residents.deleted(Ref.of(pod.metadata))
    assert await blind.later(2) == {}
    blind.on_api = [as_pod(whole_pod("p", uid="again"))]  # the watch is late
    assert await blind.later(LIST_EVERY_S) == WHOLE_A


async def test_the_kubelet_is_not_asked_while_it_chooses(blind: Scene) -> None:
    blind.residents.changed(as_pod(whole_pod("p")))
    blind.choosing = True
    assert await blind.later(0) == {}
    assert blind.kubelet.lists == 0
    blind.choosing = False
    assert await blind.later(2) == WHOLE_A


async def test_the_kubelet_is_not_asked_where_nobody_wants_a_whole_gpu(blind: Scene) -> None:
    blind.residents.changed(as_pod(pod("p", 4)))
    blind.residents.changed(as_pod(whole_pod("q", phase="Succeeded")))
    assert await blind.later(0) == {}
    assert blind.kubelet.lists == 0


async def test_what_was_known_stays_while_nobody_can_be_asked(
    blind: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    blind.residents.changed(as_pod(whole_pod("p")))
    assert await blind.later(0) == WHOLE_A
    await blind.kubelet.stop()
    for _ in range(2):
        assert await blind.later(LIST_EVERY_S) == WHOLE_A
    (record,) = caplog.records
    assert "which GPUs other pods hold whole cannot be read" in record.getMessage()


@pytest.mark.parametrize(
    ("enabled", "expected"), [(CHECKPOINT, WHOLE_A), (PODRESOURCES, WHOLE_A), ("status", {})]
)
async def test_only_what_is_enabled_is_asked(
    kubelet: FakeKubelet, enabled: str, expected: dict[str, str]
) -> None:
    scene = Scene(kubelet, frozenset({enabled}))
    kubelet.admit_foreign(whole_pod("p"), WHOLE, "GPU-a")
    scene.residents.changed(as_pod(whole_pod("p")))
    assert await scene.later(0) == expected


# -- the whole plugin -----------------------------------------------------------------------------


def healthy(api: FakeNodeApi) -> dict[str, bool]:
    """UUID -> as published."""
    value = api.annotation(names.ANNOTATION_DEVICES)
    return {d["uuid"]: d["healthy"] for d in json.loads(value)} if value else {}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "POLL_S", 0.05)


@pytest.mark.usefixtures("quick")
async def test_a_gpu_that_a_pod_has_whole_takes_nothing_new_and_loses_nobody(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=0))
    await plugins.start(beside_whole_gpus=True)
    api.change_capacity(**{WHOLE: "2"})
    await kubelet.admit(api.pods["p"])
    mine = kubelet.ids_of("uid-p")
    await eventually(lambda: len(kubelet.healthy) == 30)

    kubelet.admit_foreign(api.put_pod(whole_pod("w")), WHOLE, "GPU-a")
    await eventually(lambda: healthy(api) == {"GPU-a": False, "GPU-b": True})
    await eventually(lambda: len(kubelet.healthy) == 15 + 4)
    assert mine <= kubelet.healthy
    await eventually(lambda: api.reasons("Node", fake.NODE) == ["GPUClosed"])
    message = api.events[-1]["message"]
    assert "takes nothing new: pod default/w has it whole (nvidia.com/gpu)" in message
    assert "On it: default/p." in message

    api.change_pod("w", status={"phase": "Succeeded"})
    await eventually(lambda: healthy(api) == {"GPU-a": True, "GPU-b": True})
    await eventually(lambda: len(kubelet.healthy) == 30)
    await eventually(lambda: api.reasons("Node", fake.NODE) == ["GPUClosed", "GPUOpened"])


async def test_whole_gpus_of_a_plugin_that_was_taken_away_are_known_from_the_start(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    """Its pods keep their GPUs, and nothing is offered of those, not for a moment."""
    api.put_node(node())
    kubelet.admit_foreign(api.put_pod(whole_pod("w")), WHOLE, "GPU-b")
    seen: list[set[str]] = []
    write = kubelet._write_checkpoint

    def note() -> None:
        seen.append({i.partition("::")[0] for i in kubelet.healthy})
        write()

    kubelet._write_checkpoint = note  # type: ignore[method-assign]
    await plugins.start()
    await eventually(lambda: healthy(api) == {"GPU-a": True, "GPU-b": False})
    await never(lambda: len(kubelet.healthy) > 15, 0.2)
    assert seen
    assert all(gpus == {"GPU-a"} for gpus in seen)
