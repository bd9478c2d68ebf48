"""What the plugin knows: its Node object, the node's GPUs, the pods on it, and who has which ids.

Feed it through `node_handler` and `pod_handler`, the handlers of two reflectors, and through
`gpus_found`. Once all three have spoken, and the kubelet's allocations have been read, the plugin
may serve (`begin`): before that it would hand out what somebody has.

**Versions.** Besides the watch, pods come from fresh lists (while the kubelet waits for an answer)
and from the answers to our own writes; the watch may bring older versions of them later. What is
older than the newest known of an object is ignored, and so is whatever a fresh list has overtaken.

Nothing here awaits. Whoever is interested in changes has an Event in `subscribers`.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from gpushare.contract import names
from gpushare.contract.allocation import CodecError
from gpushare.contract.inventory import (
    Device,
    NodeInfo,
    decode_devices,
    decode_node,
    encode_devices,
    encode_node,
)
from gpushare.contract.names import Mode
from gpushare.contract.units import Unit
from gpushare.deviceplugin.advertising import Advertised, advertised
from gpushare.deviceplugin.conditions import Conditions
from gpushare.deviceplugin.core.books import PODS_REMEMBERED, Books
from gpushare.deviceplugin.core.matching import Matching
from gpushare.deviceplugin.core.pods import PodFacts, read_facts
from gpushare.deviceplugin.core.publishing import Corrections
from gpushare.deviceplugin.inventory import merged, pruned
from gpushare.isolation.probe import Isolation, untested_sandbox
from gpushare.kube.objects import Node, Pod
from gpushare.kube.reading import Problem, read_mode, read_node
from gpushare.kube.resources import Ref
from gpushare.model import gpus as model
from gpushare.node.gpus import Driver, FoundGpu
from gpushare.policy import GPU_POLICIES

log = logging.getLogger(__name__)


@dataclass
class NodeState:
    """Everything about one node, `name`."""

    name: str
    unit: Unit
    injection: str
    books: Books | None = None
    """None until the plugin may serve."""
    alone: bool = True
    """Nobody else may offer the same GPUs whole."""
    not_injectable: str | None = None
    """Why no container can get its GPU; None: it can."""
    isolation: Isolation | None = None
    """What holds containers to their share; None: nobody has looked, or nobody wants it."""
    unisolated_allowed: bool = False
    """A node that should isolate takes pods although it cannot."""
    driver: Driver = field(default_factory=Driver)
    taken: Mapping[str, str] = field(default_factory=dict)
    """GPU UUID -> which pod has it by way of another device plugin."""
    devices: tuple[Device, ...] = ()
    """The GPUs as published."""
    node: Node | None = None
    """The newest version of the Node object that is known."""
    problems: tuple[Problem, ...] = ()
    """What is wrong with the node's labels and annotations."""
    subscribers: list[asyncio.Event] = field(default_factory=list)
    """Set whenever anything changed; each is cleared by its owner."""

    def __post_init__(self) -> None:
        self._found: tuple[FoundGpu, ...] | None = None
        self._policies = tuple(GPU_POLICIES)
        self.pods: dict[str, Pod] = {}
        """UID -> the newest version of a pod on this node that asks for GPU memory."""
        self._gone: OrderedDict[str, None] = OrderedDict()
        """UIDs of pods that were deleted: an answer to a write may come after that."""
        self._listed_version = 0
        """Of the newest fresh list: what is older, it has overtaken."""
        self.node_handler = _NodeHandler(self)
        self.pod_handler = _PodHandler(self)

    def touch(self) -> None:
        """Tell the subscribers that something changed."""
        for event in self.subscribers:
            event.set()

    # -- beginning --------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether node, pods and GPUs are all known."""
        return self.node is not None and self._found is not None and self.pod_handler.listed_once

    def begin(self) -> None:
        """Open the books, from what the API server and the hardware have told."""
        assert self.node is not None
        assert self._found is not None
        self._keep_unit_while_held()
        model_node = self._read()
        self.books = Books(model_node, self.unit, dict(model_node.corrections))
        self.matching = Matching(self.books)
        self.corrections = Corrections(dict.fromkeys(model_node.corrections, 0))
        for facts in self._facts():
            self.books.put(facts)
        self._prune()
        self.touch()

    def _keep_unit_while_held(self) -> None:
        """The unit is part of the device ids: pods that have some keep the node on theirs."""
        published = self._published_info()
        if published is None or published.unit is self.unit or not self.has_live_pods:
            return
        log.error(
            "--unit %s is not applied: pods with GPU memory in units of %s are on the node; drain "
            "it and start the device plugin again",
            self.unit,
            published.unit,
        )
        self.unit = published.unit

    def _published_info(self) -> NodeInfo | None:
        value = self._annotations().get(names.ANNOTATION_NODE)
        try:
            return decode_node(value) if value else None
        except CodecError:
            return None

    def _published_devices(self) -> tuple[Device, ...]:
        value = self._annotations().get(names.ANNOTATION_DEVICES)
        try:
            return decode_devices(value) if value else ()
        except CodecError as error:
            log.warning("%s; GPUs get their indexes anew", error)
            return ()

    def _annotations(self) -> dict[str, str]:
        return (self.node and self.node.metadata.annotations) or {}

    # -- what is published ------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        """What the node's labels make of its GPUs."""
        return read_mode(self.node) if self.node is not None else Mode.DEFAULT

    @property
    def conditions(self) -> Conditions:
        """What the node promises, and what is in the way of it."""
        amounts = (self.node and self.node.status and self.node.status.capacity) or {}
        return Conditions(
            mode=self.mode,
            whole_gpus=str(amounts.get(names.RESOURCE_WHOLE_GPU, "0")),
            alone=self.alone,
            taken=self.taken,
            not_injectable=self.not_injectable,
            isolation=self.isolation,
            unisolated_allowed=self.unisolated_allowed,
        )

    @property
    def left(self) -> bool:
        """Whether the node does not share its GPUs any more, and the last pod that asks is gone."""
        if self.books is None or self.books.node.mode.shares_memory:
            return False
        return not any(pod.live for pod in self.books.pods.values())

    @property
    def info(self) -> NodeInfo:
        """How this plugin works, for the node's annotation."""
        return NodeInfo(unit=self.unit, attests=True, injection=self.injection)

    def advertised(self) -> Advertised | None:
        """What the kubelet is to be told; None before the books are open."""
        if self.books is None:
            return None
        now = self.conditions
        return advertised(self.books, offering=now.offering, closed=now.takes_nothing_new)

    def isolated_by(self, isolation: Isolation | None) -> None:
        """What holds containers to their share from now on."""
        if isolation != self.isolation:
            self.isolation = isolation
            self._renew()

    def injectable(self, injection: str, problem: str | None) -> None:
        """How containers get their GPUs, and why they cannot where there is a problem."""
        if (self.injection, self.not_injectable) != (injection, problem):
            self.injection, self.not_injectable = injection, problem
            self.touch()

    # -- the hardware -----------------------------------------------------------------------------

    @property
    def ailments(self) -> dict[str, str]:
        """GPU UUID -> what ails it."""
        return {gpu.uuid: gpu.problem for gpu in self.found if gpu.problem}

    @property
    def found(self) -> tuple[FoundGpu, ...]:
        """The GPUs as the hardware last showed them."""
        return self._found or ()

    def gpus_found(self, found: Iterable[FoundGpu]) -> None:
        """The GPUs as the hardware shows them now."""
        self._found = tuple(found)
        self._renew()

    def taken_whole(self, taken: Mapping[str, str]) -> None:
        """GPUs that pods have by way of another device plugin, and which pod."""
        if taken != self.taken:
            self.taken = taken
            self._renew()

    def _usable(self) -> tuple[FoundGpu, ...]:
        """The GPUs found, with what else keeps pods from them."""
        closed = self.conditions.closed
        return tuple(
            replace(gpu, problem=gpu.problem or closed.get(gpu.uuid)) for gpu in self.found
        )

    def _renew(self) -> None:
        if self.books is not None:
            self._read()
            self._prune()
        self.touch()

    def _prune(self) -> None:
        """Forget vanished GPUs that nobody holds."""
        assert self.books is not None
        assert self._found is not None
        held = {i for piece in self.books.pieces() for i in piece.place or ()}
        devices = pruned(self.devices, self._found, held)
        if devices != self.devices:
            self.devices = devices
            self.books.node = self._model_node()

    # -- the node ---------------------------------------------------------------------------------

    def node_changed(self, node: Node) -> None:
        """The Node object, by the watch or by the answer to a write."""
        if self.node is not None and _version(node) < _version(self.node):
            return
        if self.node is not None and self.node.metadata.uid != node.metadata.uid:
            log.warning("node %s was created anew; everything is published again", self.name)
        self.node = node
        self._renew()

    def _read(self) -> model.Node:
        """Bring devices and the model of the node up to date."""
        self.devices = merged(self.devices or self._published_devices(), self._usable(), self.unit)
        node = self._model_node()
        if self.books is not None:
            self.books.node = node
        return node

    def _model_node(self) -> model.Node:
        """The Node object as the model knows it, with the GPUs as they are now."""
        assert self.node is not None
        annotations = {
            **self._annotations(),
            names.ANNOTATION_DEVICES: encode_devices(self.devices),
            names.ANNOTATION_NODE: encode_node(self.info),
        }
        metadata = msgspec.structs.replace(self.node.metadata, annotations=annotations)
        reading = read_node(
            msgspec.structs.replace(self.node, metadata=metadata), self._policies, self.unit
        )
        self.problems = reading.problems
        return reading.node

    # -- pods -------------------------------------------------------------------------------------

    def pod_changed(self, pod: Pod) -> None:
        """A pod on this node, by the watch, a list, or the answer to a write."""
        if pod.metadata.uid in self._gone:
            return
        known = self.pods.get(pod.metadata.uid)
        overtaken = _version(pod) <= self._listed_version if known is None else False
        if overtaken or (known is not None and _version(pod) < _version(known)):
            return
        facts = self._facts_of(pod)
        if facts is None:
            return
        self.pods[pod.metadata.uid] = pod
        if self.books is not None:
            self.books.put(facts)
            self._prune()
        self.touch()

    def pod_deleted(self, uid: str) -> None:
        """A pod's object is gone."""
        self._gone[uid] = None
        if len(self._gone) > PODS_REMEMBERED:
            self._gone.popitem(last=False)
        if self.pods.pop(uid, None) is not None:
            if self.books is not None:
                self.books.remove(uid)
                self._prune()
            self.touch()

    def pods_listed(self, pods: Collection[Pod], version: str) -> None:
        """All pods on this node, freshly read."""
        listed = {pod.metadata.uid for pod in pods}
        at = int(version) if version.isdigit() else 0
        for uid in [u for u, pod in self.pods.items() if u not in listed and _version(pod) <= at]:
            self.pod_deleted(uid)
        for pod in pods:
            self.pod_changed(pod)
        self._listed_version = max(self._listed_version, at)

    @property
    def has_live_pods(self) -> bool:
        """Whether any pod here holds GPU memory."""
        return any(not facts.record.finished for facts in self._facts())

    def _facts(self) -> Iterable[PodFacts]:
        return [facts for pod in self.pods.values() if (facts := self._facts_of(pod)) is not None]

    def _facts_of(self, pod: Pod) -> PodFacts | None:
        facts = read_facts(pod)
        if facts is None or facts.error or self.mode is not Mode.CGPU or self.unisolated_allowed:
            return facts
        return replace(facts, error=untested_sandbox(pod.spec.runtime_class_name))


def _version(obj: Node | Pod) -> int:
    """Resource versions of one kind of object can be compared as numbers (Kubernetes 1.35)."""
    version = obj.metadata.resource_version
    return int(version) if version.isdigit() else 0


class _NodeHandler:
    """What the reflector of our Node object tells."""

    def __init__(self, state: NodeState) -> None:
        self._state = state

    def changed(self, node: Node) -> None:
        self._state.node_changed(node)

    def deleted(self, ref: Ref) -> None:
        log.warning("node %s has no Node object any more", ref.name)

    def listed(self) -> None:
        if self._state.node is None:
            log.warning(
                "there is no node %s: the name has to be that of the Node object (--node)",
                self._state.name,
            )


class _PodHandler:
    """What the reflector of the node's pods tells."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self.listed_once = False

    def changed(self, pod: Pod) -> None:
        self._state.pod_changed(pod)

    def deleted(self, ref: Ref) -> None:
        self._state.pod_deleted(ref.uid)

    def listed(self) -> None:
        self.listed_once = True
        self._state.touch()
