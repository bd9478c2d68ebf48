"""A fake API server, a fake kubelet, and device plugins between them, in this process."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpushare.contract.units import Unit
from gpushare.deviceplugin import advertising, hardware
from gpushare.deviceplugin.isolation import isolator
from gpushare.deviceplugin.main import App
from gpushare.deviceplugin.options import Options
from gpushare.deviceplugin.sources import ALL_SOURCES
from gpushare.kube.config import Config
from gpushare.kube.connection import Connection
from gpushare.kube.credentials import FixedHeader
from gpushare.node.fake_gpus import FakeGpus
from tests.deviceplugin.fake_kubelet import FakeKubelet
from tests.deviceplugin.fake_node_api import NODE, FakeNodeApi
from tests.kube.fake_api import eventually

T4_MIB = 16130
"""15 units of 1 GiB."""


@dataclass
class GpuFile:
    """The file of fake GPUs; what is written counts within some 10 ms."""

    path: Path

    def write(
        self, *uuids: str, ill: tuple[str, ...] = (), memory_mib: int = T4_MIB, xid: int = 79
    ) -> None:
        """These GPUs; those in `ill` have failed."""
        content = {
            "gpus": [{"uuid": u, "model": "Tesla T4", "memory_mib": memory_mib} for u in uuids],
            "events": [{"after_s": 0, "uuid": u, "healthy": False, "xid": xid} for u in ill],
        }
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content))
        temporary.replace(self.path)


@dataclass
class Plugin:
    """One running device plugin."""

    app: App
    connection: Connection
    tasks: list[asyncio.Task[object]] = field(default_factory=list)

    @property
    def metrics(self) -> str:
        return self.app.counters.text().decode()

    async def stop(self) -> None:
        """As at SIGTERM."""
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.cancel()
        ended, going_on = await asyncio.wait(tasks, timeout=3) if tasks else (set(), set())
        await self.connection.close()
        assert not going_on, f"still running: {[task.get_name() for task in going_on]}"
        for task in ended:
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]


class Plugins:
    """Starts device plugins of one node, and stops them when the test ends."""

    def __init__(self, api: FakeNodeApi, kubelet: FakeKubelet, gpus: GpuFile) -> None:
        self._api = api
        self._kubelet = kubelet
        self._gpus = gpus
        self._started: list[Plugin] = []

    async def start(
        self,
        *,
        unit: Unit = Unit.GIB,
        attest_by: frozenset[str] = frozenset(ALL_SOURCES),
        registered: bool = True,
        fake: bool = True,
        **more: Any,
    ) -> Plugin:
        """A plugin; once it is registered and its devices are known, unless told otherwise.

        fake: whether it knows that its GPUs are pretended; more: further options.
        """
        config = Config(self._api.url, FixedHeader.token("t"), "the test's configuration")
        connection = Connection(config)
        options = Options(
            kubeconfig=None,
            context=None,
            node=NODE,
            fake_gpus=self._gpus.path if fake else None,
            unit=unit,
            host="127.0.0.1",
            port=0,
            device_plugins=self._kubelet.folder,
            pod_resources=self._kubelet.pod_resources,
            attest_by=attest_by,
            log_level="info",
            log_format="text",
            home=self._kubelet.folder.parent / "home",
            cdi_directories=(self._kubelet.folder.parent / "cdi",),
            regions=self._kubelet.folder.parent / "run",
        )
        options = dataclasses.replace(options, **more)
        source = FakeGpus(self._gpus.path, pause=lambda s: time.sleep(min(s, 0.01)))
        plugin = Plugin(App.build(connection, source, options), connection)
        self._started.append(plugin)
        plugin.tasks = [
            asyncio.get_running_loop().create_task(what, name=name)
            for name, what in plugin.app.tasks().items()
        ]
        if registered:
            pushes = self._kubelet.pushes
            await eventually(lambda: plugin.app.not_ready() is None)
            await eventually(lambda: self._kubelet.pushes > pushes)
        return plugin

    async def stop_all(self) -> None:
        for plugin in self._started:
            await plugin.stop()


@pytest.fixture(autouse=True)
def _no_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions lie in a plain directory: a tmpfs needs root, and would stay."""
    monkeypatch.setattr(isolator, "provide", lambda path: path.mkdir(exist_ok=True))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a socket's has 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="gs-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)  # gRPC may still be removing sockets


@pytest.fixture
async def api() -> AsyncIterator[FakeNodeApi]:
    async with FakeNodeApi() as fake:
        yield fake


@pytest.fixture
async def kubelet(folder: Path) -> AsyncIterator[FakeKubelet]:
    (folder / "device-plugins").mkdir()
    async with FakeKubelet(folder / "device-plugins") as fake:
        yield fake


@pytest.fixture
def gpus(folder: Path) -> GpuFile:
    """Two GPUs, GPU-a and GPU-b, of 15 units."""
    file = GpuFile(folder / "gpus.json")
    file.write("GPU-a", "GPU-b")
    return file


@pytest.fixture
async def plugins(
    api: FakeNodeApi, kubelet: FakeKubelet, gpus: GpuFile, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Plugins]:
    monkeypatch.setattr(hardware, "SLICE_S", 0.05)
    monkeypatch.setattr(advertising, "WITHDRAWN_AFTER_S", 0.3)
    started = Plugins(api, kubelet, gpus)
    yield started
    await kubelet.stop()  # so that no open stream has to be waited for
    await started.stop_all()
