"""The HTTP side: bytes in, a decision, bytes out.

    POST /filter /prioritize /preempt /bind      kube-scheduler, also under /gpushare-scheduler
    GET  /gpushare-scheduler/inspect[/NODE]      the old add-on's inspection
    GET  /healthz /readyz /metrics

Until the first full lists of nodes and pods are in, every question is answered with an error, which
the scheduler repeats: a guess would be worse than a second's wait. What cannot be read is a 4xx
that says why; what fails here unforeseen is a 500, logged, and the process goes on.

Semantic failures travel in the answer's `Error`, with status 200: of any other status the scheduler
shows the number only.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from gpushare.contract.names import EXTENDER_PREFIX
from gpushare.extender import wire
from gpushare.extender.announce import Announcer
from gpushare.extender.bind import Binder
from gpushare.extender.counters import Counters
from gpushare.extender.decide import Decider
from gpushare.extender.gauges import Gauges
from gpushare.extender.inspection import inspection
from gpushare.extender.state import ClusterState
from gpushare.extender.wire import BadBody, BindingResult, Candidates, FilterResult

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""5,000 whole nodes; 10,000 names are half a megabyte."""

JSON: Final = "application/json"

NOT_READY: Final = "gpushare is not ready yet: its first list of nodes and pods is not complete"


@dataclass
class Extender:
    """The parts that answer."""

    state: ClusterState
    decider: Decider
    binder: Binder
    announcer: Announcer
    counters: Counters
    gauges: Gauges
    clock: Callable[[], float]
    trouble: Callable[[], str | None] = lambda: None
    """What is wrong with the watches at the moment."""

    @property
    def ready(self) -> bool:
        return self.state.nodes.complete and self.state.pods.complete

    # -- the scheduler's verbs: body -> (status, body) ---------------------------------------------

    async def filter(self, body: bytes) -> web.Response:
        args = wire.decode(wire.args_decoder, body)
        candidates = Candidates(args)
        if not self.ready:
            self.counters.decision("filter", "error", "not-ready")
            return _json(wire.encode(FilterResult(error=NOT_READY)))
        answer = self.decider.filter(args.pod, candidates)
        rejected = answer.reason is not None
        outcome = "rejected" if rejected else "fits"
        self.counters.decision("filter", outcome, answer.reason or "")
        if rejected:
            self.announcer.rejected(answer)
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "filter %s: %d of %d nodes%s",
                answer.pod.full_name,
                answer.passed,
                len(answer.names),
                f", {answer.reason}" if rejected else "",
            )
        return _json(answer.body)

    async def prioritize(self, body: bytes) -> web.Response:
        args = wire.decode(wire.args_decoder, body)
        candidates = Candidates(args)
        if not self.ready:
            return _error(503, NOT_READY)
        self.counters.decision("prioritize", "answered")
        return _json(wire.encode(self.decider.prioritize(args.pod, candidates)))

    async def preempt(self, body: bytes) -> web.Response:
        args = wire.decode(wire.preemption_decoder, body)
        victims = args.victims()
        if not self.ready:
            return _error(503, NOT_READY)
        helped = self.decider.preempt(args.pod, victims)
        self.counters.decision("preempt", "helps" if helped else "in-vain")
        log.info(
            "preemption for %s/%s: helps on %d of the %d nodes proposed",
            args.pod.metadata.namespace,
            args.pod.metadata.name,
            len(helped),
            len(victims),
        )
        return _json(wire.encode(wire.PreemptionResult(helped)))

    async def bind(self, body: bytes) -> web.Response:
        args = wire.decode(wire.binding_decoder, body)
        if not self.ready:
            self.counters.decision("bind", "error", "not-ready")
            return _json(wire.encode(BindingResult(NOT_READY)))
        result = await self.binder.bind(args)
        if result.conflict:
            self.counters.conflict()
        if not result.error:
            self.counters.decision("bind", "bound")
            return _json(wire.BOUND)
        self.counters.decision("bind", "failed", result.reason)
        return _json(wire.encode(BindingResult(f"gpushare: {result.error}")))

    # -- for people and their tools ---------------------------------------------------------------

    async def inspect(self, node: str | None) -> web.Response:
        if not self.ready:
            return _error(503, NOT_READY)
        found = inspection(self.state.ledger, node)
        if found is None:
            return _error(404, f"node {node!r} shares no GPU memory, or does not exist")
        return _json(wire.encode(found))

    async def metrics(self) -> web.Response:
        text = self.gauges.text() + self.counters.text()
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def healthz(self) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self) -> web.Response:
        if self.ready:
            return web.Response(text="ok\n")
        trouble = self.trouble()
        text = f"{NOT_READY}: {trouble}" if trouble else NOT_READY
        return web.Response(status=503, text=text + "\n")


Verb = Callable[[bytes], Awaitable[web.Response]]
Page = Callable[[], Awaitable[web.Response]]


class Handler:
    """Finds who answers a request, reads its body, times it, and turns failures into answers."""

    def __init__(self, extender: Extender) -> None:
        self._extender = extender
        verbs: dict[str, Verb] = {
            "filter": extender.filter,
            "prioritize": extender.prioritize,
            "preempt": extender.preempt,
            "bind": extender.bind,
        }
        self._verbs: dict[str, tuple[str, Verb]] = {}
        """Path -> (verb, who answers it)."""
        for verb, answer in verbs.items():
            self._verbs[f"/{verb}"] = self._verbs[f"{EXTENDER_PREFIX}/{verb}"] = (verb, answer)
        self._pages: dict[str, Page] = {
            "/healthz": extender.healthz,
            "/readyz": extender.readyz,
            "/metrics": extender.metrics,
        }

    async def handle(self, request: web.Request) -> web.Response:
        path = request.path
        verb = self._verbs.get(path)
        try:
            if verb is not None:
                if request.method != "POST":
                    return _error(405, f"{path} takes POST", Allow="POST")
                return await self._answer(verb[0], verb[1], request)
            page = self._pages.get(path)
            inspect = f"{EXTENDER_PREFIX}/inspect"
            if page is None and path != inspect and not path.startswith(f"{inspect}/"):
                return _error(404, f"nothing at {path[:200]}")
            if request.method not in ("GET", "HEAD"):
                return _error(405, f"{path} takes GET", Allow="GET, HEAD")
            if page is not None:
                return await page()
            return await self._extender.inspect(path[len(inspect) + 1 :] or None)
        except web.HTTPException:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, path)
            return _error(500, "failed; the extender's log says why")

    async def _answer(self, name: str, answer: Verb, request: web.Request) -> web.Response:
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        except Exception as error:  # cut off, or not in the coding it claims: all the client's
            return _error(400, f"the body could not be received: {error or type(error).__name__}")
        started = self._extender.clock()
        try:
            return await answer(body)
        except BadBody as error:
            self._extender.counters.decision(name, "bad-body")
            return _error(400, f"the body of {name} cannot be read: {error}")
        finally:
            self._extender.counters.took(name, self._extender.clock() - started)


def application(extender: Extender) -> web.Application:
    """The HTTP application; `web.AppRunner` runs it."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", Handler(extender).handle)
    return app


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type=JSON)


def _error(status: int, text: str, **headers: str) -> web.Response:
    return web.Response(
        status=status, body=wire.encode({"error": text}), content_type=JSON, headers=headers
    )
