"""The rules of the roles in deploy/, and how one is taken away on the test cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from gpushare_testcluster import deploying

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

Object = dict[str, Any]

ROLES = ("ClusterRole", "Role")


class Rule(NamedTuple):
    """One verb on one resource, granted by one role."""

    role: str
    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        where = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.role}: {self.verb} {where}"

    @property
    def refusal(self) -> str:
        """What the API server says to an account without it."""
        return f'cannot {self.verb} resource "{self.resource}"'


def roles() -> list[Object]:
    """The roles of deploy/."""
    deploy = deploying.find_deploy_dir()
    return [obj for obj in deploying.manifests(deploy) if obj["kind"] in ROLES]


def rules_of(role: Object) -> Iterator[Rule]:
    for rule in role["rules"]:
        for group, resource, verb in itertools.product(
            rule["apiGroups"], rule["resources"], rule["verbs"]
        ):
            yield Rule(role["metadata"]["name"], group, resource, verb)


def take_away(cluster: Cluster, taken: Rule) -> None:
    """Replaces a role by one with all its rules but one; `restore_identities` puts it back."""
    role = cluster.admin.get("clusterroles", taken.role)
    role["rules"] = [
        {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": [rule.verb]}
        for rule in rules_of(role)
        if rule != taken
    ]
    cluster.admin.replace(role)
