"""Why an allocation is refused. The kubelet shows the text in the failed pod's status.

A pod refused at admission is not tried again; its controller makes a new one. So a refusal has to
tell a user what to do about the pod's manifest or the node.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpushare.contract import names
from gpushare.contract.units import Unit

MARK: Final = "gpushare:"
"""Begins every refusal, so that a failed pod can be told to be ours."""


class Cause(StrEnum):
    """The kinds of refusal; a metric's label."""

    UNKNOWN_POD = "unknown-pod"
    NO_ROOM = "no-room"
    STILL_COUNTED = "still-counted"
    BAD_REQUEST = "bad-request"
    AMBIGUOUS = "ambiguous"
    STRADDLE = "straddle"
    TWICE = "twice"
    FOREIGN_IDS = "foreign-ids"
    NOT_READY = "not-ready"
    SHARE_TOO_SMALL = "share-too-small"


@dataclass(frozen=True, slots=True)
class Refused:
    """An allocation is not made."""

    cause: Cause
    text: str
    uid: str | None = None
    """The pod it was taken for, where there is one."""
    curable: bool = False
    """Newer knowledge of the node's pods could change the answer."""

    def __str__(self) -> str:
        return f"{MARK} {self.text}"


def amount(units: int, unit: Unit) -> str:
    """ "8 GiB", or "8 units of 128 MiB"."""
    return f"{units} GiB" if unit is Unit.GIB else f"{units} units of 128 MiB"


def unknown_pod(size: int, unit: Unit) -> Refused:
    return Refused(
        Cause.UNKNOWN_POD,
        f"no pod of this node is known to wait for {amount(size, unit)} of GPU memory "
        f"({names.RESOURCE_MEM}: {size}). Static pods cannot have GPU memory; otherwise the API "
        "server did not tell of the pod in time: create it again",
        curable=True,
    )


def no_room(size: int, unit: Unit, largest: int, gpus: int, uid: str) -> Refused:
    where = "no GPU of this node has" if gpus == 1 else f"no {gpus} GPUs of this node have"
    share = size // gpus
    return Refused(
        Cause.NO_ROOM,
        f"{where} {amount(share, unit)} free (most on one GPU: {amount(largest, unit)}). Leave the "
        "choice of the node to the scheduler with the gpushare extender, or ask for less",
        uid,
        curable=True,
    )


def still_counted(ended: int, unit: Unit, uid: str) -> Refused:
    return Refused(
        Cause.STILL_COUNTED,
        f"the kubelet still counts {amount(ended, unit)} of this node's GPU memory for pods that "
        "have ended, as it does for a moment after its own start. Create the pod again",
        uid,
        curable=True,
    )


def ambiguous(size: int, unit: Unit, uid: str) -> Refused:
    return Refused(
        Cause.AMBIGUOUS,
        f"the kubelet has forgotten what it gave to a pod that does not run yet, and asks for "
        f"{amount(size, unit)}: that could be for pods of two kinds, so nobody gets any. Create "
        "the pod again",
        uid,
        curable=True,
    )


def bad_request(error: str, uid: str) -> Refused:
    return Refused(Cause.BAD_REQUEST, error, uid)


def straddle(reason: str, uid: str | None = None) -> Refused:
    return Refused(
        Cause.STRADDLE,
        f"{reason}: the container would have parts of several GPUs. Create the pod again; if it "
        f"fails again, ask for {names.RESOURCE_MEM} in the app containers only",
        uid,
        curable=True,
    )


def twice() -> Refused:
    return Refused(
        Cause.TWICE,
        "the kubelet offered device ids that a running container has; create the pod again",
        curable=True,
    )


def share_too_small(why: str, uid: str) -> Refused:
    return Refused(Cause.SHARE_TOO_SMALL, why, uid)


def not_isolating(uid: str) -> Refused:
    return Refused(
        Cause.NOT_READY,
        f"this node promises isolation ({names.LABEL_MODE}=cgpu) and cannot hold containers to "
        "their share at the moment; see the Events of the node",
        uid,
    )


def foreign_ids() -> Refused:
    return Refused(
        Cause.FOREIGN_IDS,
        "the device ids belong to no GPU of this node, or are of another unit; "
        "create the pod again once the node shows its new amount",
    )


def not_sharing(mode: str) -> Refused:
    return Refused(
        Cause.NOT_READY,
        f"this node does not share its GPUs ({names.LABEL_MODE}={mode})",
    )
