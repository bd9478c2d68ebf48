"""`gpushare device-plugin`: puts the parts together and runs them until told to stop.

The kubelet is served only once the node, its pods and its GPUs are known and it has been read who
has which ids; from then on also while the API server is away. A part that fails ends the process
with status 1; a restart builds everything anew from the API server and the kubelet.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from aiohttp import web

from gpushare.deviceplugin.announce import Announcer
from gpushare.deviceplugin.attester import Attester
from gpushare.deviceplugin.counters import Counters
from gpushare.deviceplugin.hardware import Hardware
from gpushare.deviceplugin.http import application
from gpushare.deviceplugin.injection.allocations import AllocationDevices
from gpushare.deviceplugin.injection.choosing import Way
from gpushare.deviceplugin.injection.injector import Injector
from gpushare.deviceplugin.injection.retiring import Retiring
from gpushare.deviceplugin.isolation import usage_command
from gpushare.deviceplugin.isolation.guarding import Guard
from gpushare.deviceplugin.isolation.isolator import Isolator
from gpushare.deviceplugin.isolation.truth import Truth
from gpushare.deviceplugin.isolation.usage import Usage
from gpushare.deviceplugin.neighbours import LOOK_UP_S, Neighbours, Residents
from gpushare.deviceplugin.options import Options, parse
from gpushare.deviceplugin.publisher import Publisher
from gpushare.deviceplugin.service import Allocator
from gpushare.deviceplugin.serving import Serving
from gpushare.deviceplugin.sources import Sources
from gpushare.deviceplugin.state import NodeState
from gpushare.kube.connection import Connection
from gpushare.kube.errors import ConfigError
from gpushare.kube.events import Recorder
from gpushare.kube.listing import list_all
from gpushare.kube.moments import until_stopped
from gpushare.kube.objects import Node, Pod
from gpushare.kube.reflector import Reflector
from gpushare.kube.resources import NODES, PODS, Selector, checked_name
from gpushare.node.fake_gpus import FakeGpus
from gpushare.node.gpus import GpuSource, GpusUnavailable
from gpushare.node.mailbox import Mailboxes
from gpushare.node.nvml import NvmlGpus
from gpushare.view import logs

log = logging.getLogger(__name__)


@dataclass
class App:
    """The parts of one device plugin."""

    state: NodeState
    nodes: Reflector[Node]
    pods: Reflector[Pod]
    recorder: Recorder
    announcer: Announcer
    attester: Attester
    isolator: Isolator
    injector: Injector
    neighbours: Neighbours
    publisher: Publisher
    retiring: Retiring
    guard: Guard
    truth: Truth
    hardware: Hardware
    serving: Serving
    counters: Counters
    usage: Usage

    @classmethod
    def build(cls, connection: Connection, source: GpuSource, options: Options) -> "App":
        """All parts, wired; must be called where an event loop runs."""
        fake = options.fake_gpus is not None
        way = Way.FAKE if fake else Way.CDI
        state = NodeState(
            options.node,
            options.unit,
            way,
            alone=not options.beside_whole_gpus,
            unisolated_allowed=options.allow_unisolated,
        )
        recorder = Recorder(connection, "gpushare-device-plugin", host=options.node)
        announcer = Announcer(recorder)
        counters = Counters(lambda: state.books)
        mailboxes = Mailboxes(options.home / "allocations")
        isolator = Isolator(
            state,
            options.library,
            options.home / "bin",
            options.regions,
            options.reserve_mib,
            may_opt_out=options.allow_cgpu_disable,
        )
        guard = Guard(state, mailboxes, connection, announcer)
        usage = Usage(
            lambda: state.books,
            mailboxes.record,
            isolator.region_path,
            lambda: guard.unprotected,
            lambda: truth.real(),
        )
        hardware = Hardware(state, source, announcer)
        truth = Truth(state, usage.report, mailboxes.record, hardware.occupancy, announcer)
        counters.watch(usage.report)
        sources = Sources(
            options.device_plugins, options.pod_resources, options.attest_by, mailboxes
        )
        attester = Attester(state, sources, counters)
        allocations = AllocationDevices(
            mailboxes,
            options.cdi_directories[-1],
            lambda: {gpu.uuid: gpu.minor for gpu in state.found},
            isolator,
        )
        injector = Injector(
            state,
            sources,
            allocations,
            isolator,
            options.injection,
            fake,
            options.cdi_directories,
            options.hook,
            options.home / "bin",
        )
        allocator = Allocator(state, connection, attester, injector, announcer, counters)
        name = options.node
        residents = Residents(state.pod_handler)
        here = Selector(fields=f"spec.nodeName={name}")

        async def list_pods() -> list[Pod]:
            return (await list_all(connection, PODS, here, timeout_s=LOOK_UP_S)).items

        neighbours = Neighbours(
            state,
            sources,
            residents,
            list_pods,
            choosing=lambda: attester.choosing,
        )
        return cls(
            state,
            Reflector(
                connection, NODES, state.node_handler, Selector(fields=f"metadata.name={name}")
            ),
            Reflector(connection, PODS, residents, here),
            recorder,
            announcer,
            attester,
            isolator,
            injector,
            neighbours,
            Publisher(state, connection),
            Retiring(
                options.home / "bin",
                allocations,
                lambda: (allocations.hook, isolator.library),
            ),
            guard,
            truth,
            hardware,
            Serving(options.device_plugins, allocator, counters),
            counters,
            usage,
        )

    def tasks(self) -> dict[str, Coroutine[Any, Any, Any]]:
        """Name -> what runs for the life of the process."""
        return {
            "watch of the node": self.nodes.run(),
            "watch of its pods": self.pods.run(),
            "events": self.recorder.run(),
            "GPUs": self.hardware.run(),
            "telling": self._tell(),
            "serving": self._serve(),
        }

    async def _tell(self) -> NoReturn:
        """Tell of what is wrong with the node, of decisions, and of what happens, as it comes."""
        changed = asyncio.Event()
        self.state.subscribers.append(changed)
        while True:
            changed.clear()
            self.announcer.problems(self.state)
            self.announcer.decisions(self.state)
            self.announcer.happenings(self.state)
            await changed.wait()

    async def _serve(self) -> None:
        """Serve the kubelet, once everything is known that it takes."""
        changed = asyncio.Event()
        self.state.subscribers.append(changed)
        while not self.state.complete:
            changed.clear()
            await changed.wait()
        self.state.subscribers.remove(changed)
        await self.injector.probe()
        await self.neighbours.look()
        self.state.begin()
        self.isolator.probe()
        shown = await self.attester.look()
        self.attester.remember(shown)
        self.injector.rebuild(shown.sightings if shown else ())
        log.info(
            "node %s: %d GPUs, %d units of %s, mode %s; %d pods that ask for GPU memory",
            self.state.name,
            len(self.state.devices),
            sum(device.units for device in self.state.devices),
            self.state.unit,
            self.state.books.node.mode if self.state.books else "",
            len(self.state.pods),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self.attester.run())
            group.create_task(self.isolator.run())
            group.create_task(self.injector.run())
            group.create_task(self.neighbours.run())
            group.create_task(self.publisher.run())
            group.create_task(self.retiring.run())
            group.create_task(self.guard.run())
            group.create_task(self.truth.run())
            group.create_task(self.serving.run())

    def not_ready(self) -> str | None:
        """Why the kubelet is not served."""
        if self.state.books is None:
            failed = next((r.last_error for r in (self.nodes, self.pods) if r.last_error), None)
            return f"the node, its pods and its GPUs are not all known yet{_because(failed)}"
        return None if self.serving.registered else "not registered with the kubelet"


def _because(failed: str | None) -> str:
    return f": {failed}" if failed else ""


def _source(options: Options) -> GpuSource:
    """The GPUs, real or pretended. Raises GpusUnavailable for a file that cannot be used."""
    if options.fake_gpus is None:
        return NvmlGpus()
    source = FakeGpus(options.fake_gpus)
    source.look()
    return source


async def run(options: Options) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_ in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_, stop.set)
    try:
        checked_name(options.node)
        connection = Connection.open(options.kubeconfig, options.context, component="device-plugin")
        source = _source(options)
    except (ConfigError, ValueError, GpusUnavailable) as error:
        print(f"gpushare device-plugin: {error}", file=sys.stderr)
        return 2
    async with connection:
        app = App.build(connection, source, options)
        served = application(app.counters, app.not_ready, app.usage.report)
        runner = web.AppRunner(served, access_log=None)
        await runner.setup()
        try:
            # In a rolling update the next instance starts before this one ends.
            await web.TCPSite(runner, options.host, options.port, reuse_port=True).start()
        except OSError as error:
            where = f"{options.host}:{options.port}"
            print(
                f"gpushare device-plugin: cannot listen on {where}: {error.strerror or error}; "
                "name another with --listen ADDRESS:PORT",
                file=sys.stderr,
            )
            await runner.cleanup()
            return 2
        if options.fake_gpus is not None:
            log.warning(
                "pretending to have the GPUs of %s: no container gets one", options.fake_gpus
            )
        tasks = [loop.create_task(what, name=name) for name, what in app.tasks().items()]
        failed = await until_stopped(stop, tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()
        app.usage.close()
    log.info("stopped")
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """The entry point: the exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    prog = prog or "gpushare device-plugin"
    if arguments[:1] == ["usage"]:
        return usage_command.main(arguments[1:], f"{prog} usage")
    options = parse(arguments, prog)
    logs.set_up(options.log_level, "json" if options.log_format == "json" else "text")
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    return asyncio.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
