"""What an answer to a fuzzed request must be: judged by the placement core on books of its own."""

from __future__ import annotations

import json

import msgspec

from gpushare.extender.wire import ExtenderArgs
from gpushare.kube.reading import read_owner, read_request
from gpushare.model.holding import Placement
from gpushare.model.ledger import Ledger
from gpushare.model.request import RequestError
from gpushare.policy.fit import place
from tests.extender.fuzz import ALLOWED, Sent


def check(sent: Sent, answer: tuple[int, bytes] | None, ledger: Ledger) -> None:
    """Fails on a wrong yes, on a 5xx, on a refusal that does not say why."""
    if answer is None:
        assert sent.closes, f"no answer to {sent.raw[:300]!r}"
        return
    status, body = answer
    assert status in ALLOWED, f"{status} for {sent.raw[:300]!r}"
    if status != 200:
        assert body, f"{status} without a word for {sent.raw[:300]!r}"
        return
    if sent.verb == "bind" and sent.body is not None:
        assert json.loads(body)["Error"], f"a bind that cannot be was done: {sent.raw[:300]!r}"
    if sent.verb == "filter" and sent.body is not None:
        _check_filter(sent, json.loads(body), ledger)


def _check_filter(sent: Sent, result: dict[str, object], ledger: Ledger) -> None:
    args = msgspec.json.decode(sent.raw.partition(b"\r\n\r\n")[2], type=ExtenderArgs)
    nodes = result["Nodes"]
    passed = result["NodeNames"]
    if isinstance(nodes, dict):
        passed = [item["metadata"]["name"] for item in nodes["items"]]
    assert isinstance(passed, list)
    try:
        request = read_request(args.pod)
    except RequestError:
        assert passed == []
        return
    if request is None:
        return
    for name in passed:
        books = ledger.get_books(name)
        assert books is not None, f"{name} is not there, yet it passed: {sent.raw[:300]!r}"
        answer = place(books, request, read_owner(args.pod.metadata))
        assert isinstance(answer, Placement), f"{name} has no room: {sent.raw[:300]!r}"
