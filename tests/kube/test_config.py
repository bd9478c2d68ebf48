"""Kubeconfigs as they come: good, wrong, and wrong in ways that must be said clearly."""

import asyncio
import base64
import ssl
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.kube.config import Config, _environment_proxy, from_kubeconfig, in_cluster, load
from gpushare.kube.connection import Connection
from gpushare.kube.credentials import ExecPlugin
from gpushare.kube.errors import ConfigError, Unauthorized
from gpushare.kube.objects import Pod

from .certificates import Authority
from .fake_api import FakeApi, pod

V1 = "client.authentication.k8s.io/v1"
TLS = {"server": "https://h"}
PATH = "/api/v1/namespaces/default/pods/a"


def kubeconfig(
    folder: Path,
    cluster: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    **top: Any,
) -> Path:
    content = {
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "there", "context": {"cluster": "c", "user": "nobody"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        **top,
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path


def _server(cluster: dict[str, Any]) -> dict[str, Any]:
    return {"clusters": [{"name": "c", "cluster": cluster}]}


@pytest.mark.parametrize(
    ("top", "context", "text"),
    [
        (
            {"current-context": ""},
            None,
            "no current-context; name one with --context (there are: h",
        ),
        ({}, "elsewhere", "no context named 'elsewhere'; there are: here, there"),
        ({}, "there", "no user named 'nobody'; there are: u"),
        ({"clusters": None}, None, "no cluster named 'c'; there are none"),
        (_server({}), None, "cluster c: server is missing, not an http(s) URL"),
        (_server({"server": "10.0.0.1:6443"}), None, "cluster c: server is 10.0.0.1:6443"),
        ({"clusters": "c"}, None, "Expected `array | null`, got `str` - at `$.clusters`"),
    ],
)
def test_unusable_kubeconfig_says_what_is_wrong(
    tmp_path: Path, top: dict[str, Any], context: str | None, text: str
) -> None:
    path = kubeconfig(tmp_path, **top)
    with pytest.raises(ConfigError) as caught:
        from_kubeconfig(path, context)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_file_and_broken_yaml_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        from_kubeconfig(tmp_path / "none")
    (tmp_path / "broken").write_text("a: [")
    with pytest.raises(ConfigError, match="is not YAML"):
        from_kubeconfig(tmp_path / "broken")


@pytest.mark.parametrize(
    ("cluster", "user", "text"),
    [
        ({}, {"auth-provider": {"name": "gcp"}}, "auth-provider is gone"),
        ({}, {"tokenFile": "none"}, "none: cannot be read or is empty"),
        ({}, {"exec": {"command": "x", "apiVersion": V1 + "alpha1"}}, "v1alpha1; client"),
        (
            {},
            {"exec": {"command": "x", "apiVersion": V1, "interactiveMode": "Always"}},
            "a terminal",
        ),
        ({**TLS, "certificate-authority": "none"}, {}, "none: [Errno 2]"),
        ({**TLS, "certificate-authority-data": "!"}, {}, "authority-data is not base64"),
        ({**TLS, "certificate-authority-data": "aGVsbG8="}, {}, "certificate-authority-data: "),
        (TLS, {"client-certificate": "c"}, "come together"),
        (TLS, {"client-certificate": "c", "client-key": "k"}, "client certificate or key"),
        ({"proxy-url": "socks5://p"}, {}, "only http and https proxies"),
    ],
)
def test_unusable_entry_says_what_is_wrong(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        from_kubeconfig(kubeconfig(tmp_path, cluster, user))
    assert text in str(caught.value)


def test_outside_a_pod_it_says_to_name_a_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--kubeconfig FILE"):
        in_cluster(tmp_path, {})


async def test_namespace_server_and_ipv6_are_taken_as_given(tmp_path: Path) -> None:
    config = load(kubeconfig(tmp_path, {"server": "https://h:6443/prefix/"}))
    assert (config.server, config.namespace) == ("https://h:6443/prefix", "team")
    authority = Authority()
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    (tmp_path / "token").write_text("t")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert in_cluster(tmp_path, environment).server == "https://[fd00::1]:443"


async def test_relative_files_are_relative_to_the_kubeconfig(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "token").write_text("from-file")
    path = kubeconfig(
        tmp_path, {"server": api.url}, {"tokenFile": "secret/token", "token": "inline"}
    )
    monkeypatch.chdir("/")
    await _get(api, from_kubeconfig(path))
    assert api.requests[0].token == "from-file"


async def test_basic_authentication_and_impersonation(api: FakeApi, tmp_path: Path) -> None:
    user = {"username": "me", "password": "pass", "as": "you", "as-groups": ["a", "b"]}
    config = from_kubeconfig(kubeconfig(tmp_path, {"server": api.url}, user))
    await _get(api, config)
    headers = api.requests[0].headers
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"me:pass").decode()
    assert headers["Impersonate-User"] == "you"
    assert config.headers[1:] == (("Impersonate-Group", "a"), ("Impersonate-Group", "b"))


async def _get(api: FakeApi, config: Config) -> None:
    api.objects[PATH] = pod("a", 1)
    async with Connection(config) as connection:
        await connection.get(PATH, Pod)


@pytest.mark.parametrize("inline", [True, False], ids=["data", "files"])
async def test_client_certificate(tmp_path: Path, inline: bool) -> None:
    authority = Authority()
    client = authority.issue("system:node:n1")

    def base64d(pem: bytes) -> str:
        return base64.b64encode(pem).decode()

    if inline:
        ca = {"certificate-authority-data": base64d(authority.pem)}
        user = {
            "client-certificate-data": base64d(client.certificate),
            "client-key-data": base64d(client.key),
        }
    else:
        client.write(tmp_path, "client")
        (tmp_path / "ca.pem").write_bytes(authority.pem)
        ca = {"certificate-authority": "ca.pem"}
        user = {"client-certificate": "client.crt", "client-key": "client.key"}
    tls = authority.server(tmp_path, "127.0.0.1", clients=authority)
    async with FakeApi(tls=tls) as api:
        await _get(api, from_kubeconfig(kubeconfig(tmp_path, {"server": api.url, **ca}, user)))
        assert len(api.requests) == 1


async def test_insecure_skip_tls_verify(tmp_path: Path) -> None:
    async with FakeApi(tls=Authority().server(tmp_path, "elsewhere")) as api:
        cluster = {"server": api.url, "insecure-skip-tls-verify": True}
        config = from_kubeconfig(kubeconfig(tmp_path, cluster))
        assert config.tls is not None
        assert config.tls.verify_mode is ssl.CERT_NONE
        await _get(api, config)


# --- exec plugins -------------------------------------------------------------------------------


def plugin(folder: Path, script: str) -> Path:
    """An exec plugin in Python; it counts its runs in `runs`."""
    path = folder / "plugin"
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"open({str(folder / 'runs')!r}, 'a').write('x')\n"
        f"n = os.path.getsize({str(folder / 'runs')!r})\n" + script
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


PRINT = (
    "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
    "status = {'token': f'{os.environ[\"WHO\"]}-{sys.argv[1]}-{n}'}\n"
    "if 'EXPIRES' in os.environ: status['expirationTimestamp'] = os.environ['EXPIRES']\n"
    "if 'cluster' in info['spec']: status['token'] += info['spec']['cluster']['server'][:7]\n"
    "print(json.dumps({'apiVersion': info['apiVersion'], 'status': status}))\n"
)


def exec_user(folder: Path, script: str, **more: Any) -> dict[str, Any]:
    plugin(folder, script)
    entry = {
        "command": "./plugin",
        "apiVersion": V1,
        "args": ["arg"],
        "env": [{"name": "WHO", "value": "me"}],
        **more,
    }
    return {"exec": entry}


@pytest.mark.parametrize("version", [V1, V1 + "beta1"])
async def test_exec_plugin_gives_the_token_and_is_run_once(
    api: FakeApi, tmp_path: Path, version: str
) -> None:
    user = exec_user(tmp_path, PRINT, apiVersion=version, provideClusterInfo=True)
    config = from_kubeconfig(kubeconfig(tmp_path, {"server": api.url}, user))
    api.objects[PATH] = pod("a", 1)
    async with Connection(config) as connection:
        for _ in range(3):
            await connection.get(PATH, Pod)
    assert [r.token for r in api.requests] == ["me-arg-1http://"] * 3


async def test_exec_plugin_is_run_again_after_401(api: FakeApi, tmp_path: Path) -> None:
    config = from_kubeconfig(kubeconfig(tmp_path, {"server": api.url}, exec_user(tmp_path, PRINT)))
    api.tokens = {"me-arg-2"}
    await _get(api, config)
    assert [r.token for r in api.requests] == ["me-arg-1", "me-arg-2"]
    api.tokens = set()
    with pytest.raises(Unauthorized):
        await _get(api, config)
    assert (tmp_path / "runs").stat().st_size == 3


async def test_exec_plugin_is_run_again_before_its_token_expires(tmp_path: Path) -> None:
    now = 1_000_000_000.0
    plugin(tmp_path, PRINT)
    credentials = ExecPlugin(
        [str(tmp_path / "plugin"), "arg"],
        V1,
        {"WHO": "me", "EXPIRES": "2001-09-09T01:48:00Z"},  # 80 s after `now`
        now=lambda: now,
    )
    assert await credentials.header() == "Bearer me-arg-1"
    now += 45
    assert await credentials.header() == "Bearer me-arg-1"
    now += 10
    assert await credentials.header() == "Bearer me-arg-2"


def _print(**credential: Any) -> str:
    return f"print(json.dumps({credential!r}))"


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("sys.exit('log in first')", "ended with status 1: log in first"),
        ("print('hello')", "not an ExecCredential"),
        (_print(apiVersion="v9", status={"token": "t"}), "answered in v9, asked for"),
        (_print(apiVersion=V1), "gave no token"),
        (_print(apiVersion=V1, status={"clientCertificateData": "x"}), "not supported here"),
        ("import time; time.sleep(60)", "no answer within 0.5 s"),
    ],
)
async def test_failing_exec_plugin_says_what_is_wrong(
    tmp_path: Path, script: str, text: str
) -> None:
    credentials = ExecPlugin([str(plugin(tmp_path, script))], V1, timeout_s=0.5)
    with pytest.raises(ConfigError) as caught:
        await credentials.header()
    assert text in str(caught.value)
    assert "plugin" in str(caught.value)


