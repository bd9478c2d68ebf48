"""The extender's own metrics: what it was asked, what it answered, how long that took."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpushare.contract.names import Metric as Name

BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
"""Seconds: filters take tenths of a millisecond, binds end at the deadline."""


class _Now(Collector):
    """Gauges that are read when somebody asks."""

    def __init__(
        self,
        waiting: Callable[[], Mapping[str, int]],
        watch_ages: Callable[[], Mapping[str, float]],
        drift: Callable[[], int],
    ) -> None:
        self._waiting = waiting
        self._watch_ages = watch_ages
        self._drift = drift

    def collect(self) -> Iterator[Metric]:
        yield _gauge(
            Name.PODS_WAITING, "Pods that wait for GPU memory.", "reason", self._waiting().items()
        )
        yield _gauge(
            Name.WATCH_AGE,
            "Seconds since the API server was last heard, by what is watched.",
            "kind",
            self._watch_ages().items(),
        )
        yield GaugeMetricFamily(
            Name.LEDGER_DRIFT,
            "Units by which the books were wrong at the last check against the facts; always 0.",
            value=self._drift(),
        )


def _gauge(
    name: str, text: str, label: str, samples: Iterable[tuple[str, float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, amount in samples:
        family.add_metric([value], amount)
    return family


class Counters:
    """Counts and durations. One registry each, so that tests can have several."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._decisions = Counter(
            Name.DECISIONS,
            "Decisions, by what was asked and what came of it.",
            ["verb", "outcome", "reason"],
            registry=self.registry,
        )
        self._durations = Histogram(
            Name.REQUEST_DURATION,
            "Seconds from a request's last byte to its answer.",
            ["verb"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._conflicts = Counter(
            Name.BIND_CONFLICTS,
            "Binds that met a pod in another state than the scheduler took it for.",
            registry=self.registry,
        )
        self._children: dict[tuple[str, str, str], Counter] = {}
        self._timers: dict[str, Histogram] = {}

    def watch(
        self,
        waiting: Callable[[], Mapping[str, int]],
        watch_ages: Callable[[], Mapping[str, float]],
        drift: Callable[[], int],
    ) -> None:
        """Read these when somebody asks for the metrics."""
        self.registry.register(_Now(waiting, watch_ages, drift))

    def decision(self, verb: str, outcome: str, reason: str = "") -> None:
        key = (verb, outcome, reason)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._decisions.labels(*key)
        child.inc()

    def nudge(self, outcome: str) -> None:
        self.decision("nudge", outcome)

    def took(self, verb: str, seconds: float) -> None:
        timer = self._timers.get(verb)
        if timer is None:
            timer = self._timers[verb] = self._durations.labels(verb)
        timer.observe(seconds)

    def conflict(self) -> None:
        self._conflicts.inc()

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
