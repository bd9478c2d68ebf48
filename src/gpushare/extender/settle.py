"""Reservations that nobody has confirmed: look at the pod, and settle them.

A reservation ends with the watch event that shows the pod on its node. Three kinds stay longer:

* nobody knows whether the write went through (the API server did not answer);
* it went through, and the watch lags, or the pod was deleted before the watch showed it at all:
  then no event will ever come;
* the process that wanted the bind was cut off in the middle.

So what is older than `GRACE_S` is looked up, again and again, with growing pauses. A pod that is
gone, or another one by now, has left (`leaving`); one that is bound, here or elsewhere, is booked
so; one that is still unbound so long after the write ended, by a consistent read, was not bound by
it: released.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn

from gpushare.extender.outcome import moved
from gpushare.extender.state import ClusterState, Reservation
from gpushare.kube.connection import Connection
from gpushare.kube.errors import KubeError, NotFound
from gpushare.kube.objects import Pod
from gpushare.kube.resources import pod_path

log = logging.getLogger(__name__)

GRACE_S: Final = 5.0
"""A watch is some milliseconds behind; a write whose caller hung up is over long before."""
MAX_PAUSE_S: Final = 60.0
ROUND_S: Final = 1.0


@dataclass
class Settler:
    """Looks after the reservations of `state`."""

    state: ClusterState
    connection: Connection
    clock: Callable[[], float]
    grace_s: float = GRACE_S
    _next: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Pod UID -> (when to look, the pause after that)."""

    async def run(self) -> NoReturn:
        """Settle what is due, until cancelled."""
        while True:
            await asyncio.sleep(ROUND_S)
            await self.round()

    async def round(self) -> None:
        """Look once at everything that is due."""
        reservations = self.state.reservations
        self._next = {uid: when for uid, when in self._next.items() if uid in reservations}
        for uid, reservation in list(reservations.items()):
            if reservation.done is None:
                continue
            due, pause_s = self._next.get(uid, (reservation.done + self.grace_s, self.grace_s))
            if self.clock() >= due:
                self._next[uid] = (self.clock() + pause_s, min(MAX_PAUSE_S, 2 * pause_s))
                await self._settle(reservation)

    async def _settle(self, reservation: Reservation) -> None:
        record = reservation.record
        where = f"{record.namespace}/{record.name}"
        try:
            pod = await self.connection.get(pod_path(record.namespace, record.name), Pod)
        except NotFound:
            self._gone(reservation, f"{where}: gone before its bind was seen")
            return
        except KubeError as error:
            log.warning("%s: whether it is bound cannot be seen: %s", where, error)
            return
        if reservation.done is None:  # the scheduler has asked again meanwhile
            return
        if pod.metadata.uid != record.uid:
            self._gone(reservation, f"{where}: another pod bears the name by now")
        elif pod.spec.node_name:
            self.state.correct(
                reservation, moved(record, pod.spec.node_name, pod.metadata.annotations or {})
            )
        else:
            text = f"{where}: the bind to {record.node} did not go through"
            if self.state.roll_back(reservation):
                log.warning("%s; %d units released", text, record.request.units)

    def _gone(self, reservation: Reservation, why: str) -> None:
        """It may have been on the node, so it leaves as every pod does."""
        if self.state.gone(reservation):
            log.warning("%s; it had %d units", why, reservation.record.request.units)
