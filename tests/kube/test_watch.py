"""Bytes to lines to events."""

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kube.errors import ApiError, Gone, Malformed
from gpushare.kube.objects import ObjectMeta, Pod
from gpushare.kube.watch import Bookmark, Changed, Deleted, LineSplitter, WatchDecoder

from .fake_api import pod, status


@given(
    lines=st.lists(st.binary(max_size=40).filter(lambda b: b"\n" not in b), max_size=20),
    cuts=st.lists(st.integers(0, 900), max_size=30),
)
def test_lines_do_not_depend_on_where_chunks_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"half a line"
    edges = sorted({0, len(stream), *(c for c in cuts if c < len(stream))})
    splitter = LineSplitter()
    found = []
    for start, end in itertools.pairwise(edges):
        found += splitter.feed(stream[start:end])
    assert found == lines


def test_a_line_that_never_ends_is_refused() -> None:
    splitter = LineSplitter(max_line_bytes=100)
    assert splitter.feed(b"x" * 90 + b"\n" + b"y" * 90) == [b"x" * 90]
    with pytest.raises(Malformed, match="longer than 100 bytes"):
        splitter.feed(b"y" * 11)


def test_many_cut_lines_are_not_one_long_line() -> None:
    splitter = LineSplitter(max_line_bytes=100)
    for _ in range(10):
        assert splitter.feed(b"x" * 60) == []
        assert splitter.feed(b"x" * 20 + b"\n") == [b"x" * 80]


def line(type_: str, obj: object) -> bytes:
    return json.dumps({"type": type_, "object": obj}).encode()


DECODER = WatchDecoder(Pod, "watch of pods")


def test_events_of_objects() -> None:
    added = DECODER.decode(line("ADDED", pod("a", 7, node="n1")))
    assert isinstance(added, Changed)
    assert added.object.spec.node_name == "n1"
    assert isinstance(DECODER.decode(line("MODIFIED", pod("a", 8))), Changed)
    deleted = DECODER.decode(line("DELETED", pod("a", 9)))
    assert isinstance(deleted, Deleted)
    assert deleted.object.metadata.resource_version == "9"


def test_fields_may_come_in_any_order() -> None:
    swapped = json.dumps({"object": pod("a", 7), "type": "ADDED"}).encode()
    assert isinstance(DECODER.decode(swapped), Changed)


class Strict(msgspec.Struct, rename="camel"):
    """A kind that has a required field, as a Struct may: bookmarks lack it."""

    metadata: ObjectMeta
    must: int


@pytest.mark.parametrize("kind", [Pod, Strict])
def test_bookmark_and_error_carry_other_objects(kind: type[Pod] | type[Strict]) -> None:
    decoder = WatchDecoder(kind, "watch")
    bookmark = decoder.decode(line("BOOKMARK", {"metadata": {"resourceVersion": "12"}}))
    assert bookmark == Bookmark("12")
    with pytest.raises(Gone, match="watch: 410 Expired: too old"):
        decoder.decode(line("ERROR", status(410, "Expired", "too old")))
    with pytest.raises(ApiError) as caught:
        decoder.decode(line("ERROR", status(500, "InternalError")))
    assert type(caught.value) is ApiError


@pytest.mark.parametrize(
    "bad",
    [
        b"not json",
        b"{}",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":{"metadata":{"name":3}}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"1"}}}',  # no uid
        b'{"type":"ADDED","object":{"metadata":{"name":"a","uid":"u"}}}',  # no version
        b'{"type":"NEWS","object":{"metadata":{}}}',
        b'{"type":"BOOKMARK","object":{"metadata":{}}}',
        b'{"type":"ERROR","object":"x"}',
        b"\xff\xfe",
    ],
)
def test_a_line_that_cannot_be_read_is_malformed(bad: bytes) -> None:
    with pytest.raises(Malformed, match="watch of pods"):
        DECODER.decode(bad)
