"""Listing a kind of object, page by page, as of one moment.

The first page fixes the moment (a resource version); the continue token of each page leads to the
next one of the same moment. Tokens expire when etcd forgets that moment (410 in the middle): the
pages got so far are void then, and the list starts again, the last time in one piece, which cannot
expire. No `resourceVersion` is given: the list is current, not possibly older from a cache, so that
state never goes back in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from gpushare.kube.connection import Connection
from gpushare.kube.errors import Gone, Malformed, TimedOut
from gpushare.kube.objects import ApiStruct, ListMeta
from gpushare.kube.resources import ALL, KubeObject, Resource, Selector

T = TypeVar("T", bound=KubeObject)
Item = TypeVar("Item")

PAGE_SIZE = 500
"""Objects per page, as in kubectl and client-go: a few MB, decoded in some 10 ms."""
PAGE_TIMEOUT_S = 30.0
"""Per page: the API server's own limit for a list is 60 s."""


class Page(ApiStruct, Generic[Item]):
    """A List object."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[Item] | None = None


@dataclass(frozen=True)
class Listing(Generic[T]):
    """All objects selected, and the resource version they are the state of."""

    items: list[T]
    resource_version: str


def page_sizes(page_size: int = PAGE_SIZE) -> tuple[int, ...]:
    """The page sizes of one try after the other; 0 is everything in one piece."""
    return (page_size, 0)


async def list_pages(
    connection: Connection,
    resource: Resource[T],
    selector: Selector = ALL,
    *,
    page_size: int = PAGE_SIZE,
    timeout_s: float = PAGE_TIMEOUT_S,
) -> AsyncIterator[Page[T]]:
    """The pages of one list; `timeout_s` is per page.

    Raises: Gone when the continue token expired: what was yielded is void. As Connection.get.
    """
    decoder: msgspec.json.Decoder[Page[T]] = msgspec.json.Decoder(
        Page[resource.type]  # type: ignore[name-defined]
    )
    params = selector.params()
    if page_size:
        params["limit"] = str(page_size)
    while True:
        answer = await connection.request("GET", resource.path, params=params, timeout_s=timeout_s)
        try:
            page = decoder.decode(answer)
        except msgspec.DecodeError as error:
            raise Malformed(f"GET {resource.path}: a list that cannot be read: {error}") from error
        if not page.metadata.resource_version:
            raise Malformed(f"GET {resource.path}: a list without a resourceVersion")
        yield page
        if not page.metadata.continue_:
            return
        params["continue"] = page.metadata.continue_


async def list_all(
    connection: Connection,
    resource: Resource[T],
    selector: Selector = ALL,
    *,
    page_size: int = PAGE_SIZE,
    timeout_s: float = PAGE_TIMEOUT_S,
) -> Listing[T]:
    """One fresh, consistent list, within `timeout_s` in all.

    For who cannot wait for a watch to catch up: `list_all(connection, PODS,
    Selector(fields="spec.nodeName=n1"), timeout_s=2)`.

    Raises: TimedOut, and as Connection.get.
    """
    try:
        async with asyncio.timeout(timeout_s):
            for size in page_sizes(page_size):
                items: list[T] = []
                try:
                    async for page in list_pages(
                        connection, resource, selector, page_size=size, timeout_s=timeout_s
                    ):
                        items += page.items or ()
                except Gone:
                    if not size:
                        raise
                else:
                    return Listing(items, page.metadata.resource_version)
    except TimeoutError as error:
        raise TimedOut(
            f"GET {resource.path}{selector}: no full list within {timeout_s:g} s"
        ) from error
    raise AssertionError("the list in one piece returns or raises")
