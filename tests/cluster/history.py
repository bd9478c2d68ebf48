"""Everything the API server told of pods and nodes, in its own order, and what followed from it.

Two watches, merged by resource version (one etcd, so one order for all objects): the state after
each event is one that a reader could have seen.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from gpushare.kube import objects
from gpushare.kube.reading import read_bound_pod, read_node
from gpushare.model.ledger import Ledger
from gpushare.policy import GPU_POLICIES

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

Object = dict[str, Any]


@dataclass(frozen=True)
class Event:
    version: int
    at: float
    """time.monotonic when it came."""
    type: str
    object: Object

    @property
    def is_pod(self) -> bool:
        return "containers" in self.object["spec"]

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])


@dataclass
class History:
    """Records until it is closed: `with History(cluster) as history`."""

    cluster: Cluster
    events: list[Event] = field(default_factory=list)

    def __enter__(self) -> History:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._record, args=(kind,), daemon=True)
            for kind in ("pods", "nodes")
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.cluster.admin.annotate("nodes", self.cluster.node.name, **{"test/over": "yes"})
        for thread in self._threads:
            thread.join(5)

    def _record(self, kind: str) -> None:
        version: str | None = None
        while not self._stop.is_set():
            for event in self.cluster.admin.watch(kind, resource_version=version, timeout_s=60):
                meta = event["object"]["metadata"]
                version = meta["resourceVersion"]
                self.events.append(
                    Event(int(version), time.monotonic(), event["type"], event["object"])
                )
                if self._stop.is_set():
                    break

    def states(self) -> Iterator[tuple[Event, Ledger]]:
        """Each event with the books as any reader then had them."""
        ledger = Ledger()
        for event in sorted(self.events, key=lambda event: event.version):
            if event.is_pod:
                pod = msgspec.convert(event.object, objects.Pod)
                record, _ = read_bound_pod(pod) if pod.spec.node_name else (None, None)
                if event.type == "DELETED":
                    ledger.remove_pod(event.uid)
                elif record is not None:
                    ledger.put_pod(record)
            elif event.type == "DELETED":
                ledger.remove_node(event.object["metadata"]["name"])
            else:
                node = msgspec.convert(event.object, objects.Node)
                ledger.put_node(read_node(node, tuple(GPU_POLICIES)).node)
            yield event, ledger

    def over_committed(self) -> list[str]:
        """Moments at which a reader of pods and nodes would have seen a GPU above its units."""
        found: list[str] = []
        for event, ledger in self.states():
            for name in ledger:
                for gpu in ledger.books(name).gpus:
                    index = gpu.gpu.index
                    if gpu.used > gpu.gpu.units:
                        holders = [
                            f"{held.record.name if held.record else held.uid}: {units}"
                            for held in ledger.pods_on(name)
                            for on, units, _ in held.holding.gpus
                            if on == index
                        ]
                        found.append(
                            f"at {event.version} ({event.type} {event.object['metadata']['name']}) "
                            f"GPU {index} of {name} shows {gpu.used}/{gpu.gpu.units}: {holders}"
                        )
        return found

    def of_pods(self) -> dict[str, list[Event]]:
        """Pod UID -> its events, in order."""
        pods: dict[str, list[Event]] = {}
        for event in sorted(self.events, key=lambda event: event.version):
            if event.is_pod:
                pods.setdefault(event.uid, []).append(event)
        return pods


def annotation(pod: Object, name: str) -> Any:
    """A JSON annotation, decoded; None where it is not there."""
    text = (pod["metadata"].get("annotations") or {}).get(name)
    return None if text is None else json.loads(text)
