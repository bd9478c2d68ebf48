"""How to reach the API server and as whom: from a kubeconfig, or from inside a pod.

Follows kubectl where the two could differ: relative file names are relative to the kubeconfig, a
token in the configuration yields to a token file, `tls-server-name`, `proxy-url` and `as` count,
and without `proxy-url` the environment's HTTPS_PROXY and NO_PROXY do, except for loopback. Inside a
pod no proxy is used: the address is the cluster's own.

Not supported, and said so: `auth-provider` (gone from Kubernetes since 1.26), exec plugins that
need a terminal or give client certificates, SOCKS proxies.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import ipaddress
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpushare.kube.credentials import (
    EXEC_API_VERSIONS,
    Credentials,
    ExecPlugin,
    FixedHeader,
    TokenFile,
)
from gpushare.kube.errors import ConfigError
from gpushare.kube.kubeconfig import Exec, Picked, User, pick
from gpushare.kube.tls import Pem, tls_context

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Config:
    """What a Connection needs. `reload_tls` reads CA and client certificate files again."""

    server: str
    """Base URL without a trailing slash; may have a path."""
    credentials: Credentials
    origin: str
    """Where this comes from, for messages."""
    namespace: str = "default"
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    proxy: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    reload_tls: Callable[[], None] = lambda: None


def load(kubeconfig: Path | str | None = None, context: str | None = None) -> Config:
    """The configuration for `--kubeconfig FILE [--context NAME]`, or the pod's own without FILE.

    Raises: ConfigError.
    """
    if kubeconfig is not None:
        return from_kubeconfig(Path(kubeconfig).expanduser(), context)
    return in_cluster()


def in_cluster(
    directory: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ
) -> Config:
    """The configuration that Kubernetes gives every pod (its service account).

    Raises: ConfigError outside a pod.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST")
    port = environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError(
            "not inside a pod (KUBERNETES_SERVICE_HOST is not set): name a kubeconfig "
            "with --kubeconfig FILE"
        )
    if ":" in host:
        host = f"[{host}]"
    origin = f"service account in {directory}"
    tls, reload_tls = tls_context(origin, ca=directory / "ca.crt")
    namespace = "default"
    with contextlib.suppress(OSError):
        namespace = (directory / "namespace").read_text().strip() or namespace
    return Config(
        server=f"https://{host}:{port}",
        credentials=TokenFile(directory / "token"),
        origin=origin,
        namespace=namespace,
        tls=tls,
        reload_tls=reload_tls,
    )


def from_kubeconfig(
    path: Path, context: str | None = None, environment: Mapping[str, str] = os.environ
) -> Config:
    """The configuration of one context of a kubeconfig, the current one by default.

    Raises: ConfigError naming file, entry and what is wrong.
    """
    picked = pick(path, context)
    cluster = picked.cluster
    tls, reload_tls = None, _nothing
    if cluster.server.startswith("https://"):
        tls, reload_tls = tls_context(
            str(picked),
            ca=_data(picked, "certificate-authority-data", cluster.certificate_authority_data)
            or _file(picked, cluster.certificate_authority),
            insecure=cluster.insecure_skip_tls_verify,
            client_cert=_client_pem(picked, "certificate"),
            client_key=_client_pem(picked, "key"),
        )
    proxy = cluster.proxy_url or _environment_proxy(cluster.server, environment)
    if proxy and not proxy.startswith(("http://", "https://")):
        raise ConfigError(f"{picked}: proxy {proxy}: only http and https proxies are supported")
    return Config(
        server=cluster.server.rstrip("/"),
        credentials=_credentials(picked),
        origin=str(picked),
        namespace=picked.context.namespace or "default",
        tls=tls,
        tls_server_name=cluster.tls_server_name or None,
        proxy=proxy or None,
        headers=_impersonation(picked.user),
        reload_tls=reload_tls,
    )


def _nothing() -> None:
    return None


