"""Options, sources and outputs of `kubectl inspect cgpu`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpushare.inspect.main import main
from tests.inspect.conftest import Inspect
from tests.inspect.objects import dump, node, plain_node, pod

CLUSTER = [
    node("b", [15], labels={"pool": "t4"}),
    node("a", [15, 15], labels={"pool": "a100"}),
    plain_node("c"),
    pod("p", 4, gpu=0, namespace="red", owner=("StatefulSet", "web")),
    pod("q", 2, gpu=1, namespace="blue", owner=("Job", "train")),
    pod("r", 1, gpu=0, namespace="red", node="b", owner=("StatefulSet", "web")),
    pod("s", 3, namespace="blue"),
]


# --- What is shown ------------------------------------------------------------------------------


def test_one_node(inspect: Inspect) -> None:
    printed = inspect(CLUSTER, "b")
    assert [row[0] for row in printed.rows] == ["b"]
    assert printed.last == "1/15 (6%)"


def test_an_unknown_node_is_an_error_that_names_what_there_is(inspect: Inspect) -> None:
    printed = inspect(CLUSTER, "d")
    assert (printed.status, printed.out) == (1, "")
    assert printed.err == "error: d is no node of this cluster; nodes with GPU memory: a, b\n"


def test_a_node_that_shares_nothing_is_said_to(inspect: Inspect) -> None:
    printed = inspect(CLUSTER, "c")
    assert printed.status == 1
    assert printed.err == "error: c shares no GPU memory; nodes with GPU memory: a, b\n"


def test_a_selector_selects_nodes(inspect: Inspect) -> None:
    printed = inspect(CLUSTER, "-l", "pool=t4")
    assert [row[0] for row in printed.rows] == ["b"]


def test_a_selector_nothing_has_gives_an_empty_table_and_a_note(inspect: Inspect) -> None:
    printed = inspect(CLUSTER, "-l", "pool in (h100, h200)")
    assert (printed.status, printed.last) == (0, "0/0 (0%)")
    assert "no node that offers aliyun.com/gpu-mem has the labels pool in" in printed.err


def test_a_selector_that_is_none_is_an_error(inspect: Inspect) -> None:
    printed = inspect(CLUSTER, "-l", "pool=&")
    assert printed.status == 1
    assert "is no label selector, from" in printed.err


def test_a_namespace_filters_the_pods_listed_and_never_the_sums(inspect: Inspect) -> None:
    printed = inspect(CLUSTER, "-d", "-n", "red")
    assert "p            red" in printed.out
    assert "q  " not in printed.out
    assert "Allocated :  9 (30%)" in printed.out
    assert printed.last == "Allocated/Total GPU Memory In Cluster:  10/45 (22%)"
    assert inspect(CLUSTER, "-n", "red").last == "10/45 (22%)"
    report = inspect(CLUSTER, "-n", "red", "-o", "json").json
    assert report["allocated"] == 10
    assert report["nodes"][0]["pending"] == 3
    assert report["nodes"][0]["pending_pods"] == []
    assert [gpu["allocated"] for gpu in report["nodes"][0]["gpus"]] == [4, 2]


def test_usage_by_namespace(inspect: Inspect) -> None:
    printed = inspect(CLUSTER, "--by", "namespace")
    assert printed.header == "NAMESPACE  PODS  GPUS  GPU Memory(GiB)  SHARE"
    assert printed.rows == [["blue", "2", "1", "5", "11%"], ["red", "2", "2", "5", "11%"]]
    assert printed.last == "10/45 (22%)"


def test_usage_by_owner(inspect: Inspect) -> None:
    printed = inspect(CLUSTER, "--by", "owner")
    assert printed.rows == [
        ["red", "StatefulSet/web", "2", "2", "5", "11%"],
        ["blue", "Pod/s", "1", "0", "3", "6%"],
        ["blue", "Job/train", "1", "1", "2", "4%"],
    ]
    usage = inspect(CLUSTER, "--by", "owner", "-n", "blue", "-o", "json").json
    assert usage["by"] == "owner"
    assert usage["allocated"] == 10
    assert usage["usage"][1] == {
        "namespace": "blue",
        "pods": 1,
        "gpus": 1,
        "units": 2,
        "owner": "Job/train",
    }


def test_no_headers(inspect: Inspect) -> None:
    assert inspect(CLUSTER, "--no-headers").out.splitlines()[0].startswith("a  192.0.2.1  4/15")
    assert inspect(CLUSTER, "-d", "--no-headers").out.splitlines()[3].startswith("q  ")


# --- Structured output --------------------------------------------------------------------------


def test_json_has_the_shape_of_simulate(inspect: Inspect) -> None:
    printed = inspect(CLUSTER, "-o", "json")
    report = printed.json
    assert sorted(report) == [
        "allocated",
        "nodes",
        "total",
        "unit",
        "unscheduled",
        "version",
        "warnings",
    ]
    assert (report["version"], report["unit"]) == (1, "GiB")
    assert report["nodes"][0]["gpus"][0] == {
        "index": 0,
        "uuid": "GPU-0",
        "total": 15,
        "allocated": 4,
        "healthy": True,
        "cordoned": False,
        "pods": [{"namespace": "red", "name": "p", "units": 4}],
    }
    assert any("PENDING" in warning for warning in report["warnings"])
    assert printed.err == ""


def test_yaml_is_the_same(inspect: Inspect) -> None:
    printed = inspect(CLUSTER, "-o", "yaml")
    assert yaml.safe_load(printed.out) == inspect(CLUSTER, "-o", "json").json


# --- Sources ------------------------------------------------------------------------------------


def test_yaml_dumps(inspect: Inspect) -> None:
    expected = inspect(CLUSTER).out
    as_list = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": CLUSTER})
    assert inspect(as_list, suffix="yaml").out == expected
    documents = "---\n" + yaml.safe_dump_all(CLUSTER) + "---\n"
    assert inspect(documents, suffix="yaml").out == expected
    unquoted = documents.replace("metadata:\n", "metadata:\n  creationTimestamp: 2024-01-01\n", 1)
    assert inspect(unquoted, suffix="yaml").out == expected


def test_lists_of_one_kind_whose_items_do_not_say_it(inspect: Inspect, tmp_path: Path) -> None:
    """What `kubectl get --raw` answers; and nodes and pods may come in two files."""
    expected = inspect(CLUSTER).out
    files: list[str] = []
    for kind in ("Node", "Pod"):
        items = [
            {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}
            for item in CLUSTER
            if item["kind"] == kind
        ]
        file = tmp_path / f"{kind}.json"
        file.write_text(json.dumps({"kind": f"{kind}List", "apiVersion": "v1", "items": items}))
        files.append(str(file))
    both = "".join(Path(file).read_text() + "\n" for file in files)
    assert inspect(both).out == expected
    file = tmp_path / "all.json"
    file.write_text(both)
    assert (
        subprocess.run(
            [sys.executable, "-m", "gpushare", "inspect", "-f", files[0], "-f", files[1]],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        == expected
    )


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_dumps_written_by_powershell(
    encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "dump.json"
    file.write_bytes(dump(*CLUSTER).encode(encoding))
    assert main(["-f", str(file)]) == 0
    assert capsys.readouterr().out.endswith("10/45 (22%)\n")


def test_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(dump(*CLUSTER).encode())))
    assert main(["-f", "-"]) == 0
    assert capsys.readouterr().out.endswith("10/45 (22%)\n")


def test_objects_whose_kind_comes_last_are_found(inspect: Inspect) -> None:
    turned = [dict(reversed(item.items())) for item in CLUSTER]
    assert inspect(turned).out == inspect(CLUSTER).out


def test_a_slash_may_be_escaped(inspect: Inspect) -> None:
    text = dump(*CLUSTER).replace("aliyun.com/gpu", "aliyun.com\\/gpu")
    assert inspect(text).out == inspect(CLUSTER).out


def test_other_kinds_are_passed_over(inspect: Inspect) -> None:
    other = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": "many"}}
    assert inspect([*CLUSTER, other]).out == inspect(CLUSTER).out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("{", "cannot be read: Input data was truncated"),
        ("[1, 2]", "cannot be read: Expected `object`, got `array`"),
        ("just words", "is no Kubernetes object"),
        ("a: [", "is neither JSON nor YAML"),
        (dump(pod("p", 4)), "there is no node in"),
        (dump({"kind": "Node", "metadata": {"name": 7}}), "item 1 (7): Expected `str`, got `int`"),
        ('{"kind": "List", "items": [7]}', "there is no node in"),
        ("{" * 10_000, "cannot be read"),
    ],
)
def test_unusable_dumps(inspect: Inspect, text: str, said: str) -> None:
    printed = inspect(text)
    assert (printed.status, printed.out) == (1, "")
    assert said in printed.err
    assert printed.err.startswith("error: ")


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-f", "/no/such/file"]) == 1
    expected = "error: /no/such/file cannot be read: No such file or directory\n"
    assert capsys.readouterr().err == expected


def test_a_dump_without_pods_says_so(inspect: Inspect) -> None:
    assert "there is no pod in the dump" in inspect([node()]).err


# --- Usage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-f", "x", "-w"], "-w watches a cluster"),
        (["-f", "x", "--context", "c"], "--context is about a cluster"),
        (["-d", "--by", "owner"], "use one of them"),
        (["a", "-l", "pool=t4"], "use one of them"),
        (["-w", "--interval", "0"], "is not a number of seconds"),
        (["--outputt"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_is_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err


def test_help_needs_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["-h"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("usage: kubectl inspect cgpu ")


def test_many_notes_are_cut_short(inspect: Inspect) -> None:
    printed = inspect([node(f"n{i}", unschedulable=True) for i in range(50)])
    assert printed.err.count("\n") == 41
    assert printed.err.endswith("note: 11 more; -o json lists them all\n")


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_text(dump(*(node(f"n{i}") for i in range(3000))))
    command = f"{sys.executable} -m gpushare.inspect.main -f {file} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("NAME ")
