"""Listening on a socket of our own and being registered with the kubelet, for as long as we run.

    wait for kubelet.sock ──► listen on a new socket ──► register ──► until it is lost
       ▲                                                                     │
       └─────────────────────────────────────────────────────────────────────┘

It is lost when the kubelet's socket is another, ours is gone, or the kubelet stops listening.
A kubelet that starts removes every plugin's socket and makes its own anew, so each registration has
a new socket. It has a name that no other process uses: two instances that overlap in a rolling
update then do not take each other's. The later registration counts while both live. When either
ends, the kubelet stops listening to the one that counts, whichever it was (kubernetes 1.36,
pkg/kubelet/cm/devicemanager); so that one registers again at once. One that leaves ends what the
kubelet listens to before it takes its socket away.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import grpc

from gpushare.contract.names import RESOURCE_MEM
from gpushare.deviceplugin.counters import Counters
from gpushare.deviceplugin.service import Allocator, DevicePlugin
from gpushare.kube.backoff import Backoff
from gpushare.kube.moments import set_within
from gpushare.node.api import deviceplugin_pb2_grpc as rpc
from gpushare.node.kubelet import (
    KUBELET_SOCKET,
    RegistrationFailed,
    SocketIdentity,
    register,
    remove_dead_sockets,
    socket_identity,
)

log = logging.getLogger(__name__)

SOCKETS: Final = "gpushare-*.sock"
LOOK_S: Final = 0.1
"""How often the sockets are looked at."""
WATCHED_WITHIN_S: Final = 10.0
"""The kubelet begins to listen to our devices within milliseconds of the registration."""
STEADY_S: Final = 1.0
"""A registration that lasted so long was a good one, and is renewed at once."""
ALONE_S: Final = 1.5
"""The kubelet closes what it listens to within this time of another instance's end."""


@dataclass
class Serving:
    """Keeps the plugin registered. `run` must be running."""

    folder: Path
    """The kubelet's for device plugins."""
    allocator: Allocator
    counters: Counters
    registered: bool = False

    def __post_init__(self) -> None:
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self) -> NoReturn:
        """Listen and register, again and again, until cancelled."""
        backoff = Backoff(first_s=0.1, cap_s=5.0)
        remove_dead_sockets(self.folder, SOCKETS)
        served: SocketIdentity | None = None
        while True:
            kubelet = await self._kubelet()
            if kubelet != served:
                await self.allocator.attester.kubelet_started()
                served = kubelet
            listening = await self._listen()
            began = time.monotonic()
            try:
                why = await self._serve(listening, kubelet)
            except RegistrationFailed as error:
                why = str(error)
            except asyncio.CancelledError:
                await listening.close()
                raise
            self.registered = False
            closing = asyncio.create_task(listening.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            if time.monotonic() - began >= STEADY_S:
                backoff.reset()
                log.warning("not registered: %s; registering again", why)
                continue
            delay_s = backoff.next_s()
            log.warning("not registered: %s; registering again in %.1f s", why, delay_s)
            await self._rest(delay_s, kubelet)

    async def _listen(self) -> "_Listening":
        path = self.folder / f"gpushare-{secrets.token_hex(4)}.sock"
        service, server = DevicePlugin(self.allocator), grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(service, server)
        server.add_insecure_port(f"unix://{path}")
        await server.start()
        return _Listening(path, socket_identity(path), service, server)

    async def _kubelet(self) -> SocketIdentity:
        """Wait for the kubelet's socket."""
        path = self.folder / KUBELET_SOCKET
        said = False
        while (identity := socket_identity(path)) is None:
            if not said:
                log.info("waiting for the kubelet: there is no %s", path)
                said = True
            await asyncio.sleep(LOOK_S)
        return identity

    async def _rest(self, delay_s: float, kubelet: SocketIdentity) -> None:
        """Wait, but not for a kubelet that has come back: a dead one's socket may lie about."""
        for _ in range(math.ceil(delay_s / LOOK_S)):
            await asyncio.sleep(min(delay_s, LOOK_S))
            if socket_identity(self.folder / KUBELET_SOCKET) != kubelet:
                return

    async def _serve(self, listening: "_Listening", kubelet: SocketIdentity) -> str:
        """Serve until the registration is lost; why it is. Raises RegistrationFailed."""
        await register(self.folder, listening.path.name, RESOURCE_MEM)
        self.registered = True
        self.counters.registrations.inc()
        log.info("registered with the kubelet for %s, on %s", RESOURCE_MEM, listening.path.name)
        lost = self._lost(listening, kubelet)
        while (why := lost()) is None:
            await set_within(listening.service.unwatched, LOOK_S)
        return why

    def _lost(self, listening: "_Listening", kubelet: SocketIdentity) -> Callable[[], str | None]:
        began = time.monotonic()
        others: set[Path] = set()
        alone_since = math.inf

        def lost() -> str | None:
            nonlocal others, alone_since
            service = listening.service
            before, others = others, self._others(listening.path)
            if before - others:
                alone_since = time.monotonic()
            if socket_identity(self.folder / KUBELET_SOCKET) != kubelet:
                return "the kubelet has started anew"
            if socket_identity(listening.path) != listening.identity:
                return f"our socket {listening.path.name} is gone"
            if service.unwatched.is_set():
                return "the kubelet stopped listening to our devices"
            if time.monotonic() > alone_since + ALONE_S:
                return "another instance has ended, whom the kubelet may have listened to"
            if not service.watched.is_set() and time.monotonic() - began > WATCHED_WITHIN_S:
                return "the kubelet did not begin to listen to our devices"
            return None

        return lost

    def _others(self, mine: Path) -> set[Path]:
        """Sockets of other instances; those of killed ones are removed."""
        others = set(self.folder.glob(SOCKETS)) - {mine}
        if others:
            remove_dead_sockets(self.folder, SOCKETS)
        return others


@dataclass(frozen=True)
class _Listening:
    """One socket, and who answers on it."""

    path: Path
    identity: SocketIdentity | None
    service: DevicePlugin
    server: grpc.aio.Server

    async def close(self) -> None:
        """First what the kubelet listens to: only then does it look for another instance."""
        self.service.end()
        await set_within(self.service.unwatched, LOOK_S)
        self.path.unlink(missing_ok=True)
        await self.server.stop(grace=0.5)
