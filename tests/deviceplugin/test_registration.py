"""Being registered with the kubelet, and staying so."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from gpushare.contract.names import RESOURCE_MEM
from gpushare.deviceplugin import serving
from gpushare.kube.backoff import Backoff
from tests.deviceplugin.conftest import Plugins
from tests.deviceplugin.fake_kubelet import FakeKubelet
from tests.deviceplugin.fake_node_api import FakeNodeApi, never, node, pod
from tests.kube.fake_api import eventually


def sockets(kubelet: FakeKubelet) -> list[str]:
    return sorted(path.name for path in kubelet.folder.glob("gpushare-*.sock"))


async def test_it_registers_with_every_unit_of_every_gpu(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    plugin = await plugins.start()
    (request,) = kubelet.requests
    assert (request.version, request.resource_name) == ("v1beta1", RESOURCE_MEM)
    assert request.options.get_preferred_allocation_available
    assert not request.options.pre_start_required
    assert sockets(kubelet) == [request.endpoint]
    assert set(kubelet.devices) == {f"GPU-{g}::{slot}" for g in "ab" for slot in range(15)}
    assert kubelet.healthy == set(kubelet.devices)
    assert "gpushare_plugin_registrations_total 1.0" in plugin.metrics


@pytest.mark.parametrize("missing", ["nodes", "pods"])
async def test_nothing_is_served_before_the_first_list(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, missing: str
) -> None:
    api.put_node(node())
    api.refuse_lists = {missing}
    plugin = await plugins.start(registered=False)
    await never(lambda: kubelet.registrations or sockets(kubelet), for_s=0.3)
    why = plugin.app.not_ready()
    assert why is not None
    assert "not all known yet" in why
    assert f"/api/v1/{missing}" in why
    api.refuse_lists = set()
    await eventually(lambda: kubelet.devices)
    assert plugin.app.not_ready() is None


async def test_it_waits_for_its_node_object(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    await plugins.start(registered=False)
    await never(lambda: kubelet.registrations, for_s=0.3)
    api.put_node(node())
    await eventually(lambda: kubelet.devices)


async def test_it_waits_for_the_kubelet(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    await kubelet.stop()
    (kubelet.folder / "kubelet.sock").unlink()
    api.put_node(node())
    plugin = await plugins.start(registered=False)
    await eventually(lambda: plugin.app.not_ready() == "not registered with the kubelet")
    await kubelet.start()
    await eventually(lambda: kubelet.devices)


async def test_a_restarted_kubelet_is_registered_with_within_a_second(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 12, gpu=0))
    plugin = await plugins.start()
    await kubelet.admit(api.pods["p"])
    for _ in range(3):
        known = len(kubelet.registrations)
        await kubelet.restart()
        await eventually(lambda known=known: len(kubelet.registrations) > known)
        took_s = kubelet.registered_at[-1] - kubelet.there_at
        print(f"registered again after {took_s:.3f} s")
        assert took_s < 1
        await eventually(lambda: len(kubelet.healthy) == 30)
    assert sockets(kubelet) == [kubelet.endpoint]
    api.put_pod(pod("stray", 6))
    await kubelet.admit(api.pods["stray"])
    assert {i.partition("::")[0] for i in kubelet.ids_of("uid-stray")} == {"GPU-b"}
    assert "gpushare_plugin_registrations_total 4.0" in plugin.metrics


async def test_a_kubelet_that_was_down_for_long_is_not_kept_waiting(
    api: FakeNodeApi,
    kubelet: FakeKubelet,
    plugins: Plugins,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pause after many vain tries ends when there is another kubelet."""
    monkeypatch.setattr(serving, "Backoff", lambda **_: Backoff(first_s=5.0, cap_s=5.0))
    api.put_node(node())
    await plugins.start()
    await kubelet.restart(down_s=0.3)
    await eventually(lambda: len(kubelet.registrations) == 2)
    assert kubelet.registered_at[-1] - kubelet.there_at < 1


async def test_a_kubelet_that_stops_listening_is_registered_with_again(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    await plugins.start()
    await kubelet.stop_listening()
    began = time.monotonic()
    await eventually(lambda: len(kubelet.registrations) == 2)
    assert time.monotonic() - began < 1
    await eventually(lambda: len(kubelet.healthy) == 30)
    await eventually(lambda: sockets(kubelet) == [kubelet.endpoint])


async def test_a_kubelet_that_never_listens_is_registered_with_again(
    api: FakeNodeApi,
    kubelet: FakeKubelet,
    plugins: Plugins,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "WATCHED_WITHIN_S", 0.2)

    async def deaf(client: object) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(kubelet, "_listen", deaf)
    api.put_node(node())
    await plugins.start(registered=False)
    await eventually(lambda: len(kubelet.registrations) == 2)


async def test_a_registration_that_was_refused_is_tried_again(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    kubelet.refuse = "not now"
    api.put_node(node())
    plugin = await plugins.start(registered=False)
    await never(lambda: plugin.app.not_ready() is None, for_s=0.3)
    kubelet.refuse = None
    await eventually(lambda: kubelet.devices)
    assert "gpushare_plugin_registrations_total 1.0" in plugin.metrics


async def test_a_socket_that_somebody_removed_is_made_anew(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    await plugins.start()
    (kubelet.folder / kubelet.registrations[0]).unlink()
    await eventually(lambda: len(kubelet.registrations) == 2)
    await eventually(lambda: len(kubelet.healthy) == 30)


async def test_sockets_of_killed_plugins_are_removed(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    dead = kubelet.folder / "gpushare-dead.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(dead))
    api.put_node(node())
    await plugins.start()
    assert sockets(kubelet) == kubelet.registrations


async def test_it_leaves_no_socket_behind(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    plugin = await plugins.start()
    await plugin.stop()
    assert sockets(kubelet) == []
    await eventually(lambda: kubelet.healthy == set())


# -- a rolling update: two plugins overlap -------------------------------------------------------


async def test_the_older_of_two_stops_and_the_newer_ends_registered(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    api.put_node(node())
    older = await plugins.start()
    newer = await plugins.start()
    assert len(sockets(kubelet)) == 2
    await older.stop()
    await eventually(lambda: sockets(kubelet) == [kubelet.endpoint])
    await eventually(lambda: len(kubelet.healthy) == 30)
    assert newer.app.serving.registered
    api.put_pod(pod("p", 4, gpu=1))
    await kubelet.admit(api.pods["p"])


async def test_the_newer_of_two_stops_and_the_older_ends_registered(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins
) -> None:
    """A rolling update that is taken back."""
    api.put_node(node())
    older = await plugins.start()
    newer = await plugins.start()
    await asyncio.sleep(0.3)
    await newer.stop()
    await eventually(lambda: sockets(kubelet) == [kubelet.endpoint])
    await eventually(lambda: len(kubelet.healthy) == 30)
    assert older.app.serving.registered
    api.put_pod(pod("p", 4, gpu=1))
    await kubelet.admit(api.pods["p"])


# -- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(4))
async def test_a_stop_ends_every_part_also_when_something_has_just_happened(
    api: FakeNodeApi, kubelet: FakeKubelet, plugins: Plugins, steps: int
) -> None:
    api.put_node(node())
    plugin = await plugins.start()
    app = plugin.app
    await asyncio.sleep(0.1)
    app.attester.handed_out()
    app.state.touch()
    for _ in range(steps):
        await asyncio.sleep(0)
    await plugin.stop()
