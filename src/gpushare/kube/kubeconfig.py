"""The shape of a kubeconfig file, and picking one context of it.

Only reading and picking: `config` turns what was picked into something to connect with. Errors name
the file, the entry and what is there instead, because a kubeconfig is written by hand, merged by
tools, and copied between machines.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from gpushare.kube.errors import ConfigError


class Cluster(msgspec.Struct, rename="kebab"):
    """`clusters[].cluster`."""

    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class ExecEnv(msgspec.Struct):
    """`users[].user.exec.env[]`."""

    name: str
    value: str = ""


class Exec(msgspec.Struct, rename="camel"):
    """`users[].user.exec`."""

    command: str
    api_version: str = ""
    args: list[str] | None = None
    env: list[ExecEnv] | None = None
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    provide_cluster_info: bool = False


class User(msgspec.Struct, rename="kebab"):
    """`users[].user`."""

    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    exec: Exec | None = None
    auth_provider: dict[str, object] | None = None
    as_user: str | None = msgspec.field(default=None, name="as")
    as_uid: str | None = None
    as_groups: list[str] | None = None


class Context(msgspec.Struct, rename="kebab"):
    """`contexts[].context`."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class NamedCluster(msgspec.Struct):
    name: str
    cluster: Cluster


class NamedUser(msgspec.Struct):
    name: str
    user: User = msgspec.field(default_factory=User)


class NamedContext(msgspec.Struct):
    name: str
    context: Context


class Kubeconfig(msgspec.Struct, rename="kebab"):
    """The file. Tools write null for an empty list."""

    current_context: str = ""
    clusters: list[NamedCluster] | None = None
    users: list[NamedUser] | None = None
    contexts: list[NamedContext] | None = None


class _Named(Protocol):
    name: str


N = TypeVar("N", bound=_Named)


@dataclass(frozen=True)
class Picked:
    """One context with its cluster and user, and the file they came from."""

    path: Path
    context_name: str
    context: Context
    cluster: Cluster
    user: User

    def __str__(self) -> str:
        return f"kubeconfig {self.path}, context {self.context_name}"

    def file(self, name: str) -> Path:
        """A file named in the kubeconfig; relative names are relative to its folder."""
        return self.path.parent / os.path.expanduser(name)


def pick(path: Path, context_name: str | None = None) -> Picked:
    """Read `path` and pick a context, the current one by default.

    Raises: ConfigError naming what is missing.
    """
    where = f"kubeconfig {path}"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from error
    try:
        content = msgspec.yaml.decode(text, type=Kubeconfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: is not YAML: {error}") from error
    name = context_name or content.current_context
    if not name:
        known = _names(content.contexts)
        raise ConfigError(f"{where}: no current-context; name one with --context ({known})")
    context = _find(content.contexts, "context", name, where).context
    where = f"{where}, context {name}"
    cluster = _find(content.clusters, "cluster", context.cluster, where).cluster
    if not cluster.server.startswith(("https://", "http://")):
        server = cluster.server or "missing"
        raise ConfigError(
            f"{where}: cluster {context.cluster}: server is {server}, not an http(s) URL"
        )
    user = _find(content.users, "user", context.user, where).user if context.user else User()
    return Picked(path, name, context, cluster, user)


def _names(entries: list[N] | None) -> str:
    return "there are: " + ", ".join(e.name for e in entries) if entries else "there are none"


def _find(entries: list[N] | None, kind: str, name: str, where: str) -> N:
    for entry in entries or ():
        if entry.name == name:
            return entry
    raise ConfigError(f"{where}: no {kind} named {name!r}; {_names(entries)}")
