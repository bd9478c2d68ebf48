"""All documents -> one `Input`, or one InputError: nothing half-read is used.

Objects of other kinds are skipped, as a dump or a folder of manifests is full of them; only one
that mentions GPU memory is worth a warning (somebody's own kind of job). The same object given
twice is used once; two that differ are an error, because either could be meant.

An unusable amount in an object with a `resourceVersion`, which came from a live cluster, does not
stop the run: the pods it concerns are marked `fault` and get no place.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpushare.contract import names
from gpushare.kube.objects import ObjectMeta
from gpushare.model.gpus import Gpu
from gpushare.simulate import values
from gpushare.simulate.documents import decode, unpack
from gpushare.simulate.errors import InputError
from gpushare.simulate.faults import Item, field_error, place, shown
from gpushare.simulate.nodespec import GivenNode
from gpushare.simulate.objects import (
    CronJob,
    DaemonSet,
    Job,
    Node,
    PriorityClass,
    Replicated,
    SimPod,
    SimPodSpec,
    StatefulSet,
)
from gpushare.simulate.source import Document

Controller = Replicated | StatefulSet | DaemonSet | Job | CronJob

MAX_COPIES = 150_000
"""Pods of one controller; Kubernetes supports no more in a whole cluster."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of object is read."""

    type_: type
    groups: tuple[str, ...]
    """API groups it may stand in, today's first."""
    version: str
    """The apiVersion to write."""
    template: str | None = None
    """Where a controller's pod template is."""


KINDS: Mapping[str, Kind] = {
    "Node": Kind(Node, ("",), "v1"),
    "Pod": Kind(SimPod, ("",), "v1"),
    "PriorityClass": Kind(PriorityClass, ("scheduling.k8s.io",), "scheduling.k8s.io/v1"),
    "Job": Kind(Job, ("batch",), "batch/v1", "spec.template"),
    "CronJob": Kind(CronJob, ("batch",), "batch/v1", "spec.jobTemplate.spec.template"),
    "Deployment": Kind(Replicated, ("apps", "extensions"), "apps/v1", "spec.template"),
    "ReplicaSet": Kind(Replicated, ("apps", "extensions"), "apps/v1", "spec.template"),
    "ReplicationController": Kind(Replicated, ("",), "v1", "spec.template"),
    "StatefulSet": Kind(StatefulSet, ("apps",), "apps/v1", "spec.template"),
    "DaemonSet": Kind(DaemonSet, ("apps", "extensions"), "apps/v1", "spec.template"),
}


@dataclass(frozen=True, slots=True)
class PodInput:
    """A pod of the input. `fault` is what makes its amounts unusable, in a live object."""

    pod: SimPod
    item: Item
    fault: values.Fault | None = None


@dataclass(frozen=True, slots=True)
class ControllerInput:
    kind: str
    object: Controller
    item: Item
    fault: values.Fault | None = None


@dataclass(slots=True)
class Input:
    """Everything that was given."""

    nodes: dict[str, Node] = field(default_factory=dict)
    """Node name -> node, in input order."""
    given_gpus: dict[str, tuple[Gpu, ...]] = field(default_factory=dict)
    """Node name -> its GPUs, for nodes given on the command line."""
    work: list[PodInput | ControllerInput] = field(default_factory=list)
    """Pods and controllers, in input order."""
    classes: dict[str, PriorityClass] = field(default_factory=dict)
    """PriorityClass name -> it."""
    warnings: list[str] = field(default_factory=list)

    @property
    def pods(self) -> Iterator[PodInput]:
        return (entry for entry in self.work if isinstance(entry, PodInput))


