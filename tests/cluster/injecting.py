"""What tests of injection need on the node: the hook, specifications, a look into containers."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare.node.cdi import ALLOCATION_KIND, NVIDIA_KIND, written_specs

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "native"


def hook() -> Path:
    """The hook as it is shipped."""
    make("hook")
    return BUILD / platform.machine() / "gpushare-hook"


def fake_driver() -> Path:
    """The folder with the fake libnvidia-ml.so.1 and the tool that plays its GPUs."""
    make("fake")
    return BUILD / "fake"


def library() -> Path:
    """The interposer as it is shipped."""
    make("interposer")
    return BUILD / platform.machine() / "libgpushare-interposer.so"


def make(*targets: str, **variables: str) -> None:
    """Runs native/Makefile; what is up to date is not built again."""
    command = ["make", "--no-print-directory", "-C", str(ROOT / "native")]
    command += [
        f"{name}={value}" for name, value in {"PYTHON": sys.executable, **variables}.items()
    ]
    done = subprocess.run([*command, *targets], capture_output=True, text=True)
    assert not done.returncode, f"{done.stdout}\n{done.stderr}"


def specification(cluster: Cluster) -> Path:
    """Where NVIDIA's tools write theirs."""
    return cluster.node.layout.run_cdi / "nvidia.json"


def specify(
    cluster: Cluster, files: Mapping[str, str], mounts: Mapping[str, Path] | None = None
) -> None:
    """A stand-in specification: GPU UUID -> its device file, which is another /dev/null.

    mounts   path in every container -> the file mounted there, to be written by it
    """
    spec = {
        "cdiVersion": "0.6.0",
        "kind": NVIDIA_KIND,
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "mounts": [
                {"containerPath": inside, "hostPath": str(file), "options": ["bind", "rw"]}
                for inside, file in (mounts or {}).items()
            ],
        },
        "devices": [
            {
                "name": uuid,
                "containerEdits": {"deviceNodes": [{"path": file, "hostPath": "/dev/null"}]},
            }
            for uuid, file in files.items()
        ],
    }
    path = specification(cluster)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(spec))
    fresh.replace(path)


def device_files(cluster: Cluster, pod: str, container: str = "") -> list[str]:
    """The GPUs' device files that a running container has."""
    pid = cluster.node.container(pod, container).pid
    return sorted(path.name for path in Path(f"/proc/{pid}/root/dev").glob("nvidia*"))


def allocations(cluster: Cluster) -> tuple[list[str], list[str]]:
    """The allocations that have a specification, and those that have a directory."""
    home = cluster.node.gpushare_dir / "allocations"
    return (
        written_specs(cluster.node.layout.run_cdi, ALLOCATION_KIND),
        sorted(path.name for path in home.iterdir()) if home.exists() else [],
    )
