"""What the plugin takes in, in whatever order it comes: the newest counts, the dead stay dead."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from gpushare.contract import names
from gpushare.contract.inventory import Device, encode_devices
from gpushare.contract.units import Unit
from gpushare.deviceplugin.state import NodeState
from gpushare.kube.objects import Node, Pod
from gpushare.kube.resources import Ref
from gpushare.node.gpus import FoundGpu
from tests.deviceplugin import fake_node_api as fake

A = FoundGpu("GPU-a", "Tesla T4", 16130, "00000000:00:00.0", 0)
B = FoundGpu("GPU-b", "Tesla T4", 16130, "00000000:01:00.0", 1)


def pod(version: int, *, name: str = "p", phase: str = "Pending", **more: Any) -> Pod:
    manifest = fake.pod(name, 4, **{"gpu": 0, **more})
    manifest["metadata"]["resourceVersion"] = str(version)
    manifest["status"]["phase"] = phase
    return msgspec.convert(manifest, Pod)


def node(version: int, *, uid: str = "uid-n1", mode: str = "share", **annotations: str) -> Node:
    manifest = fake.node(uid=uid, labels={names.LABEL_MODE: mode}, **annotations)
    manifest["metadata"]["resourceVersion"] = str(version)
    return msgspec.convert(manifest, Node)


def begun(*pods: Pod, found: tuple[FoundGpu, ...] = (A, B), of: Node | None = None) -> NodeState:
    state = NodeState(fake.NODE, Unit.GIB, "fake")
    state.node_handler.changed(of or node(1))
    state.gpus_found(found)
    for each in pods:
        state.pod_handler.changed(each)
    state.pod_handler.listed()
    assert state.complete
    state.begin()
    return state


def version(state: NodeState, uid: str = "uid-p") -> str | None:
    known = state.pods.get(uid)
    return known.metadata.resource_version if known else None


def on_books(state: NodeState) -> set[str]:
    assert state.books is not None
    return {uid for uid, known in state.books.pods.items() if known.live}


# -- beginning -----------------------------------------------------------------------------------


def test_it_is_complete_once_node_pods_and_gpus_are_known() -> None:
    tell = {
        "node": lambda state: state.node_handler.changed(node(1)),
        "pods": lambda state: state.pod_handler.listed(),
        "GPUs": lambda state: state.gpus_found((A,)),
    }
    for last in tell:
        state = NodeState(fake.NODE, Unit.GIB, "fake")
        for what, how in tell.items():
            if what != last:
                how(state)
        assert not state.complete, last
        tell[last](state)
        assert state.complete


def test_a_node_without_gpus_is_complete_too() -> None:
    assert begun(found=()).devices == ()


def test_who_is_interested_is_told() -> None:
    state = begun()
    changed = asyncio.Event()
    state.subscribers.append(changed)
    for change in (
        lambda: state.pod_changed(pod(5)),
        lambda: state.pod_deleted("uid-p"),
        lambda: state.node_changed(node(9)),
        lambda: state.gpus_found((A,)),
    ):
        changed.clear()
        change()
        assert changed.is_set()


# -- pods ----------------------------------------------------------------------------------------


def test_an_older_version_of_a_pod_is_ignored() -> None:
    """The watch is behind the answer to our own write."""
    state = begun(pod(10))
    state.pod_changed(pod(20, phase="Running"))
    state.pod_handler.changed(pod(15))
    assert version(state) == "20"
    assert state.books is not None
    assert state.books.pods["uid-p"].facts.started


def test_a_newer_version_of_a_pod_counts() -> None:
    state = begun(pod(10))
    state.pod_handler.changed(pod(11, phase="Succeeded"))
    assert version(state) == "11"
    assert on_books(state) == set()


def test_a_fresh_list_brings_what_the_watch_has_not() -> None:
    state = begun()
    state.pods_listed([pod(20)], "21")
    assert on_books(state) == {"uid-p"}
    state.pod_handler.changed(pod(15))
    assert version(state) == "20"
    state.pod_handler.changed(pod(22))
    assert version(state) == "22"


def test_a_pod_that_a_fresh_list_has_not_is_gone_and_older_events_do_not_bring_it_back() -> None:
    state = begun(pod(10))
    state.pods_listed([], "30")
    assert on_books(state) == set()
    for late in (12, 29):
        state.pod_handler.changed(pod(late))
        assert on_books(state) == set()
        assert version(state) is None
    state.pod_handler.deleted(Ref("uid-p", "default", "p", "30"))  # twice is no harm


def test_a_pod_that_came_and_went_before_the_fresh_list_is_not_taken_in() -> None:
    state = begun()
    state.pods_listed([], "30")
    state.pod_handler.changed(pod(20))
    assert on_books(state) == set()


def test_a_pod_that_is_younger_than_the_fresh_list_stays() -> None:
    """Its event overtook the answer to the list."""
    state = begun()
    state.pod_handler.changed(pod(31))
    state.pods_listed([], "30")
    assert on_books(state) == {"uid-p"}


def test_a_pod_created_after_the_fresh_list_is_taken_in() -> None:
    state = begun()
    state.pods_listed([], "30")
    state.pod_handler.changed(pod(31))
    assert on_books(state) == {"uid-p"}


def test_an_older_list_does_not_undo_a_newer_one() -> None:
    state = begun()
    state.pods_listed([pod(35)], "40")
    state.pods_listed([], "30")
    assert on_books(state) == {"uid-p"}
    state.pods_listed([], "50")
    state.pods_listed([pod(35)], "40")
    assert on_books(state) == set()


def test_a_deleted_pod_does_not_come_back_with_the_answer_to_our_write() -> None:
    """The event that it is gone overtook the answer to a patch of it."""
    state = begun(pod(10))
    state.pod_handler.deleted(Ref("uid-p", "default", "p", "12"))
    state.pod_changed(pod(11))
    assert on_books(state) == set()
    assert version(state) is None


def test_a_deleted_pod_does_not_come_back_with_a_fresh_list_that_was_under_way() -> None:
    state = begun(pod(10))
    state.pod_handler.deleted(Ref("uid-p", "default", "p", "31"))
    state.pods_listed([pod(10)], "30")
    assert on_books(state) == set()
    assert version(state) is None


def test_a_pod_created_again_under_its_name_is_another() -> None:
    state = begun(pod(10))
    state.pod_handler.deleted(Ref("uid-p", "default", "p", "12"))
    state.pod_handler.changed(pod(13, uid="uid-other"))
    assert on_books(state) == {"uid-other"}


def test_pods_that_ask_for_nothing_are_not_kept() -> None:
    manifest = fake.pod("plain", 0)
    manifest["metadata"]["resourceVersion"] = "5"
    state = begun()
    state.pod_changed(msgspec.convert(manifest, Pod))
    assert state.pods == {}


# -- the node ------------------------------------------------------------------------------------


def test_an_older_version_of_the_node_is_ignored() -> None:
    state = begun()
    state.node_changed(node(20, mode="default"))
    state.node_handler.changed(node(15, mode="share"))
    assert not state.conditions.offering
    state.node_handler.changed(node(21, mode="share"))
    assert state.conditions.offering


def test_a_node_created_anew_counts() -> None:
    state = begun(of=node(10))
    state.node_handler.changed(node(20, uid="uid-again", mode="default"))
    assert state.node is not None
    assert state.node.metadata.uid == "uid-again"
    assert not state.conditions.offering


def test_the_answer_to_a_write_to_the_earlier_node_object_is_ignored() -> None:
    state = begun(of=node(10))
    state.node_handler.changed(node(20, uid="uid-again", mode="default"))
    state.node_changed(node(12))
    assert state.node is not None
    assert state.node.metadata.uid == "uid-again"
    assert not state.conditions.offering


# -- GPUs ----------------------------------------------------------------------------------------

PUBLISHED = encode_devices(
    (Device(0, "GPU-gone", "Tesla T4", 16130, 15), Device(1, "GPU-b", "Tesla T4", 16130, 15))
)


def known(state: NodeState) -> dict[str, tuple[int, bool]]:
    return {device.uuid: (device.index, device.healthy) for device in state.devices}


def test_a_vanished_gpu_that_a_pod_holds_keeps_its_index() -> None:
    of = node(1, **{names.ANNOTATION_DEVICES: PUBLISHED})
    state = begun(pod(10), found=(A, B), of=of)
    assert known(state) == {"GPU-gone": (0, False), "GPU-b": (1, True), "GPU-a": (2, True)}
    state.pod_deleted("uid-p")
    assert known(state) == {"GPU-b": (1, True), "GPU-a": (2, True)}


def test_a_vanished_gpu_goes_when_the_pod_that_held_it_has_ended() -> None:
    of = node(1, **{names.ANNOTATION_DEVICES: PUBLISHED})
    state = begun(pod(10), found=(B,), of=of)
    state.pod_changed(pod(11, phase="Succeeded"))
    assert known(state) == {"GPU-b": (1, True)}


def test_a_vanished_gpu_that_nobody_holds_is_forgotten() -> None:
    state = begun(found=(B,), of=node(1, **{names.ANNOTATION_DEVICES: PUBLISHED}))
    assert known(state) == {"GPU-b": (1, True)}
    state.node_changed(node(2, **{names.ANNOTATION_DEVICES: PUBLISHED}))
    assert known(state) == {"GPU-b": (1, True)}


def test_the_last_vanished_gpu_is_forgotten_too() -> None:
    state = begun(found=(), of=node(1, **{names.ANNOTATION_DEVICES: PUBLISHED}))
    assert known(state) == {}
    state.node_changed(node(2, **{names.ANNOTATION_DEVICES: PUBLISHED}))
    assert known(state) == {}


def test_an_unreadable_inventory_gives_indexes_anew() -> None:
    state = begun(found=(B, A), of=node(1, **{names.ANNOTATION_DEVICES: "[{"}))
    assert known(state) == {"GPU-b": (0, True), "GPU-a": (1, True)}


# -- the unit ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "unit"),
    [
        ([], Unit.MIB128),
        ([pod(10)], Unit.GIB),
        ([pod(10, gpu=None)], Unit.GIB),
    ],
    ids=["nobody", "a pod", "a pod that nobody decided"],
)
def test_the_unit_stays_while_pods_that_ask_are_there(pods: list[Pod], unit: Unit) -> None:
    state = NodeState(fake.NODE, Unit.MIB128, "fake")
    state.node_changed(node(1, **{names.ANNOTATION_NODE: '{"version":1,"unit":"GiB"}'}))
    state.gpus_found((A,))
    for each in pods:
        state.pod_changed(each)
    state.pod_handler.listed()
    state.begin()
    assert state.unit is unit
    assert state.info.unit is unit
    assert state.devices[0].units == unit.units_of(16130)
