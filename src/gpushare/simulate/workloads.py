"""Controllers -> the pods they lack.

A controller wants a number of pods; those of its pods that are in the input count, the missing ones
are made from its template. As its controller in Kubernetes does it:

* **Deployment, ReplicaSet, ReplicationController**: `replicas` (1). Finished and terminating pods
  do not count. A ReplicaSet whose Deployment is in the input is left to that.
* **StatefulSet**: ordinals from 0 (or `ordinals.start`), names `NAME-0` …; one whose pod is there,
  terminating or not, is not made again.
* **Job**: the pods that run at once, `parallelism` (1), fewer if `completions` says so or some have
  succeeded; a finished or suspended one has none. `Indexed` ones are named by their index.
* **CronJob**: one run of its Job.
* **DaemonSet**: one on every node its selector, affinity and tolerations allow; the pod names its
  node, as the DaemonSet controller does it.

Names end in a number where Kubernetes would make up a suffix, so that runs can be compared.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from gpushare.kube.objects import ObjectMeta, OwnerReference
from gpushare.kube.reading import is_finished, read_owner
from gpushare.simulate import objects
from gpushare.simulate.constraints import NodeFace, compile_constraints, obstacle
from gpushare.simulate.intake import Controller, ControllerInput, template_of
from gpushare.simulate.objects import SimPod, SimPodSpec

JOB_INDEX = "batch.kubernetes.io/job-completion-index"

_DAEMON_TOLERATIONS = [
    objects.Toleration(key=f"node.kubernetes.io/{key}", operator="Exists", effect=effect)
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
]
"""What the DaemonSet controller adds (kubernetes.io/docs/concepts/workloads/controllers/daemonset).
"""


@dataclass(frozen=True, slots=True)
class Made:
    """The pods a controller lacks, and what a user should know about how they were counted."""

    pods: list[SimPod]
    note: str | None = None


class Workloads:
    """Makes missing pods; knows every pod and controller of the input."""

    def __init__(
        self, pods: Iterable[SimPod], controllers: Iterable[ControllerInput], faces: list[NodeFace]
    ) -> None:
        self._owned: dict[tuple[str, str, str], list[SimPod]] = {}
        """(namespace, kind, name) of a controller -> its pods; a Deployment's under its name."""
        self._names: set[tuple[str, str]] = set()
        """(namespace, name) of every pod, made ones included."""
        self._next: dict[tuple[str, str], int] = {}
        """(namespace, start of a name) -> the number that was not tried yet."""
        self._faces = faces
        self._controllers = {
            (c.object.metadata.namespace, c.kind, c.object.metadata.name) for c in controllers
        }
        for pod in pods:
            self._names.add((pod.metadata.namespace, pod.metadata.name))
            for ref in pod.metadata.owner_references or ():
                if ref.controller:
                    owner = (pod.metadata.namespace, ref.kind, ref.name)
                    self._owned.setdefault(owner, []).append(pod)
                    application = read_owner(pod.metadata)
                    if application.kind == "Deployment" != ref.kind:
                        key = (pod.metadata.namespace, "Deployment", application.name)
                        self._owned.setdefault(key, []).append(pod)

    def missing(self, controller: ControllerInput) -> Made:
        """The pods a controller of the input lacks."""
        thing = controller.object
        match thing:
            case objects.Replicated():
                return self._replicated(controller.kind, thing)
            case objects.StatefulSet():
                return Made(list(self._stateful(thing)))
            case objects.DaemonSet():
                return Made(list(self._daemons(thing)))
            case objects.Job():
                return self._job(thing)
            case objects.CronJob():
                return self._cron(thing)

    # -- kinds ------------------------------------------------------------------------------------

    def _replicated(self, kind: str, thing: objects.Replicated) -> Made:
        metadata = thing.metadata
        for ref in metadata.owner_references or ():
            if ref.controller and (metadata.namespace, ref.kind, ref.name) in self._controllers:
                return Made([])
        wanted = 1 if thing.spec.replicas is None else thing.spec.replicas
        there = sum(_active(pod) for pod in self._pods_of(kind, metadata))
        return Made([self._pod(kind, thing, None) for _ in range(wanted - there)])

    def _stateful(self, thing: objects.StatefulSet) -> Iterator[SimPod]:
        spec, name = thing.spec, thing.metadata.name
        there = {p.metadata.name for p in self._pods_of("StatefulSet", thing.metadata)}
        finished = {
            p.metadata.name for p in self._pods_of("StatefulSet", thing.metadata) if is_finished(p)
        }
        start = spec.ordinals.start if spec.ordinals else 0
        for ordinal in range(start, start + (1 if spec.replicas is None else spec.replicas)):
            pod_name = f"{name}-{ordinal}"
            if pod_name not in there - finished:
                yield self._pod("StatefulSet", thing, pod_name)

    def _daemons(self, thing: objects.DaemonSet) -> Iterator[SimPod]:
        spec = thing.spec.template.spec
        tolerant = msgspec.structs.replace(
            spec, tolerations=[*(spec.tolerations or ()), *_DAEMON_TOLERATIONS]
        )
        constraints = compile_constraints(tolerant)
        there = {
            node
            for pod in self._pods_of("DaemonSet", thing.metadata)
            if not is_finished(pod)
            for node in _nodes_of(pod)
        }
        for face in self._faces:
            if face.name not in there and obstacle(constraints, face) is None:
                pod = self._pod("DaemonSet", thing, f"{thing.metadata.name}-{face.name}")
                pod.spec = pinned(tolerant, face.name)
                yield pod

    def _job(self, thing: objects.Job) -> Made:
        pods = self._pods_of("Job", thing.metadata)
        conditions = (thing.status.conditions if thing.status else None) or ()
        if any(c.type in ("Complete", "Failed") and c.status == "True" for c in conditions):
            return Made([])
        done = sum(p.status is not None and p.status.phase == "Succeeded" for p in pods)
        if thing.status and thing.status.succeeded:
            done = max(done, thing.status.succeeded)
        return self._run("Job", thing, thing.spec, pods, done)

    def _cron(self, thing: objects.CronJob) -> Made:
        metadata = thing.metadata
        if thing.spec.suspend:
            return Made([], f"CronJob {metadata.namespace}/{metadata.name} is suspended: no pods")
        # The controller names a run after its minute: NAME-29380000.
        run = re.compile(re.escape(metadata.name) + r"-\d+")
        pods = [
            pod
            for (namespace, kind, name), owned in self._owned.items()
            if namespace == metadata.namespace and kind == "Job" and run.fullmatch(name)
            for pod in owned
        ]
        made = self._run("CronJob", thing, thing.spec.job_template.spec, pods, 0)
        pods_word = "pod" if len(made.pods) == 1 else "pods"
        note = (
            f"CronJob {metadata.namespace}/{metadata.name} counts as one run of its Job: "
            f"{len(made.pods)} {pods_word}"
        )
        return Made(made.pods, note)

    def _run(
        self,
        kind: str,
        thing: objects.Job | objects.CronJob,
        spec: objects.JobSpec,
        pods: list[SimPod],
        done: int,
    ) -> Made:
        name = f"{thing.metadata.namespace}/{thing.metadata.name or thing.metadata.generate_name}"
        if spec.suspend:
            return Made([], f"{kind} {name} is suspended: no pods")
        at_once = 1 if spec.parallelism is None else spec.parallelism
        left = at_once if spec.completions is None else max(0, spec.completions - done)
        active = [pod for pod in pods if _active(pod)]
        lacking = max(0, min(at_once, left) - len(active))
        note = None
        if left > at_once > 0:
            note = f"{kind} {name}: {left} completions to go, {at_once} at a time; only those count"
        if spec.completion_mode != "Indexed":
            return Made([self._pod(kind, thing, None) for _ in range(lacking)], note)
        taken = {
            index for pod in pods if _active(pod) or _succeeded(pod) for index in _index_of(pod)
        }
        indexes = [i for i in range(spec.completions or 0) if i not in taken][:lacking]
        return Made([self._pod(kind, thing, f"{_base(thing.metadata)}{i}") for i in indexes], note)

    # -- pods -------------------------------------------------------------------------------------

    def _pods_of(self, kind: str, metadata: ObjectMeta) -> list[SimPod]:
        return self._owned.get((metadata.namespace, kind, metadata.name), [])

    def _pod(self, kind: str, thing: Controller, name: str | None) -> SimPod:
        """A new pod of a controller; without a name it gets the next free number."""
        metadata, template = thing.metadata, template_of(thing)
        base = _base(metadata)
        while name is None:
            number = self._next.get((metadata.namespace, base), 0)
            self._next[metadata.namespace, base] = number + 1
            if (metadata.namespace, f"{base}{number}") not in self._names:
                name = f"{base}{number}"
        self._names.add((metadata.namespace, name))
        owner = OwnerReference(kind=kind, name=metadata.name or base, controller=True)
        return SimPod(
            metadata=ObjectMeta(
                name=name,
                namespace=metadata.namespace,
                labels=template.metadata.labels,
                annotations=None,
                owner_references=[owner],
            ),
            spec=template.spec,
        )