def _impersonation(user: User) -> tuple[tuple[str, str], ...]:
    if not user.as_user:
        return ()
    headers = [("Impersonate-User", user.as_user)]
    if user.as_uid:
        headers.append(("Impersonate-Uid", user.as_uid))
    headers += [("Impersonate-Group", group) for group in user.as_groups or ()]
    return tuple(headers)


def _credentials(picked: Picked) -> Credentials:
    user = picked.user
    if user.token_file:
        return TokenFile(picked.file(user.token_file))
    if user.token:
        return FixedHeader.token(user.token)
    if user.exec:
        return _exec_plugin(picked, user.exec)
    if user.username:
        return FixedHeader.basic(user.username, user.password or "")
    if user.auth_provider:
        raise ConfigError(
            f"{picked}: auth-provider is gone from Kubernetes since 1.26; use an exec plugin"
        )
    return FixedHeader(None)


def _exec_plugin(picked: Picked, spec: Exec) -> ExecPlugin:
    if spec.api_version not in EXEC_API_VERSIONS:
        known = " and ".join(EXEC_API_VERSIONS)
        raise ConfigError(
            f"{picked}: exec plugin {spec.command}: apiVersion {spec.api_version or 'missing'}; "
            f"{known} are supported"
        )
    if spec.interactive_mode == "Always":
        raise ConfigError(f"{picked}: exec plugin {spec.command} needs a terminal, there is none")
    command = str(picked.file(spec.command)) if os.sep in spec.command else spec.command
    cluster: dict[str, object] | None = None
    if spec.provide_cluster_info:
        given = picked.cluster
        ca_file = _file(picked, given.certificate_authority)
        ca_data = given.certificate_authority_data
        if ca_data is None and ca_file is not None:
            ca_data = base64.b64encode(_read(picked, ca_file)).decode()
        cluster = {
            "server": given.server,
            "insecure-skip-tls-verify": given.insecure_skip_tls_verify,
            **({"certificate-authority-data": ca_data} if ca_data else {}),
            **({"tls-server-name": given.tls_server_name} if given.tls_server_name else {}),
        }
    return ExecPlugin(
        command=[command, *(spec.args or ())],
        api_version=spec.api_version,
        env={e.name: e.value for e in spec.env or ()},
        install_hint=spec.install_hint,
        cluster=cluster,
    )


def _file(picked: Picked, name: str | None) -> Path | None:
    return picked.file(name) if name else None


def _read(picked: Picked, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{picked}: {path}: cannot be read: {error.strerror}") from error


def _data(picked: Picked, key: str, value: str | None) -> bytes | None:
    if not value:
        return None
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except binascii.Error as error:
        raise ConfigError(f"{picked}: {key} is not base64: {error}") from error


def _client_pem(picked: Picked, part: str) -> Pem | None:
    """The client's certificate or key: data wins over a file, as in kubectl."""
    user = picked.user
    if part == "certificate":
        name, data = user.client_certificate, user.client_certificate_data
    else:
        name, data = user.client_key, user.client_key_data
    return _data(picked, f"client-{part}-data", data) or _file(picked, name)


def _environment_proxy(server: str, environment: Mapping[str, str]) -> str | None:
    """HTTPS_PROXY (HTTP_PROXY for http), unless the host is loopback or NO_PROXY covers it."""
    parts = urlsplit(server)
    host = (parts.hostname or "").lower()

    def variable(name: str) -> str:
        return environment.get(name) or environment.get(name.lower()) or ""

    proxy = variable(f"{parts.scheme.upper()}_PROXY")
    if not proxy:
        return None
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if host == "localhost" or (address is not None and address.is_loopback):
        return None
    for entry in variable("NO_PROXY").lower().replace(" ", "").split(","):
        if not entry:
            continue
        if entry == "*":
            return None
        if address is not None:
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(entry, strict=False):
                    return None
        name = entry.lstrip("*").lstrip(".").split(":")[0]
        if address is None and (host == name or host.endswith("." + name)):
            return None
    return proxy
