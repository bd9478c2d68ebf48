"""The process: how it starts, what it says when it cannot, how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiohttp import ClientSession

from gpushare.contract.names import PLUGIN_METRICS_PORT
from gpushare.contract.units import Unit
from gpushare.deviceplugin.main import run
from gpushare.deviceplugin.options import parse
from gpushare.deviceplugin.sources import ALL_SOURCES
from tests.deviceplugin.conftest import GpuFile
from tests.deviceplugin.fake_kubelet import FakeKubelet
from tests.deviceplugin.fake_node_api import NODE, FakeNodeApi, node, pod
from tests.kube.fake_api import eventually


def kubeconfig(folder: Path, url: str = "http://127.0.0.1:9") -> Path:
    path = folder / "kubeconfig"
    config = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    return path


async def answer(session: ClientSession, url: str) -> tuple[int, str]:
    async with session.get(url) as got:
        return got.status, await got.text()


async def test_a_plugins_life(
    api: FakeNodeApi, kubelet: FakeKubelet, gpus: GpuFile, folder: Path
) -> None:
    """Started while the API server is away, serving when it is back, ended by SIGTERM."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    api.put_node(node())
    api.put_pod(pod("p", 4, gpu=1))
    api.away = True
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpushare", "device-plugin"),
        *("--kubeconfig", str(kubeconfig(folder, api.url)), "--node", NODE),
        *("--fake-gpus", str(gpus.path), "--listen", f"127.0.0.1:{port}"),
        *("--device-plugins", str(kubelet.folder)),
        *("--pod-resources", str(kubelet.pod_resources), "--log-format", "json"),
        stderr=subprocess.PIPE,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with ClientSession() as session:
            for _ in range(1000):
                try:
                    health = await answer(session, f"{url}/healthz")
                    break
                except OSError:
                    await asyncio.sleep(0.01)
            assert health == (200, "ok\n")
            status, why = await answer(session, f"{url}/readyz")
            assert status == 503
            assert "not all known yet" in why
            assert (
                "gpushare_plugin_registrations_total 0.0"
                in ((await answer(session, f"{url}/metrics"))[1])
            )
            assert kubelet.registrations == []

            api.away = False
            await eventually(lambda: len(kubelet.healthy) == 30, within_s=10)
            assert await answer(session, f"{url}/readyz") == (200, "ok\n")
            await kubelet.admit(api.pods["p"])
            _, metrics = await answer(session, f"{url}/metrics")
            assert "gpushare_plugin_registrations_total 1.0" in metrics
            assert 'gpushare_allocations_total{outcome="allocated"} 1.0' in metrics
            assert re.search(r'gpushare_container_allocated_units\{.*pod="p".*\} 4\.0', metrics)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert process.stderr is not None
        lines = (await process.stderr.read()).splitlines()
        assert await asyncio.wait_for(process.wait(), 10) == 0
        assert time.monotonic() - began < 2
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    messages = [json.loads(line)["message"] for line in lines]
    assert messages[-1] == "stopped"
    assert any(m.startswith(f"node {NODE}: 2 GPUs, 30 units of GiB, mode share") for m in messages)
    assert any(str(gpus.path) in m and "pretending" in m for m in messages)
    assert list(kubelet.folder.glob("gpushare-*.sock")) == []


# -- what cannot be ------------------------------------------------------------------------------


def test_the_node_has_to_be_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    with pytest.raises(SystemExit) as ended:
        parse([])
    assert ended.value.code == 2
    assert "--node" in capsys.readouterr().err
    monkeypatch.setenv("NODE_NAME", "n7")
    assert parse([]).node == "n7"
    assert parse(["--node", "n8"]).node == "n8"


@pytest.mark.parametrize(
    "options",
    [
        ["--listen", "9396"],
        ["--listen", "127.0.0.1:x"],
        ["--unit", "MiB"],
        ["--unit", "1GiB"],
        ["--attest-by", "guess"],
        ["--attest-by", ""],
        ["--attest-by", "status,guess"],
        ["--log-format", "xml"],
    ],
)
def test_options_that_cannot_be(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--node", "n1", *options])
    assert ended.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_the_defaults() -> None:
    options = parse(["--node", "n1"])
    assert (options.host, options.port) == ("127.0.0.1", PLUGIN_METRICS_PORT)
    assert options.unit is Unit.GIB
    assert options.fake_gpus is None
    assert options.device_plugins == Path("/var/lib/kubelet/device-plugins")
    assert options.pod_resources == Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    assert options.attest_by == set(ALL_SOURCES)
    assert parse(["--node", "n1", "--unit", "128MiB"]).unit is Unit.MIB128
    assert parse(["--node", "n1", "--attest-by", "status"]).attest_by == {"status"}


def fails(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The message of a plugin that cannot start."""
    assert asyncio.run(run(parse(options))) == 2
    text = capsys.readouterr().err
    assert text.startswith("gpushare device-plugin: ")
    assert text.count("\n") == 1
    return text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("gpus: [", "not YAML"),
        ("gpus: [{uuid: T4-1, model: T4, memory_mib: 16130}]", "gpus[0].uuid"),
    ],
)
def test_a_bad_file_of_fake_gpus(
    content: str | None, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "bad.yaml"
    if content is not None:
        path.write_text(content)
    text = fails(
        capsys,
        *("--node", "n1", "--kubeconfig", str(kubeconfig(folder))),
        *("--fake-gpus", str(path), "--listen", "127.0.0.1:0"),
    )
    assert says in text
    assert str(path) in text


def test_no_kubeconfig(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = fails(capsys, "--node", "n1", "--kubeconfig", str(folder / "nowhere"))
    assert "nowhere" in text


def test_a_name_that_no_node_can_have(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = fails(capsys, "--node", "N_1", "--kubeconfig", str(kubeconfig(folder)))
    assert "N_1" in text


def test_a_port_in_use_is_said_with_the_option_that_helps(
    folder: Path, gpus: GpuFile, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        text = fails(
            capsys,
            *("--node", "n1", "--kubeconfig", str(kubeconfig(folder))),
            *("--fake-gpus", str(gpus.path)),
            *("--listen", f"127.0.0.1:{taken.getsockname()[1]}"),
        )
    assert "address already in use" in text.lower()
    assert "--listen" in text
