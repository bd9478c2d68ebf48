"""What containers really use against what is counted: compared, published, told of."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpushare.contract import names
from gpushare.deviceplugin.announce import UNACCOUNTED
from gpushare.deviceplugin.isolation import truth
from gpushare.deviceplugin.isolation.truth import Held, Measured, Subject, compare
from gpushare.deviceplugin.isolation.usage import ContainerUse
from gpushare.isolation.limits import MIB, GpuLimit
from gpushare.isolation.region import HEADER_SIZE, LOCKS_AT
from gpushare.kube.events import MAX_MESSAGE_BYTES, About, Severity
from gpushare.node.gpus import Occupancy
from gpushare.node.mailbox import allocation_id
from tests.deviceplugin.conftest import GpuFile, Plugin, Plugins
from tests.deviceplugin.fake_kubelet import FakeKubelet
from tests.deviceplugin.fake_node_api import NODE, FakeNodeApi, Json, container, node, pod
from tests.isolation.fake_proc import FakeProc
from tests.kube.fake_api import eventually

UUID = "GPU-00000000-0000-4000-8000-00000000000{}"
ONE = UUID.format(1)
A, B, INIT = "a1" * 32, "b2" * 32, "c3" * 32
LIMIT, RESERVE = 4096, 512

# -- the comparison --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """MiB. Container a has process 1 and 2, b has 3; 9 is nobody's."""

    processes: dict[int, int | None] | None
    charged: dict[str, int | None]
    expected: dict[str, tuple[int, int | None]]
    """Container, or "all" for the whole GPU -> (real, unaccounted)."""
    used: int | None = 0
    all_held: bool = True


