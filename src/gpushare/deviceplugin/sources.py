"""Asking the node who has which device ids.

checkpoint     the kubelet's own file: every container, by the pod's UID. Where it can be read,
               nothing else is asked: the others can be of before the kubelet's start
status         the pods' own `allocatedResourcesStatus`, as the watch brought it: app containers
podresources   the kubelet's API: by name, without finished init containers. Its List disturbs an
               allocation under way (core.matching), so it is asked only where the checkpoint does
               not tell, and not while the kubelet is choosing ids
hook           the letters of gpushare-hook, by the pod's UID, once the container starts; read
               where the checkpoint does not tell
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
from gpushare.node.mailbox import Letter, Mailboxes
from gpushare.node.podresources import list_pod_resources

log = logging.getLogger(__name__)

CHECKPOINT: Final = "checkpoint"
PODRESOURCES: Final = "podresources"
STATUS: Final = "status"
HOOK: Final = "hook"
ALL_SOURCES: Final = (CHECKPOINT, STATUS, PODRESOURCES, HOOK)


@dataclass
class Sources:
    """The sources that may be asked, `enabled`."""

    device_plugins: Path
    pod_resources: Path
    enabled: frozenset[str] = frozenset(ALL_SOURCES)
    mailboxes: Mailboxes | None = None
    _failing: dict[str, str] = field(default_factory=dict)
    """Source -> why it could not be asked the last time."""

    async def ask(self, pods: Iterable[Pod], *, may_list: bool) -> Round:
        """What each source shows. `may_list`: the kubelet is not allocating at the moment."""
        began_ns = time.time_ns()
        checkpointed = self.checkpointed()
        if checkpointed is not None:
            return Round(began_ns, checkpointed, listed=True, complete=True)
        found: list[Sighting] = []
        if STATUS in self.enabled:
            found += [sighting for pod in pods for sighting in _from_status(pod)]
        if HOOK in self.enabled:
            found += self._from_letters(found)
        listed = False
        if may_list and PODRESOURCES in self.enabled:
            listed = await self._list(found)
        return Round(began_ns, found, listed=listed, complete=False)

    def checkpointed(self) -> list[Sighting] | None:
        """Every container's ids by the kubelet's checkpoint; None where it does not tell."""
        if CHECKPOINT not in self.enabled:
            return None
        try:
            found = [*map(_sighting, read_checkpoint(self.device_plugins, RESOURCE_MEM))]
        except SourceUnavailable as error:
            self._failed(CHECKPOINT, error)
            return None
        self._failing.pop(CHECKPOINT, None)
        return found

    def _from_letters(self, found: Iterable[Sighting]) -> list[Sighting]:
        """What the hook wrote, of containers that are not in `found`.

        A container that was given other ids before it ran has several letters: the last counts.
        """
        if self.mailboxes is None:
            return []
        told = {(sighting.uid, sighting.container) for sighting in found}
        last: dict[tuple[str, str], tuple[Letter, str]] = {}
        try:
            names = self.mailboxes.names()
        except OSError as error:
            self._failed(HOOK, SourceUnavailable(f"{self.mailboxes.home}: {error.strerror}"))
            return []
        self._failing.pop(HOOK, None)
        for name in names:
            for letter in self.mailboxes.letters(name):
                key = letter.uid, letter.container
                before = last.get(key)
                if key not in told and (not before or before[0].written_ns < letter.written_ns):
                    last[key] = letter, name
        return [
            Sighting(
                letter.container, frozenset(record.ids), uid=letter.uid, at_ns=letter.written_ns
            )
            for letter, name in last.values()
            if (record := self.mailboxes.record(name)) is not None
        ]

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
