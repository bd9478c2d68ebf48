"""The annotations in which a node says what it has (CONTRACT: our own names).

`gpushare.dev/devices` lists the GPUs, `gpushare.dev/node` says how the node's plugin works, and an
administrator names GPUs that take nothing new in `gpushare.dev/cordoned-gpus`.
"""

import msgspec

from gpushare.contract import names
from gpushare.contract.allocation import MAX_INDEX, CodecError
from gpushare.contract.units import Unit


class Device(msgspec.Struct, frozen=True):
    """One GPU. `index` is sticky by `uuid`; `memory_mib` is what it can really give."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    units: int
    healthy: bool = True


class NodeInfo(msgspec.Struct, frozen=True, omit_defaults=False):
    """How the node's plugin works. A node without it has no plugin of ours, and unit GiB."""

    version: int = 1
    unit: Unit = Unit.GIB
    attests: bool = False
    injection: str = "env"


_devices = msgspec.json.Decoder(list[Device])
_node = msgspec.json.Decoder(NodeInfo)


def decode_devices(value: str) -> tuple[Device, ...]:
    """The GPUs in `gpushare.dev/devices`, ordered by index.

    Raises CodecError for unreadable JSON, an index or UUID given twice, or a negative amount.
    """
    try:
        devices = _devices.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CodecError(f"{names.ANNOTATION_DEVICES} is not a list of GPUs: {error}") from None
    for device in devices:
        if not 0 <= device.index <= MAX_INDEX or device.units < 0 or device.memory_mib < 0:
            raise CodecError(
                f"{names.ANNOTATION_DEVICES}: GPU {device.uuid!r} has index {device.index}, "
                f"{device.units} units, {device.memory_mib} MiB; none may be negative, "
                f"no index beyond {MAX_INDEX}"
            )
    if len({device.index for device in devices}) < len(devices):
        raise CodecError(f"{names.ANNOTATION_DEVICES} gives one index to two GPUs")
    if len({device.uuid for device in devices}) < len(devices):
        raise CodecError(f"{names.ANNOTATION_DEVICES} gives one UUID to two GPUs")
    return tuple(sorted(devices, key=lambda device: device.index))


def encode_devices(devices: tuple[Device, ...]) -> str:
    """The JSON of `gpushare.dev/devices`."""
    return msgspec.json.encode(devices).decode()


def decode_node(value: str) -> NodeInfo:
    """How the node's plugin works. Raises CodecError."""
    try:
        return _node.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CodecError(f"{names.ANNOTATION_NODE} cannot be read: {error}") from None


def encode_node(info: NodeInfo) -> str:
    """The JSON of `gpushare.dev/node`."""
    return msgspec.json.encode(info).decode()


def decode_cordoned(value: str) -> tuple[frozenset[int], frozenset[str]]:
    """Indexes and UUIDs in `gpushare.dev/cordoned-gpus`: "1, GPU-8d7e…"."""
    entries = [entry.strip() for entry in value.split(",")]
    indexes = frozenset(int(e) for e in entries if e.isascii() and e.isdecimal())
    uuids = frozenset(e for e in entries if e and not (e.isascii() and e.isdecimal()))
    return indexes, uuids