CASES = {
    "contexts larger than the reserve": Case(
        {1: 800, 3: 1100}, {"a": 512, "b": 1024}, {"a": (800, 288), "b": (1100, 76)}
    ),
    "contexts smaller than the reserve": Case({1: 414}, {"a": 512}, {"a": (414, 0)}),
    "a second process": Case({1: 800, 2: 3000}, {"a": 512}, {"a": (3800, 3288)}),
    "a static program": Case({1: 3000}, {"a": 0}, {"a": (3000, 3000)}),
    "one runs, one is idle": Case({1: 600}, {"a": 512, "b": 0}, {"a": (600, 88), "b": (0, 0)}),
    "a neighbour that is nobody's": Case({1: 600, 9: 5000}, {"a": 512}, {"a": (600, 88)}, 5600),
    "a region that cannot be read": Case({1: 600}, {"a": None}, {"a": (600, None)}),
    "a region that says more than the limit": Case({1: 9000}, {"a": 9999}, {"a": (9000, 4904)}),
    "one amount is not available": Case(
        {1: 600, 2: None, 3: 700}, {"a": 512, "b": 512}, {"b": (700, 188)}
    ),
    "no amount is available": Case(
        {1: None, 3: None}, {"a": 512, "b": 512}, {"all": (1500, 476)}, 1500
    ),
    "pids of another namespace": Case({9: 1500}, {"a": 512, "b": 512}, {"all": (1500, 476)}, 1500),
    "no lists of processes": Case(None, {"a": 512, "b": 1024}, {"all": (1500, 0)}, 1500),
    "sums, beside one that is held to nothing": Case(None, {"a": 512}, {}, 1500, all_held=False),
    "sums, of a region that cannot be read": Case(None, {"a": 512, "b": None}, {}, 1500),
    "sums, which the driver does not say": Case(None, {"a": 512}, {}, None),
    "nothing at all": Case({}, {"a": 0}, {"all": (0, 0)}),
    "nobody is held there": Case({9: 1500}, {}, {}, 1500),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_comparing_one_gpu(case: Case) -> None:
    limit = GpuLimit(ONE, LIMIT * MIB, RESERVE * MIB)
    held = [
        Held(("uid", name, ONE), frozenset({name}), None if mib is None else mib * MIB, limit)
        for name, mib in case.charged.items()
    ]
    listed = case.processes and {
        pid: None if mib is None else mib * MIB for pid, mib in case.processes.items()
    }
    gpu = Occupancy(None if case.used is None else case.used * MIB, listed)
    found = compare(held, gpu, {1: "a", 2: "a", 3: "b"}, all_held=case.all_held)
    assert {_name(subject): _mib(one) for subject, one in found.items()} == case.expected


def _name(subject: Subject) -> str:
    return "all" if isinstance(subject, str) else subject[1]


def _mib(one: Measured) -> tuple[int, int | None]:
    return one.real // MIB, None if one.unaccounted is None else one.unaccounted // MIB


@pytest.mark.parametrize(("charged", "too_much"), [(2488, False), (2487, True), (None, False)])
def test_up_to_one_reserve_is_no_news(charged: int | None, too_much: bool) -> None:
    assert Measured(3000, charged, 512).too_much is too_much


def test_a_container_that_has_not_started_uses_an_unknown_amount() -> None:
    limit = GpuLimit(ONE, LIMIT * MIB, RESERVE * MIB)
    held = [
        Held(("u", "c0", ONE), frozenset("a"), MIB, limit),
        Held(("v", "c0", ONE), frozenset(), 0, limit),
    ]
    found = compare(held, Occupancy(MIB, {1: MIB}), {1: "a"}, all_held=True)
    assert list(found) == [("u", "c0", ONE)]


# -- a node --------------------------------------------------------------------------------------


@dataclass
class Node:
    """A plugin on a node that isolates, its driver, and its regions."""

    api: FakeNodeApi
    kubelet: FakeKubelet
    plugin: Plugin
    proc: FakeProc
    regions: Path
    driver: dict[str, Occupancy] = field(default_factory=dict)
    asked: int = 0
    while_asked: Callable[[], None] = lambda: None
    events: list[tuple[About, Severity, str]] = field(default_factory=list)
    """What was told of too much."""
    _locks: dict[Path, int] = field(default_factory=dict)

    async def occupancy(self) -> dict[str, Occupancy]:
        self.asked += 1
        self.while_asked()
        return self.driver

    async def run(self, manifest: Json, **ids: str) -> Path:
        """A pod is admitted and runs: container -> its id. The region of its ids."""
        name, uid = manifest["metadata"]["name"], manifest["metadata"]["uid"]
        self.api.put_pod(manifest)
        await self.kubelet.admit(self.api.pods[name])
        await self.started(name, **ids)
        await eventually(lambda: self.api.annotation(names.ANNOTATION_ASSIGNED, pod=name) == "true")
        return self.regions / allocation_id(self.kubelet.ids_of(uid)) / "region"

    async def started(self, name: str, **ids: str) -> None:
        statuses = [{"name": c, "containerID": f"containerd://{i}"} for c, i in ids.items()]
        init = [status for status in statuses if status["name"].startswith("i")]
        app = [status for status in statuses if status not in init]
        self.api.change_pod(
            name,
            status={
                "phase": "Running",
                "initContainerStatuses": init,
                "containerStatuses": app,
            },
        )
        known = self.plugin.app.state.pods
        await eventually(lambda: f"containerd://{list(ids.values())[-1]}" in str(known.values()))

    def charge(self, region: Path, mib: int) -> None:
        """The one process of a container says that it uses so much."""
        if region not in self._locks:
            self._locks[region] = os.open(region, os.O_RDWR)
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, LOCKS_AT, 1, 0)
            fcntl.fcntl(self._locks[region], fcntl.F_OFD_SETLK, lock)
        os.pwrite(self._locks[region], struct.pack("<IIQ", 7, 0, 1), HEADER_SIZE)
        os.pwrite(self._locks[region], struct.pack("<Q", mib * MIB), HEADER_SIZE + 64)

    def uses(self, processes: dict[int, int] | None, used: int = 0) -> None:
        """What the driver says of the first GPU, in MiB."""
        listed = processes and {pid: mib * MIB for pid, mib in processes.items()}
        self.driver[ONE] = Occupancy(used * MIB, listed)

    async def look(self, times: int = 2) -> None:
        for _ in range(times):
            await self.plugin.app.truth.look()

    def use(self, container: str = "c0") -> ContainerUse:
        report = self.plugin.app.usage.report()
        assert report is not None
        return next(use for use in report.containers if use.container == container)

    @property
    def told(self) -> list[str]:
        """Of which objects."""
        return [about.name for about, _, _ in self.events]

    def close(self) -> None:
        for lock in self._locks.values():
            os.close(lock)


