"""The kubelet's registration socket: is it there, is it another by now, and how to register.

A kubelet that starts empties its folder of device plugins, sockets of plugins included, and makes
its own socket anew. So a plugin that sees another socket than the one it registered at has to
listen and register again (kubelet device plugin API, v1beta1).
"""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from gpushare.node.api import deviceplugin_pb2 as api
from gpushare.node.api import deviceplugin_pb2_grpc as rpc

API_VERSION: Final = "v1beta1"
DEVICE_PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")
KUBELET_SOCKET: Final = "kubelet.sock"
MESSAGE_LIMIT: Final = 4 << 20
"""Bytes of one message that the kubelet takes from a plugin (gRPC's default)."""


class RegistrationFailed(Exception):
    """The kubelet did not take the registration; the text is its own."""


@dataclass(frozen=True, slots=True)
class SocketIdentity:
    """Which socket a path stands for: another after the kubelet has started anew."""

    inode: int
    changed_ns: int


def socket_identity(path: Path) -> SocketIdentity | None:
    """None where there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return SocketIdentity(status.st_ino, status.st_ctime_ns)


async def register(folder: Path, endpoint: str, resource: str, timeout_s: float = 5.0) -> None:
    """Registers the plugin that listens on the socket `endpoint` in `folder`.

    The kubelet calls back before it answers. Raises RegistrationFailed.
    """
    path = folder / KUBELET_SOCKET
    options = api.DevicePluginOptions(get_preferred_allocation_available=True)
    request = api.RegisterRequest(
        version=API_VERSION, endpoint=endpoint, resource_name=resource, options=options
    )
    authority = (("grpc.default_authority", "localhost"),)
    try:
        async with grpc.aio.insecure_channel(f"unix://{path}", options=authority) as channel:
            await rpc.RegistrationStub(channel).Register(request, timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        raise RegistrationFailed(f"{path}: {error.code().name}, {error.details()}") from error


def remove_dead_sockets(folder: Path, pattern: str) -> None:
    """Removes sockets in `folder` on which nobody listens: of processes that were killed."""
    for path in folder.glob(pattern):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
