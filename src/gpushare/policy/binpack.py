"""binpack: fill one GPU of the node before moving on to the next.

Keeps whole GPUs free for large requests (CONTRACT: placement). Among the GPUs that fit, one already
in use before an idle one; then the least free units; then the lowest index.
"""

from gpushare.model.gpus import GpuBooks
from gpushare.model.owner import Owner


def preference(gpu: GpuBooks, owner: Owner) -> tuple[int, ...]:
    return (gpu.used == 0, gpu.gpu.units - gpu.used, gpu.gpu.index)
