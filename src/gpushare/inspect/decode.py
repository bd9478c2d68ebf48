"""JSON, or what YAML was loaded to -> the nodes, and the pods that may ask for GPU memory.

A list is taken apart without decoding its items (`msgspec.Raw`). A pod in which none of our
resources' names occurs anywhere is then passed over at the cost of a search through its bytes,
which in a cluster where most pods have nothing to do with GPUs is nearly all the work there is.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from gpushare.contract import names
from gpushare.inspect.errors import InspectError
from gpushare.kube.objects import (
    Condition,
    Container,
    ContainerStatus,
    EnvVar,
    Node,
    Pod,
    PodSpec,
    PodStatus,
)

_Kind = TypeVar("_Kind", Node, "_Pod")

_asks: Final = re.compile(
    b"|".join(
        re.escape(resource.rpartition("/")[2].encode())
        for resource in (names.RESOURCE_MEM, names.RESOURCE_CORE)
    )
).search
"""Finds what stands in every pod that asks for GPU memory; without the `/`, which JSON may escape.
"""


class _Envelope(msgspec.Struct):
    """A list of objects, or one object."""

    kind: str = ""
    items: list[msgspec.Raw] | None = None


class _Kinded(msgspec.Struct):
    kind: str = ""


# Pods without the fields that only other programs read: under a name that no object has, a field is
# skipped, at a third less for the whole pod.


class _Container(Container):
    env: list[EnvVar] | None = msgspec.field(default=None, name="-")


class _PodSpec(PodSpec):
    containers: list[_Container] = []  # type: ignore[assignment]  # noqa: RUF012 (msgspec copies it)
    init_containers: list[_Container] | None = None  # type: ignore[assignment]


class _PodStatus(PodStatus):
    conditions: list[Condition] | None = msgspec.field(default=None, name="-")
    container_statuses: list[ContainerStatus] | None = msgspec.field(default=None, name="--")
    init_container_statuses: list[ContainerStatus] | None = msgspec.field(default=None, name="---")


class _Pod(Pod):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus | None = None


_envelopes = msgspec.json.Decoder(_Envelope)
_kinds = msgspec.json.Decoder(_Kinded)
_nodes = msgspec.json.Decoder(Node)
_pods = msgspec.json.Decoder(_Pod)

_HEAD = re.compile(rb'\s*\{\s*(?:"apiVersion"\s*:\s*"[^"\\]*"\s*,\s*)?"kind"\s*:\s*"([^"\\]*)"')
"""How kubectl begins an object; others take the slower way to their kind."""


@dataclass(slots=True)
class Objects:
    """What of a cluster's objects matters here."""

    nodes: list[Node] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    """Pods that may ask for GPU memory; all others have been passed over."""
    pods_seen: int = 0
    """All pods, those passed over included."""

    def add(self, other: "Objects") -> None:
        self.nodes.extend(other.nodes)
        self.pods.extend(other.pods)
        self.pods_seen += other.pods_seen


def decode_json(source: str, data: bytes | msgspec.Raw) -> Objects:
    """The objects in a JSON document: a `List`, a `PodList` or `NodeList`, or a single object.

    source   what to call it in an error

    Kinds other than Node and Pod are passed over. Raises InspectError for text that is no JSON, or
    an object whose fields have the wrong types.
    """
    try:
        envelope = _envelopes.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InspectError(f"{source} cannot be read: {error}") from None
    objects = Objects()
    if envelope.items is None:
        _add_json(objects, envelope.kind, [data], source)
        return objects
    of_one_kind = envelope.kind.removesuffix("List")
    if of_one_kind:
        _add_json(objects, of_one_kind, envelope.items, source)
        return objects
    for number, item in enumerate(envelope.items, 1):
        _add_json(objects, _kind(item), [item], f"{source}, item {number}")
    return objects


def decode_plain(source: str, document: object) -> Objects:
    """The same from plain dicts and lists, as YAML is loaded."""
    objects = Objects()
    if not isinstance(document, dict):
        raise InspectError(
            f"{source} is no Kubernetes object; make a dump with kubectl get nodes,pods -A -o json"
        )
    items = document.get("items")
    kind = str(document.get("kind") or "")
    if not isinstance(items, list):
        _add_plain(objects, kind, document, source)
        return objects
    for number, item in enumerate(items, 1):
        own = item.get("kind") if isinstance(item, dict) else None
        _add_plain(objects, str(own or kind.removesuffix("List")), item, f"{source}, item {number}")
    return objects


def _kind(item: msgspec.Raw) -> str:
    head = _HEAD.match(memoryview(item))
    if head is not None:
        return head[1].decode(errors="replace")
    try:
        return _kinds.decode(item).kind
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""


def _add_json(
    objects: Objects, kind: str, items: Iterable[bytes | msgspec.Raw], source: str
) -> None:
    if kind == "Node":
        objects.nodes.extend(_decoded(_nodes, items, source))
    elif kind == "Pod":
        items = list(items)
        objects.pods_seen += len(items)
        objects.pods.extend(_decoded(_pods, filter(_asks, items), source))


def _decoded(
    decoder: "msgspec.json.Decoder[_Kind]", items: Iterable[bytes | msgspec.Raw], source: str
) -> Iterator[_Kind]:
    for item in items:
        try:
            yield decoder.decode(item)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InspectError(f"{source}{_name(item)}: {error}") from None


def _name(item: bytes | msgspec.Raw) -> str:
    """ " (default/web-0)", as far as it can be told."""
    try:
        metadata = msgspec.json.decode(item).get("metadata", {})
        named = "/".join(str(metadata[key]) for key in ("namespace", "name") if key in metadata)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, AttributeError, TypeError):
        return ""
    return f" ({named})" if named else ""


def _add_plain(objects: Objects, kind: str, item: Any, source: str) -> None:
    try:
        if kind == "Node":
            objects.nodes.append(msgspec.convert(item, Node))
        elif kind == "Pod":
            objects.pods.append(msgspec.convert(item, Pod))
            objects.pods_seen += 1
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InspectError(f"{source}: {error}") from None
