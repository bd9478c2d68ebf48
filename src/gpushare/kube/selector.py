"""Label selectors as kubectl's `-l` takes them (kubernetes.io/docs: labels and selectors).

    pool=a100,zone!=b     equality
    pool in (a100,h100)   sets, also `notin`
    pool                  the label is there; `!pool`: it is not

Requirements separated by commas must all hold.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_KEY = r"(?:[A-Za-z0-9][A-Za-z0-9.-]*/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9_.-]*"
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<absent>!)\s*(?P<gone>{_KEY})"
    rf"|(?P<key>{_KEY})\s*(?:(?P<equality>==|=|!=)\s*(?P<value>{_VALUE})"
    rf"|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|$)"
)


class SelectorError(ValueError):
    """A selector that cannot be read; the text says where and what would be right."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label: its value is, or is not, one of `values`.

    `values` None stands for any value at all.
    """

    key: str
    values: frozenset[str] | None
    wanted: bool

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it; a label that is not there has none of the values."""
        value = labels.get(self.key)
        found = value is not None and (self.values is None or value in self.values)
        return found is self.wanted


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements that must all hold; without any, everything is selected."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        return all(requirement.holds(labels or {}) for requirement in self.requirements)


def parse_selector(text: str) -> Selector:
    """The selector that `text` describes. Raises SelectorError."""
    requirements: list[Requirement] = []
    at = 0
    while at < len(text.rstrip()):
        match = _REQUIREMENT.match(text, at)
        if match is None:
            raise SelectorError(
                f"{text!r} is no label selector, from {text[at:].strip()!r} on; "
                "use e.g. pool=a100, pool!=a100, 'pool in (a100,h100)', pool or '!pool'"
            )
        requirements.append(_requirement(match))
        at = match.end()
    if text.rstrip().endswith(","):
        raise SelectorError(f"{text!r} ends in a comma; a requirement is missing behind it")
    return Selector(tuple(requirements))


def _requirement(match: re.Match[str]) -> Requirement:
    if match["absent"]:
        return Requirement(match["gone"], None, wanted=False)
    if match["equality"]:
        return Requirement(match["key"], frozenset({match["value"]}), match["equality"] != "!=")
    if match["set"]:
        values = frozenset(value.strip() for value in match["values"].split(","))
        return Requirement(match["key"], values, match["set"] == "in")
    return Requirement(match["key"], None, wanted=True)
