"""Names of things in the API: kinds that are listed and watched, objects, and their paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from gpushare.kube.errors import InvalidName
from gpushare.kube.objects import Node, ObjectMeta, Pod

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class KubeObject(Protocol):
    """What the reflector needs to know of an object: who it is and which version."""

    metadata: ObjectMeta


class Ref(msgspec.Struct, frozen=True, gc=False):
    """Who an object is, and which version of it we know."""

    uid: str
    namespace: str
    name: str
    resource_version: str

    @classmethod
    def of(cls, meta: ObjectMeta) -> Ref:
        return cls(meta.uid, meta.namespace, meta.name, meta.resource_version)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True)
class Resource(Generic[T]):
    """A kind of object: its collection's path, and the Struct its objects are decoded into."""

    path: str
    type: type[T]

    @property
    def name(self) -> str:
        """The plural, as in RBAC rules and kubectl: "pods"."""
        return self.path.rpartition("/")[2]


PODS = Resource("/api/v1/pods", Pod)
NODES = Resource("/api/v1/nodes", Node)


@dataclass(frozen=True)
class Selector:
    """Which objects of a kind: the API server's selectors, None for all.

    `Selector(fields="spec.nodeName=n1")` is one node's pods, `Selector(fields="metadata.name=n1")`
    one object.
    """

    fields: str | None = None
    labels: str | None = None

    def params(self) -> dict[str, str]:
        """As query parameters."""
        return {
            **({"fieldSelector": self.fields} if self.fields else {}),
            **({"labelSelector": self.labels} if self.labels else {}),
        }

    def __str__(self) -> str:
        given = [text for text in (self.fields, self.labels) if text]
        return f" ({', '.join(given)})" if given else ""


ALL = Selector()


def checked_name(name: str) -> str:
    """`name`, if it can be the name of an object (a DNS subdomain), so safe inside a URL.

    Raises: InvalidName.
    """
    if not _NAME.fullmatch(name):
        raise InvalidName(f"{name[:80]!r} cannot be the name of a Kubernetes object")
    return name


def pod_path(namespace: str, name: str) -> str:
    """The path of one pod. Raises: InvalidName."""
    return f"/api/v1/namespaces/{checked_name(namespace)}/pods/{checked_name(name)}"


def node_path(name: str) -> str:
    """The path of one node. Raises: InvalidName."""
    return f"/api/v1/nodes/{checked_name(name)}"
