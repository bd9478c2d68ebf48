"""Requests of every kind the kubelet treats differently."""

from __future__ import annotations

from gpushare.model.request import ContainerAsk, Request, compile_request


def request(*app: int, init: tuple[int, ...] = (), sidecar: int = 0, gpu_count: int = 0) -> Request:
    asks = [ContainerAsk(i, units, init=True) for i, units in enumerate(init)]
    if sidecar:
        asks.append(ContainerAsk(len(init), sidecar, init=True, sidecar=True))
    asks += [ContainerAsk(i, units) for i, units in enumerate(app)]
    compiled = compile_request(asks, gpu_count)
    assert compiled is not None
    return compiled


INIT_ONLY = request(init=(4,))

REQUESTS = [
    request(2),
    request(4),
    request(4),
    request(8),
    request(4, 8),
    request(4, 4),
    request(4, init=(4,)),
    request(8, init=(4,)),
    request(4, init=(8,)),
    request(2, 2, init=(4,)),
    request(8, 4, init=(6,)),
    INIT_ONLY,
    request(init=(2,), sidecar=4),
    request(3, sidecar=4),
    request(8, gpu_count=2),
    request(4, 8, gpu_count=2),
    request(4, init=(4,), gpu_count=1),
]
