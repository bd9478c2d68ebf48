"""A node's GPUs as something found them, and what such a source must do.

nvml asks the driver, fake_gpus a file; whoever uses them sees no difference.
"""

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

    def close(self) -> None:
        """Ends the use of it."""
        ...


def xid_problem(xid: int) -> str:
    """The problem of a GPU for which the driver reported a critical Xid."""
    return f"Xid {xid}, a critical error; see the node's kernel log"
