"""A small kubelet for device plugins: real gRPC over real sockets, in a folder of its own.

async with FakeKubelet(folder) as kubelet:
    kubelet.registrations                   # endpoints that registered, in order
    kubelet.devices                         # id -> health, as last pushed
    await kubelet.admit(manifest)           # container -> its answer; raises Rejected
    await kubelet.restart()

Follows kubernetes v1.36 pkg/kubelet/cm/devicemanager (manager.go, plugin/v1beta1/handler.go). What
matters of it: free ids are offered in random order; a later container of a pod reuses what its
init containers have; the checkpoint is replaced as a whole; and there is **one** client per
resource: a registration takes the place of the earlier one, whose stream stays open, and the end of
any stream, also of the earlier one's, disconnects whichever client is registered then.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc

from gpushare.contract.names import RESOURCE_MEM
from gpushare.node.api import deviceplugin_pb2 as api
from gpushare.node.api import deviceplugin_pb2_grpc as rpc
from gpushare.node.api import podresources_pb2 as resources_api
from gpushare.node.api import podresources_pb2_grpc as resources_rpc

Json = dict[str, Any]

CHECKPOINT = "kubelet_internal_checkpoint"
_OPTIONS = (("grpc.default_authority", "localhost"),)


class Rejected(Exception):
    """The pod fails at admission; the text is the message in its status."""


@dataclass(eq=False)
class Client:
    """The kubelet's side of one registration."""

    endpoint: str
    channel: grpc.aio.Channel
    stub: Any
    options: Any = None
    stopped: bool = False
    """The endpoint is taken to be down: nothing is allocated from it."""


@dataclass
class Running:
    """A pod that was admitted."""

    namespace: str
    name: str
    init_names: tuple[str, ...]
    allocated: dict[str, set[str]] = field(default_factory=dict)
    """Container -> ids."""
    answers: dict[str, Any] = field(default_factory=dict)
    """Container -> the plugin's ContainerAllocateResponse."""


@dataclass(frozen=True)
class Foreign:
    """What a pod has by way of another device plugin."""

    uid: str
    name: str
    resource: str
    ids: tuple[str, ...]


