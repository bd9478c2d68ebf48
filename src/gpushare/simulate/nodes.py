"""The nodes of a scene.

They are read as every other part of the project reads them; `--node` and `--share` then put GPUs on
some.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpushare.contract import names
from gpushare.contract.names import Mode
from gpushare.contract.units import Unit
from gpushare.kube.objects import Node
from gpushare.kube.reading import Problem, read_node
from gpushare.kube.selector import Selector
from gpushare.policy import GPU_POLICIES
from gpushare.simulate import unmodelled
from gpushare.simulate.constraints import NodeFace
from gpushare.simulate.errors import InputError
from gpushare.simulate.hosts import room_of
from gpushare.simulate.intake import Input
from gpushare.simulate.scene import SceneNode
from gpushare.simulate.sharing import WholeGpus, labelled_gpus


@dataclass(slots=True)
class ReadNodes:
    """The nodes, and what is to be said about them."""

    nodes: dict[str, SceneNode] = field(default_factory=dict)
    problems: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    """Node -> what is wrong with its object."""
    whole: dict[str, WholeGpus] = field(default_factory=dict)
    """Node that shares only here -> its GPUs that nobody holds whole."""
    warnings: list[str] = field(default_factory=list)


def read_nodes(taken: Input, share: Selector | None, unit: Unit) -> ReadNodes:
    """The nodes of the input; `unit` where they publish none. Raises InputError for a `share`
    that selects nothing usable."""
    read = ReadNodes()
    for name, api in taken.nodes.items():
        reading = read_node(api, tuple(GPU_POLICIES), unit)
        node, given = reading.node, name in taken.given_gpus
        if given:
            node = replace(node, gpus=taken.given_gpus[name])
        if reading.problems:
            read.problems[name] = reading.problems
        read.nodes[name] = SceneNode(api, node, _face(api), room_of(api), given)
    if share is not None:
        _share(read, share)
    read.warnings += unmodelled.taint_warnings(
        taint for node in read.nodes.values() for taint in node.face.taints
    )
    return read


def _face(api: Node) -> NodeFace:
    spec = api.spec
    return NodeFace(
        name=api.metadata.name,
        labels=api.metadata.labels or {},
        taints=tuple((spec and spec.taints) or ()),
        unschedulable=bool(spec and spec.unschedulable),
    )


def _share(read: ReadNodes, selector: Selector) -> None:
    chosen = [n for n in read.nodes.values() if selector.matches(n.face.labels)]
    if not chosen:
        some = ", ".join(list(read.nodes)[:10]) or "none"
        raise InputError(f"--share selects none of the nodes; there are: {some}")
    unknown: list[str] = []
    shared = 0
    for scene_node in chosen:
        node = scene_node.node
        if node.mode.shares_memory and node.gpus:
            continue
        gpus = labelled_gpus(scene_node.api, node.unit)
        if gpus is None:
            unknown.append(node.name)
            continue
        mode = node.mode if node.mode.shares_memory else Mode.SHARE
        node = replace(node, mode=mode, gpus=gpus, advertised=None)
        read.nodes[node.name] = replace(scene_node, node=node, given=True)
        read.whole[node.name] = WholeGpus(list(gpus))
        shared += 1
    if unknown:
        message = (
            f"--share: the labels of {first(unknown)} do not say what GPUs there are "
            f"({names.LABEL_NVIDIA_COUNT} and {names.LABEL_NVIDIA_MEMORY}, or "
            f"{names.LABEL_ACCELERATOR_COUNT} and {names.LABEL_ACCELERATOR_MEM})"
        )
        if len(unknown) == len(chosen):
            raise InputError(f"{message}; give the nodes with --node name=…,gpus=4x15 instead")
        read.warnings.append(message)
    if shared:
        read.warnings.append(
            f"--share: {shared} {'node is' if shared == 1 else 'nodes are'} treated as "
            "sharing; GPU memory comes from labels, which do not count what the driver keeps "
            "for itself: a GPU may offer one unit less"
        )


def first(things: Sequence[str], count: int = 5) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(things) - count} more" if len(things) > count else ""
    return ", ".join(things[:count]) + more
