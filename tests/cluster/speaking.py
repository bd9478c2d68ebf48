"""Pods whose containers tell with which environment they started, in files on the node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpushare_testcluster.node import images
from gpushare_testcluster.nodes import GPU_MEM
from gpushare_testcluster.pods import pod as plain_pod

Object = dict[str, Any]

_TELLS = 'f="/says/$POD_UID.$CONTAINER"; env > "$f.part"; mv "$f.part" "$f"; '


def pod(
    name: str,
    sizes: Sequence[int],
    out: Path,
    *,
    init: Sequence[int] = (),
    sidecars: Sequence[int] = (),
    seconds: float = 3600,
    **keywords: Any,
) -> Object:
    """A pod whose containers write to `out` and then sleep; init containers end at once.

    sizes, init, sidecars: units of each container c0, …, i0, …, s0, …
    """
    out.chmod(0o777)
    one = plain_pod(
        name,
        restartPolicy="Never",
        volumes=[{"name": "says", "hostPath": {"path": str(out)}}],
        **keywords,
    )
    sleep = f"{_TELLS} exec sleep {seconds:.1f}"
    spec = one["spec"]
    spec["containers"] = [_container(f"c{i}", units, sleep) for i, units in enumerate(sizes)]
    before = [_container(f"i{i}", units, _TELLS) for i, units in enumerate(init)]
    before += [
        {**_container(f"s{i}", units, sleep), "restartPolicy": "Always"}
        for i, units in enumerate(sidecars)
    ]
    if before:
        spec["initContainers"] = before
    return one


def _container(name: str, units: int, script: str) -> Object:
    limits = {"resources": {"limits": {GPU_MEM: str(units)}}} if units else {}
    return {
        "name": name,
        "image": images.BUSYBOX,
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "says", "mountPath": "/says"}],
        "env": [
            {"name": "CONTAINER", "value": name},
            {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        ],
        **limits,
    }


def heard(out: Path, one: Object, container: str) -> dict[str, str] | None:
    """The environment a container of a pod started with; None if it has not told yet."""
    path = out / f"{one['metadata']['uid']}.{container}"
    if not path.exists():
        return None
    lines = path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)
