"""`gpushare extender`: puts the parts together and runs them until told to stop.

On SIGTERM: no new requests, the binds in flight end (each has its deadline), then the rest. A part
that fails ends the process with status 1: its state can no longer be trusted, and a restart builds
everything anew from the API.
"""

import asyncio
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from gpushare.extender.announce import Announcer
from gpushare.extender.asks import Asks
from gpushare.extender.audit import Auditor
from gpushare.extender.bind import Binder
from gpushare.extender.counters import Counters
from gpushare.extender.decide import Decider
from gpushare.extender.gauges import Gauges
from gpushare.extender.nudge import Nudger
from gpushare.extender.options import Options, parse
from gpushare.extender.plan import Planner
from gpushare.extender.server import Extender, application
from gpushare.extender.settle import Settler
from gpushare.extender.state import ClusterState
from gpushare.kube.connection import Connection
from gpushare.kube.errors import ConfigError
from gpushare.kube.events import Recorder
from gpushare.kube.firstlist import synced_without_gc
from gpushare.kube.moments import until_stopped
from gpushare.kube.objects import Node, Pod
from gpushare.kube.reflector import Reflector
from gpushare.kube.resources import NODES, PODS
from gpushare.view import logs

log = logging.getLogger(__name__)


@dataclass
class App:
    """The parts of one extender, put together around one connection."""

    extender: Extender
    nodes: Reflector[Node]
    pods: Reflector[Pod]
    recorder: Recorder
    nudger: Nudger | None
    settler: Settler
    auditor: Auditor

    @classmethod
    def build(cls, connection: Connection, options: Options) -> "App":
        """All parts, wired; must be called where an event loop runs."""
        clock = time.monotonic
        recorder = Recorder(connection, "gpushare-extender")
        announcer = Announcer(recorder, clock)
        state = ClusterState(clock, options.unit, announcer)
        asks = Asks()
        decider = Decider(state, asks, clock, options.node_ranking)
        counters, gauges, auditor = Counters(), Gauges(state.ledger), Auditor(state)
        nudger: Nudger | None = None
        if options.nudge:
            planner = Planner(state, asks, decider)
            nudger = Nudger(state, planner, connection, clock, counters.nudge)
            asks.on_rejected = nudger.rejected
        binder = Binder(state, connection, clock, options.bind_deadline_s)
        nodes = Reflector(connection, NODES, state.nodes)
        pods = Reflector(connection, PODS, state.pods)
        extender = Extender(
            state,
            decider,
            binder,
            announcer,
            counters,
            gauges,
            clock,
            lambda: next((r.last_error for r in (nodes, pods) if r.last_error), None),
        )
        counters.watch(
            lambda: _waiting_by_reason(state, asks),
            lambda: {r.resource.name: r.contact_age_s() for r in (nodes, pods)},
            lambda: auditor.drift,
        )
        return cls(
            extender,
            nodes,
            pods,
            recorder,
            nudger,
            Settler(state, connection, clock),
            auditor,
        )

    def tasks(self) -> dict[str, Coroutine[Any, Any, Any]]:
        """Name -> what runs for the life of the process."""
        extender = self.extender
        tasks: dict[str, Coroutine[Any, Any, Any]] = {
            "watch of nodes": self.nodes.run(),
            "watch of pods": self.pods.run(),
            "events": self.recorder.run(),
            "announcements": extender.announcer.run(extender.state, extender.decider),
            "settling": self.settler.run(),
            "leaving": extender.state.leavers.run(extender.state.touch),
            "audit": self.auditor.run(),
        }
        if self.nudger is not None:
            tasks["nudge"] = self.nudger.run()
        return tasks

    async def first_lists(self) -> None:
        """Says when the extender begins to answer."""
        await synced_without_gc(self.nodes, self.pods)
        state = self.extender.state
        log.info(
            "ready: %d nodes, %d pods that ask for GPU memory on them, %d waiting",
            len(state.ledger),
            len(state.ledger.pods),
            len(state.waiting),
        )


def _waiting_by_reason(state: ClusterState, asks: Asks) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for pod in state.still_waiting():
        ask = asks.get(pod.uid)
        reason = pod.error.reason if pod.error else ask.reason if ask else None
        if reason is not None:
            counts[reason] += 1
    return counts


async def run(options: Options) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_ in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_, stop.set)
    try:
        connection = Connection.open(options.kubeconfig, options.context, component="extender")
    except ConfigError as error:
        print(f"gpushare extender: {error}", file=sys.stderr)
        return 2
    async with connection:
        app = App.build(connection, options)
        runner = web.AppRunner(
            application(app.extender),
            access_log=None,
            shutdown_timeout=options.bind_deadline_s,
            # The scheduler compresses nothing, and a little compressed is a lot to unpack.
            auto_decompress=False,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, options.host, options.port).start()
        except OSError as error:
            where = f"{options.host}:{options.port}"
            print(
                f"gpushare extender: cannot listen on {where}: {error.strerror or error}; "
                "name another with --listen ADDRESS:PORT",
                file=sys.stderr,
            )
            await runner.cleanup()
            return 2
        _say_where(runner, options, connection)
        tasks = [loop.create_task(what, name=name) for name, what in app.tasks().items()]
        tasks.append(loop.create_task(_forever_after(app.first_lists()), name="first lists"))
        failed = await until_stopped(stop, tasks)
        await runner.cleanup()
        await app.extender.binder.drain()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    log.info("stopped")
    return 1 if failed else 0


def _say_where(runner: web.AppRunner, options: Options, connection: Connection) -> None:
    for address in runner.addresses:
        log.info("listening on %s:%d, API server %s", *address[:2], connection.config.server)
    if not options.on_loopback:
        log.warning(
            "listening on %s: whoever reaches it can bind pods; keep it on loopback or behind "
            "a network policy",
            options.host,
        )


async def _forever_after(first: Coroutine[Any, Any, None]) -> None:
    await first
    await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """The entry point: the exit status."""
    options = parse(sys.argv[1:] if argv is None else argv, prog or "gpushare extender")
    logs.set_up(options.log_level, "json" if options.log_format == "json" else "text")
    # It logs a traceback for every request that is no HTTP; of handlers' failures we log our own.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    return asyncio.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
