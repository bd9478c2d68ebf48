"""A kubelet's device manager, as far as a device plugin can tell.

Follows kubernetes v1.36 pkg/kubelet/cm/devicemanager/manager.go: ids are chosen at random where the
plugin does not say, containers of a pod reuse what its init containers have, ids of pods that are
no longer active are taken back only when somebody asks, a pod that was refused is not tried again.
One known flaw is there too: `UpdateAllocatedDevices` between the choice of ids and the end of
Allocate forgets that the ids are taken.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Plugin(Protocol):
    """What the kubelet calls. Raises PluginError to refuse."""

    def preferred(self, available: list[str], must: list[str], size: int) -> list[str]: ...

    def allocate(self, ids: list[str]) -> None: ...


class PluginError(Exception):
    """The plugin's refusal, or its absence."""


@dataclass(frozen=True)
class Container:
    name: str
    units: int
    init: bool = False
    sidecar: bool = False


@dataclass
class KubeletModel:
    """One kubelet. `active` says whether a pod (UID) still counts."""

    ids: list[str]
    random: random.Random
    active: Callable[[str], bool]
    healthy: set[str] = field(default_factory=set)
    pod_devices: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """Pod UID -> container -> ids; what the checkpoint holds."""
    checkpoint: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """The same as last written: after an allocation, not when pods leave."""
    written_before: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """The same as written before that."""
    last: str | None = None
    """UID of the pod that was allocated last."""
    blind: bool = False
    """It has just started and does not know all pods: it takes nothing back."""
    allocated: set[str] = field(default_factory=set)
    reuse: dict[str, set[str]] = field(default_factory=dict)
    interrupt: Callable[[], None] = lambda: None
    """Called wherever other things can happen between two steps of an allocation."""

    def __post_init__(self) -> None:
        self.healthy = set(self.ids)

    def update_allocated(self) -> None:
        gone = [uid for uid in self.pod_devices if not self.blind and not self.active(uid)]
        if gone:
            for uid in gone:
                del self.pod_devices[uid]
            self.allocated = self._held()

    def restart(self, *, unwritten: bool = False, blind: bool = False) -> None:
        """What a new kubelet process reads from the checkpoint.

        unwritten   the last one was killed before it wrote its last allocation down
        blind       it takes nothing back before it knows all pods
        """
        if unwritten:
            self.checkpoint = self.written_before
        self.blind = blind
        self.pod_devices = {uid: dict(pod) for uid, pod in self.checkpoint.items()}
        self.allocated = self._held()
        self.reuse = {}

    def forget(self, uid: str) -> None:
        """What a new kubelet may do with a pod that does not run yet; the checkpoint stays."""
        self.pod_devices.pop(uid, None)
        self.allocated = self._held()

    def admit(self, uid: str, containers: list[Container], plugin: Plugin) -> None:
        """Allocate for a whole pod. Raises PluginError when it is refused."""
        self.reuse = {uid: self.reuse.get(uid, set())}
        for container in containers:
            if not container.units:
                continue
            self.update_allocated()
            pool = self.reuse[uid]
            try:
                self._allocate(uid, container, pool, plugin)
            except PluginError:
                self.allocated = self._held()
                raise
            mine = self.pod_devices.get(uid, {}).get(container.name, set())
            if container.init and not container.sidecar:
                pool |= mine
            else:
                pool -= mine

    def _allocate(self, uid: str, container: Container, pool: set[str], plugin: Plugin) -> None:
        if container.name in self.pod_devices.get(uid, {}):
            return
        chosen: set[str] = set()
        self._choose(chosen, pool, container.units)
        if len(chosen) < container.units:
            available = self.healthy - self.allocated
            if len(available) < container.units - len(chosen):
                raise PluginError("requested number of devices unavailable")
            preferred = plugin.preferred(
                self._shuffled(available | chosen), self._shuffled(chosen), container.units
            )
            self._choose(chosen, set(preferred) & available, container.units)
            self._choose(chosen, available, container.units)
        self.interrupt()
        plugin.allocate(self._shuffled(chosen))
        self.interrupt()
        self.pod_devices.setdefault(uid, {})[container.name] = chosen
        self.written_before, self.last = self.checkpoint, uid
        self.checkpoint = {uid: dict(pod) for uid, pod in self.pod_devices.items()}

    def _choose(self, chosen: set[str], of: set[str], needed: int) -> None:
        for identifier in self._shuffled(of - chosen):
            if len(chosen) == needed:
                return
            chosen.add(identifier)
            self.allocated.add(identifier)

    def _shuffled(self, ids: set[str]) -> list[str]:
        ordered = sorted(ids)
        self.random.shuffle(ordered)
        return ordered

    def _held(self) -> set[str]:
        return {i for pod in self.pod_devices.values() for ids in pod.values() for i in ids}
