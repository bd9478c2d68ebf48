"""A bind that must wait until the kubelet has served another pod.

The kubelet asks the node's plugin for units without saying for whom. While a container of another
class with the same call size (model.calls) is bound to the node and has not got its GPU yet, the
plugin could not tell the two calls apart, and a swap between classes would harm the books. So a
bind to a node whose plugin attests waits until the other is attested, within the bind's deadline;
then it fails with one constant reason, and the scheduler tries again. A pod that left a moment ago
counts too: the plugin may not know yet, and take a call for its (`leaving`).

Waiting binds of one node are served in order of arrival where they are confusable with each other:
a stream of pods of one class does not keep out the other for ever.

A node waits for nothing while its plugin is not there to attest (`leaving.attests`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpushare.extender.leaving import attests
from gpushare.extender.state import ClusterState
from gpushare.kube.moments import set_within
from gpushare.model.calls import confusable
from gpushare.model.request import Request

_confusable = lru_cache(4096)(confusable)

REASON: Final = "a pod with equal calls to the device plugin is still being given its GPU"


@dataclass(eq=False, slots=True)
class _Ticket:
    uid: str
    request: Request


class ClassWaits:
    """The binds that wait, by node."""

    def __init__(self, state: ClusterState, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._queues: dict[str, list[_Ticket]] = {}
        """Node name -> the binds that wait for it, in order of arrival."""

    async def passed(self, node: str, uid: str, request: Request, end: float) -> str | None:
        """Wait until the pod may be bound to the node; None then, or at `end` the reason."""
        ticket = _Ticket(uid, request)
        if not self._obstructed(node, ticket):
            return None
        queue = self._queues.setdefault(node, [])
        queue.append(ticket)
        event = asyncio.Event()
        self._state.subscribers.append(event)
        try:
            while self._obstructed(node, ticket):
                left_s = end - self._clock()
                if left_s <= 0:
                    return REASON
                event.clear()
                await set_within(event, left_s)
            return None
        finally:
            self._state.subscribers.remove(event)
            queue.remove(ticket)
            if not queue:
                self._queues.pop(node, None)
            self._state.touch()  # the next in the queue may go

    def _obstructed(self, name: str, ticket: _Ticket) -> bool:
        books = self._state.ledger.get_books(name)
        if books is None or not attests(books.node):
            return False
        for other in self._queues.get(name, ()):
            if other is ticket:
                break
            if _confusable(ticket.request, other.request):
                return True
        return any(
            pod.uid != ticket.uid and _confusable(ticket.request, pod.request)
            for pod in self._state.leavers.awaited(name)
        )
