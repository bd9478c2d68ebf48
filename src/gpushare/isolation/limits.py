"""How much GPU memory a container may use, and the file that tells its processes.

The limit is the container's part of what the GPU can really give, floor(MiB x N / units), where
MiB is NVML's v2 total without the driver's own part (CONTRACT: memory limit seen by the container).
A context costs memory that the driver takes by itself; a reserve for each is charged within the
limit, so a share must be larger than the reserve.

    gpushare-limits 1
    GPU-00000000-0000-0000-0000-000000000000 limit=4509715660 reserve=314572800

The file is text, one line per GPU, amounts in bytes. Its format is an interface between versions:
running containers keep the library they started with.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.contract.units import share_limit_mib

HEADER: Final = "gpushare-limits 1\n"
MAX_GPUS: Final = 16
MAX_BYTES: Final = 4096
"""As the library reads it; what is longer is no limits file."""

MIB: Final = 1 << 20

DEFAULT_RESERVE_MIB: Final = 512
"""Charged for a context on a GPU model that was not measured. Reported for data-centre GPUs with a
recent CUDA: 414 to 862 MiB."""

UUID: Final = re.compile(
    r"(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII
)
_LINE: Final = re.compile(
    rf"({UUID.pattern}) limit=([0-9]{{1,19}}) reserve=([0-9]{{1,19}})\n", re.ASCII
)


class LimitsError(ValueError):
    """A limit that cannot be given, or a file that is no limits file; the text says why."""


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """One GPU of a container."""

    uuid: str
    limit_bytes: int
    reserve_bytes: int
    """Charged within the limit for every context of every process."""


def share_of(
    uuid: str, *, memory_mib: int, units: int, gpu_units: int, reserve_mib: int
) -> GpuLimit:
    """The limit of `units` of a GPU's `gpu_units`.

    Raises LimitsError where nothing would be left beside one context, with a sentence for the user.
    """
    limit_mib = share_limit_mib(memory_mib, units, gpu_units)
    if limit_mib <= reserve_mib:
        raise LimitsError(
            f"{units} of {gpu_units} units of GPU {uuid} are {limit_mib} MiB, and a CUDA context "
            f"alone takes {reserve_mib} MiB there: ask for more"
        )
    return GpuLimit(uuid, limit_mib * MIB, reserve_mib * MIB)


def encode_limits(limits: Sequence[GpuLimit]) -> str:
    """The file's text. Raises LimitsError for what the library would not read."""
    text = HEADER + "".join(
        f"{gpu.uuid} limit={gpu.limit_bytes} reserve={gpu.reserve_bytes}\n" for gpu in limits
    )
    if decode_limits(text) != tuple(limits):
        raise LimitsError(f"{limits} cannot be written as limits")
    return text


def decode_limits(text: str) -> tuple[GpuLimit, ...]:
    """The GPUs in a limits file. Raises LimitsError for anything unexpected."""
    if not text.startswith(HEADER) or len(text) > MAX_BYTES:
        raise LimitsError("not a limits file of version 1")
    limits: list[GpuLimit] = []
    at = len(HEADER)
    while at < len(text):
        match = _LINE.match(text, at)
        if not match:
            raise LimitsError(f"no limit can be read in {text[at : at + 120]!r}")
        limit, reserve = int(match[2]), int(match[3])
        if max(limit, reserve) >> 56:
            raise LimitsError(f"no GPU has {max(limit, reserve)} bytes")
        limits.append(GpuLimit(match[1], limit, reserve))
        at = match.end()
    uuids = {gpu.uuid[4:].lower() for gpu in limits}
    if not 0 < len(limits) <= MAX_GPUS or len(uuids) < len(limits):
        raise LimitsError(f"{len(limits)} GPUs, {len(uuids)} of them different")
    return tuple(limits)
