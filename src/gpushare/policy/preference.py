"""What a GPU policy is: an order of preference among the GPUs that fit."""

from typing import Protocol

from gpushare.model.gpus import GpuBooks
from gpushare.model.owner import Owner


class Preference(Protocol):
    """Gives a GPU its place in the order: the smallest key is preferred."""

    def __call__(self, gpu: GpuBooks, owner: Owner) -> tuple[int, ...]: ...
