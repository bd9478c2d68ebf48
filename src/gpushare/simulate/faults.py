"""What is wrong with an object, said so that its author can mend it.

Every message names the file, the document in it, the line (YAML), the object, the field and its
value, and says what would be right. Fields are paths as people write them:
`spec.containers[0].resources.limits[aliyun.com/gpu-mem]`.

msgspec says where a value of the wrong type stands, but not which value, nor which key of a map
(`limits[...]`): it is looked up in the plain document.
"""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from gpushare.simulate.errors import InputError
from gpushare.simulate.source import Document, yaml_line

Path = list[str | int]
"""Steps from an object to a field: keys and list indexes."""


@dataclass(frozen=True, slots=True)
class Item:
    """One API object, not yet decoded. `path` leads to it in its document."""

    document: Document
    path: tuple[str | int, ...]
    kind: str
    api_version: str
    content: Any

    @property
    def where(self) -> str:
        """File and place, for messages: "dump.json, document 1, item 17"."""
        items = "".join(f", item {step + 1}" for step in self.path if isinstance(step, int))
        return f"{self.document.file}, document {self.document.number}{items}"

    @property
    def group(self) -> str:
        """API group: "" for the core's."""
        return self.api_version.rpartition("/")[0]

    def mentions(self, text: str) -> bool:
        """Whether a text occurs anywhere in the object."""
        content = self.content
        raw = bytes(content) if isinstance(content, msgspec.Raw) else repr(content).encode()
        return text.encode() in raw


def field_error(item: Item, field: str, value: object, message: str) -> InputError:
    """An InputError about a field of an object; `message` says what would be right."""
    path = parsed_path(field)
    return InputError(f"{place(item, path)}: {field} is {shown(value)}; {message}")


def place(item: Item, path: Path) -> str:
    """Where a field stands: file, document, line where that is known, kind and name."""
    line = None
    if not isinstance(item.content, msgspec.Raw):
        line = yaml_line(item.document, [*item.path, *path])
    plain = plain_content(item)
    metadata = plain.get("metadata") if isinstance(plain, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    named = f" ({item.kind} {name})" if item.kind and isinstance(name, str) and name else ""
    return f"{item.where}{f', line {line}' if line else ''}{named}"


def plain_content(item: Item) -> Any:
    """The object as dicts and lists; None where it cannot be decoded."""
    try:
        raw = isinstance(item.content, msgspec.Raw)
        return msgspec.json.decode(item.content) if raw else item.content
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def shown(value: object) -> str:
    """A value as a message shows it: as YAML or JSON would have it, and not too long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- Paths --------------------------------------------------------------------------------------

_STEP = re.compile(r"\[(?P<index>\d+)\]|\[(?P<key>[^\]]*)\]|(?P<name>[^.\[\]]+)")


def parsed_path(field: str) -> Path:
    """The steps of `spec.containers[0].limits[a.b/c]`."""
    return [
        int(match["index"]) if match["index"] else match["key"] or match["name"]
        for match in _STEP.finditer(field)
    ]


def shown_path(path: Path) -> str:
    """The reverse of `parsed_path`."""
    text = ""
    for step in path:
        if isinstance(step, int) or not re.fullmatch(r"[A-Za-z0-9_-]+", step):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


# --- What msgspec says --------------------------------------------------------------------------

_SAID = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$?(?P<path>[^`]*)`)?", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]*)`")

_NEEDED = {
    "str": "text is needed",
    "int": "a whole number is needed",
    "bool": "true or false is needed",
    "object": "a mapping (key: value) is needed",
    "array": "a list (- item) is needed",
    "int | float | str": "an amount such as 4, 500m or 10Gi is needed",
}

_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "object": dict,
    "array": (list, tuple),
    "null": type(None),
}


def translated(item: Item, error: Exception) -> InputError:
    """The InputError for what msgspec said about an object."""
    said = _SAID.fullmatch(str(error))
    assert said is not None
    what = said["what"]
    expected = _EXPECTED.search(what)
    missing = _MISSING.search(what)
    got = expected["got"] if expected else ""
    found = _find(plain_content(item), parsed_path(said["path"] or ""), got, bool(said["key"]))
    path, value = found or (parsed_path(said["path"] or ""), None)
    if missing:
        path = [*path, missing["field"]]
        return InputError(f"{place(item, path)}: {shown_path(path)} is missing")
    field = shown_path(path) or "the document"
    if expected is None:
        return InputError(f"{place(item, path)}: {field}: {what}")
    needed = _NEEDED.get(
        expected["wanted"].removesuffix(" | null"), f"{expected['wanted']} is needed"
    )
    if needed.startswith("text") and got in ("int", "float", "bool"):
        needed = f'text is needed: write "{shown(value)}", in quotes'
    if said["key"]:
        field = f"a key of {field}"
    return InputError(f"{place(item, path)}: {field} is {shown(value)}; {needed}")


def _find(content: Any, path: Path, got: str, key_itself: bool) -> tuple[Path, Any] | None:
    """(path, value) of the first value of type `got` that `path` may mean; "..." is any key."""
    if not path:
        if key_itself:
            keys = content if isinstance(content, dict) else ()
            return next((([], key) for key in keys if _is(key, got)), None)
        return ([], content) if not got or _is(content, got) else None
    step, rest = path[0], path[1:]
    if isinstance(content, dict):
        steps: list[Any] = list(content) if step == "..." else [step] if step in content else []
    elif isinstance(content, list) and isinstance(step, int) and step < len(content):
        steps = [step]
    else:
        steps = []
    for taken in steps:
        found = _find(content[taken], rest, got, key_itself)
        if found is not None:
            named = taken if isinstance(taken, int) and isinstance(content, list) else str(taken)
            return [named, *found[0]], found[1]
    return None


def _is(value: Any, got: str) -> bool:
    if isinstance(value, bool):
        return got == "bool"
    return isinstance(value, _TYPES.get(got, object))
