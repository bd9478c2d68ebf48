"""A live cluster through kubectl: what is asked of it, and what its failures turn into.

kubectl is a script here; tests/cluster/test_inspect.py has the real one.
"""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from gpushare.inspect.main import main
from tests.inspect.objects import Object, dump, node, pod

SCRIPT = """\
#!{python} -S
import json, sys, time
with open({log!r}, "a") as log:
    log.write(json.dumps([time.time(), *sys.argv[1:]]) + "\\n")
path = sys.argv[-1]
answer = {answers!r}[path.split("?")[0]]
time.sleep(answer.get("pause", 0))
if answer.get("said"):
    sys.stderr.write(answer["said"])
    sys.stderr.flush()
time.sleep(answer.get("then", 0))
if answer.get("file"):
    sys.stdout.write(open(answer["file"]).read())
sys.exit(answer.get("status", 0))
"""

Answers = dict[str, Object]


class FakeKubectl:
    """Answers what it is told, and keeps what it was asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._log = folder / "log"
        self._program = folder / "kubectl"
        self.answers: Answers = {}
        monkeypatch.setenv("KUBECTL", str(self._program))

    def holds(self, *items: Object) -> None:
        """The cluster has these objects."""
        for kind, path in (("Node", "/api/v1/nodes"), ("Pod", "/api/v1/pods")):
            own = [item for item in items if item["kind"] == kind]
            file = self._folder / f"{kind}.json"
            file.write_text(json.dumps({"kind": f"{kind}List", "metadata": {}, "items": own}))
            self.answers[path] = {"file": str(file)}
        self.write()

    def fails(self, said: str, path: str = "/api/v1/pods", **more: object) -> None:
        self.answers[path] = {"said": said, "status": 1, **more}
        self.write()

    def write(self) -> None:
        text = SCRIPT.format(python=sys.executable, log=str(self._log), answers=self.answers)
        self._program.write_text(text)
        self._program.chmod(self._program.stat().st_mode | stat.S_IXUSR)

    @property
    def asked(self) -> list[list[str]]:
        """The arguments of every call, sorted."""
        return sorted(json.loads(line)[1:] for line in self._log.read_text().splitlines())


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    fake = FakeKubectl(tmp_path, monkeypatch)
    fake.holds(node(), pod("p", 4, gpu=1))
    return fake


def test_a_live_cluster_is_the_same_table_as_its_dump(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([]) == 0
    live = capsys.readouterr()
    file = tmp_path / "dump.json"
    file.write_text(dump(node(), pod("p", 4, gpu=1)))
    assert main(["-f", str(file)]) == 0
    assert live == capsys.readouterr()
    assert live.out.endswith("\n4/30 (13%)\n")


def test_nodes_and_pods_are_asked_for_once_pods_on_no_node_left_out(kubectl: FakeKubectl) -> None:
    assert main([]) == 0
    assert kubectl.asked == [
        ["get", "--raw", "/api/v1/nodes"],
        ["get", "--raw", "/api/v1/pods?fieldSelector=spec.nodeName%21%3D"],
    ]


def test_which_cluster_and_as_whom_is_handed_on(kubectl: FakeKubectl) -> None:
    arguments = ["--context", "test", "--kubeconfig=/k", "--as-group", "a", "--as-group", "b"]
    assert main([*arguments, "-s", "https://x", "--insecure-skip-tls-verify"]) == 0
    assert kubectl.asked[0] == [
        "--as-group=a",
        "--as-group=b",
        "--context=test",
        "--kubeconfig=/k",
        "--server=https://x",
        "--insecure-skip-tls-verify",
        "get",
        "--raw",
        "/api/v1/nodes",
    ]


def test_both_are_asked_at_the_same_time(kubectl: FakeKubectl, tmp_path: Path) -> None:
    for answer in kubectl.answers.values():
        answer["pause"] = 1
    kubectl.write()
    assert main([]) == 0
    times = [json.loads(line)[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert abs(times[0] - times[1]) < 0.9


def test_a_large_answer_does_not_get_stuck_in_a_pipe(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.holds(
        *(node(f"n{i}") for i in range(400)),
        *(pod(f"p{i}", 1, gpu=0, node=f"n{i % 400}") for i in range(2000)),
    )
    assert main([]) == 0
    assert capsys.readouterr().out.endswith("\n2000/12000 (16%)\n")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            'Error from server (Forbidden): pods is forbidden: User "eve" cannot list resource '
            '"pods" in API group "" at the cluster scope\n',
            [
                "error: not allowed to list pods in all namespaces",
                'User "eve" cannot list resource "pods"',
                "ClusterRole gpushare-viewer",
                "kubectl create clusterrolebinding",
            ],
        ),
        (
            "error: You must be logged in to the server (Unauthorized)\n",
            ["kubectl could not list pods: You must be logged in", "log in again"],
        ),
        (
            "Unable to connect to the server: dial tcp 192.0.2.1:6443: i/o timeout\n",
            ["did not answer in time", "--request-timeout"],
        ),
        (
            "The connection to the server localhost:8080 was refused - did you specify the right "
            "host or port?\n",
            ["was refused", "is this the cluster you mean"],
        ),
        ('error: context "x" does not exist\n', ['could not list pods: context "x" does not']),
        ("", ["could not list pods: it said nothing"]),
    ],
    ids=["forbidden", "unauthorized", "timeout", "refused", "context", "silent"],
)
def test_failures_are_explained(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str], said: str, expected: list[str]
) -> None:
    kubectl.fails(said)
    assert main([]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    for part in expected:
        assert part in captured.err
    assert captured.err.count("could not list") + captured.err.count("not allowed") == 1


def test_forbidden_nodes_are_named_as_such(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.fails("Error from server (Forbidden): nodes is forbidden: …\n", "/api/v1/nodes")
    assert main([]) == 1
    assert "not allowed to list nodes" in capsys.readouterr().err


def test_without_kubectl_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECTL", "/no/such/kubectl")
    assert main([]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: /no/such/kubectl cannot be run: No such file")
    assert "KUBECTL" in err
    assert "-f" in err


def test_a_login_that_waits_for_somebody_is_passed_on(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = "To sign in, open https://login.example/device and enter the code ABC\n"
    kubectl.answers["/api/v1/nodes"].update(pause=1.6, said=prompt, then=0.1)
    kubectl.write()
    assert main([]) == 0
    assert capsys.readouterr().err == prompt


def test_warnings_that_kubectl_gives_on_the_side_are_not_in_the_way(
    kubectl: FakeKubectl,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpushare.inspect.kubectl.PATIENCE_S", 60)  # a busy machine starts late
    kubectl.answers["/api/v1/nodes"]["said"] = "Warning: deprecated\n"
    kubectl.write()
    assert main([]) == 0
    assert capsys.readouterr().err == ""
