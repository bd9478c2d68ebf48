"""Requests, refusals and silence; tokens and certificates that change."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushare.kube.config import Config, in_cluster
from gpushare.kube.connection import Connection
from gpushare.kube.credentials import FixedHeader, TokenFile
from gpushare.kube.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    InvalidName,
    Malformed,
    NotFound,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from gpushare.kube.objects import Pod
from gpushare.kube.resources import checked_name, pod_path
from gpushare.kube.tls import tls_context

from .certificates import Authority
from .fake_api import FakeApi, answer, drop, hang, pod, refuse, status

PATH = "/api/v1/namespaces/default/pods/a"


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", ApiError),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", Conflict),
        (410, "Expired", Gone),
        (422, "Invalid", ApiError),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ApiError),
        (504, "Timeout", ApiError),
    ],
)
async def test_refusal_becomes_the_typed_error(
    api: FakeApi, connection: Connection, code: int, reason: str, kind: type[ApiError]
) -> None:
    api.once("GET", PATH, refuse(code, reason, "what the API server says"))
    with pytest.raises(ApiError) as caught:
        await connection.get(PATH, Pod)
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.reason) == (code, reason)
    assert f"GET {PATH}: {code} {reason}: what the API server says" in str(error)


async def test_retry_after_comes_from_header_or_body(api: FakeApi, connection: Connection) -> None:
    api.once("GET", PATH, refuse(429, "TooManyRequests", "", **{"Retry-After": "7"}))
    api.once("GET", PATH, answer(429, status(429, "TooMany", details={"retryAfterSeconds": 3})))
    for expected in (7.0, 3.0):
        with pytest.raises(TooManyRequests) as caught:
            await connection.get(PATH, Pod)
        assert caught.value.retry_after_s == expected


async def test_answer_of_a_load_balancer_is_shown(api: FakeApi, connection: Connection) -> None:
    api.once("GET", PATH, answer(502, "<html>Bad Gateway</html>"))
    with pytest.raises(ApiError, match=r"502 NotFromAPIServer: <html>Bad Gateway") as caught:
        await connection.get(PATH, Pod)
    assert caught.value.status == 502


async def test_unreadable_answer_is_malformed(api: FakeApi, connection: Connection) -> None:
    api.once("GET", PATH, answer(200, "hello"), answer(200, {"metadata": 3}))
    for _ in range(2):
        with pytest.raises(Malformed, match=f"GET {PATH}"):
            await connection.get(PATH, Pod)


async def test_redirect_is_not_followed_with_the_token(
    api: FakeApi, connection: Connection
) -> None:
    api.once("GET", PATH, answer(302, "moved", Location=f"{api.url}/elsewhere"))
    with pytest.raises(ApiError) as caught:
        await connection.get(PATH, Pod)
    assert caught.value.status == 302
    assert not api.seen("GET", "/elsewhere")


async def test_slow_answer_times_out(api: FakeApi, connection: Connection) -> None:
    api.once("GET", PATH, hang)
    with pytest.raises(TimedOut, match=r"gave no answer within 0.1 s") as caught:
        await connection.get(PATH, Pod, timeout_s=0.1)
    assert caught.value.sent


async def test_broken_connection_may_have_been_heard(api: FakeApi, connection: Connection) -> None:
    api.once("POST", PATH, drop)
    with pytest.raises(Unreachable, match="broke") as caught:
        await connection.post(PATH, {})
    assert caught.value.sent
    assert len(api.seen("POST", PATH)) == 1


async def test_refused_connection_was_never_heard() -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
    config = Config(f"http://127.0.0.1:{port}", FixedHeader(None), "kubeconfig k, context c")
    async with Connection(config) as connection:
        with pytest.raises(Unreachable) as caught:
            await connection.post(PATH, {})
    assert not caught.value.sent
    text = str(caught.value)
    assert f"http://127.0.0.1:{port} cannot be reached" in text
    assert "kubeconfig k, context c" in text


async def test_paths_below_the_server_url_are_kept(api: FakeApi) -> None:
    api.objects["/k8s/clusters/c-1" + PATH] = pod("a", 1)
    config = Config(f"{api.url}/k8s/clusters/c-1", FixedHeader(None), "test")
    async with Connection(config) as connection:
        assert (await connection.get(PATH, Pod)).metadata.name == "a"


async def test_impersonation_headers_are_sent(api: FakeApi) -> None:
    api.objects[PATH] = pod("a", 1)
    config = Config(api.url, FixedHeader(None), "test", headers=(("Impersonate-User", "someone"),))
    async with Connection(config, component="extender") as connection:
        await connection.get(PATH, Pod)
    headers = api.requests[0].headers
    assert headers["Impersonate-User"] == "someone"
    assert headers["User-Agent"].startswith("gpushare/")
    assert headers["User-Agent"].endswith("(extender)")
    assert "Authorization" not in headers


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/b", "A", "a%2fb", "-a", "a" * 254, "a b", "ä"]
)
def test_a_name_that_could_reach_another_object_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        pod_path("default", name)
    with pytest.raises(InvalidName):
        checked_name(name)


# --- tokens -------------------------------------------------------------------------------------


@asynccontextmanager
async def with_token_file(api: FakeApi, path: Path) -> AsyncIterator[Connection]:
    api.objects[PATH] = pod("a", 1)
    async with Connection(Config(api.url, TokenFile(path), "test")) as connection:
        yield connection


async def test_token_file_is_read_again(api: FakeApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with with_token_file(api, token) as connection:
        await connection.get(PATH, Pod)
        token.write_text("second, longer\n")
        await connection.get(PATH, Pod)
    assert [r.token for r in api.requests] == ["first", "second, longer"]


async def test_projected_token_is_read_again(api: FakeApi, tmp_path: Path) -> None:
    # The kubelet's way: TOKEN -> ..data/token, ..data -> a new folder, swapped by rename.
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "token").write_text(f"token-{version}")
    data, token = tmp_path / "..data", tmp_path / "token"
    data.symlink_to("v1")
    token.symlink_to("..data/token")
    async with with_token_file(api, token) as connection:
        await connection.get(PATH, Pod)
        (tmp_path / "new").symlink_to("v2")
        (tmp_path / "new").rename(data)
        await connection.get(PATH, Pod)
    assert [r.token for r in api.requests] == ["token-v1", "token-v2"]


def _replace_unnoticed(credentials: TokenFile, token: str) -> None:
    """As on a file system whose times are coarse: the change cannot be seen from outside."""
    credentials.path.write_text(token)
    stat = credentials.path.stat()
    credentials._seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)


async def test_401_forces_a_second_look_at_the_token(api: FakeApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("aaaaa")
    credentials = TokenFile(token)
    _replace_unnoticed(credentials, "bbbbb")
    api.tokens = {"bbbbb"}
    api.objects[PATH] = pod("a", 1)
    async with Connection(Config(api.url, credentials, "test")) as connection:
        await connection.get(PATH, Pod)
        await connection.post(PATH, {})
    assert [r.token for r in api.requests] == ["aaaaa", "bbbbb", "bbbbb"]


async def test_401_with_nothing_new_is_an_error_after_one_try(api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("expired")
    api.tokens = {"other"}
    async with with_token_file(api, tmp_path / "token") as connection:
        with pytest.raises(Unauthorized, match="read again and are still refused"):
            await connection.get(PATH, Pod)
    assert len(api.requests) == 1


async def test_stream_takes_the_new_token_too(api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    credentials = TokenFile(tmp_path / "token")
    _replace_unnoticed(credentials, "new")
    api.tokens = {"new"}
    async with (
        Connection(Config(api.url, credentials, "test")) as connection,
        connection.stream("/api/v1/pods", params={"watch": "true"}, idle_timeout_s=5) as chunks,
    ):
        watch = await api.next_watch()
        await watch.send_raw(b"x")
        assert await anext(chunks) == b"x"


async def test_token_file_that_vanishes_keeps_the_last_token(
    api: FakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    async with with_token_file(api, token) as connection:
        token.unlink()
        for _ in range(3):
            await connection.get(PATH, Pod)
        token.write_text("")
        await connection.get(PATH, Pod)
        token.write_text("third")
        await connection.get(PATH, Pod)
    assert [r.token for r in api.requests] == ["first"] * 4 + ["third"]
    assert caplog.text.count("keeping the token") == 1


# --- TLS ----------------------------------------------------------------------------------------


def _config(api: FakeApi, folder: Path, authority: Authority, **more: str) -> Config:
    (folder / "ca.crt").write_bytes(authority.pem)
    tls, reload_tls = tls_context("test", ca=folder / "ca.crt")
    return Config(api.url, FixedHeader(None), "test", tls=tls, reload_tls=reload_tls, **more)


async def test_server_of_another_ca_is_refused_until_the_ca_file_has_it(tmp_path: Path) -> None:
    old, new = Authority("old"), Authority("new")
    async with FakeApi(tls=new.server(tmp_path, "127.0.0.1")) as api:
        api.objects[PATH] = pod("a", 1)
        async with Connection(_config(api, tmp_path, old)) as connection:
            with pytest.raises(Unreachable, match=r"TLS with .* failed") as caught:
                await connection.get(PATH, Pod)
            assert not caught.value.sent
            (tmp_path / "ca.crt").write_bytes(old.pem + new.pem)
            with pytest.raises(Unreachable):
                await connection.get(PATH, Pod)
            await connection.get(PATH, Pod)


async def test_tls_server_name_counts(tmp_path: Path) -> None:
    authority = Authority()
    async with FakeApi(tls=authority.server(tmp_path, "kube.example")) as api:
        api.objects[PATH] = pod("a", 1)
        async with Connection(_config(api, tmp_path, authority)) as connection:
            with pytest.raises(Unreachable, match="TLS"):
                await connection.get(PATH, Pod)
        config = _config(api, tmp_path, authority, tls_server_name="kube.example")
        async with Connection(config) as connection:
            await connection.get(PATH, Pod)


async def test_in_cluster_configuration_works_and_follows_its_token(tmp_path: Path) -> None:
    authority = Authority()
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    (tmp_path / "token").write_text("one")
    (tmp_path / "namespace").write_text("gpushare-system")
    async with FakeApi(tls=authority.server(tmp_path, "127.0.0.1")) as api:
        api.objects[PATH] = pod("a", 1)
        environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(api.port),
        }
        config = in_cluster(tmp_path, environment)
        assert config.namespace == "gpushare-system"
        async with Connection(config) as connection:
            await connection.get(PATH, Pod)
            (tmp_path / "token").write_text("two!")
            await connection.get(PATH, Pod)
    assert [r.token for r in api.requests] == ["one", "two!"]


async def test_request_that_is_cancelled_ends_at_once(api: FakeApi, connection: Connection) -> None:
    api.once("GET", PATH, hang)
    task = asyncio.create_task(connection.get(PATH, Pod))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
