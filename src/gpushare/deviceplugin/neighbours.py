"""GPUs that pods hold by way of another device plugin (`nvidia.com/gpu`): nothing new lands there.

Who holds which is the kubelet's word: its checkpoint, which names pods by UID, or where that does
not tell, PodResources, by name. Its List disturbs an allocation under way, so it is asked only
while a pod on the node asks for such a GPU, at most once a minute, and not while the kubelet
chooses ids.

**Whose entry still counts** is the API server's word. The kubelet forgets a pod that has ended
when it next allocates, of whatever plugin; on a node all of whose GPUs are taken that may be never,
so an entry alone must not keep a GPU closed. It counts while its pod is on the node and has not
ended. One that is told to end still counts: it uses the GPU until it has.

A pod that the watch of the node's pods does not know is new, or gone. So the pods are listed anew,
after the kubelet's word was read: a pod was bound before the kubelet allocated for it, so one that
is not in this list is gone for good. While the API server cannot be asked, the entry counts.

A GPU is ours again within `POLL_S` after its last holder has ended. Of a MIG device that NVIDIA's
plugin hands out nobody tells the GPU; those are not seen here.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from gpushare.contract.names import RESOURCE_WHOLE_GPU
from gpushare.deviceplugin.core.pods import ANNOTATION_MIRROR
from gpushare.deviceplugin.sources import CHECKPOINT, PODRESOURCES, Sources
from gpushare.deviceplugin.state import NodeState
from gpushare.kube.errors import KubeError
from gpushare.kube.objects import Pod
from gpushare.kube.reflector import Handler
from gpushare.kube.resources import Ref
from gpushare.node.checkpoint import read_checkpoint
from gpushare.node.containers import ContainerDevices, SourceUnavailable
from gpushare.node.gpus import FoundGpu
from gpushare.node.podresources import list_pod_resources

log = logging.getLogger(__name__)

RESOURCES: Final = (RESOURCE_WHOLE_GPU, f"{RESOURCE_WHOLE_GPU}.shared")
"""What other plugins offer GPUs as; NVIDIA's can be told to call its own replicas the second."""

POLL_S: Final = 2.0
LIST_EVERY_S: Final = 60.0
LOOK_UP_S: Final = 5.0
"""For a fresh list of the node's pods."""
MAX_HOLDERS_NAMED: Final = 3

_BY_MINOR: Final = re.compile(r"nvidia([0-9]+)(?:/.*)?", re.ASCII)
"""Of GKE's plugin, after the device file: "nvidia0", and "nvidia0/vgpu1" for a part of it."""


# -- the pods -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resident:
    """A pod on this node, as the API server tells of it."""

    name: str
    """Namespace/name."""
    uids: frozenset[str]
    """A static pod has two: that of its object, and the one the kubelet knows."""
    asks: bool
    """It asks for a GPU of another plugin."""
    ended: bool

    @classmethod
    def of(cls, pod: Pod) -> "Resident":
        meta = pod.metadata
        static = (meta.annotations or {}).get(ANNOTATION_MIRROR)
        limits = [
            container.resources.limits or {}
            for container in (*pod.spec.containers, *(pod.spec.init_containers or ()))
            if container.resources is not None
        ]
        return cls(
            f"{meta.namespace}/{meta.name}",
            frozenset({meta.uid, static} if static else {meta.uid}),
            asks=any(resource in amounts for amounts in limits for resource in RESOURCES),
            ended=pod.status is not None and pod.status.phase in ("Succeeded", "Failed"),
        )


class Residents:
    """Every pod on this node; passes all it hears on to the next handler."""

    def __init__(self, following: Handler[Pod]) -> None:
        self._following = following
        self._pods: dict[str, Resident] = {}
        """UID -> pod."""

    def changed(self, pod: Pod) -> None:
        self._pods[pod.metadata.uid] = Resident.of(pod)
        self._following.changed(pod)

    def deleted(self, ref: Ref) -> None:
        self._pods.pop(ref.uid, None)
        self._following.deleted(ref)

    def listed(self) -> None:
        self._following.listed()

    @property
    def now(self) -> tuple[Resident, ...]:
        return tuple(self._pods.values())


# -- the decision ---------------------------------------------------------------------------------


def key_of(shown: ContainerDevices) -> str:
    """Which pod it is, in its source's own terms: the UID, or namespace/name."""
    return shown.uid or f"{shown.namespace}/{shown.pod}"


def by_key(residents: Iterable[Resident]) -> dict[str, Resident]:
    """`key_of` -> the pod. A pod that has ended does not hide a living one of its name."""
    found: dict[str, Resident] = {}
    for one in sorted(residents, key=lambda one: not one.ended):
        found.update(dict.fromkeys((*one.uids, one.name), one))
    return found


