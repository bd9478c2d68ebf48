"""Where a pod may go by its own rules: nodeSelector, required node affinity, taints.

The rules are kube-scheduler's (plugins NodeUnschedulable, TaintToleration, NodeAffinity):

* every pair of `nodeSelector` must be a label of the node;
* of the affinity's terms one must match; a term matches if all its expressions do; an empty term,
  and an empty list of terms, matches nothing. `NotIn` and `DoesNotExist` match a node without the
  key, `Gt` and `Lt` compare whole numbers;
* every taint `NoSchedule` or `NoExecute` must be tolerated; a cordoned node counts as tainted
  `node.kubernetes.io/unschedulable:NoSchedule`.

`Constraints` are compiled once per pod and hashable: pods of equal constraints are one question.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpushare.kube.objects import Taint
from gpushare.simulate.objects import NodeSelectorTerm, Requirement, SimPodSpec

HOSTNAME = "kubernetes.io/hostname"

_UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_HOLDING_EFFECTS = ("NoSchedule", "NoExecute")

Expression = tuple[str, str, tuple[str, ...]]
"""(key, operator, values)."""

Tolerated = tuple[str, str, str, str]
"""(key, operator, value, effect)."""

Obstacle = Literal["cordoned", "taint", "selector", "affinity"]


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a pod's spec says about nodes."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[tuple[Expression, ...], tuple[Expression, ...]], ...] | None = None
    """Per term its expressions over labels and over fields; None where no affinity is required."""
    tolerations: tuple[Tolerated, ...] = ()

    @property
    def named_nodes(self) -> frozenset[str] | None:
        """The only nodes that can match, where every term names one (as a DaemonSet's pod does);
        None where that cannot be told at a glance."""
        if not self.terms:
            return None
        named: set[str] = set()
        for _, fields in self.terms:
            values = next((values for _, operator, values in fields if operator == "In"), None)
            if values is None:
                return None
            named.update(values)
        return frozenset(named)


@dataclass(frozen=True, slots=True)
class NodeFace:
    """What constraints look at."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool


def compile_constraints(spec: SimPodSpec) -> Constraints:
    """The constraints of a pod's spec."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required if affinity else None
    return Constraints(
        selector=tuple(sorted((spec.node_selector or {}).items())),
        terms=tuple(_term(term) for term in required.node_selector_terms or ())
        if required
        else None,
        tolerations=tuple(
            (t.key or "", t.operator or "Equal", t.value or "", t.effect or "")
            for t in spec.tolerations or ()
        ),
    )


def _term(term: NodeSelectorTerm) -> tuple[tuple[Expression, ...], tuple[Expression, ...]]:
    return _expressions(term.match_expressions), _expressions(term.match_fields)


def _expressions(requirements: list[Requirement] | None) -> tuple[Expression, ...]:
    return tuple((r.key, r.operator, tuple(r.values or ())) for r in requirements or ())


def obstacle(constraints: Constraints, node: NodeFace) -> Obstacle | None:
    """What keeps a pod off a node, or None."""
    if node.unschedulable and not _tolerates(constraints, _UNSCHEDULABLE):
        return "cordoned"
    if untolerated(constraints, node) is not None:
        return "taint"
    if any(node.labels.get(key) != value for key, value in constraints.selector):
        return "selector"
    if constraints.terms is not None and not any(
        _matches(term, node) for term in constraints.terms
    ):
        return "affinity"
    return None


def untolerated(constraints: Constraints, node: NodeFace) -> Taint | None:
    """The first taint of a node that keeps the pod off."""
    for taint in node.taints:
        if taint.effect in _HOLDING_EFFECTS and not _tolerates(constraints, taint):
            # the node controller taints a cordoned node; its flag says the same
            if taint.key == _UNSCHEDULABLE.key and node.unschedulable:
                continue
            return taint
    return None


def _tolerates(constraints: Constraints, taint: Taint) -> bool:
    return any(_one_tolerates(toleration, taint) for toleration in constraints.tolerations)


def _one_tolerates(toleration: Tolerated, taint: Taint) -> bool:
    """kube-scheduler's ToleratesTaint; `Gt` and `Lt` as in Kubernetes 1.35 and newer: the taint's
    number is greater (less) than the toleration's."""
    key, operator, value, effect = toleration
    if (effect and effect != taint.effect) or (key and key != taint.key):
        return False
    if operator == "Exists":
        return True
    if operator == "Equal":
        return value == (taint.value or "")
    return _compares(taint.value or "", operator, value)


def _matches(term: tuple[tuple[Expression, ...], tuple[Expression, ...]], node: NodeFace) -> bool:
    labels, fields = term
    if not labels and not fields:
        return False
    return all(holds(expression, node.labels) for expression in labels) and all(
        holds(expression, {"metadata.name": node.name}) for expression in fields
    )


def holds(expression: Expression, values: Mapping[str, str]) -> bool:
    """Whether an expression holds over a map of labels or fields."""
    key, operator, wanted = expression
    value = values.get(key)
    if operator == "In":
        return value in wanted
    if operator == "NotIn":
        return value not in wanted
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    return value is not None and len(wanted) == 1 and _compares(value, operator, wanted[0])


def _compares(left: str, operator: str, right: str) -> bool:
    """left > right (Gt) or left < right (Lt) as whole numbers; False where one is none."""
    a, b = _integer(left), _integer(right)
    if a is None or b is None:
        return False
    return a > b if operator == "Gt" else operator == "Lt" and a < b


def _integer(text: str) -> int | None:
    digits = text.removeprefix("-").removeprefix("+")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 19:
        return None
    try:
        return int(text)
    except ValueError:
        return None
