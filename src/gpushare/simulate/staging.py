"""An `Input` and the options -> the `Scene`.

Nodes are read as every other part of the project reads them; `--share` and `--node` then put GPUs
on some. Pods of one template are compiled once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpushare.contract import names
from gpushare.contract.names import Mode, Reason
from gpushare.contract.quantity import QuantityError
from gpushare.contract.units import Unit
from gpushare.kube.reading import (
    Problem,
    is_finished,
    read_assignment,
    read_bound_pod,
    read_node,
    read_owner,
    read_request,
)
from gpushare.kube.selector import Selector
from gpushare.model.gpus import Assignment
from gpushare.model.ledger import PodRecord
from gpushare.model.request import Request, RequestError
from gpushare.policy import GPU_POLICIES
from gpushare.simulate import unmodelled
from gpushare.simulate.constraints import Constraints, NodeFace, compile_constraints
from gpushare.simulate.errors import InputError
from gpushare.simulate.hosts import Ask, effective_ask, room_of
from gpushare.simulate.intake import Input, PodInput
from gpushare.simulate.objects import SimPod, SimPodSpec
from gpushare.simulate.priority import Priorities
from gpushare.simulate.scene import Scene, SceneNode, Standing, Unfit, Waiting
from gpushare.simulate.sharing import WholeGpus, labelled_gpus, whole_gpus_asked
from gpushare.simulate.values import Fault, amount_of_nothing
from gpushare.simulate.workloads import Workloads


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says about the scene."""

    share: Selector | None = None
    """Treat these nodes as sharing their GPUs."""
    unit: Unit | None = None
    """The unit where a node publishes none; GiB if not given."""
    gpu_policy: str | None = None
    """Overrides every node's placement label."""


def stage(taken: Input, options: Options) -> Scene:
    """The scene. Raises InputError for a `--share` that selects nothing usable."""
    stage = _Stage(taken, options)
    stage.read_nodes()
    stage.read_pods()
    scene = stage.scene()
    return scene.with_policy(options.gpu_policy) if options.gpu_policy else scene


class _Compiled(NamedTuple):
    request: Request | None
    constraints: Constraints
    ask: Ask
    priority: int
    unfit: Unfit | None


