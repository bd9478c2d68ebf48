"""Decisions: pure functions of (a node's books, a request).

binpack, spread  which GPU of a node: an order of preference each
fit              whether and where a request fits on a node, or why not
rank             which node of those that fit
survey           the best of all nodes for one question, kept current (the simulator)
verdicts         all nodes' answers to one question, kept current (the extender)
promises         nominated pods count on their node
preempt          whether evicting would make room on a GPU

**Adding a GPU policy**: write a module with `preference` like binpack's, and name it here.
"""

from collections.abc import Mapping
from typing import Final

from gpushare.policy import binpack, spread
from gpushare.policy.preference import Preference

DEFAULT_GPU_POLICY: Final = "binpack"

GPU_POLICIES: Final[Mapping[str, Preference]] = {
    "binpack": binpack.preference,
    "spread": spread.preference,
}
"""Value of the node label `ack.node.gpu.placement` -> the order in which GPUs are preferred."""

OWNER_BLIND: Final = frozenset({"binpack"})
"""Policies whose preference does not look at the owner: their answers serve every owner. One that
is missing here is only slower."""