class FakeKubelet:
    """One kubelet; `folder` is the one of device plugins."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.folder = folder
        self.pod_resources = folder / "pod-resources.sock"
        self.registrations: list[str] = []
        self.registered_at: list[float] = []
        """On the monotonic clock."""
        self.there_at = 0.0
        """When its socket was made, on the same clock."""
        self.requests: list[Any] = []
        """The RegisterRequests themselves."""
        self.devices: dict[str, str] = {}
        self.pushes = 0
        """How many lists of devices came."""
        self.pods: dict[str, Running] = {}
        """UID -> pod."""
        self.foreign: list[Foreign] = []
        self.lists = 0
        """Calls of PodResources' List."""
        self.checkpoints = True
        """Whether the checkpoint is written in the form that is known."""
        self.refuse: str | None = None
        """An error for whoever registers."""
        self._random = random.Random(seed)
        self._reuse: dict[str, set[str]] = {}
        self._client: Client | None = None
        self._streams: dict[asyncio.Task[None], Client] = {}
        self._server: grpc.aio.Server | None = None

    # -- its life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """As a kubelet starts: it removes every socket in its folder and makes its own."""
        for path in self.folder.iterdir():
            if stat.S_ISSOCK(path.stat().st_mode):
                path.unlink()
        self._read_checkpoint()
        self._server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(_Registration(self), self._server)
        resources_rpc.add_PodResourcesListerServicer_to_server(_Lister(self), self._server)
        self._server.add_insecure_port(f"unix://{self.folder}/kubelet.sock")
        self._server.add_insecure_port(f"unix://{self.pod_resources}")
        self.there_at = time.monotonic()
        await self._server.start()

    async def stop(self) -> None:
        """As a kubelet is killed: its connections break, the files stay."""
        server, self._server = self._server, None
        for task in list(self._streams):
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        for client in [*self._streams.values(), *([self._client] if self._client else [])]:
            await client.channel.close()
        self._streams.clear()
        self._client = None
        self.devices = {}
        if server is not None:
            socket, kept = self.folder / "kubelet.sock", self.folder / "kept"
            os.link(socket, kept)  # gRPC removes it, and a killed process would not
            await server.stop(None)
            os.replace(kept, socket)

    async def restart(self, down_s: float = 0.0) -> None:
        """Killed, and started again after `down_s`."""
        await self.stop()
        await asyncio.sleep(down_s)
        await self.start()

    # -- plugins ----------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str | None:
        """The socket's name of the plugin that is asked for allocations."""
        return self._client.endpoint if self._client and not self._client.stopped else None

    @property
    def healthy(self) -> set[str]:
        return {i for i, health in self.devices.items() if health == "Healthy"}

    async def register(self, request: api.RegisterRequest) -> None:
        """Dial back, ask for the options, listen to the devices: only then it answers."""
        channel = grpc.aio.insecure_channel(
            f"unix://{self.folder / request.endpoint}", options=_OPTIONS
        )
        client = Client(request.endpoint, channel, rpc.DevicePluginStub(channel))
        self._client = client
        client.options = await client.stub.GetDevicePluginOptions(api.Empty(), timeout=10)
        self.requests.append(request)
        self.registrations.append(request.endpoint)
        self.registered_at.append(time.monotonic())
        task = asyncio.ensure_future(self._listen(client))
        self._streams[task] = client
        task.add_done_callback(lambda done: self._streams.pop(done, None))

    async def _listen(self, client: Client) -> None:
        try:
            async for response in client.stub.ListAndWatch(api.Empty()):
                self.devices = {device.ID: device.health for device in response.devices}
                self.pushes += 1
                self._write_checkpoint()
        except grpc.aio.AioRpcError:
            pass
        # Whichever client the resource has by now (handler.go, runClient).
        current, self._client = self._client, None
        if current is not None:
            await self._disconnect(current)

    async def _disconnect(self, client: Client) -> None:
        client.stopped = True
        self.devices = dict.fromkeys(self.devices, "Unhealthy")
        await client.channel.close()

    async def stop_listening(self) -> None:
        """Disconnect the plugin, for whatever reason."""
        assert self._client is not None
        client, self._client = self._client, None
        await self._disconnect(client)

    # -- pods -------------------------------------------------------------------------------------

    async def admit(self, manifest: Json) -> dict[str, Any]:
        """Allocate for a whole pod, container by container: container -> the plugin's answer."""
        meta, spec = manifest["metadata"], manifest["spec"]
        inits = spec.get("initContainers", [])
        pod = self.pods.setdefault(
            meta["uid"], Running("default", meta["name"], tuple(c["name"] for c in inits))
        )
        pool = self._reuse.setdefault(meta["uid"], set())
        for container in [*inits, *spec["containers"]]:
            units = int(container["resources"]["limits"].get(RESOURCE_MEM, 0))
            if not units or container["name"] in pod.allocated:
                continue
            try:
                chosen = await self._allocate(pod, container["name"], units, pool)
            except Rejected:
                del self.pods[meta["uid"]]
                raise
            if container in inits and container.get("restartPolicy") != "Always":
                pool |= chosen
            else:
                pool -= chosen
        return dict(pod.answers)

    async def _allocate(self, pod: Running, container: str, units: int, pool: set[str]) -> set[str]:
        client = self._client
        if client is None or client.stopped:
            raise Rejected("no healthy devices present; cannot allocate unhealthy devices")
        chosen = set(self._shuffled(pool)[:units])
        if len(chosen) < units:
            taken = {
                i for other in self.pods.values() for ids in other.allocated.values() for i in ids
            }
            free = self.healthy - taken
            if len(free) < units - len(chosen):
                raise Rejected("requested number of devices unavailable")
            preferred = await self._call(
                client.stub.GetPreferredAllocation,
                api.PreferredAllocationRequest(
                    container_requests=[
                        api.ContainerPreferredAllocationRequest(
                            available_deviceIDs=self._shuffled(free | chosen),
                            must_include_deviceIDs=self._shuffled(chosen),
                            allocation_size=units,
                        )
                    ]
                ),
            )
            wanted = set(preferred.container_responses[0].deviceIDs) & free
            for identifier in [*self._shuffled(wanted), *self._shuffled(free - wanted)]:
                if len(chosen) < units:
                    chosen.add(identifier)
        answer = await self._call(
            client.stub.Allocate,
            api.AllocateRequest(
                container_requests=[
                    api.ContainerAllocateRequest(devices_ids=self._shuffled(chosen))
                ]
            ),
        )
        pod.allocated[container] = chosen
        pod.answers[container] = answer.container_responses[0]
        self._write_checkpoint()
        return chosen

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request)
        except grpc.aio.AioRpcError as error:
            raise Rejected(
                f"Allocate failed due to rpc error: code = {error.code().name} "
                f"desc = {error.details()}, which is unexpected"
            ) from error

    def admit_foreign(self, manifest: Json, resource: str, *ids: str) -> None:
        """A pod gets ids of another device plugin."""
        meta = manifest["metadata"]
        self.foreign.append(Foreign(meta["uid"], meta["name"], resource, ids))
        self._write_checkpoint()

    def forget(self, uid: str) -> None:
        """The pod has ended: its ids are free. The checkpoint tells at the next allocation."""
        self.foreign = [one for one in self.foreign if one.uid != uid]
        self.pods.pop(uid, None)
        self._reuse.pop(uid, None)

    def ids_of(self, uid: str) -> set[str]:
        """All ids that a pod's containers have."""
        return {i for ids in self.pods[uid].allocated.values() for i in ids}

    def _shuffled(self, ids: set[str]) -> list[str]:
        ordered = sorted(ids)
        self._random.shuffle(ordered)
        return ordered

    # -- the checkpoint ---------------------------------------------------------------------------

    def _write_checkpoint(self) -> None:
        entries = [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": RESOURCE_MEM,
                "DeviceIDs": {"-1": sorted(ids)},
                "AllocResp": base64.b64encode(
                    pod.answers[container].SerializeToString() if container in pod.answers else b""
                ).decode(),
            }
            for uid, pod in self.pods.items()
            for container, ids in pod.allocated.items()
        ] + [
            {
                "PodUID": one.uid,
                "ContainerName": "c",
                "ResourceName": one.resource,
                "DeviceIDs": {"-1": list(one.ids)},
                "AllocResp": "",
            }
            for one in self.foreign
        ]
        data = {
            "PodDeviceEntries": entries or None,
            "RegisteredDevices": {RESOURCE_MEM: sorted(self.healthy)},
        }
        text = json.dumps({"Data": data, "Checksum": 2356574281})
        if not self.checkpoints:
            text = '{"Version": 3, "Sealed": "c2VjcmV0"}'
        temporary = self.folder / f".{CHECKPOINT}.tmp"
        temporary.write_text(text)
        os.replace(temporary, self.folder / CHECKPOINT)

    def _read_checkpoint(self) -> None:
        """What a new process knows: the ids; not the pods' names, which its pod manager tells."""
        path = self.folder / CHECKPOINT
        known, self.pods = self.pods, {}
        self._reuse = {}
        if not path.exists() or not self.checkpoints:
            self.pods = known
            return
        for entry in json.loads(path.read_text())["Data"]["PodDeviceEntries"] or ():
            if entry["ResourceName"] != RESOURCE_MEM:
                continue
            uid = entry["PodUID"]
            before = known.get(uid, Running("default", uid, ()))
            pod = self.pods.setdefault(
                uid, Running(before.namespace, before.name, before.init_names)
            )
            ids = {i for ids in entry["DeviceIDs"].values() for i in ids}
            pod.allocated[entry["ContainerName"]] = ids


