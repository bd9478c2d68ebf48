"""`gpushare device-plugin usage`: what it asks, what it shows, what it says where it cannot."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest
from aiohttp import web

from gpushare.deviceplugin.counters import Counters
from gpushare.deviceplugin.http import application
from gpushare.deviceplugin.isolation.usage import ContainerUse, UsageReport
from gpushare.deviceplugin.isolation.usage_command import table
from gpushare.deviceplugin.main import main
from gpushare.isolation.limits import MIB
from tests.deviceplugin.conftest import Plugins
from tests.deviceplugin.fake_kubelet import FakeKubelet
from tests.deviceplugin.fake_node_api import FakeNodeApi, node, pod

HELD = ContainerUse(
    namespace="default",
    pod="train",
    container="c0",
    gpu=1,
    uuid="GPU-b",
    units=4,
    limit_bytes=4301 * MIB,
    used_bytes=1024 * MIB + 1,
    real_bytes=1100 * MIB,
    unaccounted_bytes=76 * MIB - 1,
    peak_bytes=4300 * MIB,
    refused=2,
)
OTHERS = [
    msgspec.structs.replace(HELD, pod="static", unprotected="its program is static"),
    msgspec.structs.replace(
        HELD,
        pod="broken",
        used_bytes=None,
        unaccounted_bytes=None,
        peak_bytes=None,
        refused=None,
        missing="100 bytes",
    ),
    ContainerUse(
        namespace="red", pod="free", container="c0", gpu=0, uuid="GPU-a", units=10, limit_bytes=None
    ),
]
REPORT = UsageReport(node="n1", unit="GiB", containers=[HELD, *OTHERS])

TABLE = """\
NAMESPACE  POD     CONTAINER  GPU  UNITS  LIMIT    USED     REAL     PEAK     REFUSED  NOTE
default    train   c0         1    4      4301MiB  1025MiB  1100MiB  4300MiB  2        -
default    static  c0         1    4      4301MiB  1025MiB  1100MiB  4300MiB  2        \
runs without its limit: its program is static
default    broken  c0         1    4      4301MiB  -        1100MiB  -        -        100 bytes
red        free    c0         0    10     -        -        -        -        -        has no limit
"""


@dataclass(frozen=True)
class Printed:
    status: int
    out: str
    err: str


Ask = Callable[..., Awaitable[Printed]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """ask(address, *arguments) -> Printed, with an event loop that goes on meanwhile."""

    async def run(address: str, *arguments: str) -> Printed:
        status = await asyncio.to_thread(main, ["usage", "--listen", address, *arguments])
        captured = capsys.readouterr()
        return Printed(status, captured.out, captured.err)

    return run


@asynccontextmanager
async def serving(app: web.Application, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """The address at which an application answers."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    finally:
        await runner.cleanup()


def plugin(report: UsageReport | None) -> web.Application:
    return application(Counters(lambda: None), lambda: "its GPUs are not known yet", lambda: report)


