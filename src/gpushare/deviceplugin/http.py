"""`/metrics`, `/healthz` and `/readyz`, on loopback unless told otherwise."""

from collections.abc import Callable
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from gpushare.deviceplugin.counters import Counters

_TEXT: Final = "text/plain"


def application(counters: Counters, not_ready: Callable[[], str | None]) -> web.Application:
    """The small HTTP side. `not_ready` says why the kubelet cannot be served yet; None: it can."""

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=counters.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(request: web.Request) -> web.Response:
        # That it answers is all: an API server that is away is no reason to restart a plugin.
        return web.Response(text="ok\n", content_type=_TEXT)

    async def readyz(request: web.Request) -> web.Response:
        why = not_ready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200, content_type=_TEXT)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app