class _Registration(rpc.RegistrationServicer):
    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    async def Register(self, request: api.RegisterRequest, context: Any) -> api.Empty:
        if self._kubelet.refuse:
            await context.abort(grpc.StatusCode.UNKNOWN, self._kubelet.refuse)
        await self._kubelet.register(request)
        return api.Empty()


class _Lister(resources_rpc.PodResourcesListerServicer):
    """Knows names, no UIDs; leaves finished init containers out; one entry for each id."""

    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    async def List(
        self, request: resources_api.ListPodResourcesRequest, context: Any
    ) -> resources_api.ListPodResourcesResponse:
        self._kubelet.lists += 1
        return resources_api.ListPodResourcesResponse(
            pod_resources=[
                resources_api.PodResources(
                    name=pod.name,
                    namespace=pod.namespace,
                    containers=[
                        resources_api.ContainerResources(
                            name=container,
                            devices=[
                                resources_api.ContainerDevices(
                                    resource_name=RESOURCE_MEM, device_ids=[i]
                                )
                                for i in sorted(ids)
                            ],
                        )
                        for container, ids in pod.allocated.items()
                        if container not in pod.init_names
                    ],
                )
                for pod in self._kubelet.pods.values()
            ]
            + [
                resources_api.PodResources(
                    name=one.name,
                    namespace="default",
                    containers=[
                        resources_api.ContainerResources(
                            name="c",
                            devices=[
                                resources_api.ContainerDevices(
                                    resource_name=one.resource, device_ids=[i]
                                )
                                for i in one.ids
                            ],
                        )
                    ],
                )
                for one in self._kubelet.foreign
            ]
        )
