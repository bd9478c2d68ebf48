"""JSON, or what YAML was loaded to -> nodes and pods.

One pass over the bytes, straight into the fields that are needed. Measured on 10,000 pods of 5 KB:
to take the list apart first (`msgspec.Raw`) and to decode only the pods in whose bytes one of our
resources occurs is no faster where few pods ask for GPU memory, and takes twice as long where all
do. A list that also holds other kinds, or an object with a field of the wrong type, goes the slower
way, item by item.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from gpushare.inspect.errors import InspectError
from gpushare.kube.objects import (
    Condition,
    Container,
    ContainerStatus,
    EnvVar,
    Node,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
)

_Kind = TypeVar("_Kind", Node, Pod)

_Unreadable = (msgspec.MsgspecError, UnicodeError, RecursionError)


# --- What is decoded ----------------------------------------------------------------------------

# Pods without the fields that only other programs read: under a name that no object has, a field is
# skipped, at a third less for the whole pod.


class _Meta(ObjectMeta):
    resource_version: str = msgspec.field(default="", name="-")
    generate_name: str = msgspec.field(default="", name="--")
    creation_timestamp: str | None = msgspec.field(default=None, name="---")


class _Container(Container):
    env: list[EnvVar] | None = msgspec.field(default=None, name="-")


class _PodSpec(PodSpec):
    containers: list[_Container] = []  # type: ignore[assignment]  # noqa: RUF012 (msgspec copies it)
    init_containers: list[_Container] | None = None  # type: ignore[assignment]


class _PodStatus(PodStatus):
    conditions: list[Condition] | None = msgspec.field(default=None, name="-")
    container_statuses: list[ContainerStatus] | None = msgspec.field(default=None, name="--")
    init_container_statuses: list[ContainerStatus] | None = msgspec.field(default=None, name="---")


class _Pod(Pod, tag="Pod", tag_field="kind"):
    metadata: _Meta
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus | None = None


class _Node(Node, tag="Node", tag_field="kind"):
    pass


class _Mixed(msgspec.Struct):
    """What `kubectl get nodes,pods` prints: every item says its kind."""

    items: list[_Pod | _Node]


class _Pods(msgspec.Struct):
    """What the API server answers: no item says its kind."""

    items: list[_Pod] | None = None


class _Nodes(msgspec.Struct):
    items: list[Node] | None = None


class _Envelope(msgspec.Struct):
    """A list of objects, or one object."""

    kind: str = ""
    items: list[msgspec.Raw] | None = None


class _Kinded(msgspec.Struct):
    kind: str = ""


_mixed_list = msgspec.json.Decoder(_Mixed)
_pod_list = msgspec.json.Decoder(_Pods)
_node_list = msgspec.json.Decoder(_Nodes)
_envelope = msgspec.json.Decoder(_Envelope)
_kinded = msgspec.json.Decoder(_Kinded)
_node: msgspec.json.Decoder[Node] = msgspec.json.Decoder(Node)
_pod: msgspec.json.Decoder[Pod] = msgspec.json.Decoder(_Pod)


@dataclass(slots=True)
class Objects:
    """A cluster's objects, as far as they matter here."""

    nodes: list[Node] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)

    def add(self, other: "Objects") -> None:
        self.nodes.extend(other.nodes)
        self.pods.extend(other.pods)


def decode_nodes(source: str, data: bytes) -> Objects:
    """The nodes in the API server's answer; `source` is what to call it in an error.

    Raises InspectError.
    """
    try:
        return Objects(nodes=_node_list.decode(data).items or [])
    except _Unreadable:
        return decode_json(source, data)  # which says where


def decode_pods(source: str, data: bytes) -> Objects:
    """The pods in the API server's answer. Raises InspectError."""
    try:
        return Objects(pods=[*(_pod_list.decode(data).items or ())])
    except _Unreadable:
        return decode_json(source, data)


def decode_json(source: str, data: bytes) -> Objects:
    """The objects in a JSON document: a `List`, a `PodList` or `NodeList`, or a single object.

    source   what to call it in an error

    Kinds other than Node and Pod are passed over. Raises InspectError for text that is no JSON, or
    an object whose fields have the wrong types.
    """
    try:
        items = _mixed_list.decode(data).items
    except _Unreadable:
        return _item_by_item(source, data)
    objects = Objects()
    for item in items:
        if type(item) is _Pod:
            objects.pods.append(item)
        else:
            assert isinstance(item, _Node)
            objects.nodes.append(item)
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


def _item_by_item(source: str, data: bytes) -> Objects:
    try:
        envelope = _envelope.decode(data)
    except _Unreadable as error:
        raise InspectError(f"{source} cannot be read: {error}") from None
    objects = Objects()
    if envelope.items is None:
        _add_json(objects, envelope.kind, data, source)
        return objects
    of_one_kind = envelope.kind.removesuffix("List")
    for number, item in enumerate(envelope.items, 1):
        try:
            kind = _kinded.decode(item).kind or of_one_kind
        except _Unreadable:
            kind = ""  # not even an object
        _add_json(objects, kind, item, f"{source}, item {number}")
    return objects


def _add_json(objects: Objects, kind: str, item: bytes | msgspec.Raw, source: str) -> None:
    try:
        if kind == "Node":
            objects.nodes.append(_node.decode(item))
        elif kind == "Pod":
            objects.pods.append(_pod.decode(item))
    except _Unreadable as error:
        raise InspectError(f"{source}{_name(item)}: {error}") from None


def _name(item: bytes | msgspec.Raw) -> str:
    """ " (default/web-0)", as far as it can be told."""
    try:
        metadata = msgspec.json.decode(item).get("metadata", {})
        named = "/".join(str(metadata[key]) for key in ("namespace", "name") if key in metadata)
    except (*_Unreadable, AttributeError, TypeError):
        return ""
    return f" ({named})" if named else ""


def _add_plain(objects: Objects, kind: str, item: Any, source: str) -> None:
    try:
        if kind == "Node":
            objects.nodes.append(msgspec.convert(item, Node))
        elif kind == "Pod":
            objects.pods.append(msgspec.convert(item, Pod))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InspectError(f"{source}: {error}") from None
