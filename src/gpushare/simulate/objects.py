"""The fields of API objects that only the simulator reads, and the controllers' objects.

Pods and nodes extend `kube.objects`, so that everything that reads those (requests, inventories,
assignments) works on these unchanged. What is only counted, because the simulator does not model
it, is `Any`.
"""

from typing import Any

import msgspec

from gpushare.kube.objects import (
    ApiStruct,
    Condition,
    Container,
    Node,
    ObjectMeta,
    Pod,
    PodSpec,
    ResourceRequirements,
)

__all__ = [
    "CronJob",
    "DaemonSet",
    "Job",
    "Node",
    "ObjectMeta",
    "PodTemplate",
    "PriorityClass",
    "Replicated",
    "SimPod",
    "SimPodSpec",
    "StatefulSet",
]


class Requirement(ApiStruct):
    """One line of `matchExpressions` or `matchFields`."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(ApiStruct):
    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None


class NodeSelector(ApiStruct):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class NodeAffinity(ApiStruct):
    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[Any] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinity(ApiStruct):
    required: list[Any] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[Any] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(ApiStruct):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(ApiStruct):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class Volume(ApiStruct):
    """Only the kinds that tie a pod to a place."""

    persistent_volume_claim: Any = None
    ephemeral: Any = None


class ContainerPort(ApiStruct):
    host_port: int | None = None


class SimContainer(Container):
    ports: list[ContainerPort] | None = None


class SimPodSpec(PodSpec):
    containers: list[SimContainer] = []  # type: ignore[assignment]  # noqa: RUF012 (msgspec copies it)
    init_containers: list[SimContainer] | None = None  # type: ignore[assignment]
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    volumes: list[Volume] | None = None
    topology_spread_constraints: list[Any] | None = None
    scheduling_gates: list[Any] | None = None
    resource_claims: list[Any] | None = None
    resources: ResourceRequirements | None = None
    """Requests of the pod as a whole; they win over the containers' sum."""


class SimPod(Pod):
    spec: SimPodSpec = msgspec.field(default_factory=SimPodSpec)


class PodTemplate(ApiStruct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: SimPodSpec = msgspec.field(default_factory=SimPodSpec)


class ReplicatedSpec(ApiStruct):
    template: PodTemplate
    replicas: int | None = None


class Replicated(ApiStruct):
    """A Deployment, ReplicaSet or ReplicationController."""

    metadata: ObjectMeta
    spec: ReplicatedSpec


class Ordinals(ApiStruct):
    start: int = 0


class StatefulSetSpec(ApiStruct):
    template: PodTemplate
    replicas: int | None = None
    ordinals: Ordinals | None = None
    volume_claim_templates: list[Any] | None = None


class StatefulSet(ApiStruct):
    metadata: ObjectMeta
    spec: StatefulSetSpec


class DaemonSetSpec(ApiStruct):
    template: PodTemplate


class DaemonSet(ApiStruct):
    metadata: ObjectMeta
    spec: DaemonSetSpec


class JobSpec(ApiStruct):
    template: PodTemplate
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    suspend: bool | None = None


class JobStatus(ApiStruct):
    succeeded: int | None = None
    conditions: list[Condition] | None = None


class Job(ApiStruct):
    metadata: ObjectMeta
    spec: JobSpec
    status: JobStatus | None = None


class JobTemplate(ApiStruct):
    spec: JobSpec


class CronJobSpec(ApiStruct):
    job_template: JobTemplate
    suspend: bool | None = None


class CronJob(ApiStruct):
    metadata: ObjectMeta
    spec: CronJobSpec


class PriorityClass(ApiStruct):
    metadata: ObjectMeta
    value: int = 0
    global_default: bool | None = None
