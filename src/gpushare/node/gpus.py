"""A node's GPUs as something found them, and what such a source must do.

nvml asks the driver, fake_gpus a file; whoever uses them sees no difference.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

GONE: Final = "it has fallen off the bus, or its driver is gone; see the node's kernel log"
SILENT: Final = "it does not answer"


class GpusUnavailable(Exception):
    """No GPU can be looked at; the text says what to install or mend."""


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """One GPU as the driver reports it."""

    uuid: str
    model: str
    memory_mib: int
    """NVML's v2 total without the driver's own part; 0 where it does not say."""
    pci_bus_id: str
    minor: int
    """Its device file is /dev/nvidia<minor>."""
    problem: str | None = None
    """Why nothing new may land on it; None when it is well."""
    host_memory: bool = False
    """The operating system manages its memory (GH200, GB200)."""
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver of the GPUs."""

    version: str = ""
    """ "570.86.15"; empty where there is none."""
    limits_memory: bool = False
    """NVML has nvmlDeviceSetMemoryLimits_v1."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What is used of one GPU now, by the driver's own count."""

    used_bytes: int | None
    """By everybody, without the driver's own part; None where it does not say."""
    processes: Mapping[int, int | None] | None
    """Pid -> bytes, None where it does not say; contexts included. Whose pids these are, the node's
    or a container's, differs between drivers. None: it does not list them."""


class GpuSource(Protocol):
    """Where GPUs are found. It blocks, and belongs to one thread at a time.

    Call `look` first, then `wait` and `look` in turn.
    """

    def look(self) -> tuple[FoundGpu, ...]:
        """Every GPU seen so far, in PCI order; one that vanished stays, with its problem.

        Raises GpusUnavailable.
        """
        ...

    def wait(self, timeout_s: float) -> bool:
        """Waits for something to happen; False when nothing did in time."""
        ...

    def occupancy(self) -> dict[str, Occupancy]:
        """GPU UUID -> what is used of it, once `look` has been called; without those that do not
        answer."""
        ...

    def driver(self) -> Driver:
        """The driver, once `look` has been called."""
        ...

    def close(self) -> None:
        """Ends the use of it."""
        ...


def xid_problem(xid: int) -> str:
    """The problem of a GPU for which the driver reported a critical Xid."""
    return f"Xid {xid}, a critical error; see the node's kernel log"