def gather(documents: list[Document], given: Iterable[GivenNode] = ()) -> Input:
    """The input in `documents`, and nodes given otherwise. Raises InputError."""
    taken = Input()
    seen: dict[tuple[str, str, str], tuple[Item, Any]] = {}
    """(kind, namespace, name) -> where it stood first, and what it was."""
    foreign: dict[str, int] = {}
    """kind (apiVersion) -> objects of unknown kind that mention GPU memory"""
    checked: list[tuple[Item, Any]] = []
    for item in unpack(documents):
        kind = _kind(item)
        if kind is None:
            if item.mentions(names.RESOURCE_MEM):
                label = f"{item.kind} ({item.api_version})"
                foreign[label] = foreign.get(label, 0) + 1
            continue
        thing: Any = decode(item, kind.type_)
        _check_name(item, thing.metadata)
        _complete(thing.metadata, namespaced=item.kind not in ("Node", "PriorityClass"))
        key = (item.kind, thing.metadata.namespace, thing.metadata.name)
        first = seen.setdefault(key, (item, thing))
        if first[0] is not item:
            if thing.metadata.name and first[1] != thing:
                raise InputError(
                    f"{place(item, ['metadata', 'name'])}: another {item.kind} of this name, which "
                    f"differs, stands in {first[0].where}; give one of them"
                )
            if thing.metadata.name:
                continue
        checked.append((item, thing))
        if item.kind == "Node":
            taken.nodes[thing.metadata.name] = thing
        elif item.kind == "PriorityClass":
            taken.classes[thing.metadata.name] = thing
    for more in given:
        name = more.node.metadata.name
        if name in taken.nodes:
            raise InputError(f"--node name={name}: there is a node of this name already")
        taken.nodes[name] = more.node
        taken.given_gpus[name] = more.gpus
    for item, thing in checked:
        entry = _work(item, thing, list(taken.nodes))
        if entry is not None:
            taken.work.append(entry)
    taken.warnings += [
        f"{count} {label} {'asks' if count == 1 else 'ask'} for GPU memory, but this kind is not "
        "known here; give the pods it makes"
        for label, count in sorted(foreign.items())
    ]
    return taken


def _kind(item: Item) -> Kind | None:
    """How the item is read; None for a kind that is none of ours. Raises InputError where only its
    apiVersion is wrong."""
    kind = KINDS.get(item.kind)
    if kind is None or item.group in kind.groups:
        if kind is not None and not item.api_version:
            raise InputError(
                f"{place(item, [])}: apiVersion is missing; write apiVersion: {kind.version}"
            )
        return kind
    if "." in item.group and item.group != "scheduling.k8s.io":
        return None
    raise InputError(
        f"{place(item, ['apiVersion'])}: apiVersion is {shown(item.api_version)}, which has no "
        f"{item.kind}; write apiVersion: {kind.version}"
    )


def _check_name(item: Item, metadata: ObjectMeta) -> None:
    generated = item.kind in ("Pod", "Job")
    for fault in values.name_faults(metadata, generated=generated):
        raise field_error(item, *fault)


def _complete(metadata: ObjectMeta, *, namespaced: bool) -> None:
    if namespaced and not metadata.namespace:
        metadata.namespace = "default"


def _work(item: Item, thing: Any, nodes: list[str]) -> PodInput | ControllerInput | None:
    if isinstance(thing, SimPod):
        live = bool(thing.metadata.resource_version)
        return PodInput(thing, item, _fault(item, thing.spec, "", nodes, live))
    template = KINDS[item.kind].template
    if template is None:
        return None
    _check_counts(item, thing)
    live = bool(thing.metadata.resource_version)
    fault = _fault(item, template_of(thing).spec, f"{template}.", nodes, live)
    return ControllerInput(item.kind, thing, item, fault)


def _fault(
    item: Item, spec: SimPodSpec, prefix: str, nodes: list[str], live: bool
) -> values.Fault | None:
    """The first amount that cannot be used, in a live object. Raises InputError in any other, and
    for everything else that is wrong."""
    for fault in values.amount_faults(spec):
        fault = fault._replace(field=prefix + fault.field)
        if live:
            return fault
        raise field_error(item, *fault)
    for fault in values.place_faults(spec, nodes) if not live else ():
        raise field_error(item, prefix + fault.field, fault.value, fault.message)
    return None


def _check_counts(item: Item, thing: Controller) -> None:
    """Replicas, parallelism and completions that the API server would refuse."""
    spec: Any = thing.spec.job_template.spec if isinstance(thing, CronJob) else thing.spec
    base = "spec.jobTemplate.spec" if isinstance(thing, CronJob) else "spec"
    for name in ("replicas", "parallelism", "completions"):
        value = getattr(spec, name, None)
        if value is not None and not 0 <= value < 2**31:
            raise field_error(item, f"{base}.{name}", value, "use a number from 0 to 2147483647")
        if value is not None and value > MAX_COPIES:
            raise field_error(
                item, f"{base}.{name}", value, f"more than {MAX_COPIES:,} pods of one controller"
            )


def template_of(thing: Controller) -> Any:
    """A controller's pod template."""
    return (
        thing.spec.job_template.spec.template if isinstance(thing, CronJob) else thing.spec.template
    )
