"""What the kubelet calls: the device plugin API v1beta1, on one socket.

The kubelet allocates one container at a time. A call that cannot be answered from what is known
brings the books up to date first: one fresh list of the node's pods, one look at who has what
(core.matching). If that does not help either the call is refused, and the pod fails at admission
with the reason.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Never

import grpc

from gpushare.contract.names import RESOURCE_MEM
from gpushare.deviceplugin import advertising
from gpushare.deviceplugin.advertising import Advertised, TooManyUnits, device_list
from gpushare.deviceplugin.announce import Announcer
from gpushare.deviceplugin.attester import Attester
from gpushare.deviceplugin.core.offers import Offer, Stale
from gpushare.deviceplugin.core.refusals import Cause, Refused
from gpushare.deviceplugin.counters import ALLOCATED, Counters
from gpushare.deviceplugin.injection.injector import Given, Injector
from gpushare.deviceplugin.state import NodeState
from gpushare.kube.connection import Connection
from gpushare.kube.errors import KubeError
from gpushare.kube.listing import list_all
from gpushare.kube.moments import set_within
from gpushare.kube.resources import PODS, Selector
from gpushare.node.api import deviceplugin_pb2 as api
from gpushare.node.api import deviceplugin_pb2_grpc as rpc

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

FRESH_LIST_S: Final = 2.0
"""For a fresh list of the node's pods, while the kubelet waits."""


@dataclass
class Allocator:
    """Answers the kubelet's calls from the books of `state`, which are open."""

    state: NodeState
    connection: Connection
    attester: Attester
    injector: Injector
    announcer: Announcer
    counters: Counters
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def prefer(
        self, available: Iterable[str], must: Iterable[str], size: int
    ) -> Offer | Refused:
        """Which of the `available` ids to take."""
        available, must = frozenset(available), frozenset(must)
        async with self._one_at_a_time:
            matching = self.state.matching
            answer = matching.prefer(available, must, size, current=False)
            if isinstance(answer, Stale):
                await self._catch_up(answer, available - must)
                answer = matching.prefer(available, must, size, current=True)
            assert not isinstance(answer, Stale)
            if isinstance(answer, Offer):
                self.attester.offered()
                log.debug("offered %s for %s", sorted(answer.ids), answer.piece.key)
            return answer

    async def allocate(self, ids: Iterable[str]) -> Given | Refused:
        """The kubelet has chosen `ids` for a container."""
        ids = frozenset(ids)
        async with self._one_at_a_time:
            matching = self.state.matching
            answer = matching.allocate(ids, time.time_ns(), current=False)
            if isinstance(answer, Stale):
                await self._catch_up(answer, None)
                answer = matching.allocate(ids, time.time_ns(), current=True)
            assert not isinstance(answer, Stale)
            self.attester.handed_out()
            self.state.touch()
            if isinstance(answer, Refused):
                return answer
            given = self.injector.give(answer)
            if isinstance(given, Given):
                self.counters.allocation(ALLOCATED)
                log.debug("handed out %s to %s", sorted(ids), answer.piece.key)
            return given

    def refused(self, refused: Refused) -> None:
        """Count and tell of a refusal that the kubelet gets as an error."""
        self.counters.allocation(refused.cause)
        self.announcer.refused(refused, self.state)

    async def _catch_up(self, stale: Stale, free: frozenset[str] | None) -> None:
        """One fresh list, and one fresh look at who has what."""
        log.debug("bringing the books up to date: %s", stale.why)
        selector = Selector(fields=f"spec.nodeName={self.state.name}")
        try:
            fresh = await list_all(self.connection, PODS, selector, timeout_s=FRESH_LIST_S)
        except KubeError as error:
            log.warning("answering the kubelet from what is known: %s", error)
        else:
            self.state.pods_listed(fresh.items, fresh.resource_version)
        if free is None:
            await self.attester.look()
        else:
            await self.attester.settle(free)


class DevicePlugin(rpc.DevicePluginServicer):
    """One registration's service; `watched` is set while the kubelet listens to the devices."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._state = allocator.state
        self.watched = asyncio.Event()
        self.unwatched = asyncio.Event()
        """Set when the kubelet has stopped listening."""
        self._streams: list[asyncio.Event] = []
        self._ended = False

    def end(self) -> None:
        """End what the kubelet listens to; it then looks for another instance."""
        self._ended = True
        for wake in self._streams:
            wake.set()

    async def GetDevicePluginOptions(
        self, request: api.Empty, context: Context
    ) -> api.DevicePluginOptions:
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(
        self, request: api.Empty, context: Context
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        changed = asyncio.Event()
        self._state.subscribers.append(changed)
        self.watched.set()
        self._streams.append(changed)
        sent: Advertised | None = None
        withdrawn_at = math.inf
        try:
            while not self._ended:
                changed.clear()
                what = self._state.advertised()
                if what is not None and what != sent:
                    sent, withdrawn_at = what, math.inf
                    yield self._message(what)
                    if not what.offering and what.gpus:
                        withdrawn_at = time.monotonic() + advertising.WITHDRAWN_AFTER_S
                if time.monotonic() >= withdrawn_at:
                    withdrawn_at = math.inf
                    yield api.ListAndWatchResponse()
                left_s = withdrawn_at - time.monotonic()
                await set_within(changed, None if left_s == math.inf else max(0.0, left_s))
        finally:
            self._streams.remove(changed)
            self._state.subscribers.remove(changed)
            self.unwatched.set()

    def _message(self, what: Advertised) -> api.ListAndWatchResponse:
        assert self._state.books is not None
        try:
            message = device_list(what, self._state.books.node)
        except TooManyUnits as error:
            self._allocator.announcer.not_offering(str(error), self._state)
            return api.ListAndWatchResponse()
        log.info("offering %d %s", len(message.devices), RESOURCE_MEM)
        return message

    async def GetPreferredAllocation(
        self, request: api.PreferredAllocationRequest, context: Context
    ) -> api.PreferredAllocationResponse:
        response = api.PreferredAllocationResponse()
        for wanted in request.container_requests:
            answer = await self._allocator.prefer(
                wanted.available_deviceIDs,
                wanted.must_include_deviceIDs,
                wanted.allocation_size,
            )
            if isinstance(answer, Refused):
                await self._refuse(answer, context)
            response.container_responses.add(deviceIDs=sorted(answer.ids))
        return response

    async def Allocate(
        self, request: api.AllocateRequest, context: Context
    ) -> api.AllocateResponse:
        response = api.AllocateResponse()
        for wanted in request.container_requests:
            answer = await self._allocator.allocate(wanted.devices_ids)
            if isinstance(answer, Refused):
                await self._refuse(answer, context)
            response.container_responses.add(
                envs=answer.environment,
                cdi_devices=[api.CDIDevice(name=device) for device in answer.devices],
                mounts=[
                    api.Mount(
                        container_path=mount.container_path,
                        host_path=mount.host_path,
                        read_only=mount.read_only,
                    )
                    for mount in answer.mounts
                ],
            )
        return response

    async def PreStartContainer(
        self, request: api.PreStartContainerRequest, context: Context
    ) -> api.PreStartContainerResponse:
        return api.PreStartContainerResponse()  # never called: the options do not ask for it

    async def _refuse(self, refused: Refused, context: Context) -> Never:
        self._allocator.refused(refused)
        code = (
            grpc.StatusCode.RESOURCE_EXHAUSTED
            if refused.cause is Cause.NO_ROOM
            else grpc.StatusCode.FAILED_PRECONDITION
        )
        await context.abort(code, str(refused))
