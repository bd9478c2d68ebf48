"""The devices the kubelet is told of: one for each unit of each GPU.

Only the free ids of a GPU that has failed or is cordoned are unhealthy. Those that pods hold follow
when they are released: otherwise the node's sum would fall below what is requested, and healthy
GPUs would lose the room they have.

A node that offers nothing any more lists all its ids as unhealthy first, and none only some time
later (`WITHDRAWN_AFTER_S`): a kubelet that is in the middle of an allocation when an id leaves the
list ends with a panic (kubernetes 1.36.3, devicemanager/manager.go: `m.allDevices[resource][dev]`
is not checked). Nothing can be allocated of unhealthy ids, so after that nobody is in the middle.
"""

from dataclasses import dataclass

from gpushare.contract.names import Mode
from gpushare.deviceplugin.core.books import Books
from gpushare.deviceplugin.core.ids import device_ids, uuid_of
from gpushare.model.gpus import Node
from gpushare.node.api import deviceplugin_pb2 as api
from gpushare.node.kubelet import MESSAGE_LIMIT

OFFERED_MODES = frozenset({Mode.SHARE, Mode.CGPU})
"""Modes whose promise is kept here; the others that share memory also promise compute shares."""


WITHDRAWN_AFTER_S = 10.0
"""An allocation that was under way when the ids turned unhealthy is over by then."""


class TooManyUnits(Exception):
    """The kubelet would not take the list of devices; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """What the list of devices depends on."""

    gpus: tuple[tuple[str, int, bool], ...]
    """(UUID, units, whether it takes anything new)."""
    held: frozenset[str]
    """Ids that pods hold on GPUs that take nothing new."""
    offering: bool = True


def advertised(books: Books, *, offering: bool, closed: bool = False) -> Advertised:
    """As the books stand; all unhealthy where the node does not offer GPU memory.

    closed   the node takes no new pods; what they hold stays
    """
    gpus = tuple(
        (gpu.uuid or "", gpu.units, offering and not closed and gpu.open) for gpu in books.node.gpus
    )
    if not offering:
        return Advertised(gpus, frozenset(), offering=False)
    if all(is_open for _, _, is_open in gpus):
        return Advertised(gpus, frozenset())
    shut = {uuid for uuid, _, is_open in gpus if not is_open}
    held = frozenset(i for i in books.granted_ids() if uuid_of(i, books.unit) in shut)
    return Advertised(gpus, held)


def device_list(what: Advertised, node: Node) -> api.ListAndWatchResponse:
    """The message for the kubelet. Raises TooManyUnits."""
    response = api.ListAndWatchResponse(
        devices=[
            api.Device(ID=i, health="Healthy" if is_open or i in what.held else "Unhealthy")
            for uuid, units, is_open in what.gpus
            for i in device_ids(uuid, node.unit, units)
        ]
    )
    if response.ByteSize() > MESSAGE_LIMIT:
        raise TooManyUnits(
            f"{len(response.devices)} units of {node.unit} are {response.ByteSize()} bytes in one "
            f"message, and the kubelet takes {MESSAGE_LIMIT}: use units of 1 GiB on this node"
        )
    return response
