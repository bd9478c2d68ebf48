"""Writes what the API server should know: the node's inventory and corrections, pods' annotations.

In this order: the node's corrections, in one patch with whatever else changed there; then the
pods'. A reader that sees a pod's new annotation has seen the correction before, or agrees with it
(core.publishing). Both are of one moment: what is attested while the node is written waits for the
next round.

On a node that does not share its GPUs any more, nothing stands once the last pod that asks is gone.

What should stand is compared with what is known to stand, so a write that failed or was overtaken
is simply done again, and everything is published anew when the Node object is recreated.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from gpushare.contract import names
from gpushare.contract.inventory import encode_devices, encode_node
from gpushare.deviceplugin.core.publishing import PodPatch, pod_patches
from gpushare.deviceplugin.inventory import accelerator_labels
from gpushare.deviceplugin.state import NodeState
from gpushare.kube.backoff import Backoff
from gpushare.kube.connection import Connection
from gpushare.kube.errors import Conflict, KubeError, NotFound
from gpushare.kube.moments import set_within
from gpushare.kube.patches import annotate_pod, patch_node, patch_node_status

log = logging.getLogger(__name__)

TICK_S: Final = 5.0
"""Corrections linger for some time; this looks whether it is over."""
AT_ONCE: Final = 8
"""Pods patched at the same time."""
TIMEOUT_S: Final = 10.0


@dataclass
class Publisher:
    """Publishes what `state` knows. `run` must be running."""

    state: NodeState
    connection: Connection

    async def run(self) -> NoReturn:
        """Publish, until cancelled."""
        changed = asyncio.Event()
        self.state.subscribers.append(changed)
        backoff = Backoff()
        while True:
            changed.clear()
            try:
                await self.round()
                backoff.reset()
            except KubeError as error:
                delay_s = backoff.next_s()
                log.warning("cannot publish: %s; again in %.1f s", error, delay_s)
                await asyncio.sleep(delay_s)
                continue
            await set_within(changed, TICK_S)

    async def round(self) -> None:
        """Write what is not as it should be. Raises KubeError for the first failure."""
        if self.state.books is None or self.state.node is None:
            return
        patches = pod_patches(self.state.books, time.time_ns())
        await self._node()
        for first in range(0, len(patches), AT_ONCE):
            results = await asyncio.gather(
                *map(self._pod, patches[first : first + AT_ONCE]), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def _node(self) -> None:
        state, node = self.state, self.state.node
        assert state.books is not None
        assert node is not None
        devices = () if state.left else state.devices
        annotations = {
            names.ANNOTATION_DEVICES: None if state.left else encode_devices(devices),
            names.ANNOTATION_NODE: None if state.left else encode_node(state.info),
            **state.corrections.wanted(state.books, time.time_ns()),
        }
        annotations = _news(annotations, node.metadata.annotations)
        isolation = None if state.left else state.conditions.isolation_label
        labels = _news(
            {**accelerator_labels(devices), names.LABEL_ISOLATION: isolation},
            node.metadata.labels,
        )
        uid = node.metadata.uid
        if annotations or labels:
            state.node_changed(
                await patch_node(
                    self.connection,
                    state.name,
                    annotations=annotations,
                    labels=labels,
                    uid=uid,
                    timeout_s=TIMEOUT_S,
                )
            )
        capacity = (node.status and node.status.capacity) or {}
        count = str(len(devices)) if state.conditions.offering else "0"
        if str(capacity.get(names.RESOURCE_COUNT, "0")) != count:
            state.node_changed(
                await patch_node_status(
                    self.connection,
                    state.name,
                    capacity={names.RESOURCE_COUNT: count},
                    uid=uid,
                    timeout_s=TIMEOUT_S,
                )
            )

    async def _pod(self, patch: PodPatch) -> None:
        try:
            pod = await annotate_pod(
                self.connection,
                patch.namespace,
                patch.name,
                patch.annotations,
                uid=patch.uid,
                timeout_s=TIMEOUT_S,
            )
        except (NotFound, Conflict):
            return  # gone meanwhile, or another bears its name; the watch will tell
        self.state.pod_changed(pod)


def _news(
    wanted: Mapping[str, str | None], present: Mapping[str, str] | None
) -> dict[str, str | None]:
    """What of `wanted` (None: not there) is not as it stands."""
    return {key: value for key, value in wanted.items() if (present or {}).get(key) != value}
