"""Waking pods that wait although there is room for them.

The scheduler looks at a sample of the nodes and, once it has given a pod up, asks again only when
something changes that it sees. It may ask before our watch has shown us the same change; then both
wait for ever. So whenever the books, or a rejection, change what could be placed, `plan` is asked,
and what it decides is written to the pod in one patch:

* `status.nominatedNodeName`: the scheduler tries this node first and alone, without sampling;
* the annotation `gpushare.dev/nudge`: a change that wakes the pod, also when the nomination stands.

A patch of a waiting pod wakes that pod only.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, NoReturn

from gpushare.contract import names
from gpushare.extender.plan import Clear, Nominate, Planner
from gpushare.extender.state import ClusterState
from gpushare.kube.connection import Connection
from gpushare.kube.errors import Conflict, KubeError, NotFound
from gpushare.kube.moments import set_within
from gpushare.kube.patches import annotate_pod, nominate

log = logging.getLogger(__name__)

SETTLE_S: Final = 0.1
"""Changes come in flocks; one look at them all is enough."""
PATCH_TIMEOUT_S: Final = 3.0
AT_ONCE: Final = 8


class Nudger:
    """Carries out what the planner decides."""

    def __init__(
        self,
        state: ClusterState,
        planner: Planner,
        connection: Connection,
        clock: Callable[[], float],
        counted: Callable[[str], None] = lambda outcome: None,
    ) -> None:
        self._state = state
        self._planner = planner
        self._connection = connection
        self._clock = clock
        self._counted = counted
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._failing = False
        state.subscribers.append(self._wake)

    def rejected(self) -> None:
        """The scheduler has been told that a pod has no place."""
        self._wake.set()

    async def run(self) -> NoReturn:
        """Nudge until cancelled."""
        while True:
            await self._wait()
            self._wake.clear()
            if self._state.nodes.complete and self._state.pods.complete:
                actions = self._planner.plan(self._clock())
                await asyncio.gather(*(self._carry_out(action) for action in actions))

    async def _wait(self) -> None:
        due = self._planner.next_due
        left_s = None if due is None else max(0.0, due - self._clock())
        await set_within(self._wake, left_s)
        await asyncio.sleep(SETTLE_S)

    async def _carry_out(self, action: Nominate | Clear) -> None:
        async with self._slots:
            try:
                await self._patch(action)
            except (NotFound, Conflict):
                self._planner.failed(action)  # gone meanwhile, the watch will tell
            except KubeError as error:
                self._planner.failed(action)
                if not self._failing:
                    log.warning(
                        "cannot wake waiting pods (said once until it works again): %s", error
                    )
                self._failing = True
                self._counted("failed")
            else:
                self._failing = False
                self._counted("cleared" if isinstance(action, Clear) else "nudged")

    async def _patch(self, action: Nominate | Clear) -> None:
        pod, nudge = action.pod, {names.ANNOTATION_NUDGE: str(time.time_ns())}
        if isinstance(action, Clear):
            log.debug("%s: nomination to %s cleared", pod.full_name, action.node)
            await nominate(
                self._connection,
                pod.namespace,
                pod.name,
                None,
                uid=pod.uid,
                timeout_s=PATCH_TIMEOUT_S,
            )
        elif action.wake_only:
            log.info("%s: there is room on %s, woken", pod.full_name, action.node)
            await annotate_pod(
                self._connection,
                pod.namespace,
                pod.name,
                nudge,
                uid=pod.uid,
                timeout_s=PATCH_TIMEOUT_S,
            )
        else:
            log.info("%s: there is room on %s, nominated", pod.full_name, action.node)
            await nominate(
                self._connection,
                pod.namespace,
                pod.name,
                action.node,
                uid=pod.uid,
                annotations=nudge,
                timeout_s=PATCH_TIMEOUT_S,
            )
