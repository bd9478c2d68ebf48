"""spread: distribute pods evenly over the node's GPUs, so that one failing GPU hits few workloads.

Fewest pods on the GPU; then fewest pods of the same owner, which keeps replicas apart among
equally filled GPUs; then the most free units; then the lowest index (CONTRACT: placement).
"""

from gpushare.model.gpus import GpuBooks
from gpushare.model.owner import Owner


def preference(gpu: GpuBooks, owner: Owner) -> tuple[int, ...]:
    return (
        gpu.pods,
        gpu.owners.get(owner, 0) if gpu.owners else 0,
        gpu.used - gpu.gpu.units,
        gpu.gpu.index,
    )
