"""A document -> typed objects, or an error that names the field and what would be right.

`List` objects (and `PodList`, `NodeList`, whose items carry no kind of their own) are unpacked. A
value of the wrong type is found again in the plain document, because msgspec says only where it is.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from gpushare.simulate.errors import InputError
from gpushare.simulate.faults import Item, translated
from gpushare.simulate.source import Document

T = TypeVar("T")

MAX_LIST_DEPTH = 4
"""Lists in lists; kubectl writes one."""

MAX_OBJECTS = 2_000_000


class _Head(msgspec.Struct, rename="camel"):
    kind: str | None = None
    api_version: str | None = None


class _RawList(_Head):
    items: list[msgspec.Raw] | None = None


class _PlainList(_Head):
    items: list[Any] | None = None


def unpack(documents: list[Document]) -> list[Item]:
    """Every API object of the documents, lists opened. Raises InputError."""
    items: list[Item] = []
    for document in documents:
        for item in _open(Item(document, (), "", "", document.content), 0):
            items.append(item)
            if len(items) > MAX_OBJECTS:
                raise InputError(f"{document.file}: more than {MAX_OBJECTS:,} objects")
    return items


def _open(item: Item, depth: int) -> Iterator[Item]:
    head = _decode_head(item)
    kind, api_version = head.kind or item.kind, head.api_version or item.api_version
    named = Item(item.document, item.path, kind, api_version, item.content)
    if not kind:
        raise InputError(
            f"{named.where}: `kind` is missing, so this is no Kubernetes object; "
            "give manifests, or the output of kubectl get nodes,pods -A -o json"
        )
    inner = kind.removesuffix("List")
    if inner == kind or (inner and head.items is None):
        yield named
        return
    if depth == MAX_LIST_DEPTH:
        raise InputError(f"{named.where}: a List in a List, {depth} deep; flatten it")
    for number, content in enumerate(head.items or ()):
        child = Item(
            item.document,
            (*item.path, "items", number),
            inner,
            api_version if inner else "",
            content,
        )
        yield from _open(child, depth + 1)


def _decode_head(item: Item) -> _RawList | _PlainList:
    try:
        if isinstance(item.content, msgspec.Raw):
            return msgspec.json.decode(item.content, type=_RawList)
        return msgspec.convert(item.content, type=_PlainList)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise translated(item, error) from None


def decode(item: Item, type_: type[T]) -> T:
    """The object as `type_`. Raises InputError."""
    try:
        if isinstance(item.content, msgspec.Raw):
            return msgspec.json.decode(item.content, type=type_)
        return msgspec.convert(item.content, type=type_)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise translated(item, error) from None
