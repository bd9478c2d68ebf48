"""Asking the node who has which device ids.

checkpoint     the kubelet's own file: every container, by the pod's UID
status         the pods' own `allocatedResourcesStatus`, as the watch brought it: app containers
podresources   the kubelet's API: by name, without finished init containers. Its List disturbs an
               allocation under way (core.matching), so it is asked only where the checkpoint does
               not tell, and not while the kubelet is choosing ids
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.contract.names import RESOURCE_MEM
from gpushare.deviceplugin.core.attesting import Round, Sighting
from gpushare.kube.objects import Pod
from gpushare.node.checkpoint import read_checkpoint
from gpushare.node.containers import ContainerDevices, SourceUnavailable
from gpushare.node.podresources import list_pod_resources

log = logging.getLogger(__name__)

CHECKPOINT: Final = "checkpoint"
PODRESOURCES: Final = "podresources"
STATUS: Final = "status"
ALL_SOURCES: Final = (CHECKPOINT, STATUS, PODRESOURCES)


@dataclass
class Sources:
    """The sources that may be asked, `enabled`."""

    device_plugins: Path
    pod_resources: Path
    enabled: frozenset[str] = frozenset(ALL_SOURCES)
    _failing: dict[str, str] = field(default_factory=dict)
    """Source -> why it could not be asked the last time."""

    async def ask(self, pods: Iterable[Pod], *, may_list: bool) -> Round:
        """What each source shows. `may_list`: the kubelet is not allocating at the moment."""
        began_ns = time.time_ns()
        found: list[Sighting] = []
        if STATUS in self.enabled:
            found += [sighting for pod in pods for sighting in _from_status(pod)]
        complete = self._checkpoint(found) if CHECKPOINT in self.enabled else False
        listed = complete
        if not complete and may_list and PODRESOURCES in self.enabled:
            listed = await self._list(found)
        return Round(began_ns, found, listed=listed, complete=complete)

    def _checkpoint(self, found: list[Sighting]) -> bool:
        try:
            found += map(_sighting, read_checkpoint(self.device_plugins, RESOURCE_MEM))
        except SourceUnavailable as error:
            self._failed(CHECKPOINT, error)
            return False
        self._failing.pop(CHECKPOINT, None)
        return True

    async def _list(self, found: list[Sighting]) -> bool:
        try:
            found += map(_sighting, await list_pod_resources(self.pod_resources, RESOURCE_MEM))
        except SourceUnavailable as error:
            self._failed(PODRESOURCES, error)
            return False
        self._failing.pop(PODRESOURCES, None)
        return True

    def _failed(self, source: str, error: SourceUnavailable) -> None:
        if source not in self._failing:
            log.warning("who has which ids cannot be read from the %s: %s", source, error)
        self._failing[source] = str(error)


def _sighting(shown: ContainerDevices) -> Sighting:
    return Sighting(shown.container, shown.ids, shown.uid, shown.namespace, shown.pod)


def _from_status(pod: Pod) -> Iterable[Sighting]:
    status = pod.status
    for container in (status and status.container_statuses) or ():
        for resource in container.allocated_resources_status or ():
            ids = frozenset(device.resource_id for device in resource.resources or ())
            if resource.name == RESOURCE_MEM and ids:
                yield Sighting(container.name, ids, uid=pod.metadata.uid)
