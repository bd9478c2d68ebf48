"""Who we are to the API server, kept fresh.

A long-running process must never hold on to a token: service account tokens live an hour (the
kubelet replaces the file at 80 % of it), exec plugins give minutes. So every request asks for the
header anew:

* a token file is looked at each time (one `stat`, a microsecond or two) and read when it has
  changed; projected volumes swap a symbolic link, which changes the inode;
* an exec plugin is run again shortly before its credential expires, once however many wait;
* when the API server answers 401, `renew` reads or runs again regardless, and the request is
  repeated once if that gave something else.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from gpushare.kube.errors import ConfigError

log = logging.getLogger(__name__)

EXEC_API_VERSIONS = (
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
)
EXEC_TIMEOUT_S = 60.0
"""An exec plugin may talk to a cloud's login service; longer than this is a hang."""
EXEC_EARLY_S = 30.0
"""An exec credential is replaced this long before it expires: clocks differ, requests travel."""


class Credentials(Protocol):
    """A source of the Authorization header."""

    async def header(self) -> str | None:
        """The header's value now, None for an anonymous client.

        Raises: ConfigError when there is none to be had.
        """

    async def renew(self, refused: str | None) -> bool:
        """Take note that `refused` was answered with 401; True if another value is at hand now."""


@dataclass(frozen=True)
class FixedHeader:
    """A token or a password written into the configuration, or nothing (client certificates)."""

    value: str | None

    @classmethod
    def token(cls, token: str) -> FixedHeader:
        return cls(f"Bearer {token.strip()}")

    @classmethod
    def basic(cls, user: str, password: str) -> FixedHeader:
        return cls("Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())

    async def header(self) -> str | None:
        return self.value

    async def renew(self, refused: str | None) -> bool:
        return False


class TokenFile:
    """A bearer token in a file that somebody else replaces.

    Raises: ConfigError from the constructor when the file cannot be read or is empty. Later on an
    unreadable file is logged and the last token kept: it may still be valid, and the API server
    says so if not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._value = ""
        self._complained = False
        self._read()
        if not self._value:
            raise ConfigError(f"token file {path}: cannot be read or is empty")

    def _read(self) -> None:
        try:
            stat = self.path.stat()
            token = self.path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            self._complain(str(error))
            return
        if not token:
            self._complain("it is empty")
            return
        self._complained = False
        self._seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        self._value = f"Bearer {token}"

    def _complain(self, why: str) -> None:
        if self._value and not self._complained:
            log.warning("token file %s: %s; keeping the token read before", self.path, why)
        self._complained = True

    async def header(self) -> str | None:
        try:
            stat = self.path.stat()
            if (stat.st_ino, stat.st_mtime_ns, stat.st_size) != self._seen:
                self._read()
        except OSError as error:
            self._complain(str(error))
        return self._value

    async def renew(self, refused: str | None) -> bool:
        self._read()
        return self._value != refused


class ExecStatus(msgspec.Struct, rename="camel"):
    """`status` of an ExecCredential."""

    token: str | None = None
    expiration_timestamp: datetime | None = None
    client_certificate_data: str | None = None


class ExecCredential(msgspec.Struct, rename="camel"):
    """What an exec plugin prints."""

    api_version: str
    status: ExecStatus | None = None


@dataclass
class ExecPlugin:
    """A command that prints an ExecCredential (client.authentication.k8s.io/v1 or v1beta1)."""

    command: Sequence[str]
    api_version: str
    env: Mapping[str, str] = field(default_factory=dict)
    install_hint: str = ""
    cluster: Mapping[str, object] | None = None
    """Given to the plugin as spec.cluster where the kubeconfig says provideClusterInfo."""
    now: Callable[[], float] = time.time
    timeout_s: float = EXEC_TIMEOUT_S
    _value: str | None = field(default=None, init=False)
    _expires: float | None = field(default=None, init=False)
    _running: asyncio.Task[None] | None = field(default=None, init=False)

    def _usable(self) -> bool:
        if self._value is None:
            return False
        return self._expires is None or self.now() < self._expires - EXEC_EARLY_S

    async def header(self) -> str | None:
        if not self._usable():
            await self._run_once()
        return self._value

    async def renew(self, refused: str | None) -> bool:
        if self._value == refused:
            await self._run_once()
        return self._value != refused

    async def _run_once(self) -> None:
        """Wait for a run, one for all who wait; a waiter that gives up does not end it."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        await asyncio.shield(self._running)

    async def _run(self) -> None:
        output = await self._output()
        what = f"exec plugin {self.command[0]}"
        try:
            credential = msgspec.json.decode(output, type=ExecCredential)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{what}: its output is not an ExecCredential: {error}") from error
        if credential.api_version != self.api_version:
            raise ConfigError(
                f"{what}: answered in {credential.api_version}, asked for {self.api_version}"
            )
        status = credential.status
        if status is None or not status.token:
            certificate = status is not None and status.client_certificate_data
            why = (
                "gave a client certificate, which is not supported here"
                if certificate
                else "gave no token"
            )
            raise ConfigError(f"{what}: {why}; configure it to give a token")
        expires = status.expiration_timestamp
        self._value = f"Bearer {status.token}"
        self._expires = expires.timestamp() if expires else None

    async def _output(self) -> bytes:
        what = f"exec plugin {self.command[0]}"
        spec: dict[str, object] = {"interactive": False}
        if self.cluster is not None:
            spec["cluster"] = dict(self.cluster)
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        env = {**os.environ, **self.env, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            hint = f"\n{self.install_hint}" if self.install_hint else ""
            raise ConfigError(f"{what}: cannot be started: {error.strerror}{hint}") from error
        try:
            output, complaint = await asyncio.wait_for(process.communicate(), self.timeout_s)
        except TimeoutError as error:
            raise ConfigError(f"{what}: no answer within {self.timeout_s:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            text = complaint.decode("utf-8", "replace").strip()[-500:]
            raise ConfigError(f"{what}: ended with status {process.returncode}: {text}")
        return output
