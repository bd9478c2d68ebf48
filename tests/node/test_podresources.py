"""The kubelet's PodResources API."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpushare.node.api import podresources_pb2 as api
from gpushare.node.api import podresources_pb2_grpc as rpc
from gpushare.node.containers import ContainerDevices, SourceUnavailable
from gpushare.node.podresources import list_pod_resources

MEM = "aliyun.com/gpu-mem"


@pytest.fixture
def socket() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gs-"))
    yield folder / "kubelet.sock"
    shutil.rmtree(folder)


class Lister(rpc.PodResourcesListerServicer):
    """Answers `pods`, or fails with `code`."""

    def __init__(self, *pods: api.PodResources, code: grpc.StatusCode | None = None) -> None:
        self.pods = pods
        self.code = code

    async def List(self, request: Any, context: Any) -> api.ListPodResourcesResponse:
        if self.code:
            await context.abort(self.code, "rejected by rate limit")
        return api.ListPodResourcesResponse(pod_resources=self.pods)


async def listed(socket: Path, lister: Lister, *resources: str) -> list[ContainerDevices]:
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    rpc.add_PodResourcesListerServicer_to_server(lister, server)
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        return await list_pod_resources(socket, *(resources or (MEM,)))
    finally:
        await server.stop(None)


def devices(*ids: str, resource: str = MEM) -> list[api.ContainerDevices]:
    """One entry for each id, as the kubelet lists them."""
    return [api.ContainerDevices(resource_name=resource, device_ids=[i]) for i in ids]


def container(name: str, *entries: api.ContainerDevices) -> api.ContainerResources:
    return api.ContainerResources(name=name, devices=entries)


async def test_ids_by_container_under_the_pods_name(socket: Path) -> None:
    found = await listed(
        socket,
        Lister(
            api.PodResources(
                name="p",
                namespace="team",
                containers=[
                    container("c0", *devices("a", "b"), *devices("x", resource="other/gpu")),
                    container("c1", *devices("c")),
                    container("none"),
                ],
            ),
            api.PodResources(name="plain", namespace="team", containers=[container("c")]),
        ),
    )
    assert found == [
        ContainerDevices("c0", frozenset("ab"), namespace="team", pod="p", resource=MEM),
        ContainerDevices("c1", frozenset("c"), namespace="team", pod="p", resource=MEM),
    ]


async def test_several_resources_at_once(socket: Path) -> None:
    entries = [*devices("a"), *devices("b", "c", resource="x/y"), *devices("d", resource="z")]
    pod = api.PodResources(name="p", namespace="team", containers=[container("c", *entries)])
    found = await listed(socket, Lister(pod), "x/y", MEM)
    assert [(one.resource, set(one.ids)) for one in found] == [(MEM, {"a"}), ("x/y", {"b", "c"})]


async def test_nobody_runs(socket: Path) -> None:
    assert await listed(socket, Lister()) == []


async def test_a_long_list_is_taken(socket: Path) -> None:
    """gRPC's own limit is 4 MiB."""
    ids = [f"{'x' * 100_000}{n}" for n in range(45)]
    pods = api.PodResources(name="p", namespace="n", containers=[container("c", *devices(*ids))])
    assert pods.ByteSize() > 4 << 20
    (found,) = await listed(socket, Lister(pods))
    assert len(found.ids) == 45


async def test_the_kubelets_refusal(socket: Path) -> None:
    with pytest.raises(SourceUnavailable, match="RESOURCE_EXHAUSTED, rejected by rate limit"):
        await listed(socket, Lister(code=grpc.StatusCode.RESOURCE_EXHAUSTED))


async def test_no_kubelet_there(socket: Path) -> None:
    with pytest.raises(SourceUnavailable, match=str(socket)):
        await list_pod_resources(socket, MEM, timeout_s=0.5)
