"""Files of all shapes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import yaml

from gpushare.simulate.main import main
from tests.simulate.conftest import Simulate
from tests.simulate.objects import Object, dump, node, pod, waiting

OBJECTS: list[Object] = [node(), pod("p", 4, 0), waiting("q", 5)]


@pytest.mark.parametrize(
    "text",
    [
        dump(*OBJECTS),
        "\n".join(json.dumps(item) for item in OBJECTS),
        json.dumps({"kind": "List", "apiVersion": "v1", "items": [json.loads(dump(*OBJECTS))]}),
        yaml.safe_dump(json.loads(dump(*OBJECTS))),
        yaml.safe_dump_all(OBJECTS),
        "---\n---\n" + yaml.safe_dump_all(OBJECTS, explicit_start=True) + "\n---\n# end\n",
        "\n---\n".join(json.dumps(item) for item in OBJECTS),
        "\ufeff" + dump(*OBJECTS),
    ],
    ids=["list", "json after json", "list in a list", "yaml list", "yaml", "empty documents",
         "json in yaml", "byte order mark"],
)  # fmt: skip
def test_shapes_of_a_file(simulate: Simulate, text: str) -> None:
    ran = simulate(text)
    assert ran.status == 0
    assert ran.held("a") == [4, 5]


def test_utf_16_as_powershell_redirects_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dump.json").write_bytes(dump(*OBJECTS).encode("utf-16"))
    assert main([str(tmp_path / "dump.json")]) == 0
    assert "9/30 (30%)" in capsys.readouterr().out


def test_lists_whose_items_have_no_kind(simulate: Simulate) -> None:
    """As `kubectl get --raw /api/v1/nodes` prints them."""
    lists = []
    for kind, objects in (("Node", OBJECTS[:1]), ("Pod", OBJECTS[1:])):
        items = [{k: v for k, v in o.items() if k not in ("kind", "apiVersion")} for o in objects]
        lists.append(json.dumps({"kind": f"{kind}List", "apiVersion": "v1", "items": items}))
    assert simulate("\n".join(lists)).held("a") == [4, 5]


def test_an_empty_list_is_empty(simulate: Simulate) -> None:
    assert simulate('{"kind": "List", "apiVersion": "v1", "items": null}').status == 2


def test_folders_and_stdin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.yml").write_text(yaml.safe_dump(OBJECTS[1]))
    (tmp_path / "README.md").write_text("# no manifest")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "c.json").write_text(json.dumps(OBJECTS[2]))
    stdin = io.TextIOWrapper(io.BytesIO(dump(OBJECTS[0]).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["-", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4/30 (13%)"
    stdin.seek(0)
    assert main(["-", str(tmp_path), "-R"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "9/30 (30%)"
    assert main([str(tmp_path / "deeper")]) == 2
    (tmp_path / "deeper" / "c.json").rename(tmp_path / "deeper" / "c.txt")
    assert main([str(tmp_path / "deeper")]) == 2


def test_dates_and_words_stay_text_as_kubernetes_reads_them(simulate: Simulate) -> None:
    text = yaml.safe_dump_all(OBJECTS) + (
        "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: dated\n"
        "  creationTimestamp: 2026-01-01T00:00:00Z\n  labels: {day: 2026-01-01, op: =}\n"
    )
    assert simulate(text).status == 0


def test_merge_keys_work(simulate: Simulate) -> None:
    text = yaml.safe_dump_all(OBJECTS[:1]) + (
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: m}\nspec:\n  containers:\n"
        "  - &a {name: x, resources: {limits: {aliyun.com/gpu-mem: 1}}}\n"
        "  - {<<: *a, name: y}\n"
    )
    assert simulate(text).held("a") == [2, 0]


def test_a_json_error_names_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text('{"kind": "Pod",\n "metadata": }')
    assert main([str(tmp_path / "x.json")]) == 2
    assert "x.json, document 1, line 2: not JSON" in capsys.readouterr().err


def test_an_item_of_a_json_list_is_named_by_its_place(simulate: Simulate) -> None:
    bad = pod("bad", 4)
    bad["spec"]["containers"] = {"name": "x"}
    ran = simulate([*OBJECTS, bad])
    assert ran.status == 2
    assert "dump.json, document 1, item 4 (Pod bad): spec.containers is {'name': 'x'}" in ran.err
    assert "a list (- item) is needed" in ran.err
