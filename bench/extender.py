"""filter + prioritize of the extender against the plain way: json, and a loop over objects.

500 nodes of 8 GPUs, 500 names a call, about 4,000 pods on the books; from a request's bytes to the
answer's bytes, without HTTP, which is the same for both. CPU time of one core.

The plain way is no straw man: it keeps each GPU's used units, too, and looks at every GPU of every
node it is asked about, with the same rule; what it lacks is answers that outlive a call. The books
change between calls, as they do when each call ends in a bind.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gpushare.extender import wire
from gpushare.extender.asks import Asks
from gpushare.extender.decide import Decider
from gpushare.extender.state import ClusterState
from gpushare.extender.wire import Candidates
from gpushare.kube.objects import Node, Pod

NODES, GPUS, UNITS, CALLS = 500, 8, 15, 200
SIZES = (2, 4, 8)
HELD_UNITS = 7
"""Of each GPU, so that pods of 8 fit everywhere until binds take the room."""


def main() -> None:
    asyncio.run(_main())


async def _main() -> None:
    print(f"{NODES} names, {NODES} nodes x {GPUS} GPUs, the books change before each pair of calls")
    names = [f"ip-10-0-{i // 256}-{i % 256}.internal" for i in range(NODES)]
    for policy, title, owners in (
        ("binpack", "replicas of 10 Deployments", 10),
        ("binpack", "bare pods", CALLS),
        ("spread", "replicas of 10 Deployments", 10),
        ("spread", "bare pods", CALLS),
    ):
        plain = _per_call(_plain(names), names, owners)
        ours = _per_call(_ours(names, policy), names, owners)
        print(
            f"{policy}, {title}: plain {plain * 1000:.2f} ms, ours {ours * 1000:.2f} ms, "
            f"{ours / plain:.2f} x (aim 0.30)",
            flush=True,
        )


Answering = tuple[Callable[[bytes], tuple[bytes, bytes]], Callable[[int], None]]
"""(filter and prioritize of a body, a pod bound by number)."""


def _per_call(answering: Answering, names: list[str], owners: int) -> float:
    """Seconds a filter and its prioritize take on the average, after a first round to warm up."""
    ask, bind = answering
    bodies = list(_bodies(names, owners))
    for body in bodies[: len(SIZES)]:
        ask(body)
    spent = 0.0
    for number, body in enumerate(bodies):
        bind(number)
        start = time.process_time()
        ask(body)
        spent += time.process_time() - start
    return spent / len(bodies)


def _bodies(names: list[str], owners: int) -> Iterator[bytes]:
    for number in range(CALLS):
        owner = number % owners
        pod = _pod(f"p{number}", SIZES[owner % len(SIZES)], owner)
        yield json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


# --- ours -----------------------------------------------------------------------------------------


def _ours(names: list[str], policy: str) -> Answering:
    state = ClusterState(time.monotonic)
    decider = Decider(state, Asks(), time.monotonic)
    for name in names:
        state.nodes.changed(msgspec.convert(_node(name, policy), Node))
        for gpu in range(GPUS):
            state.pods.changed(msgspec.convert(_standing(name, gpu, HELD_UNITS), Pod))

    def ask(body: bytes) -> tuple[bytes, bytes]:
        args = wire.decode(wire.args_decoder, body)
        found = decider.filter(args.pod, Candidates(args)).body
        args = wire.decode(wire.args_decoder, body)  # the scheduler sends it all again
        return found, wire.encode(decider.prioritize(args.pod, Candidates(args)))

    def bind(number: int) -> None:
        manifest = _standing(names[number * 7 % NODES], number % GPUS, 1, f"bound-{number}")
        state.pods.changed(msgspec.convert(manifest, Pod))

    return ask, bind


# --- the plain way --------------------------------------------------------------------------------


class _PlainGpu:
    def __init__(self, index: int) -> None:
        self.index, self.units, self.used = index, UNITS, HELD_UNITS


class _PlainNode:
    def __init__(self, name: str) -> None:
        self.name = name
        self.gpus = [_PlainGpu(index) for index in range(GPUS)]


def _plain(names: list[str]) -> Answering:
    nodes = {name: _PlainNode(name) for name in names}

    def best(node: _PlainNode, units: int) -> _PlainGpu | None:
        fitting = [gpu for gpu in node.gpus if gpu.units - gpu.used >= units]
        key: Any = lambda gpu: (gpu.used == 0, gpu.units - gpu.used, gpu.index)  # noqa: E731
        return min(fitting, key=key, default=None)

    def units_of(pod: Any) -> int:
        return sum(
            int(container["resources"]["limits"].get("aliyun.com/gpu-mem", 0))
            for container in pod["spec"]["containers"]
        )

    def ask(body: bytes) -> tuple[bytes, bytes]:
        args = json.loads(body)
        units = units_of(args["Pod"])
        passed, failed = [], {}
        for name in args["NodeNames"]:
            if best(nodes[name], units) is not None:
                passed.append(name)
            else:
                failed[name] = "no single GPU has enough free memory"
        found = {"NodeNames": passed, "FailedAndUnresolvableNodes": failed, "Error": ""}
        args = json.loads(body)
        keys = {}
        for name in args["NodeNames"]:
            gpu = best(nodes[name], units)
            if gpu is not None:
                used = sum(g.used for g in nodes[name].gpus)
                keys[name] = (gpu.units - gpu.used - units, -used)
        order = sorted(set(keys.values()))
        rank = {key: max(0, 10 - number) for number, key in enumerate(order)}
        scores = [{"Host": n, "Score": rank[keys[n]] if n in keys else 0} for n in nodes]
        return json.dumps(found).encode(), json.dumps(scores).encode()

    def bind(number: int) -> None:
        nodes[names[number * 7 % NODES]].gpus[number % GPUS].used += 1

    return ask, bind


# --- objects --------------------------------------------------------------------------------------


def _node(name: str, policy: str) -> dict[str, Any]:
    amounts = {"aliyun.com/gpu-mem": str(GPUS * UNITS), "aliyun.com/gpu-count": str(GPUS)}
    labels = {"ack.node.gpu.schedule": "share", "ack.node.gpu.placement": policy}
    return {
        "metadata": {"name": name, "uid": name, "labels": labels},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def _pod(name: str, units: int, owner: int) -> dict[str, Any]:
    """A pod about as large as the scheduler sends it."""
    hash_ = "5d9c7b6f8"
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": f"app-{owner}", "pod-template-hash": hash_},
            "ownerReferences": [
                {"kind": "ReplicaSet", "name": f"app-{owner}-{hash_}", "controller": True}
            ],
        },
        "spec": {
            "containers": [
                {
                    "name": "app",
                    "image": "registry.example.com/app:1.0",
                    "env": [{"name": f"SETTING_{i}", "value": "x" * 20} for i in range(10)],
                    "resources": {
                        which: {"cpu": "1", "aliyun.com/gpu-mem": str(units)}
                        for which in ("limits", "requests")
                    },
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets"}],
                }
            ],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "schedulerName": "default-scheduler",
        },
        "status": {"phase": "Pending"},
    }


def _standing(node: str, gpu: int, units: int, name: str = "") -> dict[str, Any]:
    pod = _pod(name or f"{node}-{gpu}", units, gpu)
    allocation = json.dumps({"0": {str(gpu): units}})
    pod["metadata"]["annotations"] = {"scheduler.framework.gpushare.allocation": allocation}
    pod["spec"]["nodeName"] = node
    return pod