Begin = Callable[..., Awaitable[Node]]


@pytest.fixture
async def begin(
    api: FakeNodeApi,
    kubelet: FakeKubelet,
    plugins: Plugins,
    gpus: GpuFile,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Begin]:
    monkeypatch.setattr(truth, "POLL_S", 1000)
    gpus.write(ONE, UUID.format(2))
    library = folder / "libgpushare-interposer.so"
    library.write_bytes(b"as it was built")
    begun: list[Node] = []

    async def start(mode: str = "cgpu") -> Node:
        api.put_node(node(labels={names.LABEL_MODE: mode}, runtime="containerd://2.1.4"))
        plugin = await plugins.start(library=library, regions=folder / "run")
        n1 = Node(api, kubelet, plugin, FakeProc(folder / "proc"), folder / "run")
        plugin.app.truth.occupancy = n1.occupancy
        plugin.app.truth.proc = n1.proc.path
        begun.append(n1)
        write = plugin.app.recorder.event

        def event(
            about: About, severity: Severity, reason: str, message: str, part: str = ""
        ) -> None:
            if reason == UNACCOUNTED:
                n1.events.append((about, severity, message))
            write(about, severity, reason, message)

        monkeypatch.setattr(plugin.app.recorder, "event", event)
        return n1

    yield start
    for one in begun:
        one.close()


async def running(n1: Node) -> Path:
    """Pod p with process 7 on the first GPU."""
    region = await n1.run(pod("p", 4, gpu=0), c0=A)
    n1.proc.add(7, cgroup=f"/kubepods/pod1/{A}")
    return region


async def test_what_a_container_really_uses_is_published(begin: Begin) -> None:
    n1 = await begin()
    region = await running(n1)
    n1.charge(region, 512)
    n1.uses({7: 800, 1: 5000})
    await n1.look(3)
    use = n1.use()
    assert (use.used_bytes, use.real_bytes) == (512 * MIB, 800 * MIB)
    assert use.unaccounted_bytes == 288 * MIB
    assert n1.told == []


async def test_too_much_is_told_of_once_after_two_looks(begin: Begin) -> None:
    n1 = await begin()
    region = await running(n1)
    n1.charge(region, 512)
    n1.uses({7: 3000})
    await n1.look(1)
    assert n1.told == []
    await n1.look(3)
    ((about, severity, message),) = n1.events
    assert (about.kind, about.name, severity) == ("Pod", "p", Severity.WARNING)
    assert n1.use().unaccounted_bytes == 2488 * MIB
    await eventually(lambda: UNACCOUNTED in n1.api.reasons("Pod", "p"))
    for part in ("container c0", "3000 MiB of GPU 0", "2488 MiB", "512 MiB", "--reserve-mib"):
        assert part in message


async def test_it_is_told_of_again_only_after_it_was_over(begin: Begin) -> None:
    n1 = await begin()
    region = await running(n1)
    n1.charge(region, 512)
    n1.uses({7: 3000})
    await n1.look()
    n1.driver = {}  # for a moment nobody knows
    await n1.look(1)
    n1.uses({7: 3000})
    await n1.look()
    assert n1.told == ["p"]
    n1.uses({7: 800})
    await n1.look(1)
    n1.uses({7: 3000})
    await n1.look()
    assert n1.told == ["p", "p"]


async def test_what_is_found_in_one_look_only_is_not_told(begin: Begin) -> None:
    n1 = await begin()
    n1.charge(await running(n1), 512)
    for mib in (3000, 800, 3000, 512, 3000):
        n1.uses({7: mib})
        await n1.look(1)
    assert n1.told == []


async def test_memory_that_comes_and_goes_is_no_finding(begin: Begin) -> None:
    """The driver is asked while it is there, the region before or after."""
    n1 = await begin()
    region = await running(n1)
    n1.uses({7: 4000})
    afterwards: list[int] = []
    n1.while_asked = lambda: n1.charge(region, afterwards.pop(0))
    for before, *afterwards in ((4000, 512), (512, 4000), (512, 512, 512, 4000)):
        n1.charge(region, before)
        await n1.look(1)
        assert n1.plugin.app.truth.measured["uid-p", "c0", ONE].too_much is False
        assert afterwards == []
    n1.while_asked = lambda: None
    n1.charge(region, 512)
    await n1.look()
    assert n1.told == ["p"]


