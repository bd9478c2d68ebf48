"""What a start imports, and colour: on a terminal only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inspect.objects import dump, node, pod
from tests.inspect.test_kubectl import FakeKubectl, kubectl

__all__ = ["kubectl"]

LISTS_MODULES = """
import sys
before = set(sys.modules)
from gpushare.inspect.main import main
try:
    status = main(sys.argv[1:])
except SystemExit as exit_:
    status = exit_.code
assert not status, status
sys.stderr.write("\\n".join(sorted(set(sys.modules) - before)))
"""

SLOW = {
    "aiohttp",
    "asyncio",
    "concurrent",
    "email",
    "grpc",
    "http",
    "httpx",
    "importlib.metadata",
    "json",
    "lightkube",
    "logging",
    "prometheus_client",
    "pynvml",
    "shutil",
    "socket",
    "ssl",
    "tempfile",
    "urllib",
    "yaml",
    "zipfile",
}


def modules(*arguments: str, **environ: str) -> set[str]:
    """The modules that a run imports beyond bare Python."""
    done = subprocess.run(
        [sys.executable, "-c", LISTS_MODULES, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environ},
    )
    return set(done.stderr.splitlines())


def packages(names: set[str]) -> set[str]:
    """Top-level packages that are not the standard library's."""
    tops = {name.partition(".")[0] for name in names}
    return {top for top in tops if top not in sys.stdlib_module_names and not top.startswith("_")}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "dump.json"
    path.write_text(dump(node(), pod("p", 4, gpu=0)))
    return str(path)


def test_a_dump_needs_msgspec_and_nothing_slow(file: str) -> None:
    names = modules("-f", file)
    assert packages(names) - {"typing_extensions"} == {"gpushare", "msgspec"}
    assert not {name for name in names if name in SLOW or name.partition(".")[0] in SLOW}
    assert "subprocess" not in names


def test_a_live_cluster_needs_subprocess_beside(kubectl: FakeKubectl) -> None:
    names = modules(KUBECTL=os.environ["KUBECTL"])
    assert packages(names) - {"typing_extensions"} == {"gpushare", "msgspec"}
    assert not {name for name in names if name in SLOW or name.partition(".")[0] in SLOW}


def test_help_needs_not_even_msgspec() -> None:
    names = modules("-h")
    assert packages(names) == {"gpushare"}
    assert {name for name in names if name.startswith("gpushare.")} == {
        "gpushare.inspect",
        "gpushare.inspect.arguments",
        "gpushare.inspect.main",
    }


def test_yaml_is_imported_for_yaml_only(tmp_path: Path, file: str) -> None:
    path = tmp_path / "dump.yaml"
    path.write_text("kind: Node\nmetadata: {name: a}\n")
    assert "yaml" in modules("-f", str(path))
    assert "yaml" not in modules("-f", file, "-o", "json")


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_on_a_terminal_only(tmp_path: Path, environ: dict[str, str], coloured: bool) -> None:
    import pty

    path = tmp_path / "dump.json"
    path.write_text(dump(node(), pod("p", 20, gpu=0)))
    command = [sys.executable, "-m", "gpushare.inspect.main", "-f", str(path)]
    settings = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    settings.update(environ)
    primary, secondary = pty.openpty()
    subprocess.run(command, stdout=secondary, stderr=subprocess.PIPE, check=True, env=settings)
    os.close(secondary)
    shown = os.read(primary, 65536)
    os.close(primary)
    assert (b"\x1b[" in shown) is coloured
    piped = subprocess.run(command, capture_output=True, check=True, env=settings)
    assert b"\x1b" not in piped.stdout + piped.stderr
