"""The process: how it starts, what it says when it cannot, how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from gpushare.extender.options import parse
from tests.extender.fake_cluster import FakeCluster, Json, node, pod
from tests.extender.fuzz import Client, requests
from tests.kube.fake_api import eventually

COMMAND = [sys.executable, "-m", "gpushare", "extender"]

Start = Callable[..., Coroutine[Any, Any, tuple[Process, str]]]


def run(*options: str) -> tuple[int, str]:
    """(exit status, stderr) of an extender that cannot start."""
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=30)
    return done.returncode, done.stderr


@pytest.fixture
def kubeconfig(api: FakeCluster, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    config = {
        "clusters": [{"name": "c", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
async def start(kubeconfig: Path) -> AsyncIterator[Start]:
    """Starts an extender: (process, its URL)."""
    started: list[Process] = []

    async def begin(*options: str) -> tuple[Process, str]:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            "--kubeconfig",
            str(kubeconfig),
            "--listen",
            "127.0.0.1:0",
            *options,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        port = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert port, line
        return process, f"http://127.0.0.1:{port[1]}"

    yield begin
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until_ready(session: ClientSession, url: str) -> None:
    for _ in range(500):
        async with session.get(f"{url}/readyz") as answer:
            if answer.status == 200:
                return
        await asyncio.sleep(0.01)
    raise AssertionError("not ready")


def test_what_is_wrong_at_the_start_is_said_in_a_line(tmp_path: Path) -> None:
    status, text = run("--kubeconfig", str(tmp_path / "nowhere"))
    assert status == 2
    assert text.startswith("gpushare extender: ")
    assert "nowhere" in text
    assert "Traceback" not in text


def test_a_port_in_use_is_said_with_the_option_that_helps(kubeconfig: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        status, text = run("--kubeconfig", str(kubeconfig), "--listen", where)
    assert status == 2
    assert "address already in use" in text.lower()
    assert "--listen" in text


@pytest.mark.parametrize(
    "options",
    [
        ["--listen", "32766"],
        ["--listen", "127.0.0.1:x"],
        ["--listen", "127.0.0.1:70000"],
        ["--bind-deadline", "0"],
        ["--bind-deadline", "soon"],
        ["--node-ranking", "random"],
        ["--unit", "MiB"],
    ],
)
def test_options_that_cannot_be(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(options)
    assert ended.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_the_defaults_are_the_old_add_ons() -> None:
    options = parse([])
    assert (options.host, options.port) == ("127.0.0.1", 32766)
    assert options.on_loopback
    assert options.nudge
    assert not parse(["--listen", "0.0.0.0:1"]).on_loopback
    assert parse(["--listen", "[::1]:1"]).on_loopback


async def test_it_ends_at_sigterm_and_finishes_the_binds_in_flight(
    start: Start, api: FakeCluster
) -> None:
    api.put_node(node("n1", [15]))
    api.put_pod(pod("p", 4))
    go_on = asyncio.Event()

    async def slow(name: str, body: Json) -> web.StreamResponse | None:
        await go_on.wait()
        return None

    api.on_bind = slow
    process, url = await start("--log-format", "json")
    async with ClientSession() as session:
        await until_ready(session, url)
        body = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n1"}
        bind = asyncio.ensure_future(session.post(f"{url}/bind", json=body))
        await eventually(lambda: api.bindings)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        go_on.set()
        assert await (await bind).json(content_type=None) == {"Error": ""}
    assert await asyncio.wait_for(process.wait(), 10) == 0
    assert process.stderr is not None
    lines = [json.loads(line) for line in (await process.stderr.read()).splitlines()]
    messages = [line["message"] for line in lines]
    assert any(m.startswith("default/p: bound to n1, 4 units of GPU 0") for m in messages)
    assert messages[-1] == "stopped"


async def test_it_waits_for_an_api_server_that_is_away(start: Start, api: FakeCluster) -> None:
    api.refuse_lists = True
    api.put_node(node("n1", [15]))
    _, url = await start()
    async with ClientSession() as session:
        await asyncio.sleep(0.3)
        async with session.get(f"{url}/readyz") as answer:
            assert answer.status == 503
            assert "503" in await answer.text()
        body = {"Pod": pod("p", 4), "NodeNames": ["n1"]}
        async with session.post(f"{url}/filter", json=body) as answer:
            assert "not ready" in (await answer.json(content_type=None))["Error"]
        api.refuse_lists = False
        await until_ready(session, url)
        async with session.post(f"{url}/filter", json=body) as answer:
            assert (await answer.json(content_type=None))["NodeNames"] == ["n1"]


async def test_hostile_requests_leave_the_same_process(
    start: Start, api: FakeCluster, rounds: Callable[..., int]
) -> None:
    api.put_node(node("n1", [15, 15]))
    api.put_pod(pod("p", 4))
    process, url = await start()
    async with ClientSession() as session:
        await until_ready(session, url)
        client = Client("127.0.0.1", int(url.rsplit(":", 1)[1]))
        for sent in requests(11, 100 * rounds(), ["n1"], [("p", "uid-p")]):
            answer = await client.send(sent)
            assert answer is not None or sent.closes
            assert answer is None or answer[0] < 500 or answer[0] == 501
        assert process.returncode is None
        assert api.bindings == []
        body = {"Pod": pod("p", 4), "NodeNames": ["n1"]}
        async with session.post(f"{url}/filter", json=body) as answer:
            assert (await answer.json(content_type=None))["NodeNames"] == ["n1"]
