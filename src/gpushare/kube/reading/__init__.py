"""API objects -> the model: what a node has, what a pod asks for, where its annotations put it.

Pure functions. What a user or a cluster got wrong never stops the reading: it becomes a `Problem`
beside a safe reading (a typo in a label falls back as CONTRACT says, an unreadable assignment
leaves the pod unattributed). The one exception is a pod's request, where no reading is safe: it
raises RequestError and the caller decides.

nodes  a Node object -> what the node has
pods   a Pod object -> what it asks for, and where its annotations put it
"""

from gpushare.kube.reading.nodes import (
    NodeReading,
    equal_gpus,
    offers_gpu_memory,
    read_mode,
    read_node,
)
from gpushare.kube.reading.pods import (
    asks_for_gpu_memory,
    is_finished,
    read_assignment,
    read_assume_time_ns,
    read_bound_pod,
    read_owner,
    read_record,
    read_request,
)
from gpushare.kube.reading.problem import Problem

__all__ = [
    "NodeReading",
    "Problem",
    "asks_for_gpu_memory",
    "equal_gpus",
    "is_finished",
    "offers_gpu_memory",
    "read_assignment",
    "read_assume_time_ns",
    "read_bound_pod",
    "read_mode",
    "read_node",
    "read_owner",
    "read_record",
    "read_request",
]