def _base(metadata: ObjectMeta) -> str:
    return f"{metadata.name}-" if metadata.name else metadata.generate_name


def pinned(spec: SimPodSpec, node: str) -> SimPodSpec:
    """A pod's spec narrowed to one node, as the DaemonSet controller writes it."""
    field = objects.Requirement(key="metadata.name", operator="In", values=[node])
    affinity = spec.affinity or objects.Affinity()
    node_affinity = affinity.node_affinity or objects.NodeAffinity()
    required = objects.NodeSelector(
        node_selector_terms=[objects.NodeSelectorTerm(match_fields=[field])]
    )
    return msgspec.structs.replace(
        spec,
        affinity=msgspec.structs.replace(
            affinity, node_affinity=msgspec.structs.replace(node_affinity, required=required)
        ),
    )


def _active(pod: SimPod) -> bool:
    return not is_finished(pod) and pod.metadata.deletion_timestamp is None


def _succeeded(pod: SimPod) -> bool:
    return pod.status is not None and pod.status.phase == "Succeeded"


def _nodes_of(pod: SimPod) -> Iterable[str]:
    if pod.spec.node_name:
        return (pod.spec.node_name,)
    return compile_constraints(pod.spec).named_nodes or ()


def _index_of(pod: SimPod) -> Iterator[int]:
    for values in (pod.metadata.annotations, pod.metadata.labels):
        text = (values or {}).get(JOB_INDEX, "")
        if text.isascii() and text.isdecimal() and len(text) < 10:
            yield int(text)
            return
