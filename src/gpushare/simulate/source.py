"""Files, folders and stdin -> documents.

A file holds one JSON document, several one after the other, or YAML documents separated by `---`.
JSON stays undecoded (`msgspec.Raw`) until its kind is known, which makes a dump of 10,000 pods
cheap; YAML goes through libyaml into plain dicts and lists. A document that is empty is skipped but
counted, so that "document 3" is the third one a reader sees.

YAML is read as Kubernetes reads it: dates and `=` stay text, a key given twice is an error.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpushare.simulate.errors import InputError

MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")

Heard = Callable[[str, int, int], None]
"""Told what is being read, bytes done, bytes in all."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document: where it stands, and what is in it, JSON still undecoded."""

    file: str
    number: int
    content: Any
    text: bytes
    """The whole file, for finding the line of a field."""


def read(
    paths: Iterable[str], *, recursive: bool = False, heard: Heard | None = None
) -> list[Document]:
    """All documents of `paths`: files, folders (their .yaml, .yml and .json files, by name), or
    `-` for stdin. Raises InputError for anything that cannot be read as a whole."""
    documents: list[Document] = []
    for name, data in _files(paths, recursive):
        documents.extend(_documents(name, _as_utf8(name, data), heard))
    return documents


def _files(paths: Iterable[str], recursive: bool) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        if path == "-":
            yield "stdin", sys.stdin.buffer.read()
            continue
        try:
            if Path(path).is_dir():
                for file in _manifests(Path(path), recursive):
                    yield str(file), file.read_bytes()
            else:
                yield path, Path(path).read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InputError(f"{path} cannot be read: {reason}") from None


def _manifests(folder: Path, recursive: bool) -> list[Path]:
    found = sorted(
        file
        for file in (folder.rglob("*") if recursive else folder.iterdir())
        if file.suffix.lower() in MANIFEST_SUFFIXES and file.is_file()
    )
    if not found:
        deeper = not recursive and any(
            name.lower().endswith(MANIFEST_SUFFIXES)
            for _, _, names in os.walk(folder)
            for name in names
        )
        hint = "; its folders do, -R reads them too" if deeper else ""
        raise InputError(
            f"{folder} holds no file that ends in {', '.join(MANIFEST_SUFFIXES)}{hint}"
        )
    return found


def _as_utf8(name: str, data: bytes) -> bytes:
    """The text in UTF-8 without a byte order mark; PowerShell's `>` writes UTF-16 with one."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return data.decode("utf-16").encode()
        except UnicodeError as error:
            raise InputError(f"{name} is not text: {error}") from None
    return data.removeprefix(b"\xef\xbb\xbf")


def _documents(name: str, data: bytes, heard: Heard | None) -> Iterator[Document]:
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            yield from _json(name, data)
            return
        except InputError:
            if name.lower().endswith(".json"):
                raise
            # flow-style YAML looks like this too
    yield from _yaml(name, data, heard)


def _json(name: str, data: bytes) -> list[Document]:
    try:
        return [Document(name, 1, msgspec.json.decode(data, type=msgspec.Raw), data)]
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        pass  # several documents, or none: tell by the slower decoder, which says where
    documents: list[Document] = []
    try:
        text = data.decode()
        decoder = json.JSONDecoder()
        at = _skip_space(text, 0)
        while at < len(text):
            content, end = decoder.raw_decode(text, at)
            documents.append(Document(name, len(documents) + 1, content, data))
            at = _skip_space(text, end)
    except json.JSONDecodeError as error:
        where = f"{name}, document {len(documents) + 1}, line {error.lineno}"
        raise InputError(f"{where}: not JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{name}, document {len(documents) + 1}: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{name}, document {len(documents) + 1}: not JSON: {error}") from None
    return documents


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


class _Loader(yaml.CSafeLoader):
    """libyaml's loader with Kubernetes' habits."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own = len(node.value)
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) < own == len(node.value):  # no `<<` was merged: a key stands twice
            seen: set[Any] = set()
            for key_node, _ in node.value:
                key = (
                    (key_node.tag, key_node.value)
                    if not isinstance(key_node.value, list)
                    else id(key_node)
                )
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key_node.value!r} is given twice", key_node.start_mark
                    )
                seen.add(key)
        return mapping


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, regexp)
        for tag, regexp in resolvers
        if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
    ]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


class _Counted(io.BytesIO):
    """Says how much of it has been read."""

    def __init__(self, name: str, data: bytes, heard: Heard) -> None:
        super().__init__(data)
        self._name, self._size, self._heard = name, len(data), heard

    def read(self, size: int | None = -1) -> bytes:
        self._heard(self._name, self.tell(), self._size)
        return super().read(size)


def _yaml(name: str, data: bytes, heard: Heard | None) -> Iterator[Document]:
    number = 0
    try:
        for content in yaml.load_all(_Counted(name, data, heard) if heard else data, _Loader):
            number += 1
            if content is not None:
                yield Document(name, number, content, data)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        problem = error.problem or error.context or "unreadable"
        raise InputError(f"{name}, document {number + 1}{line}: not YAML: {problem}") from None
    except yaml.YAMLError as error:
        text = " ".join(str(error).split())
        raise InputError(f"{name}, document {number + 1}: not YAML: {text}") from None
    except RecursionError:
        raise InputError(f"{name}, document {number + 1}: nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}, document {number + 1}: not YAML: {error}") from None


def yaml_line(document: Document, path: list[str | int]) -> int | None:
    """The line of a field of a YAML document, for messages: the nearest one that is there."""
    try:
        nodes = yaml.compose_all(document.text, yaml.CSafeLoader)
        node = next(node for number, node in enumerate(nodes, 1) if number == document.number)
    except (yaml.YAMLError, StopIteration, RecursionError):
        return None
    line: int | None = None
    for step in path:
        found = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(step):
                    line, found = key.start_mark.line + 1, value
        elif (
            isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value)
        ):
            found = node.value[step]
            line = found.start_mark.line + 1
        if found is None:
            break
        node = found
    return line
