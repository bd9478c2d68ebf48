"""The order in which pods are placed: priority, then the order of the input.

A pod's priority is `spec.priority` where the API server has filled it in, else its class's value
(kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption). Two classes are built in.
Without a class the one marked `globalDefault` counts, else 0. Nobody is preempted.
"""

from collections.abc import Mapping

from gpushare.simulate.objects import PriorityClass, SimPodSpec

BUILT_IN: Mapping[str, int] = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


class Priorities:
    """The priority of any pod; remembers the classes that nobody defines."""

    def __init__(self, classes: Mapping[str, PriorityClass]) -> None:
        self._values = {**{name: c.value for name, c in classes.items()}, **BUILT_IN}
        defaults = [c.value for c in classes.values() if c.global_default]
        self._default = min(defaults, default=0)
        """The API server too takes the lowest, should there be several."""
        self.unknown: dict[str, int] = {}
        """Class name -> pods that name it, though it is not in the input."""

    def of(self, spec: SimPodSpec) -> int:
        """A pod's priority."""
        if spec.priority is not None:
            return spec.priority
        name = spec.priority_class_name
        if not name:
            return self._default
        value = self._values.get(name)
        if value is None:
            self.unknown[name] = self.unknown.get(name, 0) + 1
            return 0
        return value

    def warnings(self) -> list[str]:
        return [
            f"priority class {name} is not in the input: {count} "
            f"{'pod counts' if count == 1 else 'pods count'} with priority 0; add it "
            "(kubectl get priorityclasses -o yaml)"
            for name, count in sorted(self.unknown.items())
        ]
