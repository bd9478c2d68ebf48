"""Which container has which device ids: what the node's sources say, in one shape."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """Device ids of one resource that a container has."""

    container: str
    ids: frozenset[str]
    uid: str | None = None
    """The pod's UID; None where the source does not know it."""
    namespace: str = ""
    pod: str = ""
    """Namespace and name; empty where the source knows the UID."""
    resource: str = ""
    """Of which resource they are."""


class SourceUnavailable(Exception):
    """A source could not be asked, or its answer not be read; the text says which and why."""
