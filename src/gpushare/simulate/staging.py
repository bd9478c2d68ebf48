"""An `Input` and the options -> the `Scene`.

Pods that stand, pods that wait and the pods that controllers lack, each with what it asks for and
where it may go. Pods of one template are compiled once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpushare.contract import names
from gpushare.contract.names import Reason
from gpushare.contract.quantity import QuantityError
from gpushare.contract.units import Unit
from gpushare.kube.reading import (
    Problem,
    is_finished,
    read_assignment,
    read_bound_pod,
    read_owner,
    read_request,
)
from gpushare.kube.selector import Selector
from gpushare.model.gpus import Assignment
from gpushare.model.ledger import PodRecord
from gpushare.model.request import Request, RequestError
from gpushare.simulate import unmodelled
from gpushare.simulate.constraints import Constraints, compile_constraints
from gpushare.simulate.hosts import Ask, effective_ask
from gpushare.simulate.intake import Input, PodInput
from gpushare.simulate.nodes import ReadNodes, first, read_nodes
from gpushare.simulate.objects import SimPod, SimPodSpec
from gpushare.simulate.priority import Priorities
from gpushare.simulate.scene import Scene, Standing, Unfit, Waiting
from gpushare.simulate.sharing import whole_gpus_asked
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
    nodes = read_nodes(taken, options.share, options.unit or Unit.GIB)
    stage = _Stage(taken, options, nodes)
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
    def __init__(self, taken: Input, options: Options, read: ReadNodes) -> None:
        self._taken = taken
        self._unit = options.unit or Unit.GIB
        self._nodes = read.nodes
        self._node_problems = read.problems
        self._whole = read.whole
        self._pod_problems: dict[str, Problem] = {}
        self._priorities = Priorities(taken.classes)
        self._standing: list[Standing] = []
        self._waiting: list[Waiting] = []
        self._warnings = [*taken.warnings, *read.warnings]
        self._uids: dict[str, int] = {}
        """UID -> pods of the input that carry it; more than one where a manifest was copied."""
        self._left_out = 0
        self._strays: dict[str, int] = {}
        """Node that is not there -> pods that ask for GPU memory and stand on it."""
        self._of_nothing: list[str] = []

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
                f"the input ({first(sorted(self._strays))}): left out"
            )
        if self._left_out:
            yield (
                f"{self._left_out} {'pod' if self._left_out == 1 else 'pods'} without GPU memory "
                "and without a node: left out"
            )
        if self._of_nothing:
            yield (f"{names.RESOURCE_MEM} is 0 in {first(self._of_nothing)}: that asks for nothing")
