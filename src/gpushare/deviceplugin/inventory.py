"""The node's GPUs as they are published: each with an index that stays its own.

A GPU is known by its UUID; pods' annotations name it by its index. So an index, once published,
belongs to its GPU: it is read back after a restart, and kept, unhealthy, for a GPU that vanished
while pods hold it (CONTRACT: our own names, `gpushare.dev/devices`).
"""

import re
from collections.abc import Collection, Iterable

from gpushare.contract import names
from gpushare.contract.inventory import Device
from gpushare.contract.units import Unit
from gpushare.node.gpus import FoundGpu


def merged(
    published: Iterable[Device], found: Iterable[FoundGpu], unit: Unit
) -> tuple[Device, ...]:
    """What is found, on the indexes that were published, and what vanished, by index.

    published   as read back; found   in PCI order: that of new GPUs, which take the lowest indexes
    that nobody has
    """
    known = {device.uuid: device for device in published}
    taken = {device.index for device in known.values()}
    devices: dict[str, Device] = {}
    for gpu in found:
        before = known.get(gpu.uuid)
        if before is None:
            index = next(i for i in range(len(taken) + 1) if i not in taken)
            taken.add(index)
        else:
            index = before.index
        memory_mib = gpu.memory_mib or (before.memory_mib if before else 0)
        devices[gpu.uuid] = Device(
            index=index,
            uuid=gpu.uuid,
            model=gpu.model or (before.model if before else ""),
            memory_mib=memory_mib,
            units=unit.units_of(memory_mib),
            healthy=gpu.problem is None,
        )
    for uuid, device in known.items():
        if uuid not in devices:
            devices[uuid] = Device(
                device.index, uuid, device.model, device.memory_mib, device.units, healthy=False
            )
    return tuple(sorted(devices.values(), key=lambda device: device.index))


def pruned(
    devices: Iterable[Device], found: Iterable[FoundGpu], held: Collection[int]
) -> tuple[Device, ...]:
    """Without the GPUs that have vanished and whose index, in `held`, no pod has."""
    present = {gpu.uuid for gpu in found}
    return tuple(d for d in devices if d.uuid in present or d.index in held)


def accelerator_labels(devices: Iterable[Device]) -> dict[str, str | None]:
    """ACK's node labels of model, MiB per GPU and number of GPUs (CONTRACT: node labels).

    With GPUs of several kinds they tell of the first, as they can say only one.
    """
    present = list(devices)
    first = next(iter(present), None)
    return {
        names.LABEL_ACCELERATOR_NAME: _label_value(first.model) if first else None,
        names.LABEL_ACCELERATOR_MEM: f"{first.memory_mib}MiB" if first else None,
        names.LABEL_ACCELERATOR_COUNT: str(len(present)) if first else None,
    }


def _label_value(text: str) -> str | None:
    """As a label's value can be: "Tesla T4" is "Tesla-T4"."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-_.") or None
