"""The kubelet's registration socket."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from gpushare.node.api import deviceplugin_pb2 as api
from gpushare.node.api import deviceplugin_pb2_grpc as rpc
from gpushare.node.kubelet import (
    RegistrationFailed,
    register,
    remove_dead_sockets,
    socket_identity,
)

PATTERN = "gpushare-*.sock"


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="gs-"))
    yield path
    shutil.rmtree(path)


def listening(path: Path, *, alive: bool = True) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    if alive:
        bound.listen()
    return bound


def test_only_sockets_of_ours_on_which_nobody_listens_are_removed(folder: Path) -> None:
    alive = listening(folder / "gpushare-1.sock")
    listening(folder / "gpushare-2.sock", alive=False).close()
    listening(folder / "gpushare-3.sock").close()
    listening(folder / "other.sock", alive=False).close()
    (folder / "gpushare-4.sock").write_text("a file")
    (folder / "gpushare-5.sock").mkdir()
    remove_dead_sockets(folder, PATTERN)
    left = sorted(path.name for path in folder.iterdir())
    assert "gpushare-1.sock" in left
    assert "other.sock" in left
    assert "gpushare-2.sock" not in left
    assert "gpushare-3.sock" not in left
    assert "gpushare-5.sock" in left
    alive.close()


def test_a_listener_that_is_busy_is_not_taken_for_dead(folder: Path) -> None:
    path = folder / "gpushare-1.sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as client:
        busy.bind(str(path))
        busy.listen(0)
        client.connect(str(path))  # the queue is full now
        remove_dead_sockets(folder, PATTERN)
    assert path.exists()


def test_no_folder_no_sockets(folder: Path) -> None:
    remove_dead_sockets(folder / "none", PATTERN)


def test_a_socket_made_anew_is_another(folder: Path) -> None:
    path = folder / "kubelet.sock"
    assert socket_identity(path) is None
    listening(path).close()
    first = socket_identity(path)
    assert first is not None
    assert socket_identity(path) == first
    path.unlink()
    listening(path).close()
    assert socket_identity(path) not in (first, None)


class Kubelet(rpc.RegistrationServicer):
    def __init__(self, refusal: str | None = None) -> None:
        self.refusal = refusal
        self.requests: list[api.RegisterRequest] = []

    async def Register(self, request: api.RegisterRequest, context: grpc.aio.ServicerContext):
        if self.refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        self.requests.append(request)
        return api.Empty()


async def registered(folder: Path, kubelet: Kubelet) -> None:
    server = grpc.aio.server()
    rpc.add_RegistrationServicer_to_server(kubelet, server)
    server.add_insecure_port(f"unix://{folder}/kubelet.sock")
    await server.start()
    try:
        await register(folder, "gpushare-1.sock", "aliyun.com/gpu-mem")
    finally:
        await server.stop(None)


async def test_what_is_registered(folder: Path) -> None:
    kubelet = Kubelet()
    await registered(folder, kubelet)
    (request,) = kubelet.requests
    assert request.version == "v1beta1"
    assert request.endpoint == "gpushare-1.sock"
    assert request.resource_name == "aliyun.com/gpu-mem"
    assert request.options.get_preferred_allocation_available


async def test_a_refusal_is_the_kubelets_own_words(folder: Path) -> None:
    with pytest.raises(RegistrationFailed, match="unsupported version"):
        await registered(folder, Kubelet("unsupported version"))


async def test_no_kubelet_listens(folder: Path) -> None:
    listening(folder / "kubelet.sock", alive=False).close()
    with pytest.raises(RegistrationFailed, match=r"kubelet\.sock"):
        await register(folder, "gpushare-1.sock", "aliyun.com/gpu-mem", timeout_s=1)
