"""Whether containers really get our CDI devices: the hook has written, or should have.

A container runtime whose CDI is off, and a kubelet before 1.29, ignore the devices silently, and
containers start without a GPU. Then their pods run, and no letter of the hook is ever there.
"""

from dataclasses import dataclass, field
from typing import Final

from gpushare.deviceplugin.state import NodeState
from gpushare.node.mailbox import Mailboxes, allocation_id

IGNORED: Final = (
    "pods run without their GPUs: the CDI devices that the kubelet was told of were ignored. Turn "
    "on CDI in the container runtime (containerd: enable_cdi, cdi_spec_dirs) and use Kubernetes "
    "1.29 or later, and start the device plugin again; with --injection env if NVIDIA's runtime "
    "is the default"
)


@dataclass
class Proof:
    """Of one process: one letter proves it, whenever it comes."""

    state: NodeState
    mailboxes: Mailboxes
    _awaited: set[str] = field(default_factory=set)
    """Allocations whose device has the hook; empty once it is proven."""
    _given: bool = False
    _doubts: int = 0
    """How often in a row letters must have been there."""

    def await_letter(self, allocation: str) -> None:
        """A device with the hook was answered."""
        if not self._given:
            self._awaited.add(allocation)

    def missing(self) -> bool:
        """Whether letters must have been there, twice in a row, and none ever was."""
        self._given = self._given or any(
            any(self.mailboxes.letters(name)) for name in self._awaited
        )
        if self._given:
            self._awaited.clear()
            self._doubts = 0
        elif self._doubts < 2:  # then it stays so: nothing more is allocated that could prove it
            self._doubts = 0 if self._awaited.isdisjoint(self._running()) else self._doubts + 1
        return self._doubts >= 2

    def _running(self) -> set[str]:
        """Allocations that are known to be those of pods that run."""
        books = self.state.books
        assert books is not None
        found: set[str] = set()
        for piece in books.pieces():
            pod = self.state.pods.get(piece.uid)
            runs = pod is not None and pod.status is not None and pod.status.phase == "Running"
            if runs and piece.attested and piece.grant is not None:
                found |= {allocation_id(ids) for ids in piece.grant.handed.values()}
        return found
