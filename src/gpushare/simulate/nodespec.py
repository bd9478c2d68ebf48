"""`--node name=a,gpus=4x15,placement=spread`: a node without YAML.

name=a                 needed; with count=3 the nodes are a-0, a-1, a-2
gpus=4x15              four GPUs of 15 units; 2x15+1x40 mixes sizes
placement=spread       or binpack (the default)
mode=cgpu              share (the default), cgpu, core_mem, mps, default
cpu=32, memory=128Gi   limits; without them neither is limited
label:KEY=VALUE        a label; kubernetes.io/hostname is set to the name
"""

import re
from dataclasses import dataclass

from gpushare.contract import names
from gpushare.contract.names import Mode
from gpushare.contract.quantity import QuantityError, RawQuantity, parse
from gpushare.kube.objects import Node, NodeStatus, ObjectMeta
from gpushare.model.gpus import Gpu
from gpushare.policy import GPU_POLICIES
from gpushare.simulate.constraints import HOSTNAME
from gpushare.simulate.errors import InputError
from gpushare.simulate.values import MAX_UNITS

_EXAMPLE = "--node name=a,gpus=4x15,placement=spread"
_KEYS = ("name", "gpus", "placement", "mode", "cpu", "memory", "count", "label:KEY")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
MAX_GPUS = 64
MAX_NODES = 100_000


@dataclass(frozen=True, slots=True)
class GivenNode:
    """A node and the GPUs it has."""

    node: Node
    gpus: tuple[Gpu, ...]


def parse_nodes(text: str) -> list[GivenNode]:
    """The nodes of one `--node`. Raises InputError."""
    fields: dict[str, str] = {}
    labels: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not key:
            raise _error(text, f"{part!r} is not KEY=VALUE")
        if key.startswith("label:"):
            labels[key.removeprefix("label:")] = value.strip()
        elif key not in _KEYS:
            raise _error(text, f"{key!r} is not known; use {', '.join(_KEYS)}")
        elif key in fields:
            raise _error(text, f"{key!r} is given twice")
        else:
            fields[key] = value.strip()
    name = fields.get("name", "")
    if not _NAME.fullmatch(name):
        raise _error(text, f"name={name!r} is no node's name" if name else "name=… is missing")
    if "gpus" not in fields:
        raise _error(text, "gpus=… is missing, e.g. gpus=4x15 for four GPUs of 15 units")
    placement = fields.get("placement", next(iter(GPU_POLICIES)))
    if placement not in GPU_POLICIES:
        raise _error(text, f"placement={placement!r} is not one of {', '.join(GPU_POLICIES)}")
    mode = fields.get("mode", Mode.SHARE)
    if mode not in list(Mode):
        raise _error(text, f"mode={mode!r} is not one of {', '.join(Mode)}")
    labels = {names.LABEL_MODE: mode, names.LABEL_PLACEMENT: placement, **labels}
    gpus = _gpus(text, fields["gpus"])
    amounts: dict[str, RawQuantity] = {
        key: _amount(text, key, fields[key]) for key in ("cpu", "memory") if key in fields
    }
    count = fields.get("count")
    if count is None:
        return [_node(name, labels, gpus, amounts)]
    if not re.fullmatch(r"\d{1,6}", count, re.ASCII) or not 0 < int(count) <= MAX_NODES:
        raise _error(text, f"count={count!r} is not a number from 1 to {MAX_NODES}")
    return [_node(f"{name}-{i}", labels, gpus, amounts) for i in range(int(count))]


def _node(
    name: str, labels: dict[str, str], gpus: tuple[Gpu, ...], amounts: dict[str, RawQuantity]
) -> GivenNode:
    metadata = ObjectMeta(name=name, labels={HOSTNAME: name, **labels})
    status = NodeStatus(allocatable=amounts) if amounts else None
    return GivenNode(Node(metadata=metadata, status=status), gpus)


def _gpus(text: str, value: str) -> tuple[Gpu, ...]:
    gpus: list[Gpu] = []
    for part in value.split("+"):
        match = re.fullmatch(r"(?:(\d{1,3})x)?(\d{1,8})", part.strip(), re.ASCII)
        if match is None:
            raise _error(
                text,
                f"gpus={value!r}: {part!r} is not COUNTxUNITS, e.g. 4x15, or 2x15+1x40 for two "
                "sizes; amounts are whole units, without GiB",
            )
        count, units = int(match[1] or 1), int(match[2])
        if not 0 < count <= MAX_GPUS or units > MAX_UNITS:
            raise _error(text, f"gpus={value!r}: no node has {part}; at most {MAX_GPUS} GPUs")
        first = len(gpus)
        gpus += [Gpu(index=first + i, units=units) for i in range(count)]
    if len(gpus) > MAX_GPUS:
        raise _error(text, f"gpus={value!r}: {len(gpus)} GPUs; a node has at most {MAX_GPUS}")
    return tuple(gpus)


def _amount(text: str, key: str, value: str) -> str:
    try:
        if parse(value) >= 0:
            return value
    except QuantityError as error:
        raise _error(text, f"{key}: {error}") from None
    raise _error(text, f"{key}={value!r} is negative")


def _error(text: str, message: str) -> InputError:
    return InputError(f"--node {text}: {message}. Example: {_EXAMPLE}")
