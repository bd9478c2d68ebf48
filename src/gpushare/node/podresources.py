"""The kubelet's PodResources API: which container has which device ids, by the pod's name.

It knows no UIDs and leaves out init containers that have finished. It answers 100 calls a second,
in bursts of 10. A call also makes the kubelet take stock of what is allocated, at the expense of
what it is allocating at that moment, so it is not called lightly.
"""

from pathlib import Path
from typing import Final

import grpc

from gpushare.node.api import podresources_pb2 as api
from gpushare.node.api import podresources_pb2_grpc as rpc
from gpushare.node.containers import ContainerDevices, SourceUnavailable

SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")

_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", 16 << 20),  # the kubelet's own clients use the same
)


async def list_pod_resources(
    socket: Path, *resources: str, timeout_s: float = 2.0
) -> list[ContainerDevices]:
    """Who has ids of `resources`. Raises SourceUnavailable."""
    try:
        async with grpc.aio.insecure_channel(f"unix://{socket}", options=_OPTIONS) as channel:
            answer = await rpc.PodResourcesListerStub(channel).List(
                api.ListPodResourcesRequest(), timeout=timeout_s
            )
    except grpc.aio.AioRpcError as error:
        raise SourceUnavailable(f"{socket}: {error.code().name}, {error.details()}") from error
    found: list[ContainerDevices] = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            held: dict[str, set[str]] = {}
            for devices in container.devices:
                if devices.resource_name in resources:
                    held.setdefault(devices.resource_name, set()).update(devices.device_ids)
            found += [
                ContainerDevices(
                    container.name,
                    frozenset(ids),
                    namespace=pod.namespace,
                    pod=pod.name,
                    resource=resource,
                )
                for resource, ids in held.items()
                if ids
            ]
    return found
