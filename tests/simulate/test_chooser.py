"""The shortcuts of the chooser and of the refusals do not show: as if every node were asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare.model.holding import Placement
from gpushare.policy.fit import place, why_not
from gpushare.policy.rank import NODE_RANKINGS
from gpushare.simulate import chooser
from gpushare.simulate.constraints import obstacle
from gpushare.simulate.engine import Outcome, _record, run
from gpushare.simulate.hosts import Hosts
from gpushare.simulate.intake import gather
from gpushare.simulate.refusals import Refusals
from gpushare.simulate.scene import Scene
from gpushare.simulate.source import Document
from gpushare.simulate.staging import Options, stage
from tests.simulate.objects import Object, controller, node, pod, waiting

POLICIES = ("binpack", "spread")


def scene_of(objects: list[Object]) -> Scene:
    documents = [Document("test", i, o, b"") for i, o in enumerate(objects, 1)]
    return stage(gather(documents), Options())


def plainly(scene: Scene, node_ranking: str) -> dict[str, tuple[str, Placement] | str]:
    """Pod -> its node and GPUs, or the message; every node is asked for every pod."""
    ledger = scene.ledger()
    hosts = Hosts({name: n.room for name, n in scene.nodes.items()})
    for standing in scene.standing:
        hosts.take(standing.node, standing.ask)
    ranking = NODE_RANKINGS[node_ranking]
    found: dict[str, tuple[str, Placement] | str] = {}
    for waits in scene.queue():
        assert waits.request is not None
        fits: list[tuple[Any, str, Placement]] = []
        for name, scene_node in scene.nodes.items():
            if obstacle(waits.constraints, scene_node.face) or hosts.lacking(name, waits.ask):
                continue
            books = ledger.books(name)
            answer = place(books, waits.request, waits.owner)
            assert isinstance(answer, Placement) == (why_not(books, waits.request) is None)
            if isinstance(answer, Placement):
                fits.append((ranking(books, waits.request, answer), name, answer))
        if fits:
            _, name, placement = min(fits, key=lambda fit: fit[:2])
            ledger.put_pod(_record(waits, name, placement))
            hosts.take(name, waits.ask)
            found[waits.name] = name, placement
        else:
            found[waits.name] = Refusals(scene, ledger, hosts).why(waits).message
    return found


def quickly(outcome: Outcome) -> dict[str, tuple[str, Placement] | str]:
    return {
        **{p.pod.name: (p.node, p.placement) for p in outcome.placed},
        **{r.pod.name: r.why.message for r in outcome.refused},
    }


@st.composite
def clusters(draw: st.DrawFn) -> list[Object]:
    """More nodes than are asked one by one, mixed in size, policy, zone and room."""
    nodes = [
        node(
            f"n{i:02}",
            draw(st.lists(st.sampled_from([4, 6, 8]), min_size=1, max_size=3)),
            placement=draw(st.sampled_from(POLICIES)),
            labels={"zone": draw(st.sampled_from("ab"))},
        )
        for i in range(draw(st.integers(9, 14)))
    ]
    for n in nodes:
        n["status"]["allocatable"]["cpu"] = draw(st.sampled_from(["3", "8"]))
    work: list[Object] = [
        pod(f"run-{i}", 2, 0, node=f"n{i:02}", owner=("Job", "j0"))
        for i in range(draw(st.integers(0, 9)))
    ]
    for i in range(draw(st.integers(1, 6))):
        units = draw(st.integers(1, 7))
        match draw(st.sampled_from(["job", "job", "pod", "zone", "daemon"])):
            case "job":
                count = draw(st.integers(1, 14))
                work.append(controller("Job", f"j{i}", units=units, parallelism=count))
            case "pod":
                work.append(waiting(f"p{i}", units))
            case "zone":
                work.append(waiting(f"z{i}", units, nodeSelector={"zone": "a"}))
            case "daemon":
                work.append(controller("DaemonSet", f"d{i}", units=units))
    return nodes + work


@pytest.mark.parametrize("several", [1, chooser.SEVERAL])
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(objects=clusters(), node_ranking=st.sampled_from(POLICIES))
def test_it_is_as_if_every_node_were_asked(
    objects: list[Object], node_ranking: str, several: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`several`: with 1, owners soon get a contest of their own."""
    monkeypatch.setattr(chooser, "SEVERAL", several)
    scene = scene_of(objects)
    outcome = run(scene, node_ranking=node_ranking)
    assert quickly(outcome) == plainly(scene, node_ranking)
    for name in scene.nodes:
        books = outcome.ledger.books(name)
        assert books.pending == 0
        assert all(0 <= gpu.used <= gpu.gpu.units for gpu in books.gpus)
