"""Device ids: `<GPU-uuid>::<slot>`, one for each unit of a GPU.

The id carries the GPU, so that the kubelet's own checkpoint can never book one GPU's unit twice. A
unit other than 1 GiB is part of it too (`<GPU-uuid>::128MiB::<slot>`): an id of one unit must not
be taken for an id of another after a switch.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gpushare.contract.units import Unit

MAX_ID_LENGTH: Final = 63
"""Of a device id, by the device plugin API (kubelet device plugin v1beta1, `Device.ID`)."""


def device_id(uuid: str, unit: Unit, slot: int) -> str:
    """The id of one unit of a GPU."""
    return f"{_prefix(uuid, unit)}{slot}"


def device_ids(uuid: str, unit: Unit, units: int) -> list[str]:
    """The ids of all units of a GPU, in order."""
    prefix = _prefix(uuid, unit)
    return [f"{prefix}{slot}" for slot in range(units)]


def slot_of(identifier: str) -> int:
    """The slot of an id of ours; 0 where there is none."""
    _, _, slot = identifier.rpartition("::")
    return int(slot) if slot.isascii() and slot.isdecimal() else 0


def uuid_of(identifier: str, unit: Unit) -> str | None:
    """The GPU of a device id; None for an id that is not of this form and unit."""
    uuid, separator, slot = identifier.rpartition("::")
    if not separator or not (slot.isascii() and slot.isdecimal()):
        return None
    if unit is not Unit.GIB:
        uuid, separator, name = uuid.rpartition("::")
        if not separator or name != unit.value:
            return None
    return uuid if uuid and "::" not in uuid else None


def by_gpu(
    identifiers: Iterable[str], index_of: Mapping[str, int], unit: Unit
) -> dict[int, list[str]] | None:
    """GPU index -> ids on it, by slot. `index_of` maps UUID -> index.

    None if any id is not of a GPU in `index_of`.
    """
    found: dict[int, list[str]] = {}
    for identifier in identifiers:
        uuid = uuid_of(identifier, unit)
        index = index_of.get(uuid) if uuid is not None else None
        if index is None:
            return None
        found.setdefault(index, []).append(identifier)
    for mine in found.values():
        mine.sort(key=slot_of)
    return found


def _prefix(uuid: str, unit: Unit) -> str:
    return f"{uuid}::" if unit is Unit.GIB else f"{uuid}::{unit.value}::"
