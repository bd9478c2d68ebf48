"""Pytest fixtures for tests on the real node; pytest_plugin.py takes them in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster


@pytest.fixture(scope="session")
def node_cluster(cluster: Cluster, request: pytest.FixtureRequest) -> Cluster:
    """The session's cluster with a real node, which then stays."""
    from gpushare_testcluster.errors import CannotRun

    if cluster.state.real_nodes():
        return cluster
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None
    try:
        with capture.global_and_fixture_disabled():
            cluster.reset()
            cluster.start_node()
    except CannotRun as error:
        pytest.skip(str(error))
    return cluster


@pytest.fixture
def clean_node(node_cluster: Cluster) -> Cluster:
    """The session's cluster with its real node: no pods, extender and device plugin stopped.

    The node is `clean_node.node`.
    """
    node_cluster.stop_extender(hard=True)
    node_cluster.reset()
    return node_cluster
