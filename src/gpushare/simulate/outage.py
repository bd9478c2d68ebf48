"""`--without NODE[:GPU]`: what if this fails, or is drained?

What stood there must find a place elsewhere: those pods wait again, terminating and bare ones alike
(to know whether the room is there). A node is gone as a whole, and with it the pods of DaemonSets,
which no other node takes. A GPU turns unhealthy and stays in the table; pods that hold anything on
it may find room on the node's other GPUs. A pod whose GPU is unknown stays: nobody can say whether
it is hit. Pods without GPU memory are not moved.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpushare.model.gpus import Gpu
from gpushare.simulate.errors import InputError
from gpushare.simulate.scene import Scene, Standing, Waiting


def without(scene: Scene, outages: Iterable[str]) -> Scene:
    """The scene after these outages. Raises InputError for a node or GPU that is not there."""
    for outage in outages:
        name, colon, gpu = outage.partition(":")
        if name not in scene.nodes:
            some = ", ".join(sorted(scene.nodes)[:10]) or "none"
            raise InputError(f"--without {outage}: there is no node {name!r}; nodes: {some}")
        scene = _without_gpu(scene, outage, name, gpu) if colon else _without_node(scene, name)
    return scene


def _without_node(scene: Scene, name: str) -> Scene:
    there = [s for s in scene.standing if s.node == name]
    notes = [
        *_lost("DaemonSet", name, [s for s in there if s.daemon and s.record]),
        *_lost("whole-GPU", name, [s for s in there if s.record and not s.again and not s.daemon]),
    ]
    plain = sum(s.record is None for s in there)
    if plain:
        notes.append(
            f"--without {name}: {plain} {'pod' if plain == 1 else 'pods'} without GPU memory "
            "there: not placed anew"
        )
    return replace(
        scene,
        nodes={other: node for other, node in scene.nodes.items() if other != name},
        standing=[s for s in scene.standing if s.node != name],
        waiting=[*scene.waiting, *_displaced([s for s in there if not s.daemon], name)],
        warnings=(*scene.warnings, *notes),
    )


def _lost(kind: str, name: str, pods: Sequence[Standing]) -> list[str]:
    if not pods:
        return []
    return [
        f"--without {name}: {len(pods)} {kind} {'pod goes' if len(pods) == 1 else 'pods go'} with "
        "the node"
    ]


def _without_gpu(scene: Scene, outage: str, name: str, gpu: str) -> Scene:
    scene_node = scene.nodes[name]
    failed = _find(outage, scene_node.node.gpus, gpu)
    gpus = tuple(
        replace(g, healthy=False) if g.index == failed.index else g for g in scene_node.node.gpus
    )
    ledger = scene.ledger()
    hit = {
        held.uid
        for held in ledger.pods_on(name)
        if any(index == failed.index for index, _, _ in held.holding.gpus)
    }
    moved = [s for s in scene.standing if s.record and s.record.uid in hit and s.again]
    stuck = [s for s in scene.standing if s.record and s.record.uid in hit and not s.again]
    where = f"{name}, GPU {failed.index}"
    notes = [
        f"--without {outage}: {len(stuck)} {'pod' if len(stuck) == 1 else 'pods'} on it cannot be "
        "placed anew"
    ] * bool(stuck)
    return replace(
        scene,
        nodes={**scene.nodes, name: replace(scene_node, node=replace(scene_node.node, gpus=gpus))},
        standing=[s for s in scene.standing if s not in moved],
        waiting=[*scene.waiting, *_displaced(moved, where)],
        warnings=(*scene.warnings, *notes),
    )


def _find(outage: str, gpus: Sequence[Gpu], wanted: str) -> Gpu:
    """A GPU by its index or UUID."""
    for gpu in gpus:
        if wanted in (str(gpu.index), gpu.uuid):
            return gpu
    there = ", ".join(str(gpu.index) for gpu in gpus) or "none"
    raise InputError(f"--without {outage}: there is no GPU {wanted!r} on this node; GPUs: {there}")


def _displaced(standing: Sequence[Standing], where: str) -> list[Waiting]:
    return [replace(s.again, displaced_from=where) for s in standing if s.again is not None]
