"""A storm of short pods, while plugin, kubelet and extender are killed: every GPU as decided."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster import plugging
from tests.cluster.storm import Storm

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.node

FAULTY = Path(__file__).with_name("faulty_plugin.py")


def blow(cluster: Cluster, out: Path, fault: str = "", **keywords: object) -> list[str]:
    out.mkdir(mode=0o777)
    order = out.parent / "order"
    program = (str(FAULTY), fault or f"kill={order}")
    via = keywords.pop("via", None)
    plugging.start(
        cluster, placement="spread", program=program, via=via, options=("--log-level", "debug")
    )
    storm = Storm(cluster, out, order=order, **keywords)  # type: ignore[arg-type]
    storm.run()
    if record := os.environ.get("RECORD"):
        pickle.dump(storm.history.events, open(record + "/history.pickle", "wb"))
        for name in ("device-plugin", "extender", "kubelet"):
            open(record + f"/{name}.log", "w").write(cluster.log(name))
    complaints = storm.complaints()
    print("\n".join(complaints))
    print(f"killed: {dict(storm.killed)}")
    print("\n".join(f"{count:5} {what}" for what, count in sorted(storm.summary.items())))
    return complaints


def test_a_storm(clean_node: Cluster, tmp_path: Path, rounds: Callable[..., int]) -> None:
    pods = rounds(few=60, full=200)
    assert not blow(clean_node, tmp_path / "says", pods=pods, kills=2 if pods < 200 else 5)
