"""A storm of short pods, while plugin, kubelet and extender are killed: every GPU as decided."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster import injecting, plugging
from tests.cluster.storm import Storm

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.node

FAULTY = Path(__file__).with_name("faulty_plugin.py")
PODS, KILLS = 200, 5
"""At full length; KILLS of plugin, kubelet and extender each."""


def blow(
    cluster: Cluster,
    out: Path,
    *,
    fault: str = "",
    options: tuple[str, ...] = (),
    start: dict[str, Any] | None = None,
    **storm: Any,
) -> list[str]:
    """A storm's complaints."""
    out.mkdir(mode=0o777)
    order = out.parent / "order"
    program = (str(FAULTY), fault or f"kill={order}")
    plugging.start(
        cluster,
        placement="spread",
        program=program,
        options=("--log-level", "debug", "--hook", str(injecting.hook()), *options),
        **(start or {}),
    )
    if seed := os.environ.get("SEED"):  # another storm than the usual one
        storm["seed"] = int(seed)
    one = Storm(cluster, out, order=order, **storm)
    one.run()
    if folder := os.environ.get("RECORD"):  # for whoever looks into a failure
        one.record(Path(folder))
    complaints = one.complaints()
    print(f"killed: {dict(one.killed)}")
    print("\n".join(f"{count:5} {what}" for what, count in sorted(one.summary.items())))
    return complaints


def size(rounds: Callable[..., int]) -> dict[str, int]:
    """A fifth of a storm, or a whole one."""
    pods = rounds(few=PODS // 5, full=PODS)
    return {"pods": pods, "kills": KILLS if pods == PODS else 1}


def test_a_storm(clean_node: Cluster, tmp_path: Path, rounds: Callable[..., int]) -> None:
    assert not blow(clean_node, tmp_path / "says", **size(rounds))


def test_a_storm_while_the_plugins_watch_is_late(
    clean_node: Cluster, tmp_path: Path, rounds: Callable[..., int]
) -> None:
    proxy = clean_node.proxy()
    proxy.watch_delay_s = 0.5
    complaints = blow(clean_node, tmp_path / "says", start={"via": proxy}, seed=1, **size(rounds))
    assert not complaints


def test_a_storm_in_which_the_hook_alone_tells(
    clean_node: Cluster, tmp_path: Path, rounds: Callable[..., int]
) -> None:
    hook = ("--attest-by", "hook")
    assert not blow(clean_node, tmp_path / "says", options=hook, seed=3, **size(rounds))


def test_the_storm_fails_where_the_kubelet_chooses_by_itself(
    clean_node: Cluster, tmp_path: Path
) -> None:
    """The same checks, without GetPreferredAllocation: they can fail."""
    complaints = blow(
        clean_node, tmp_path / "says", fault="no-preference", seed=2, pods=30, kills=0
    )
    print("\n".join(complaints[:5]))
    assert any("was refused" in complaint for complaint in complaints)
