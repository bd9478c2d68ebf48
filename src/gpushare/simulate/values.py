"""What a manifest may not hold: values the API server refuses, and placeholders.

Each check yields `Fault`s: the field, its value, what would be right. The intake turns the first of
an object into an InputError. In an object that came from a live cluster an amount that cannot be
used makes that one pod unschedulable instead, because the rest of a dump is still worth having.

An amount beyond MAX_UNITS is refused too, although the API server takes it: `10Gi` is
10,737,418,240 units, and whoever writes it means 10.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from gpushare.contract import names
from gpushare.contract.quantity import QuantityError, RawQuantity, parse, whole
from gpushare.kube.objects import Container, ObjectMeta, Quantities
from gpushare.simulate.objects import Requirement, SimPodSpec, Toleration

MAX_UNITS = 2**20
"""More than any node has, whatever the unit; what is larger was meant as bytes."""

OURS = (names.RESOURCE_MEM, names.RESOURCE_CORE, names.RESOURCE_COUNT)


class Fault(NamedTuple):
    """A field (a path), what it holds, and what would be right."""

    field: str
    value: object
    message: str


# --- Amounts ------------------------------------------------------------------------------------


def amount_faults(spec: SimPodSpec) -> Iterator[Fault]:
    """Amounts of any resource that cannot be used."""
    for path, containers in (
        ("spec.initContainers", spec.init_containers or ()),
        ("spec.containers", spec.containers),
    ):
        for index, container in enumerate(containers):
            yield from _container_faults(f"{path}[{index}].resources", container)
    yield from _quantity_faults("spec.overhead", spec.overhead)
    if spec.resources is not None:
        yield from _quantity_faults("spec.resources.requests", spec.resources.requests)


def _container_faults(path: str, container: Container) -> Iterator[Fault]:
    resources = container.resources
    if resources is None:
        return
    limits, requests = resources.limits or {}, resources.requests or {}
    yield from _quantity_faults(f"{path}.limits", limits)
    yield from _quantity_faults(f"{path}.requests", requests)
    for resource in OURS:
        if resource not in requests:
            continue
        if resource not in limits:
            yield Fault(
                f"{path}.requests[{resource}]",
                requests[resource],
                "it needs a limit too: write it under limits, requests follow by themselves",
            )
        elif whole(requests[resource]) != whole(limits[resource]):
            yield Fault(
                f"{path}.requests[{resource}]",
                requests[resource],
                f"it must equal the limit, {limits[resource]}: leave it out",
            )


def _quantity_faults(path: str, quantities: Quantities | None) -> Iterator[Fault]:
    for resource, value in (quantities or {}).items():
        message = _amount_problem(resource, value)
        if message is not None:
            yield Fault(f"{path}[{resource}]", value, message)


@lru_cache(maxsize=4096, typed=True)
def _amount_problem(resource: str, value: RawQuantity) -> str | None:
    """What is wrong with an amount, or None."""
    try:
        if resource in OURS:
            units = whole(value)
            if units <= MAX_UNITS:
                return None
            number = re.match(r"\d+(?=[A-Za-z])", str(value))
            cure = f": write {number[0]}" if number else ", no bytes"
            return f"that is {units} units; amounts are whole units of GPU memory{cure}"
        if parse(value) < 0:
            return "it is negative; ask for 0 or more"
    except QuantityError as error:
        shown, _, rest = str(error).partition(" is ")
        return f"that is {rest}" if rest else shown
    return None


def amount_of_nothing(spec: SimPodSpec) -> bool:
    """Whether a pod names GPU memory and asks for 0 of it; its amounts must be sound."""
    amounts = [
        whole(limits[names.RESOURCE_MEM])
        for container in (*(spec.init_containers or ()), *spec.containers)
        if container.resources is not None
        and (limits := container.resources.limits or {})
        and names.RESOURCE_MEM in limits
    ]
    return bool(amounts) and not any(amounts)


# --- Where a pod may go -------------------------------------------------------------------------

_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_PLACEHOLDER = re.compile(
    r"<[^<>]*>|\$\{[^{}]*\}|\$\(\w+\)|\$\w+|\{\{.*\}\}|%\w+%|(?i:replace|change)[-_ ]?me"
)

_SET_OPERATORS = ("In", "NotIn")
_EXISTENCE_OPERATORS = ("Exists", "DoesNotExist")
_NUMBER_OPERATORS = ("Gt", "Lt")


def is_placeholder(value: str) -> bool:
    """Whether a value is one that its author meant to be replaced: `<NODE_NAME>`, `${NODE}`."""
    return _PLACEHOLDER.fullmatch(value.strip()) is not None


def place_faults(spec: SimPodSpec, nodes: list[str]) -> Iterator[Fault]:
    """nodeName, nodeSelector, affinity and tolerations that the API server would refuse; `nodes`
    are the names there are, to offer instead of a placeholder."""
    if spec.node_name and is_placeholder(spec.node_name):
        yield Fault("spec.nodeName", spec.node_name, _instead(nodes))
    for key, value in (spec.node_selector or {}).items():
        field = f"spec.nodeSelector[{key}]"
        if is_placeholder(value):
            yield Fault(field, value, _instead(nodes))
        elif not _LABEL_VALUE.fullmatch(value):
            yield Fault(field, value, "that can be no label's value")
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required if affinity else None
    base = (
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        ".nodeSelectorTerms"
    )
    for number, term in enumerate((required.node_selector_terms if required else None) or ()):
        for name, requirements in (
            ("matchExpressions", term.match_expressions),
            ("matchFields", term.match_fields),
        ):
            for index, requirement in enumerate(requirements or ()):
                field = f"{base}[{number}].{name}[{index}]"
                yield from _requirement_faults(field, requirement, nodes, name == "matchFields")
    for index, toleration in enumerate(spec.tolerations or ()):
        yield from _toleration_faults(f"spec.tolerations[{index}]", toleration)


def _instead(nodes: list[str]) -> str:
    some = ", ".join(nodes[:10]) + (f", … ({len(nodes)} in all)" if len(nodes) > 10 else "")
    return f"that is a placeholder: put a node's name there. Nodes: {some or 'none in the input'}"


def _requirement_faults(
    field: str, requirement: Requirement, nodes: list[str], fields: bool
) -> Iterator[Fault]:
    operator, values = requirement.operator, requirement.values or []
    for number, value in enumerate(values):
        if is_placeholder(value):
            yield Fault(f"{field}.values[{number}]", value, _instead(nodes))
    if fields:
        if requirement.key != "metadata.name":
            yield Fault(f"{field}.key", requirement.key, "only metadata.name can be matched")
        if operator not in _SET_OPERATORS:
            yield Fault(f"{field}.operator", operator, "use In or NotIn")
        elif len(values) != 1:
            yield Fault(f"{field}.values", values, "exactly one name is needed")
    elif operator in _SET_OPERATORS:
        if not values:
            yield Fault(f"{field}.values", values, f"{operator} needs at least one value")
    elif operator in _EXISTENCE_OPERATORS:
        if values:
            yield Fault(f"{field}.values", values, f"{operator} takes none; leave them out")
    elif operator in _NUMBER_OPERATORS:
        if len(values) != 1 or not re.fullmatch(r"[+-]?\d{1,19}", values[0], re.ASCII):
            yield Fault(f"{field}.values", values, f"{operator} needs one whole number")
    else:
        known = (*_SET_OPERATORS, *_EXISTENCE_OPERATORS, *_NUMBER_OPERATORS)
        yield Fault(f"{field}.operator", operator, f"use one of {', '.join(known)}")


def _toleration_faults(field: str, toleration: Toleration) -> Iterator[Fault]:
    operator, effect = toleration.operator, toleration.effect
    if operator and operator not in ("Exists", "Equal", "Gt", "Lt"):
        yield Fault(f"{field}.operator", operator, "use one of Exists, Equal, Gt, Lt")
    elif not toleration.key and operator != "Exists":
        yield Fault(f"{field}.operator", operator, "without a key it must be Exists")
    if effect and effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        yield Fault(f"{field}.effect", effect, "use one of NoSchedule, PreferNoSchedule, NoExecute")


def name_faults(metadata: ObjectMeta, *, generated: bool) -> Iterator[Fault]:
    """A name that is missing or still a placeholder; `generated`: generateName will do."""
    if is_placeholder(metadata.name):
        yield Fault("metadata.name", metadata.name, "that is a placeholder: put a name there")
    elif not metadata.name and not (generated and metadata.generate_name):
        yield Fault("metadata.name", metadata.name or None, "every object needs a name")
