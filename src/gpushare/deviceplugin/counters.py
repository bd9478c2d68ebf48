"""The plugin's metrics: what it handed out, corrected and registered; what containers hold."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpushare.contract.names import Metric as Name
from gpushare.deviceplugin.core.books import Books

ALLOCATED: Final = "allocated"
"""The outcome of an allocation that was made; the others are refusals' causes."""

_CONTAINER_LABELS: Final = ("node", "gpu", "uuid", "namespace", "pod", "container")


class _Held(Collector):
    """Units by container and GPU, read when somebody asks."""

    def __init__(self, books: Callable[[], Books | None]) -> None:
        self._books = books

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            Name.CONTAINER_ALLOCATED,
            "Units of GPU memory that a container has on a GPU.",
            labels=_CONTAINER_LABELS,
        )
        books = self._books()
        if books is not None:
            for labels, units in held(books):
                family.add_metric(labels, units)
        yield family


def held(books: Books) -> Iterator[tuple[tuple[str, ...], int]]:
    """(labels, units) for each container that was given ids, and each of its GPUs."""
    uuids = {gpu.index: gpu.uuid or "" for gpu in books.node.gpus}
    for pod in books.pods.values():
        record, facts = pod.facts.record, pod.facts
        if not pod.live:
            continue
        for piece in pod.pieces:
            if piece.grant is None or piece.place is None:
                continue
            for position, call in enumerate(piece.calls):
                if position not in piece.grant.handed and not call.reused:
                    continue
                names = facts.init_names if call.ask.init else facts.app_names
                for index in piece.place:
                    labels = (
                        record.node,
                        str(index),
                        uuids.get(index, ""),
                        record.namespace,
                        record.name,
                        names[call.ask.index],
                    )
                    yield labels, call.ask.units // len(piece.place)


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

    def allocation(self, outcome: str) -> None:
        self._allocations.labels(outcome).inc()

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
