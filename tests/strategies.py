"""Random nodes, requests and event orders, for the property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from gpushare.contract.names import Mode
from gpushare.model.gpus import Assignment, Gpu, Node
from gpushare.model.holding import Placement
from gpushare.model.ledger import PodRecord
from gpushare.model.owner import Owner
from gpushare.model.request import ContainerAsk, Request, RequestError, compile_request

OWNERS = [Owner("default", "Job", name) for name in ("mnist", "web", "db")]


@st.composite
def gpus(draw: st.DrawFn) -> tuple[Gpu, ...]:
    """1 to 4 GPUs of mixed sizes, gaps in the indexes, some unhealthy or cordoned."""
    indexes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True))
    return tuple(
        Gpu(
            index=index,
            units=draw(st.sampled_from([5, 8, 12, 15])),
            uuid=f"GPU-{index}",
            healthy=draw(st.integers(0, 9)) > 0,
            cordoned=draw(st.integers(0, 9)) == 0,
        )
        for index in sorted(indexes)
    )


@st.composite
def nodes(draw: st.DrawFn, name: str = "a") -> Node:
    return Node(
        name=name,
        mode=draw(st.sampled_from([Mode.SHARE, Mode.CGPU, Mode.CORE_MEM])),
        placement=draw(st.sampled_from(["binpack", "spread"])),
        gpus=draw(gpus()),
    )


@st.composite
def container_asks(draw: st.DrawFn) -> list[ContainerAsk]:
    """Init containers, sidecars and app containers, in the order of a pod's spec."""
    init = [
        ContainerAsk(i, draw(st.integers(0, 8)), init=True, sidecar=draw(st.booleans()))
        for i in range(draw(st.sampled_from([0, 0, 0, 1, 2, 3])))
    ]
    app = [
        ContainerAsk(i, draw(st.integers(0, 8))) for i in range(draw(st.sampled_from([1, 1, 2, 3])))
    ]
    return [*init, *app]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A valid request of any kind: plain, split, with init containers, over GPUs, with compute."""
    kind = draw(st.sampled_from(["plain", "plain", "several", "count", "core"]))
    if kind == "several":
        asks, count = draw(container_asks()), 0
    elif kind == "count":
        count = draw(st.integers(1, 3))
        asks = [ContainerAsk(i, count * draw(st.integers(1, 5))) for i in range(2)]
    else:
        core = draw(st.sampled_from([5, 50, 100])) if kind == "core" else 0
        asks, count = [ContainerAsk(0, draw(st.integers(1, 8)), core)], 0
    try:
        request = compile_request(asks, count)
    except RequestError:
        request = None
    return request or compile_request([ContainerAsk(0, 1)])  # type: ignore[return-value]


def record(
    uid: str,
    node: str,
    request: Request,
    placement: Placement | None,
    owner: Owner = OWNERS[0],
    *,
    finished: bool = False,
) -> PodRecord:
    """A pod on a node; without a placement, one whose GPU is unknown."""
    assignment = None
    if placement is not None:
        assignment = Assignment(
            placement.allocation(request, init=False), placement.allocation(request, init=True)
        )
    return PodRecord(uid, "default", uid, node, owner, request, assignment, finished)
