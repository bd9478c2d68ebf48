"""`/metrics`, `/usage`, `/healthz` and `/readyz`, on loopback unless told otherwise."""

from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from gpushare.deviceplugin.counters import Counters
from gpushare.deviceplugin.isolation.usage import PATH, UsageReport

_TEXT: Final = "text/plain"


def application(
    counters: Counters,
    not_ready: Callable[[], str | None],
    usage: Callable[[], UsageReport | None],
) -> web.Application:
    """The small HTTP side.

    not_ready   why the kubelet cannot be served yet; None: it can
    usage       what containers use; None: that cannot be told yet
    """

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=counters.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(request: web.Request) -> web.Response:
        # That it answers is all: an API server that is away is no reason to restart a plugin.
        return web.Response(text="ok\n", content_type=_TEXT)

    async def readyz(request: web.Request) -> web.Response:
        why = not_ready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200, content_type=_TEXT)

    async def used(request: web.Request) -> web.Response:
        report = usage()
        if report is None:
            return web.Response(text=f"{not_ready()}\n", status=503, content_type=_TEXT)
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get(PATH, used)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app
