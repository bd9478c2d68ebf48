"""CPU, memory, pod count and every other resource of a node but GPU memory.

A node's room is its `allocatable`, or `capacity` where a resource has none (kube-scheduler's plugin
NodeResourcesFit). A node that gives no figure for CPU, memory, ephemeral storage or pods limits
none of them: hand-written nodes rarely do. An extended resource (`example.com/dongle`) that a node
with a status does not list is not there.

What a pod asks for is Kubernetes' effective request, per resource: the larger of (app containers +
sidecars) and, for each init container, (it + the sidecars before it); requests of the pod as a
whole win over that; overhead comes on top. A limit without a request is the request.
(kubernetes.io/docs/concepts/workloads/pods/sidecar-containers, "Resource sharing")
"""

from collections.abc import Mapping
from functools import lru_cache

from gpushare.contract.quantity import QuantityError, RawQuantity, milli, rounded_up
from gpushare.kube.objects import Node, ResourceRequirements
from gpushare.simulate.objects import SimPodSpec
from gpushare.simulate.values import OURS

CPU = "cpu"
PODS = "pods"

Ask = tuple[tuple[str, int], ...]
"""(resource, amount), by resource: CPU in thousandths, all else as it is counted. Hashable."""


@lru_cache(maxsize=4096, typed=True)
def amount(resource: str, value: RawQuantity) -> int:
    """An amount of a resource: thousandths of a CPU, else whole. Raises QuantityError."""
    return milli(value) if resource == CPU else rounded_up(value)


def effective_ask(spec: SimPodSpec) -> Ask:
    """What a pod asks of its node, the pod itself included. Raises QuantityError."""
    total: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers or ():
        asked = _requests(container.resources)
        if not asked:
            continue
        if container.restart_policy == "Always":
            _add(sidecars, asked)
            _raise_to(peak, sidecars)
        else:
            _raise_to(peak, {r: v + sidecars.get(r, 0) for r, v in asked.items()})
    _add(total, sidecars)
    for container in spec.containers:
        _add(total, _requests(container.resources))
    _raise_to(total, peak)
    if spec.resources is not None:
        total.update(_requests(spec.resources))
    for resource, value in (spec.overhead or {}).items():
        total[resource] = total.get(resource, 0) + amount(resource, value)
    total[PODS] = 1
    return tuple(sorted((r, v) for r, v in total.items() if v and r not in OURS))


def _requests(resources: ResourceRequirements | None) -> dict[str, int]:
    if resources is None:
        return {}
    merged = {**(resources.limits or {}), **(resources.requests or {})}
    return {resource: amount(resource, value) for resource, value in merged.items()}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for resource, value in more.items():
        total[resource] = total.get(resource, 0) + value


def _raise_to(total: dict[str, int], least: Mapping[str, int]) -> None:
    for resource, value in least.items():
        total[resource] = max(total.get(resource, 0), value)


def room_of(node: Node) -> dict[str, int]:
    """Resource -> what a node offers; without those whose figure is missing or unreadable."""
    status = node.status
    room: dict[str, int] = {}
    if status is not None:
        for resource, value in {**(status.capacity or {}), **(status.allocatable or {})}.items():
            if resource not in OURS:
                try:
                    room[resource] = amount(resource, value)
                except QuantityError:
                    continue
    return room


class Hosts:
    """What is left on every node."""

    def __init__(self, rooms: Mapping[str, Mapping[str, int]]) -> None:
        self._free = {name: dict(room) for name, room in rooms.items()}
        """Node -> resource -> what is left; may go below 0 by what stood there already."""

    def take(self, node: str, ask: Ask) -> None:
        """A pod that asks `ask` stands on the node now."""
        free = self._free[node]
        for resource, wanted in ask:
            if resource in free:
                free[resource] -= wanted

    def lacking(self, node: str, ask: Ask) -> str | None:
        """The first resource of which a node has too little left, or None."""
        free = self._free[node]
        for resource, wanted in ask:
            left = free.get(resource)
            if left is None:
                if free and is_extended(resource):
                    return resource
            elif wanted > left:
                return resource
        return None

    def free(self, node: str, resource: str) -> int:
        """What is left of a resource, 0 at least."""
        return max(0, self._free[node].get(resource, 0))


def is_extended(resource: str) -> bool:
    """Whether a resource is one that only device plugins and the like offer."""
    return "/" in resource and not resource.startswith("kubernetes.io/")
