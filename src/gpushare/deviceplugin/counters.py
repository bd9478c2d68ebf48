"""The plugin's metrics: what it handed out, corrected and registered; what containers hold, use."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpushare.contract.names import Metric as Name
from gpushare.deviceplugin.core.books import Books
from gpushare.deviceplugin.isolation.usage import UsageReport, holders

ALLOCATED: Final = "allocated"
"""The outcome of an allocation that was made; the others are refusals' causes."""

_CONTAINER_LABELS: Final = ("node", "gpu", "uuid", "namespace", "pod", "container")


class _Held(Collector):
    """Units by container and GPU, read when somebody asks."""

    def __init__(self, books: Callable[[], Books | None]) -> None:
        self._books = books

    def collect(self) -> Iterator[Metric]:
        family = _gauge(
            Name.CONTAINER_ALLOCATED, "Units of GPU memory that a container has on a GPU."
        )
        books = self._books()
        if books is not None:
            node = books.node.name
            for had in holders(books):
                for index, uuid in had.gpus:
                    at = (node, str(index), uuid, had.namespace, had.pod, had.container)
                    family.add_metric(at, had.units)
        yield family


class _Used(Collector):
    """What containers that are held to a limit use, read when somebody asks."""

    def __init__(self, usage: Callable[[], UsageReport | None]) -> None:
        self._usage = usage

    def collect(self) -> Iterator[Metric]:
        limit = _gauge(Name.CONTAINER_LIMIT, "Bytes of a GPU that a container may use.")
        used = _gauge(Name.CONTAINER_USED, "Bytes of a GPU that a container uses.")
        peak = _gauge(Name.CONTAINER_PEAK, "The most bytes of a GPU that a container has used.")
        unprotected = _gauge(
            Name.CONTAINER_UNPROTECTED,
            "1: the container was found not to be held to its limit; 0: it was not.",
        )
        refused = CounterMetricFamily(
            Name.CONTAINER_REFUSED,
            "Allocations of GPU memory beyond a container's limit.",
            labels=_CONTAINER_LABELS,
        )
        report = self._usage()
        if report is not None:
            for use in report.containers:
                at = (report.node, str(use.gpu), use.uuid, use.namespace, use.pod, use.container)
                for family, value in (
                    (limit, use.limit_bytes),
                    (used, use.used_bytes),
                    (peak, use.peak_bytes),
                    (refused, use.refused),
                ):
                    if value is not None:
                        family.add_metric(at, value)
                if use.limit_bytes is not None or use.unprotected is not None:
                    unprotected.add_metric(at, int(use.unprotected is not None))
        yield from (limit, used, peak, refused, unprotected)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=_CONTAINER_LABELS)


class Counters:
    """One registry each, so that tests can have several."""

    def __init__(self, books: Callable[[], Books | None]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.registry.register(_Held(books))
        self._allocations = Counter(
            Name.ALLOCATIONS,
            "Containers that asked for GPU memory, by what came of it.",
            ["outcome"],
            registry=self.registry,
        )
        self._allocations.labels(ALLOCATED)
        self.corrections = Counter(
            Name.ATTEST_CORRECTIONS,
            "Containers that were taken for each other, and put right on the books.",
            registry=self.registry,
        )
        self.registrations = Counter(
            Name.REGISTRATIONS, "Registrations with the kubelet.", registry=self.registry
        )

    def watch(self, usage: Callable[[], UsageReport | None]) -> None:
        """Read what containers use when somebody asks for the metrics."""
        self.registry.register(_Used(usage))

    def allocation(self, outcome: str) -> None:
        self._allocations.labels(outcome).inc()

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