def gpu_of(identifier: str, gpus: Iterable[FoundGpu]) -> FoundGpu | None:
    """The GPU a device id of another plugin stands for.

    NVIDIA's ids are GPU UUIDs, with `::<number>` behind for its replicas, whatever its
    deviceIDStrategy: that is how containers are told. GKE's are `nvidia<minor>`. None for others.
    """
    uuid, _, _ = identifier.partition("::")
    minor = _BY_MINOR.fullmatch(identifier)
    for gpu in gpus:
        if gpu.uuid == uuid or (minor and int(minor[1]) == gpu.minor):
            return gpu
    return None


def taken(
    gpus: Sequence[FoundGpu],
    shown: Iterable[ContainerDevices],
    residents: Mapping[str, Resident],
    gone: Collection[str] = (),
) -> dict[str, str]:
    """GPU UUID -> who holds it, as why nothing new may land on it.

    shown      device ids of `RESOURCES` that containers have, by the kubelet
    residents  `key_of` -> the pods on the node
    gone       keys of pods that are on no node any more
    """
    holders: dict[str, set[str]] = {}
    for one in shown:
        key = key_of(one)
        pod = residents.get(key)
        if pod.ended if pod is not None else key in gone:
            continue
        who = f"pod {pod.name}" if pod is not None else f"a pod not known yet ({key})"
        for identifier in one.ids:
            gpu = gpu_of(identifier, gpus)
            if gpu is not None:
                whole = identifier in (gpu.uuid, f"nvidia{gpu.minor}")
                what = "it whole" if whole else "a part of it"
                holders.setdefault(gpu.uuid, set()).add(f"{who} has {what} ({one.resource})")
    return {uuid: _sentence(sorted(texts)) for uuid, texts in holders.items()}


def _sentence(texts: list[str]) -> str:
    more = len(texts) - MAX_HOLDERS_NAMED
    return ", ".join(texts[:MAX_HOLDERS_NAMED]) + (f", and {more} more" if more > 0 else "")


# -- looking --------------------------------------------------------------------------------------


@dataclass
class Neighbours:
    """Tells `state` of GPUs that others hold. `run` must be running.

    list_pods  lists the node's pods, as they are now; raises KubeError
    choosing   whether the kubelet may be choosing ids at the moment
    """

    state: NodeState
    sources: Sources
    residents: Residents
    list_pods: Callable[[], Awaitable[Iterable[Pod]]]
    choosing: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    _shown: list[ContainerDevices] = field(default_factory=list)
    """By whichever source told last."""
    _gone: set[str] = field(default_factory=set)
    """Keys of pods that are shown and were not found."""
    _listed_at: float = float("-inf")
    _failing: bool = False
    _strange: set[str] = field(default_factory=set)
    """Ids that stand for no GPU here, and were told of."""

    async def run(self) -> NoReturn:
        """Look every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            await self.look()

    async def look(self) -> None:
        """Look once, and tell."""
        await self._ask()
        keys = {key_of(one) for one in self._shown}
        self._gone &= keys
        residents = by_key(self.residents.now)
        unknown = keys - residents.keys() - self._gone
        if unknown:
            residents = {**await self._look_up(unknown), **residents}
        self._note_strange()
        self.state.taken_whole(taken(self.state.found, self._shown, residents, self._gone))

    async def _look_up(self, keys: set[str]) -> dict[str, Resident]:
        """The pods on the node, by key; notes which of `keys` are gone."""
        try:
            found = by_key(map(Resident.of, await self.list_pods()))
        except KubeError as error:
            log.debug("pods that hold whole GPUs cannot be looked up: %s", error)
            return {}
        self._gone |= keys - found.keys()
        return found

    async def _ask(self) -> None:
        if CHECKPOINT in self.sources.enabled:
            try:
                self._shown = await asyncio.to_thread(
                    read_checkpoint, self.sources.device_plugins, *RESOURCES
                )
            except SourceUnavailable as error:
                log.debug("%s", error)  # who attests by it tells of it
            else:
                self._failing = False
                return
        due = self.clock() >= self._listed_at + LIST_EVERY_S
        wanted = any(pod.asks and not pod.ended for pod in self.residents.now)
        if not due or not wanted or self.choosing() or PODRESOURCES not in self.sources.enabled:
            return
        self._listed_at = self.clock()
        try:
            self._shown = await list_pod_resources(self.sources.pod_resources, *RESOURCES)
        except SourceUnavailable as error:
            if not self._failing:
                log.warning("which GPUs other pods hold whole cannot be read: %s", error)
            self._failing = True
        else:
            self._failing = False
            self._gone.clear()  # names come back, unlike UIDs

    def _note_strange(self) -> None:
        if not self.state.mode.shares_memory:
            return
        held = {(i, one.resource) for one in self._shown for i in one.ids}
        strange = {i: resource for i, resource in held if gpu_of(i, self.state.found) is None}
        for identifier in sorted(strange.keys() - self._strange):
            log.warning(
                "a container has %s of %s, and which GPU that is cannot be told: it may share one "
                "with pods of ours",
                identifier,
                strange[identifier],
            )
        self._strange = set(strange)
