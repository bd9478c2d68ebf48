"""What pods use and the simulator does not model: named once per kind, with a count.

Only pods that ask for GPU memory and still need a place are looked at; elsewhere it does not
matter.
"""

from collections.abc import Iterable, Iterator

from gpushare.kube.objects import Taint
from gpushare.simulate.objects import PodAffinity, SimPodSpec


def uses(spec: SimPodSpec) -> Iterator[str]:
    """The kinds of things that a pod uses and that are not modelled."""
    affinity = spec.affinity
    if affinity is not None:
        node = affinity.node_affinity
        if _has(affinity.pod_affinity):
            yield "inter-pod affinity"
        if _has(affinity.pod_anti_affinity):
            yield "inter-pod anti-affinity"
        if node is not None and node.preferred:
            yield "preferred node affinity"
    if spec.topology_spread_constraints:
        yield "topology spread constraints"
    if any(v.persistent_volume_claim or v.ephemeral for v in spec.volumes or ()):
        yield "volumes (persistent volume claims)"
    containers = (*(spec.init_containers or ()), *spec.containers)
    if any(port.host_port for container in containers for port in container.ports or ()):
        yield "host ports"
    if spec.resource_claims:
        yield "resource claims (DRA)"
    if spec.scheduling_gates:
        yield "scheduling gates"


def _has(affinity: PodAffinity | None) -> bool:
    return affinity is not None and bool(affinity.required or affinity.preferred)


def warnings(specs: Iterable[SimPodSpec]) -> list[str]:
    """One line per kind."""
    counts: dict[str, int] = {}
    for spec in specs:
        for kind in set(uses(spec)):
            counts[kind] = counts.get(kind, 0) + 1
    return [
        f"not modelled: {kind}; {count} {'pod' if count == 1 else 'pods'} that "
        f"{'asks' if count == 1 else 'ask'} for GPU memory "
        f"{'uses' if count == 1 else 'use'} it and may go elsewhere in a cluster"
        for kind, count in sorted(counts.items())
    ]


def taint_warnings(taints: Iterable[Taint]) -> list[str]:
    """The same for nodes: PreferNoSchedule moves no pod here."""
    count = sum(taint.effect == "PreferNoSchedule" for taint in taints)
    return [f"not modelled: taints PreferNoSchedule; nodes have {count}"] if count else []