async def test_where_pids_say_nothing_the_gpu_is_told_of(begin: Begin) -> None:
    n1 = await begin()
    n1.charge(await running(n1), 512)
    n1.charge(await n1.run(pod("q", 2, gpu=0), c0=B), 1024)
    n1.uses({1: 1800, 12: 900}, 2700)
    await n1.look(3)
    assert (n1.use().real_bytes, n1.use().unaccounted_bytes) == (None, None)
    ((about, severity, message),) = n1.events
    assert (about.kind, about.name, severity) == ("Node", NODE, Severity.WARNING)
    await eventually(lambda: UNACCOUNTED in n1.api.reasons("Node", NODE))
    for part in (f"GPU 0 ({ONE})", "2700 MiB", "1536 MiB", "1164 MiB", "1024 MiB together"):
        assert part in message
    assert len(message.encode()) < MAX_MESSAGE_BYTES


async def test_sums_say_nothing_beside_a_container_that_is_held_to_nothing(begin: Begin) -> None:
    n1 = await begin()
    n1.charge(await running(n1), 512)
    region = await n1.run(pod("q", 2, gpu=0), c0=B)
    kept = n1.plugin.app.truth.records

    def records(name: str) -> object:
        return None if name == region.parent.name else kept(name)

    n1.plugin.app.truth.records = records  # type: ignore[assignment]
    n1.uses({1: 8000}, 8000)
    await n1.look(3)
    assert n1.plugin.app.truth.measured == {}


async def test_an_init_containers_use_is_counted_with_the_app_that_goes_on(begin: Begin) -> None:
    n1 = await begin()
    manifest = pod("p", 4, gpu=0)
    manifest["spec"]["initContainers"] = [container("i", 4)]
    region = await n1.run(manifest, i=INIT)
    n1.charge(region, 512)
    n1.proc.add(7, cgroup=f"/kubepods/pod1/{INIT}")
    n1.uses({7: 700})
    await n1.look(1)
    assert (n1.use("c0").real_bytes, n1.use("c0").unaccounted_bytes) == (700 * MIB, 188 * MIB)
    assert n1.use("i").real_bytes is None
    await n1.started("p", i=INIT, c0=A)
    n1.proc.add(8, cgroup=f"/kubepods/pod1/{A}")
    n1.uses({8: 900})
    await n1.look(1)
    assert n1.use("c0").real_bytes == 900 * MIB


async def test_the_driver_is_asked_only_while_somebody_is_held(begin: Begin) -> None:
    n1 = await begin()
    await n1.look()
    assert n1.asked == 0
    await running(n1)
    await n1.look(1)
    assert n1.asked > 0
    n1.api.delete_pod("p")
    await eventually(lambda: not n1.plugin.app.state.pods)
    await n1.look(1)
    asked = n1.asked
    await n1.look()
    assert n1.asked == asked
    assert n1.plugin.app.truth.measured == {}


async def test_a_share_node_is_let_be(begin: Begin) -> None:
    n1 = await begin("share")
    await running(n1)
    n1.uses({7: 9000}, 9000)
    await n1.look(3)
    assert n1.asked == 0
    assert n1.use().real_bytes is None


async def test_a_source_is_asked_by_one_thread_at_a_time(begin: Begin) -> None:
    n1 = await begin()
    hardware = n1.plugin.app.hardware
    wait, busy, clashes = hardware.source.wait, threading.Event(), []

    def waiting(timeout_s: float) -> bool:
        busy.set()
        happened = wait(timeout_s)
        busy.clear()
        return happened

    def occupancy() -> dict[str, Occupancy]:
        clashes.append(busy.is_set())
        return {}

    hardware.source.wait = waiting  # type: ignore[method-assign]
    hardware.source.occupancy = occupancy  # type: ignore[method-assign]
    await eventually(busy.is_set)
    for _ in range(10):
        assert await hardware.occupancy() == {}
    assert clashes == [False] * 10


async def test_it_looks_by_itself(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "POLL_S", 0.02)  # before the plugin starts
    n1 = await begin()
    n1.charge(await running(n1), 512)
    n1.uses({7: 3000})
    await eventually(lambda: UNACCOUNTED in n1.api.reasons("Pod", "p"))
