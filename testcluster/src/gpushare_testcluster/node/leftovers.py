"""What `down` does about a node once the cluster's recorded and marked processes are gone.

Containers carry no mark; they are found by the node's cgroup. Mounts need nothing done: they went
with the last process of the node's mount namespace.
"""

from __future__ import annotations

from gpushare_testcluster.node import cgroups
from gpushare_testcluster.node.layout import Layout
from gpushare_testcluster.state import StateDir


def clear(state: StateDir) -> None:
    """Ends the containers and removes the cgroup. Raises TestClusterError when that fails."""
    layout = Layout(state)
    if layout.exists():
        cgroups.remove(layout.facts().cgroup)
