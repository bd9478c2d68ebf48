"""Kubernetes API objects, only the fields this project reads.

msgspec skips every other field while it decodes, which is what makes a list of 10,000 pods cheap:
about 3 KB a pod, against 26 to 98 KB for full models. Field names are the API's, in camelCase on
the wire. Structs are not tracked by the garbage collector: they hold no cycles.
"""

from typing import Any

import msgspec

from gpushare.contract.quantity import RawQuantity

Quantities = dict[str, RawQuantity]


class ApiStruct(msgspec.Struct, rename="camel", gc=False, omit_defaults=True):
    """Base of all: camelCase on the wire, absent fields take their default."""


class OwnerReference(ApiStruct):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(ApiStruct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generate_name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class ResourceRequirements(ApiStruct):
    limits: Quantities | None = None
    requests: Quantities | None = None


class EnvVar(ApiStruct):
    name: str = ""
    value: str | None = None


class Container(ApiStruct):
    name: str = ""
    resources: ResourceRequirements | None = None
    restart_policy: str | None = None
    env: list[EnvVar] | None = None


class PodSpec(ApiStruct):
    node_name: str | None = None
    containers: list[Container] = []
    init_containers: list[Container] | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    scheduler_name: str | None = None
    runtime_class_name: str | None = None
    overhead: Quantities | None = None


class AllocatedDevice(ApiStruct):
    resource_id: str = msgspec.field(default="", name="resourceID")
    health: str | None = None


class AllocatedResource(ApiStruct):
    name: str = ""
    resources: list[AllocatedDevice] | None = None


class ContainerStatus(ApiStruct):
    name: str = ""
    container_id: str | None = msgspec.field(default=None, name="containerID")
    allocated_resources_status: list[AllocatedResource] | None = None


class Condition(ApiStruct):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class PodStatus(ApiStruct):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    nominated_node_name: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class Pod(ApiStruct):
    metadata: ObjectMeta
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus | None = None


class Taint(ApiStruct):
    key: str = ""
    value: str | None = None
    effect: str = ""


class NodeSpec(ApiStruct):
    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class NodeAddress(ApiStruct):
    type: str = ""
    address: str = ""


class NodeSystemInfo(ApiStruct):
    container_runtime_version: str | None = None


class NodeStatus(ApiStruct):
    capacity: Quantities | None = None
    allocatable: Quantities | None = None
    addresses: list[NodeAddress] | None = None
    conditions: list[Condition] | None = None
    node_info: NodeSystemInfo | None = None


class Node(ApiStruct):
    metadata: ObjectMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class ListMeta(ApiStruct):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class PodList(ApiStruct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[Pod] = []


class NodeList(ApiStruct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[Node] = []


class Untyped(ApiStruct):
    """Any object, far enough to see what it is."""

    api_version: str = ""
    kind: str = ""
    items: list[Any] | None = None
