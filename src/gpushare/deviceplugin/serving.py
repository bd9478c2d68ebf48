"""Listening on a socket of our own and being registered with the kubelet, for as long as we run.

    wait for kubelet.sock ──► listen on a new socket ──► register ──► until it is lost
       ▲                                                                     │
       └─────────────────────────────────────────────────────────────────────┘

It is lost when the kubelet's socket is another, ours is gone, or the kubelet stops listening.
A kubelet that starts removes every plugin's socket and makes its own anew, so each registration has
a new socket. It has a name that no other process uses: two instances that overlap in a rolling
update then do not take each other's. The later registration counts while both live; but when the
later one ends the kubelet does not go back to the earlier, which it still listens to: it counts all
devices as unhealthy (kubernetes/pkg/kubelet/cm/devicemanager, 1.36). So who sees another's socket
go registers anew.
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
STEADY_S: Final = 10.0
"""A registration that lasted so long was a good one."""


@dataclass
class Serving:
    """Keeps the plugin registered. `run` must be running."""

    folder: Path
    """The kubelet's for device plugins."""
    allocator: Allocator
    counters: Counters
    registered: bool = False

    async def run(self) -> NoReturn:
        """Listen and register, again and again, until cancelled."""
        backoff = Backoff(first_s=0.1, cap_s=5.0)
        remove_dead_sockets(self.folder, SOCKETS)
        while True:
            kubelet = await self._kubelet()
            path = self.folder / f"gpushare-{secrets.token_hex(4)}.sock"
            began = time.monotonic()
            server = grpc.aio.server()
            try:
                why = await self._serve(server, path, kubelet)
            except RegistrationFailed as error:
                why = str(error)
            finally:
                self.registered = False
                path.unlink(missing_ok=True)
                await asyncio.shield(server.stop(grace=0.5))
            if time.monotonic() - began >= STEADY_S:
                backoff.reset()
            delay_s = backoff.next_s()
            log.warning("not registered: %s; registering again in %.1f s", why, delay_s)
            await self._rest(delay_s, kubelet)

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

    async def _serve(self, server: grpc.aio.Server, path: Path, kubelet: SocketIdentity) -> str:
        """Serve until the registration is lost; why it is. Raises RegistrationFailed."""
        service = DevicePlugin(self.allocator)
        rpc.add_DevicePluginServicer_to_server(service, server)
        server.add_insecure_port(f"unix://{path}")
        await server.start()
        mine = socket_identity(path)
        await register(self.folder, path.name, RESOURCE_MEM)
        self.registered = True
        self.counters.registrations.inc()
        log.info("registered with the kubelet for %s, on %s", RESOURCE_MEM, path.name)
        return await self._until_lost(service, self._lost(service, path, mine, kubelet))

    def _lost(
        self,
        service: DevicePlugin,
        path: Path,
        mine: SocketIdentity | None,
        kubelet: SocketIdentity,
    ) -> Callable[[], str | None]:
        began = time.monotonic()
        others: set[Path] = set()

        def lost() -> str | None:
            nonlocal others
            before, others = others, self._others(path)
            if before - others:
                return "another instance has ended, whom the kubelet may have listened to"
            if socket_identity(self.folder / KUBELET_SOCKET) != kubelet:
                return "the kubelet has started anew"
            if socket_identity(path) != mine:
                return f"our socket {path.name} is gone"
            if service.unwatched.is_set():
                return "the kubelet stopped listening to our devices"
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

    async def _until_lost(self, service: DevicePlugin, lost: Callable[[], str | None]) -> str:
        while (why := lost()) is None:
            await set_within(service.unwatched, LOOK_S)
        return why
