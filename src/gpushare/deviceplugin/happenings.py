"""What happens on a node that people should hear of: GPUs that fail and recover, a change of mode.

Compares the node as it is with the node as it was told of last, and says what is new, naming the
pods it hits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare.contract import names
from gpushare.contract.inventory import Device
from gpushare.contract.names import Mode
from gpushare.deviceplugin.core.books import Books
from gpushare.kube.events import Severity

GPU_FAILED: Final = "GPUFailed"
GPU_RECOVERED: Final = "GPURecovered"
GPU_CLOSED: Final = "GPUClosed"
"""It is well, and something else keeps pods from it."""
GPU_OPENED: Final = "GPUOpened"
SHARING_LEFT: Final = "GPUSharingLeft"

MAX_PODS_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Happening:
    """An Event about the node."""

    severity: Severity
    reason: str
    text: str
    gpu: str = ""
    """UUID of the GPU it is about; empty: the node."""


@dataclass(slots=True)
class Happenings:
    """Remembers what was told."""

    _told: dict[str, str] = field(default_factory=dict)
    """UUID of a GPU that takes nothing new -> the reason of the Event that told of it."""
    _mode: Mode | None = None

    def news(
        self,
        devices: tuple[Device, ...],
        failed: Mapping[str, str],
        closed: Mapping[str, str],
        books: Books,
    ) -> list[Happening]:
        """What has happened since the last call.

        devices   the node's GPUs as published
        failed    GPU UUID -> what ails it
        closed    GPU UUID -> what else keeps pods from it
        """
        found = [*self._gpus(devices, failed, closed, books), *self._modes(books)]
        self._mode = books.node.mode
        return found

    def _gpus(
        self,
        devices: tuple[Device, ...],
        failed: Mapping[str, str],
        closed: Mapping[str, str],
        books: Books,
    ) -> list[Happening]:
        found: list[Happening] = []
        before, self._told = self._told, {}
        for device in devices:
            uuid, what = device.uuid, f"GPU {device.index} ({device.model}, {device.uuid})"
            if device.healthy:
                if uuid in before:
                    reason = GPU_OPENED if before[uuid] == GPU_CLOSED else GPU_RECOVERED
                    well = "" if before[uuid] == GPU_CLOSED else "is well again and "
                    text = f"{what} {well}takes pods"
                    found.append(Happening(Severity.NORMAL, reason, text, uuid))
                continue
            reason = GPU_CLOSED if uuid in closed and uuid not in failed else GPU_FAILED
            self._told[uuid] = reason
            if before.get(uuid) != reason:
                why = failed.get(uuid) or closed.get(uuid) or "it is gone"
                on_it = _sentence("On it", _pods(books, device.index))
                text = f"{what} takes nothing new: {why}. {on_it}"
                found.append(Happening(Severity.WARNING, reason, text, uuid))
        return found

    def _modes(self, books: Books) -> list[Happening]:
        before, now = self._mode, books.node.mode
        if before is None or before is now or not before.shares_memory or now.shares_memory:
            return []
        left = _pods(books, None)
        if not left:
            return []
        text = (
            f"{names.LABEL_MODE} is {now} now: the node offers no GPU memory any more. "
            f"{_sentence('Pods that still share its GPUs', left)}"
        )
        return [Happening(Severity.WARNING, SHARING_LEFT, text)]


def _pods(books: Books, index: int | None) -> list[str]:
    """Live pods on a GPU, or on any; "namespace/name", sorted."""
    return sorted(
        f"{pod.facts.record.namespace}/{pod.facts.record.name}"
        for pod in books.pods.values()
        if pod.live and (index is None or any(index in (piece.place or ()) for piece in pod.pieces))
    )


def _sentence(what: str, pods: list[str]) -> str:
    if not pods:
        return f"{what}: no pod."
    more = f", and {len(pods) - MAX_PODS_NAMED} more" if len(pods) > MAX_PODS_NAMED else ""
    return f"{what}: {', '.join(pods[:MAX_PODS_NAMED])}{more}."