def answering(body: bytes, status: int = 200) -> web.Application:
    """Something else at that port."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    app = web.Application()
    app.router.add_get("/usage", answer)
    return app


async def test_the_table_is_what_the_plugin_tells(ask: Ask) -> None:
    async with serving(plugin(REPORT)) as address:
        assert await ask(address) == Printed(0, TABLE, "")
        without = await ask(address, "--no-headers")
    assert without.out.splitlines()[0].split()[:3] == ["default", "train", "c0"]


async def test_json_has_every_figure_in_bytes(ask: Ask) -> None:
    async with serving(plugin(REPORT)) as address:
        printed = await ask(address, "-o", "json")
    shown = json.loads(printed.out)
    assert (shown["version"], shown["node"], shown["unit"]) == (1, "n1", "GiB")
    assert shown["containers"][0] == {
        "namespace": "default",
        "pod": "train",
        "container": "c0",
        "gpu": 1,
        "uuid": "GPU-b",
        "units": 4,
        "limit_bytes": 4301 * MIB,
        "used_bytes": 1024 * MIB + 1,
        "real_bytes": 1100 * MIB,
        "unaccounted_bytes": 76 * MIB - 1,
        "peak_bytes": 4300 * MIB,
        "refused": 2,
        "unprotected": None,
        "missing": None,
    }
    assert shown["containers"][2]["used_bytes"] is None


async def test_a_node_without_containers_shows_the_column_names(ask: Ask) -> None:
    async with serving(plugin(UsageReport(node="n1", unit="GiB", containers=[]))) as address:
        printed = await ask(address)
    assert (printed.status, printed.out.count("\n")) == (0, 1)


async def test_ipv6(ask: Ask) -> None:
    try:
        async with serving(plugin(REPORT), "::1") as address:
            assert (await ask(address)).out == TABLE
    except OSError:
        pytest.skip("no IPv6 here")


async def test_no_proxy_is_asked(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    async with serving(plugin(REPORT)) as address:
        assert (await ask(address)).out == TABLE


def test_a_name_with_an_escape_code_stays_in_its_cell() -> None:
    use = msgspec.structs.replace(HELD, unprotected="\x1b[31m\nred")
    lines = table(UsageReport(node="n1", unit="GiB", containers=[use])).splitlines()
    assert len(lines) == 2
    assert lines[1].isprintable()


# -- what cannot be ------------------------------------------------------------------------------


async def test_no_plugin(ask: Ask) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        printed = await ask(address)
    assert (printed.status, printed.out) == (1, "")
    assert printed.err.startswith(
        f"gpushare device-plugin usage: no device plugin answers at {address}: Connection refused"
    )
    assert "--listen ADDRESS:PORT" in printed.err


async def test_an_address_that_is_none(ask: Ask) -> None:
    assert (
        "no device plugin answers at no.such.host.invalid:1: "
        in (await ask("no.such.host.invalid:1")).err
    )


async def test_a_plugin_that_is_just_starting(ask: Ask) -> None:
    async with serving(plugin(None)) as address:
        printed = await ask(address)
    assert (printed.status, printed.out) == (1, "")
    assert printed.err.endswith(f"at {address} cannot tell yet: its GPUs are not known yet\n")


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (web.Application, "a device plugin older than this command"),
        (lambda: answering(b'{"version":2,"pods":[]}'), "answers in version 2 of the format"),
        (lambda: answering(b"<html>"), "is no device plugin of gpushare's"),
        (lambda: answering(b"\xff\xfe"), "is no device plugin of gpushare's"),
        (lambda: answering(b"[" * 100_000), "is no device plugin of gpushare's"),
        (lambda: answering(b'{"version":1,"node":7}'), "is no device plugin of gpushare's"),
        (lambda: answering(b"", 500), "answers 500 Internal Server Error"),
    ],
    ids=["older", "newer", "html", "no-text", "deep", "wrong-types", "failing"],
)
async def test_what_answers_otherwise(
    ask: Ask, app: Callable[[], web.Application], said: str
) -> None:
    async with serving(app()) as address:
        printed = await ask(address)
    assert (printed.status, printed.out) == (1, "")
    assert said in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("options", [["--listen", "9396"], ["-o", "yaml"], ["pod"]])
def test_options_that_cannot_be(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["usage", *options])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: gpushare device-plugin usage ")


def test_the_plugins_help_mentions_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "gpushare device-plugin usage shows" in capsys.readouterr().out


# -- a running plugin ----------------------------------------------------------------------------


async def test_a_running_plugin_tells_of_its_containers(
    plugins: Plugins, kubelet: FakeKubelet, api: FakeNodeApi, ask: Ask
) -> None:
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=1))
    running = await plugins.start()
    await kubelet.admit(api.pods["p"])
    app = running.app
    async with serving(application(app.counters, app.not_ready, app.usage.report)) as address:
        printed = await ask(address)
    assert printed.out.splitlines()[1].split() == [
        *("default", "p", "c0", "1", "4"),
        *("-", "-", "-", "-", "-", "has", "no", "limit"),
    ]
