"""A real Kubernetes on loopback, for tests and demos of gpushare.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the real ones, built once
from pinned Go modules; nodes are either fake (`Cluster.add_node`) or one real kubelet.

    from gpushare_testcluster import Cluster

    with Cluster.start() as cluster:
        cluster.add_node("n1", gpus=[15, 15])
        cluster.kubectl("get", "nodes")
"""

from gpushare_testcluster.api import Api, ApiError
from gpushare_testcluster.cluster import Cluster
from gpushare_testcluster.errors import CannotRun, TestClusterError, TimedOut
from gpushare_testcluster.waiting import wait_for

__all__ = ["Api", "ApiError", "CannotRun", "Cluster", "TestClusterError", "TimedOut", "wait_for"]