async def test_exec_plugin_survives_a_waiter_that_gives_up(tmp_path: Path) -> None:
    plugin(tmp_path, "import time; time.sleep(0.3)\n" + PRINT)
    credentials = ExecPlugin([str(tmp_path / "plugin"), "arg"], V1, {"WHO": "me"})
    hasty = asyncio.create_task(credentials.header())
    patient = asyncio.create_task(credentials.header())
    await asyncio.sleep(0.1)
    hasty.cancel()
    assert await patient == "Bearer me-arg-1"
    assert (tmp_path / "runs").stat().st_size == 1


async def test_missing_exec_plugin_shows_its_install_hint(tmp_path: Path) -> None:
    credentials = ExecPlugin([str(tmp_path / "none")], V1, install_hint="get it at example.org")
    with pytest.raises(ConfigError, match=r"cannot be started: No such file(.|\n)*example.org"):
        await credentials.header()


# --- proxies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "no_proxy", "used"),
    [
        ("https://k.example.com:6443", "", True),
        ("https://k.example.com:6443", "example.com", False),
        ("https://k.example.com:6443", ".example.com, other", False),
        ("https://k.example.com:6443", "ample.com", True),
        ("https://k.example.com:6443", "*", False),
        ("https://10.96.0.1", "10.0.0.0/8", False),
        ("https://10.96.0.1", "10.96.0.1", False),
        ("https://10.96.0.1", "192.168.0.0/16,10.1.0.0/16", True),
        ("https://127.0.0.1:6443", "", False),
        ("https://localhost:6443", "", False),
        ("https://[::1]:6443", "", False),
        ("http://k.example.com", "", False),
    ],
)
def test_proxy_of_the_environment(server: str, no_proxy: str, used: bool) -> None:
    environment = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": no_proxy}
    assert (_environment_proxy(server, environment) == "http://proxy:3128") is used


async def test_proxy_of_the_kubeconfig_is_asked(api: FakeApi, tmp_path: Path) -> None:
    # The fake API server plays the proxy: it gets the absolute URL.
    config = from_kubeconfig(
        kubeconfig(tmp_path, {"server": "http://kube.invalid", "proxy-url": api.url})
    )
    await _get(api, config)
    assert api.requests[0].headers["Host"] == "kube.invalid"
