"""The unit of GPU memory, and what a number of units is worth in MiB.

One unit is 1 GiB, or 128 MiB where the cluster is set so (CONTRACT: what a pod asks for). A GPU
offers floor(MiB / unit) units, and a share of it is worth its part of the whole GPU rather than
units x 1 GiB (CONTRACT: memory limit seen by the container).
"""

from enum import StrEnum


class Unit(StrEnum):
    """The size of one unit of `aliyun.com/gpu-mem`; the value is what annotations carry."""

    GIB = "GiB"
    MIB128 = "128MiB"

    @property
    def mib(self) -> int:
        """MiB in one unit."""
        return 1024 if self is Unit.GIB else 128

    def units_of(self, memory_mib: int) -> int:
        """Whole units that a GPU of `memory_mib` MiB offers: 16130 MiB is 15 GiB units."""
        return memory_mib // self.mib


def share_limit_mib(memory_mib: int, units: int, gpu_units: int) -> int:
    """MiB that `units` of a GPU's `gpu_units` are worth: floor(MiB x N / units).

    Published by ACK: 16130 MiB, 3 of 15 is 3226; 15079 MiB, 3 of 14 is 3231.
    """
    return memory_mib * units // gpu_units
