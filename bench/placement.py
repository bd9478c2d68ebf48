"""Placements per second of the simulator, and how they grow with nodes and pods.

Nodes of 8 GPUs with 80 units each; pods of 1 and 2 units, in turn. CPU time of one core, over
`engine.run`, from the pods that wait to all of them placed; reading manifests is timed apart.

Two kinds of pods, because they cost differently: replicas of ten Deployments, and bare pods, each
an owner of its own. Ten times the pods may cost ten times the time, not more; five times the nodes
should cost little, since a placement looks at what changed.
"""

import gc
import time
from collections.abc import Iterator

import msgspec

from gpushare.simulate.engine import run
from gpushare.simulate.intake import gather
from gpushare.simulate.nodespec import parse_nodes
from gpushare.simulate.scene import Scene
from gpushare.simulate.source import Document
from gpushare.simulate.staging import Options, stage

SIZES = ((1_000, 5_000), (1_000, 50_000), (5_000, 5_000), (5_000, 50_000))
"""(nodes, pods)."""

OWNERS = 10


def main() -> None:
    gc.disable()
    for policy in ("binpack", "spread"):
        for owners in ("replicas", "bare pods"):
            print(f"{policy}, {owners}:", flush=True)
            seconds: dict[tuple[int, int], float] = {}
            for nodes, pods in SIZES:
                scene, staging_s = _scene(nodes, pods, policy, bare=owners == "bare pods")
                start = time.process_time()
                outcome = run(scene)
                seconds[nodes, pods] = time.process_time() - start
                assert len(outcome.placed) == pods
                print(
                    f"  {nodes:>5} nodes x 8 GPUs, {pods:>6} pods: "
                    f"{pods / seconds[nodes, pods]:>7,.0f} placements/s  "
                    f"({seconds[nodes, pods]:.2f} s; reading {staging_s:.2f} s)",
                    flush=True,
                )
                del outcome, scene
                gc.collect()
            for line in _growth(seconds):
                print(f"  {line}", flush=True)
    gc.enable()


def _growth(seconds: dict[tuple[int, int], float]) -> Iterator[str]:
    for nodes in sorted({nodes for nodes, _ in seconds}):
        few, many = sorted(pods for n, pods in seconds if n == nodes)
        factor = seconds[nodes, many] / seconds[nodes, few]
        yield f"{many // few} x the pods at {nodes} nodes: {factor:.1f} x the time"
    for pods in sorted({pods for _, pods in seconds}):
        small, large = sorted(n for n, p in seconds if p == pods)
        factor = seconds[large, pods] / seconds[small, pods]
        yield f"{large // small} x the nodes with {pods} pods: {factor:.1f} x the time"


def _scene(nodes: int, pods: int, policy: str, *, bare: bool) -> tuple[Scene, float]:
    """A scene, and the seconds it took to read it from JSON."""
    given = parse_nodes(f"name=n,count={nodes},gpus=8x80,placement={policy}")
    items = [_pod(i) for i in range(pods)] if bare else list(_deployments(pods))
    data = msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items})
    start = time.process_time()
    document = Document("bench", 1, msgspec.json.decode(data, type=msgspec.Raw), data)
    scene = stage(gather([document], given), Options())
    return scene, time.process_time() - start


def _spec(units: int) -> dict[str, object]:
    limits = {"aliyun.com/gpu-mem": units, "cpu": "500m", "memory": "1Gi"}
    return {"containers": [{"name": "app", "resources": {"limits": limits}}]}


def _pod(number: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}"},
        "spec": _spec(1 + number % 2),
    }


def _deployments(pods: int) -> Iterator[dict[str, object]]:
    for number in range(OWNERS):
        yield {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"app-{number}"},
            "spec": {"replicas": pods // OWNERS, "template": {"spec": _spec(1 + number % 2)}},
        }
