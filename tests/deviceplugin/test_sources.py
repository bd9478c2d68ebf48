"""Which sources are asked who has which ids, and what is made of their silence."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.contract.names import RESOURCE_MEM
from gpushare.deviceplugin.core.attesting import Sighting
from gpushare.deviceplugin.sources import (
    ALL_SOURCES,
    CHECKPOINT,
    HOOK,
    PODRESOURCES,
    STATUS,
    Sources,
)
from gpushare.kube.objects import (
    AllocatedDevice,
    AllocatedResource,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodStatus,
)
from gpushare.node.mailbox import Mailboxes, Record
from tests.deviceplugin.fake_kubelet import CHECKPOINT as FILE
from tests.deviceplugin.fake_kubelet import FakeKubelet, Running

IDS = {"GPU-a::0", "GPU-a::1"}


def sources(kubelet: FakeKubelet, *enabled: str) -> Sources:
    return Sources(
        kubelet.folder,
        kubelet.pod_resources,
        frozenset(enabled or ALL_SOURCES),
        Mailboxes(kubelet.folder / "allocations"),
    )


def letter(kubelet: FakeKubelet, *ids: str, uid: str = "u", at_ns: int = 1) -> None:
    """The hook's, of container `c` with these ids."""
    boxes = Mailboxes(kubelet.folder / "allocations")
    path = boxes.keep(Record(ids=ids, env={})) / f"{uid}_c.json"
    path.write_text(json.dumps({"version": 1, "podUid": uid, "container": "c"}))
    os.utime(path, ns=(at_ns, at_ns))


def holds(kubelet: FakeKubelet) -> None:
    kubelet.pods["u"] = Running("default", "p", (), {"c": set(IDS)})
    kubelet._write_checkpoint()


BY_UID = Sighting("c", frozenset(IDS), uid="u")
BY_LETTER = replace(BY_UID, at_ns=1)
BY_NAME = Sighting("c", frozenset(IDS), None, "default", "p")


async def test_the_checkpoint_tells_all_and_the_kubelet_is_left_alone(
    kubelet: FakeKubelet,
) -> None:
    holds(kubelet)
    shown = await sources(kubelet).ask([], may_list=True)
    assert list(shown.sightings) == [BY_UID]
    assert (shown.listed, shown.complete) == (True, True)
    assert kubelet.lists == 0


async def test_a_kubelet_that_never_allocated_has_no_file_and_nobody_has_anything(
    kubelet: FakeKubelet,
) -> None:
    shown = await sources(kubelet).ask([], may_list=True)
    assert list(shown.sightings) == []
    assert (shown.listed, shown.complete) == (True, True)


async def test_where_the_checkpoint_cannot_be_read_the_kubelet_is_asked(
    kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    holds(kubelet)
    (kubelet.folder / FILE).write_text("{}")
    asked = sources(kubelet)
    for _ in range(2):
        shown = await asked.ask([], may_list=True)
        assert list(shown.sightings) == [BY_NAME]
        assert (shown.listed, shown.complete) == (True, False)
    said = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(said) == 1  # once, not each time
    assert FILE in said[0].getMessage()


async def test_a_kubelet_that_is_choosing_is_not_asked(kubelet: FakeKubelet) -> None:
    holds(kubelet)
    (kubelet.folder / FILE).write_text("{}")
    shown = await sources(kubelet).ask([], may_list=False)
    assert list(shown.sightings) == []
    assert (shown.listed, shown.complete) == (False, False)
    assert kubelet.lists == 0


async def test_nothing_can_be_asked(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{}")
    shown = await Sources(tmp_path, tmp_path / "none.sock").ask([], may_list=True)
    assert list(shown.sightings) == []
    assert (shown.listed, shown.complete) == (False, False)


async def test_the_status_of_a_pod_tells_of_its_containers(kubelet: FakeKubelet) -> None:
    ids = [AllocatedDevice(i) for i in sorted(IDS)]
    containers = [
        ContainerStatus(
            "c",
            allocated_resources_status=[
                AllocatedResource(RESOURCE_MEM, ids),
                AllocatedResource("example.com/other", [AllocatedDevice("x")]),
            ],
        ),
        ContainerStatus("d", allocated_resources_status=[AllocatedResource(RESOURCE_MEM, [])]),
    ]
    pods = [
        Pod(ObjectMeta("p", "default", "u"), status=PodStatus(container_statuses=containers)),
        Pod(ObjectMeta("q", "default", "v")),
    ]
    shown = await sources(kubelet, STATUS).ask(pods, may_list=True)
    assert list(shown.sightings) == [BY_UID]
    assert (shown.listed, shown.complete) == (False, False)


@pytest.mark.parametrize(
    ("enabled", "expected"),
    [(STATUS, []), (CHECKPOINT, [BY_UID]), (PODRESOURCES, [BY_NAME])],
)
async def test_only_what_is_enabled_is_asked(
    kubelet: FakeKubelet, enabled: str, expected: list[Sighting]
) -> None:
    holds(kubelet)
    shown = await sources(kubelet, enabled).ask([], may_list=True)
    assert list(shown.sightings) == expected


async def test_the_hook_tells_by_uid_what_the_directory_holds(kubelet: FakeKubelet) -> None:
    letter(kubelet, *IDS)
    letter(kubelet, "GPU-b::0", uid="v")
    shown = await sources(kubelet, HOOK).ask([], may_list=True)
    assert sorted(shown.sightings, key=str) == sorted(
        [BY_LETTER, replace(BY_LETTER, ids=frozenset({"GPU-b::0"}), uid="v")], key=str
    )
    assert (shown.listed, shown.complete) == (False, False)


async def test_of_a_containers_letters_the_last_counts(kubelet: FakeKubelet) -> None:
    """It did not come to run with the first ids, and was given others."""
    letter(kubelet, "GPU-a::7", at_ns=1)
    letter(kubelet, *IDS, at_ns=3)
    letter(kubelet, "GPU-a::9", at_ns=2)
    shown = await sources(kubelet, HOOK).ask([], may_list=True)
    assert list(shown.sightings) == [replace(BY_LETTER, at_ns=3)]


async def test_the_kubelets_own_word_counts_more_than_a_letter(kubelet: FakeKubelet) -> None:
    letter(kubelet, "GPU-a::7")
    holds(kubelet)
    shown = await sources(kubelet).ask([], may_list=True)
    assert list(shown.sightings) == [BY_UID]
    ids = [AllocatedDevice(i) for i in sorted(IDS)]
    status = ContainerStatus("c", allocated_resources_status=[AllocatedResource(RESOURCE_MEM, ids)])
    pod = Pod(ObjectMeta("p", "default", "u"), status=PodStatus(container_statuses=[status]))
    shown = await sources(kubelet, STATUS, HOOK).ask([pod], may_list=True)
    assert list(shown.sightings) == [BY_UID]


async def test_letters_beside_no_record_tell_nothing(kubelet: FakeKubelet) -> None:
    letter(kubelet, *IDS)
    for path in (kubelet.folder / "allocations").glob("*/ids"):
        path.unlink()
    shown = await sources(kubelet, HOOK).ask([], may_list=True)
    assert list(shown.sightings) == []
