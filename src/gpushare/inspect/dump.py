"""Dumps of a cluster: files and stdin, JSON or YAML.

`kubectl get nodes,pods -A -o json` writes one `List`; two lists in two files, or one after the
other in one, do as well. PyYAML is imported only when a text is YAML.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from gpushare.inspect.decode import Objects, decode_json, decode_plain
from gpushare.inspect.errors import InspectError

STDIN = "-"


def read_dumps(files: Iterable[str]) -> Objects:
    """The objects of all files together; `-` is stdin.

    Raises InspectError for one that cannot be read, and for dumps without a single node: who is
    where could then not be said.
    """
    objects = Objects()
    for file in files:
        name = "stdin" if file == STDIN else file
        for found in _documents(name, _as_utf8(name, _read(file))):
            objects.add(found)
    if not objects.nodes:
        raise InspectError(
            f"there is no node in {', '.join(files)}; make the dump with "
            "kubectl get nodes,pods -A -o json"
        )
    return objects


def _read(file: str) -> bytes:
    try:
        if file == STDIN:
            return sys.stdin.buffer.read()
        with open(file, "rb") as opened:
            return opened.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InspectError(f"{file} cannot be read: {reason}") from None


def _as_utf8(name: str, data: bytes) -> bytes:
    """The text in UTF-8 without a byte order mark; PowerShell's `>` writes UTF-16 with one."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return data.decode("utf-16").encode()
        except UnicodeError as error:
            raise InspectError(f"{name} is not text: {error}") from None
    return data.removeprefix(b"\xef\xbb\xbf")


def _documents(name: str, data: bytes) -> Iterator[Objects]:
    start = data[:64].lstrip()
    if not start and not data.strip():
        raise InspectError(f"{name} is empty")
    if not start.startswith((b"{", b"[")):
        yield from _yaml(name, data)
        return
    try:
        yield decode_json(name, data)
    except InspectError:
        parts = _split_json(data)
        if len(parts) < 2:
            raise
        for number, part in enumerate(parts, 1):
            yield decode_json(f"{name}, document {number}", part)


def _split_json(data: bytes) -> list[bytes]:
    """JSON documents that stand one after the other; none if that is not what it is."""
    import json  # only here, where one decode has failed
    import re

    decoder = json.JSONDecoder()
    space = re.compile(r"\s*")
    parts: list[bytes] = []
    try:
        text = data.decode().rstrip()
        at = 0
        while at < len(text):
            _, end = decoder.raw_decode(text, at)
            parts.append(text[at:end].encode())
            gap = space.match(text, end)
            at = gap.end() if gap else end
    except (ValueError, RecursionError):
        return []
    return parts


def _yaml(name: str, data: bytes) -> Iterator[Objects]:
    import yaml  # not for JSON: it would cost half the start

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("Loader", (base,), {})
    loader.yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in base.yaml_implicit_resolvers.items()
    }  # a date stays text, as in JSON
    try:
        for number, document in enumerate(yaml.load_all(data, loader), 1):
            if document is not None:
                yield decode_plain(f"{name}, document {number}", document)
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise InspectError(f"{name} is neither JSON nor YAML: {error}") from None
