"""The directories of allocations: what was handed out, and letters, whoever wrote them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpushare.node.mailbox import (
    MAX_LETTER_BYTES,
    MAX_LETTERS,
    Letter,
    Mailboxes,
    Record,
    allocation_id,
)

RECORD = Record(ids=("GPU-a::0", "GPU-a::1"), env={"A": "b"}, devices=("nvidia.com/gpu=GPU-a",))


@pytest.fixture
def boxes(tmp_path: Path) -> Mailboxes:
    return Mailboxes(tmp_path / "allocations")


def write(boxes: Mailboxes, name: str, content: object) -> Path:
    path = boxes.path(RECORD.id) / name
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(raw)
    return path


def letter(uid: str = "u", container: str = "c") -> dict[str, object]:
    return {"version": 1, "podUid": uid, "container": container, "refused": None, "later": [1]}


def read(boxes: Mailboxes) -> list[tuple[str, str]]:
    return [(one.uid, one.container) for one in boxes.letters(RECORD.id)]


def test_an_allocation_is_named_by_its_ids_in_any_order() -> None:
    name = allocation_id(["b", "a"])
    assert name == allocation_id(("a", "b")) == allocation_id({"a", "b"})
    assert name != allocation_id(["a"])
    assert len(name) == 32


def test_what_was_handed_out_is_remembered(boxes: Mailboxes) -> None:
    assert boxes.names() == []
    boxes.renew(RECORD)
    assert boxes.names() == [RECORD.id]
    assert boxes.record(RECORD.id) == RECORD
    assert boxes.path(RECORD.id).stat().st_mode & 0o777 == 0o700


def test_letters_go_when_the_ids_are_handed_out_again_and_only_then(boxes: Mailboxes) -> None:
    boxes.renew(RECORD)
    write(boxes, "u_c.json", letter())
    boxes.keep(RECORD)
    assert read(boxes) == [("u", "c")]
    boxes.renew(RECORD)
    assert read(boxes) == []
    assert boxes.record(RECORD.id) == RECORD


def test_a_letter_tells_pod_container_and_when(boxes: Mailboxes) -> None:
    boxes.renew(RECORD)
    path = write(boxes, "u_c.json", letter())
    os.utime(path, ns=(7, 7))
    assert list(boxes.letters(RECORD.id)) == [Letter("u", "c", 7)]


def test_the_hooks_own_letter_is_read(boxes: Mailboxes, tmp_path: Path) -> None:
    """The form in tests/native/test_hook.py."""
    boxes.renew(RECORD)
    whole = {
        **letter("0c5a2c5e-uid", "main"),
        "namespace": "shop",
        "pod": "app-0",
        "id": "c0ffee",
        "gpus": ["GPU-a"],
        "refused": "it has another GPU",
    }
    write(boxes, "0c5a2c5e-uid_main.json", whole)
    assert read(boxes) == [("0c5a2c5e-uid", "main")]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 10_000,
        b" " * (MAX_LETTER_BYTES + 1),
        [],
        {**letter(), "version": 2},
        {**letter(), "podUid": None},
        {**letter(), "podUid": ""},
        {**letter(), "podUid": "u" * 300},
        {**letter(), "container": 7},
    ],
    ids=range(11),
)
def test_what_is_no_letter_is_left_out(boxes: Mailboxes, content: object) -> None:
    boxes.renew(RECORD)
    write(boxes, "a.json", content)
    write(boxes, "b.json", letter())
    assert read(boxes) == [("u", "c")]


def test_what_is_no_regular_file_is_left_out(boxes: Mailboxes, tmp_path: Path) -> None:
    boxes.renew(RECORD)
    box = boxes.path(RECORD.id)
    (tmp_path / "elsewhere.json").write_text(json.dumps(letter("elsewhere")))
    (box / "link.json").symlink_to(tmp_path / "elsewhere.json")
    (box / "folder.json").mkdir()
    os.mkfifo(box / "fifo.json")
    assert read(boxes) == []


def test_a_flood_of_letters_is_not_read_to_its_end(boxes: Mailboxes) -> None:
    boxes.renew(RECORD)
    for number in range(MAX_LETTERS + 20):
        write(boxes, f"{number:03}.json", letter(f"u{number}"))
    assert len(read(boxes)) == MAX_LETTERS


@pytest.mark.parametrize("content", [b"", b"{}", b'{"ids":["GPU-b::0"],"env":{}}', b"\xff"])
def test_a_record_that_is_none_is_written_again(boxes: Mailboxes, content: bytes) -> None:
    """The machine lost power while it was written, or it was put there by somebody."""
    boxes.renew(RECORD)
    write(boxes, "ids", content)
    assert boxes.record(RECORD.id) is None
    boxes.keep(RECORD)
    assert boxes.record(RECORD.id) == RECORD


def test_only_directories_of_allocations_are_taken_for_them(boxes: Mailboxes) -> None:
    boxes.renew(RECORD)
    (boxes.home / "lost+found").mkdir()
    (boxes.home / ("0" * 32)).write_text("")
    (boxes.home / ("1" * 32)).symlink_to(boxes.path(RECORD.id))
    assert boxes.names() == [RECORD.id]
    boxes.remove(RECORD.id)
    boxes.remove(RECORD.id)
    assert boxes.names() == []
    assert boxes.changed_ns(RECORD.id) is None
