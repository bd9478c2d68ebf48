"""Another device plugin, which offers the same GPUs whole: python whole_gpus.py UUID …

As NVIDIA's: it offers `nvidia.com/gpu`, and its ids are the GPUs' UUIDs. It prefers them in the
given order. Told to end (SIGTERM) it offers none any more and leaves.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from gpushare.contract.names import RESOURCE_WHOLE_GPU
from gpushare.node.api import deviceplugin_pb2 as api
from gpushare.node.api import deviceplugin_pb2_grpc as rpc
from gpushare.node.kubelet import DEVICE_PLUGINS, register
from gpushare_testcluster import wait_for
from gpushare_testcluster.pods import pod

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

Object = dict[str, Any]

SOCKET = "whole-gpus.sock"
NAME = "whole-gpus"


# -- the plugin -----------------------------------------------------------------------------------


class Plugin(rpc.DevicePluginServicer):
    def __init__(self, uuids: list[str]) -> None:
        self._uuids = uuids
        self.leaving = asyncio.Event()
        self.left = asyncio.Event()

    async def GetDevicePluginOptions(self, request: object, context: object) -> Any:
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: object, context: object) -> AsyncIterator[Any]:
        yield api.ListAndWatchResponse(
            devices=[api.Device(ID=uuid, health="Healthy") for uuid in self._uuids]
        )
        await self.leaving.wait()
        yield api.ListAndWatchResponse()
        self.left.set()

    async def GetPreferredAllocation(self, request: Any, context: object) -> Any:
        return api.PreferredAllocationResponse(
            container_responses=[
                api.ContainerPreferredAllocationResponse(
                    deviceIDs=sorted(one.available_deviceIDs, key=self._uuids.index)[
                        : one.allocation_size
                    ]
                )
                for one in request.container_requests
            ]
        )

    async def Allocate(self, request: Any, context: object) -> Any:
        answers = [api.ContainerAllocateResponse() for _ in request.container_requests]
        return api.AllocateResponse(container_responses=answers)


async def main(uuids: list[str]) -> None:
    plugin, server = Plugin(uuids), grpc.aio.server()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, plugin.leaving.set)
    rpc.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix://{DEVICE_PLUGINS / SOCKET}")
    await server.start()
    await register(DEVICE_PLUGINS, SOCKET, RESOURCE_WHOLE_GPU)
    await plugin.leaving.wait()
    await asyncio.wait_for(plugin.left.wait(), 5)
    await server.stop(grace=1)


# -- for tests ------------------------------------------------------------------------------------


@contextmanager
def offered(cluster: Cluster, *uuids: str) -> Iterator[None]:
    """The plugin runs, and the kubelet offers its GPUs; afterwards it offers none."""
    node = cluster.node
    try:
        node.start_plugin([sys.executable, str(Path(__file__)), *uuids], name=NAME)
        node.wait_allocatable(RESOURCE_WHOLE_GPU, len(uuids))
        yield
    finally:
        node.stop_plugin(name=NAME)
        wait_for(lambda: capacity(cluster) == 0, 20, "no whole GPUs offered any more")


def capacity(cluster: Cluster) -> int:
    status = cluster.admin.get("nodes", cluster.node.name)["status"]
    return int(status.get("capacity", {}).get(RESOURCE_WHOLE_GPU, 0))


def whole_pod(name: str) -> Object:
    """A pod that asks for one GPU."""
    found = pod(name)
    found["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE_WHOLE_GPU: "1"}}
    return found


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
