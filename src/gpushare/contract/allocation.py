"""The annotations that say which GPU a pod holds.

An allocation is JSON, container index -> GPU index -> units: `{"0":{"1":4}}` (CONTRACT:
annotations). Two generations exist. The first, `scheduler.framework.gpushare.allocation`, has that
shape; the open-source add-on wrote a single GPU index in `ALIYUN_COM_GPU_MEM_IDX`. We read both,
the first before the second, and write both for a pod on one GPU.

Decoding is strict and total: what cannot be read is a CodecError for the caller to report, never a
guess. Encoding is canonical (sorted, no spaces), so that equal allocations are equal strings.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from gpushare.contract import names

Allocation = Mapping[int, Mapping[int, int]]
"""Container index -> GPU index -> units of that GPU."""

MAX_INDEX: Final = 4095
"""No node has as many GPUs, no pod as many containers: a larger index is garbage."""

MAX_UNITS: Final = 1_000_000
"""No GPU has as many units: 122 TiB in the smaller unit."""


class CodecError(ValueError):
    """An annotation whose value cannot be read; the text says which and why."""


_decoder = msgspec.json.Decoder(dict[str, dict[str, int]])
_corrections_decoder = msgspec.json.Decoder(dict[str, dict[str, dict[str, int]]])


def decode_allocation(annotation: str, value: str) -> dict[int, dict[int, int]]:
    """The allocation in `value`; `annotation` is its name, for the error text.

    Raises CodecError for anything but small indexes as keys and positive amounts.
    """
    try:
        raw = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CodecError(
            f'{annotation}: {_shown(value)} is not like {{"0":{{"1":4}}}}: {error}'
        ) from None
    return _checked(annotation, raw)


def encode_allocation(allocation: Allocation) -> str:
    """The canonical JSON of an allocation: `{"0":{"1":4}}`."""
    return msgspec.json.encode(_stringed(allocation)).decode()


def decode_corrections(annotation: str, value: str) -> dict[str, dict[int, dict[int, int]]]:
    """Pod UID -> allocation, from a node's corrections annotation. Raises CodecError."""
    try:
        raw = _corrections_decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CodecError(
            f'{annotation}: {_shown(value)} is not like {{"<pod uid>":{{"0":{{"1":4}}}}}}: {error}'
        ) from None
    return {uid: _checked(annotation, allocation) for uid, allocation in raw.items()}


def encode_corrections(corrections: Mapping[str, Allocation]) -> str:
    """The canonical JSON of corrections, pod UID -> allocation."""
    return msgspec.json.encode(
        {uid: _stringed(corrections[uid]) for uid in sorted(corrections)}
    ).decode()


def decode_old_index(value: str) -> int:
    """The GPU index in `ALIYUN_COM_GPU_MEM_IDX`. Raises CodecError."""
    return _index(names.ANNOTATION_OLD_IDX, value)


def decode_time_ns(annotation: str, value: str) -> int:
    """A Unix time in nanoseconds, as `assume-time` carries it. Raises CodecError."""
    if value.isascii() and value.isdecimal() and len(value) <= 19:
        return int(value)
    raise CodecError(f"{annotation}: {_shown(value)} is not a Unix time in nanoseconds")


def binding_annotations(
    *,
    app: Allocation,
    init: Allocation,
    core: Allocation,
    held: Mapping[int, int],
    gpu_units: Mapping[int, int],
    assume_time_ns: int,
) -> dict[str, str]:
    """What is written on a pod when it is bound (CONTRACT: annotations).

    app, init   units per container of `spec.containers` and of `spec.initContainers`
    core        percent per container, for pods that ask for compute
    held        GPU index -> units the pod holds there, the reuse of init containers counted once
    gpu_units   GPU index -> that GPU's units

    The old add-on's generation is written beside ours only for a pod on a single GPU: it has no
    way to say more.
    """
    time = str(assume_time_ns)
    annotations = {
        names.ANNOTATION_ALLOCATION: encode_allocation(app),
        names.ANNOTATION_ASSUME_TIME: time,
        names.ANNOTATION_ASSIGNED: "false",
    }
    if init:
        annotations[names.ANNOTATION_INIT_ALLOCATION] = encode_allocation(init)
    if core:
        annotations[names.ANNOTATION_CORE] = encode_allocation(core)
    if len(held) == 1:
        ((index, units),) = held.items()
        annotations[names.ANNOTATION_OLD_IDX] = str(index)
        annotations[names.ANNOTATION_OLD_POD] = str(units)
        annotations[names.ANNOTATION_OLD_DEV] = str(gpu_units[index])
        annotations[names.ANNOTATION_OLD_ASSIGNED] = "false"
        annotations[names.ANNOTATION_OLD_ASSUME_TIME] = time
    return annotations


def _stringed(allocation: Allocation) -> dict[str, dict[str, int]]:
    return {
        str(container): {
            str(gpu): allocation[container][gpu] for gpu in sorted(allocation[container])
        }
        for container in sorted(allocation)
    }


def _checked(annotation: str, raw: dict[str, dict[str, int]]) -> dict[int, dict[int, int]]:
    allocation: dict[int, dict[int, int]] = {}
    for container, gpus in raw.items():
        amounts = {_index(annotation, gpu): units for gpu, units in gpus.items()}
        for units in amounts.values():
            if not 0 < units <= MAX_UNITS:
                raise CodecError(f"{annotation}: {units} is no amount that a GPU could hold")
        allocation[_index(annotation, container)] = amounts
    return allocation


def _index(annotation: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) <= MAX_INDEX:
        return int(text)
    raise CodecError(f"{annotation}: {_shown(text)} is not an index from 0 to {MAX_INDEX}")


def _shown(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:57] + "...")