class _Stage:
    def __init__(self, taken: Input, options: Options) -> None:
        self._taken = taken
        self._options = options
        self._unit = options.unit or Unit.GIB
        self._nodes: dict[str, SceneNode] = {}
        self._node_problems: dict[str, tuple[Problem, ...]] = {}
        self._pod_problems: dict[str, Problem] = {}
        self._whole: dict[str, WholeGpus] = {}
        """Node that shares only here -> its GPUs that nobody holds whole."""
        self._priorities = Priorities(taken.classes)
        self._standing: list[Standing] = []
        self._waiting: list[Waiting] = []
        self._warnings = list(taken.warnings)
        self._uids: dict[str, int] = {}
        """UID -> pods of the input that carry it; more than one where a manifest was copied."""
        self._left_out = 0
        self._strays: dict[str, int] = {}
        """Node that is not there -> pods that ask for GPU memory and stand on it."""
        self._of_nothing: list[str] = []

    # -- nodes ------------------------------------------------------------------------------------

    def read_nodes(self) -> None:
        for name, api in self._taken.nodes.items():
            reading = read_node(api, tuple(GPU_POLICIES), self._unit)
            node, given = reading.node, name in self._taken.given_gpus
            if given:
                node = replace(node, gpus=self._taken.given_gpus[name])
            if reading.problems:
                self._node_problems[name] = reading.problems
            spec = api.spec
            face = NodeFace(
                name=name,
                labels=api.metadata.labels or {},
                taints=tuple((spec and spec.taints) or ()),
                unschedulable=bool(spec and spec.unschedulable),
            )
            self._nodes[name] = SceneNode(api, node, face, room_of(api), given)
        if self._options.share is not None:
            self._share(self._options.share)
        self._warnings += unmodelled.taint_warnings(
            taint for node in self._nodes.values() for taint in node.face.taints
        )

    def _share(self, selector: Selector) -> None:
        chosen = [n for n in self._nodes.values() if selector.matches(n.face.labels)]
        if not chosen:
            some = ", ".join(list(self._nodes)[:10]) or "none"
            raise InputError(f"--share selects none of the nodes; there are: {some}")
        unknown: list[str] = []
        shared = 0
        for scene_node in chosen:
            node = scene_node.node
            if node.mode.shares_memory and node.gpus:
                continue
            gpus = labelled_gpus(scene_node.api, node.unit)
            if gpus is None:
                unknown.append(node.name)
                continue
            mode = node.mode if node.mode.shares_memory else Mode.SHARE
            node = replace(node, mode=mode, gpus=gpus, advertised=None)
            self._nodes[node.name] = replace(scene_node, node=node, given=True)
            self._whole[node.name] = WholeGpus(list(gpus))
            shared += 1
        if unknown:
            message = (
                f"--share: the labels of {_first(unknown)} do not say what GPUs there are "
                f"({names.LABEL_NVIDIA_COUNT} and {names.LABEL_NVIDIA_MEMORY}, or "
                f"{names.LABEL_ACCELERATOR_COUNT} and {names.LABEL_ACCELERATOR_MEM})"
            )
            if len(unknown) == len(chosen):
                raise InputError(f"{message}; give the nodes with --node name=…,gpus=4x15 instead")
            self._warnings.append(message)
        if shared:
            self._warnings.append(
                f"--share: {shared} {'node is' if shared == 1 else 'nodes are'} treated as "
                "sharing; GPU memory comes from labels, which do not count what the driver keeps "
                "for itself: a GPU may offer one unit less"
            )

    # -- pods -------------------------------------------------------------------------------------

    def read_pods(self) -> None:
        pods = [entry.pod for entry in self._taken.pods]
        for pod in pods:
            uid = pod.metadata.uid
            self._uids[uid] = self._uids.get(uid, 0) + 1
        copied = sum(count for uid, count in self._uids.items() if uid and count > 1)
        if copied:
            self._warnings.append(
                f"{copied} pods carry a UID of another; told apart by their names"
            )
        controllers = [e for e in self._taken.work if not isinstance(e, PodInput)]
        workloads = Workloads(
            pods,
            controllers,
            [node.face for node in self._nodes.values()],
        )
        for entry in self._taken.work:
            if isinstance(entry, PodInput):
                self._read_pod(entry.pod, self._compile(entry.pod, entry.fault))
                continue
            made = workloads.missing(entry)
            if made.note:
                self._warnings.append(made.note)
            compiled: _Compiled | None = None
            spec: SimPodSpec | None = None
            for pod in made.pods:
                if compiled is None or pod.spec is not spec:
                    compiled, spec = self._compile(pod, entry.fault), pod.spec
                elif pod.spec.priority is None and pod.spec.priority_class_name:
                    self._priorities.of(pod.spec)  # counts the pods of an unknown class
                pod.metadata.uid = f"{entry.kind}/{pod.metadata.namespace}/{pod.metadata.name}"
                self._read_pod(pod, compiled)

    def _compile(self, pod: SimPod, fault: Fault | None) -> _Compiled:
        request: Request | None = None
        unfit: Unfit | None = None
        ask: Ask = ()
        try:
            request = read_request(pod)
        except RequestError as error:
            unfit = Unfit(error.reason, f"{error.field}: {error}")
        try:
            ask = effective_ask(pod.spec)
        except QuantityError:
            assert fault is not None  # the intake has checked every amount
        if fault is not None and (unfit is not None or request is not None):
            unfit = Unfit(Reason.BAD_REQUEST, f"{fault.field} is {fault.value!r}; {fault.message}")
        asks = request is not None or unfit is not None
        priority = self._priorities.of(pod.spec) if asks else 0
        return _Compiled(request, compile_constraints(pod.spec), ask, priority, unfit)

    def _read_pod(self, pod: SimPod, compiled: _Compiled) -> None:
        if is_finished(pod):
            return
        metadata = pod.metadata
        if not metadata.uid or self._uids.get(metadata.uid, 0) > 1:
            metadata.uid = f"{metadata.namespace}/{metadata.name}"
        if pod.spec.node_name:
            self._stand(pod, compiled)
        elif metadata.deletion_timestamp is not None:
            return
        elif compiled.request is None and compiled.unfit is None:
            self._left_out += 1
            if amount_of_nothing(pod.spec):
                self._of_nothing.append(f"{metadata.namespace}/{metadata.name}")
        else:
            self._waiting.append(self._as_waiting(pod, compiled))

    def _as_waiting(self, pod: SimPod, compiled: _Compiled) -> Waiting:
        metadata = pod.metadata
        return Waiting(
            uid=metadata.uid,
            namespace=metadata.namespace,
            name=metadata.name or metadata.generate_name,
            owner=read_owner(metadata),
            request=compiled.request,
            constraints=compiled.constraints,
            ask=compiled.ask,
            priority=compiled.priority,
            order=len(self._waiting) + len(self._standing),
            spec=pod.spec,
            unfit=compiled.unfit,
        )

    def _stand(self, pod: SimPod, compiled: _Compiled) -> None:
        node = pod.spec.node_name
        assert node
        asks = compiled.request is not None or compiled.unfit is not None
        if node not in self._nodes:
            if asks:
                self._strays[node] = self._strays.get(node, 0) + 1
            return
        daemon = any(
            ref.controller and ref.kind == "DaemonSet"
            for ref in pod.metadata.owner_references or ()
        )
        if not asks:
            record = self._whole_holder(pod, node)
            self._standing.append(Standing(node, compiled.ask, record, daemon=daemon))
            return
        record, error = read_bound_pod(pod)
        problem = (
            Problem("BadRequest", f"{error.field}: {error}")
            if error is not None
            else read_assignment(pod.metadata.annotations)[1]
        )
        if problem is not None:
            self._pod_problems[pod.metadata.uid] = problem
        again = self._as_waiting(pod, compiled) if record and compiled.unfit is None else None
        self._standing.append(Standing(node, compiled.ask, record, again, daemon))

    def _whole_holder(self, pod: SimPod, node: str) -> PodRecord | None:
        """What a pod with whole GPUs holds on a node that shares only here."""
        whole = self._whole.get(node)
        asked = whole_gpus_asked(pod.spec) if whole is not None else 0
        if whole is None or not asked:
            return None
        taken = whole.take(asked)
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if taken is None:
            self._warnings.append(
                f"pod {name} holds {asked} whole GPUs of node {node}, which has none left"
            )
            return None
        request, allocation = taken
        indexes = sorted(gpu for gpus in allocation.values() for gpu in gpus)
        self._warnings.append(
            f"pod {name} holds {asked} whole {'GPU' if asked == 1 else 'GPUs'} of node {node}; "
            f"taken to be {', '.join(f'GPU {index}' for index in indexes)}"
        )
        return PodRecord(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            node=node,
            owner=read_owner(pod.metadata),
            request=request,
            assignment=Assignment(allocation, {}),
        )

    # -- all of it --------------------------------------------------------------------------------

    def scene(self) -> Scene:
        return Scene(
            nodes=self._nodes,
            standing=self._standing,
            waiting=self._waiting,
            node_problems=self._node_problems,
            pod_problems=self._pod_problems,
            default_unit=self._unit,
            warnings=(*self._warnings, *self._more_warnings()),
        )

    def _more_warnings(self) -> Iterator[str]:
        yield from self._priorities.warnings()
        yield from unmodelled.warnings(pod.spec for pod in self._waiting)
        if self._strays:
            count = sum(self._strays.values())
            yield (
                f"{count} {'pod stands' if count == 1 else 'pods stand'} on nodes that are not in "
                f"the input ({_first(sorted(self._strays))}): left out"
            )
        if self._left_out:
            yield (
                f"{self._left_out} {'pod' if self._left_out == 1 else 'pods'} without GPU memory "
                "and without a node: left out"
            )
        if self._of_nothing:
            yield (
                f"{names.RESOURCE_MEM} is 0 in {_first(self._of_nothing)}: that asks for nothing"
            )


def _first(things: Sequence[str], count: int = 5) -> str:
    more = f" and {len(things) - count} more" if len(things) > count else ""
    return ", ".join(things[:count]) + more
