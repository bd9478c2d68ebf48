"""`--share SELECTOR`: nodes that do not share their GPUs yet, as if they did.

What GPUs a node has is in the labels of NVIDIA's GPU feature discovery (`nvidia.com/gpu.count`,
`.memory` in MiB) or of ACK (`aliyun.accelerator/nvidia_count`, `nvidia_mem` as in `15109MiB`). A
GPU offers floor(MiB / unit) units (CONTRACT: what a pod asks for). Those labels say what a GPU
has, not what it can give, which is a little less: it may turn out to offer one unit fewer.

Pods that hold whole GPUs (`nvidia.com/gpu`) on such a node go on holding them: nobody says which,
so the ones with the highest indexes.
"""

import re
from dataclasses import dataclass

from gpushare.contract import names
from gpushare.contract.quantity import QuantityError, whole
from gpushare.contract.units import Unit
from gpushare.kube.objects import Node
from gpushare.model.gpus import Gpu
from gpushare.model.request import Chunk, ContainerAsk, Request
from gpushare.simulate.errors import InputError
from gpushare.simulate.nodespec import MAX_GPUS
from gpushare.simulate.objects import SimPodSpec

_FAMILIES = (
    (names.LABEL_NVIDIA_COUNT, names.LABEL_NVIDIA_MEMORY, names.LABEL_NVIDIA_PRODUCT),
    (names.LABEL_ACCELERATOR_COUNT, names.LABEL_ACCELERATOR_MEM, names.LABEL_ACCELERATOR_NAME),
)


def labelled_gpus(node: Node, unit: Unit) -> tuple[Gpu, ...] | None:
    """The GPUs that a node's labels describe; None where there are no such labels.

    Raises InputError for labels whose values make no sense.
    """
    labels = node.metadata.labels or {}
    for count_label, memory_label, model_label in _FAMILIES:
        if count_label in labels and memory_label in labels:
            count = _number(node, count_label, labels[count_label])
            memory_mib = _number(node, memory_label, labels[memory_label])
            if count > MAX_GPUS:
                raise InputError(
                    f"node {node.metadata.name}: label {count_label} is {count}; a node has at "
                    f"most {MAX_GPUS} GPUs"
                )
            return tuple(
                Gpu(
                    index=index,
                    units=unit.units_of(memory_mib),
                    model=labels.get(model_label),
                    memory_mib=memory_mib,
                )
                for index in range(count)
            )
    return None


def _number(node: Node, label: str, value: str) -> int:
    match = re.fullmatch(r"(\d{1,9})(?:MiB)?", value, re.ASCII)
    if match is None:
        raise InputError(
            f"node {node.metadata.name}: label {label} is {value!r}; a whole number is needed, "
            "memory in MiB"
        )
    return int(match[1])


@dataclass(frozen=True, slots=True)
class WholeGpus:
    """Hands out whole GPUs of a node, highest index first."""

    gpus: list[Gpu]
    """Those still to be had, by index."""

    def take(self, count: int) -> tuple[Request, dict[int, dict[int, int]]] | None:
        """A request for `count` whole GPUs and the allocation that holds them; fewer where the
        node has no more, None where it has none."""
        taken = [self.gpus.pop() for _ in range(min(count, len(self.gpus)))]
        if not taken:
            return None
        chunks = tuple(
            Chunk((ContainerAsk(index=number, units=gpu.units),), gpu.units, 0)
            for number, gpu in enumerate(taken)
        )
        return Request(chunks), {number: {gpu.index: gpu.units} for number, gpu in enumerate(taken)}


def whole_gpus_asked(spec: SimPodSpec) -> int:
    """How many whole GPUs a pod holds."""
    total = 0
    peak = 0
    for init, containers in ((True, spec.init_containers or ()), (False, spec.containers)):
        for container in containers:
            limits = (container.resources and container.resources.limits) or {}
            try:
                asked = whole(limits.get(names.RESOURCE_WHOLE_GPU, 0))
            except QuantityError:
                continue
            if init and container.restart_policy != "Always":
                peak = max(peak, asked)
            else:
                total += asked
    return max(total, peak)
