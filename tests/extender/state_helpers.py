"""A state fed by hand, with a clock of its own: no loop, no network."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from gpushare.extender.asks import Asks
from gpushare.extender.decide import Answer, Decider
from gpushare.extender.plan import Planner
from gpushare.extender.state import ClusterState
from gpushare.extender.wire import Candidates, ExtenderArgs, MetaPod, MetaVictims
from gpushare.kube.objects import Node, Pod
from gpushare.kube.resources import Ref
from tests.extender.fake_cluster import Json


def as_pod(manifest: Json) -> Pod:
    return msgspec.convert(manifest, Pod)


@dataclass
class World:
    """A cluster as one extender knows it."""

    now: float = 1000.0
    ranking: str = "binpack"
    state: ClusterState = field(init=False)
    asks: Asks = field(init=False)
    decider: Decider = field(init=False)
    planner: Planner = field(init=False)
    names: list[str] = field(default_factory=list)
    _version: int = 0

    def __post_init__(self) -> None:
        self.state = ClusterState(lambda: self.now)
        self.asks = Asks()
        self.decider = Decider(self.state, self.asks, lambda: self.now, self.ranking)
        self.planner = Planner(self.state, self.asks, self.decider)

    def put(self, *manifests: Json) -> None:
        for manifest in manifests:
            if "containers" in manifest["spec"]:
                self.state.pods.changed(as_pod(manifest))
            else:
                self.state.nodes.changed(msgspec.convert(manifest, Node))
                if manifest["metadata"]["name"] not in self.names:
                    self.names.append(manifest["metadata"]["name"])

    def gone(self, *manifests: Json) -> None:
        for manifest in manifests:
            meta = manifest["metadata"]
            ref = Ref(meta["uid"], meta.get("namespace", ""), meta["name"], "0")
            is_pod = "containers" in manifest["spec"]
            (self.state.pods if is_pod else self.state.nodes).deleted(ref)

    def filter(self, manifest: Json, *names: str) -> tuple[list[str], dict[str, str]]:
        """(nodes that passed, node -> reason of those that did not)."""
        answer = self.ask(manifest, *names)
        result = msgspec.json.decode(answer.body)
        failed = result["FailedAndUnresolvableNodes"] | result["FailedNodes"]
        return result["NodeNames"], failed

    def ask(self, manifest: Json, *names: str) -> Answer:
        pod = as_pod(manifest)
        candidates = Candidates(ExtenderArgs(pod, list(names or self.names)))
        return self.decider.filter(pod, candidates)

    def scores(self, manifest: Json, *names: str) -> dict[str, int]:
        pod = as_pod(manifest)
        candidates = Candidates(ExtenderArgs(pod, list(names or self.names)))
        return {p.host: p.score for p in self.decider.prioritize(pod, candidates)}

    def preempt(self, manifest: Json, **victims: list[str]) -> dict[str, list[str]]:
        proposed = {
            node: MetaVictims([MetaPod(f"uid-{name}") for name in names], 1)
            for node, names in victims.items()
        }
        helped = self.decider.preempt(as_pod(manifest), proposed)
        return {
            node: [pod.uid.removeprefix("uid-") for pod in v.pods or ()]
            for node, v in helped.items()
        }
