"""Listening on a socket of our own and being registered with the kubelet, for as long as we run.

    wait for kubelet.sock ──► listen on a new socket ──► register ──► until it is lost
       ▲                                                                     │
       └─────────────────────────────────────────────────────────────────────┘

It is lost when the kubelet's socket is another, ours is gone, or the kubelet stops listening.
A kubelet that starts removes every plugin's socket and makes its own anew, so each registration has
a new socket. It has a name that no other process uses: two instances that overlap in a rolling
update then do not take each other's. While they do overlap each disconnects the other, so one that
is disconnected again and again waits longer each time; the one that stays wins.
"""

import asyncio
import contextlib
import logging
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
        remove_dead_sockets(self.folder, "gpushare-*.sock")
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
                await asyncio.shield(server.stop(grace=0.5))
                path.unlink(missing_ok=True)
            if time.monotonic() - began >= STEADY_S:
                backoff.reset()
            another = socket_identity(self.folder / KUBELET_SOCKET) != kubelet
            delay_s = 0.0 if another else backoff.next_s()
            log.warning("not registered: %s; registering again in %.1f s", why, delay_s)
            await asyncio.sleep(delay_s)

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

        def lost() -> str | None:
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

    async def _until_lost(self, service: DevicePlugin, lost: Callable[[], str | None]) -> str:
        while (why := lost()) is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(service.unwatched.wait(), LOOK_S)
        return why
