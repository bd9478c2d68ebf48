"""What NVML says of real processes against what their containers' regions say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from gpushare.deviceplugin.isolation.truth import Held, Measured, compare
from gpushare.isolation.limits import MIB
from gpushare.node.gpus import Occupancy
from tests.native.conftest import RESERVE_MIB
from tests.native.container import Container
from tests.native.fakes import FakeGpus, uuid

CONTEXT_MIB = 300
LIMIT_MIB = 4096

ASK = """
import json
from dataclasses import asdict
from gpushare.node.nvml import NvmlGpus
gpus = NvmlGpus()
gpus.look()
print(json.dumps({uuid: asdict(used) for uuid, used in gpus.occupancy().items()}))
"""


def occupancy(gpus: FakeGpus) -> Occupancy:
    """Of the first GPU, through the real binding."""
    command = [sys.executable, "-c", ASK]
    done = subprocess.run(command, env=gpus.environment(), check=True, capture_output=True)
    told = json.loads(done.stdout)[uuid(1)]
    return Occupancy(told["used_bytes"], {int(p): used for p, used in told["processes"].items()})


def held(container: Container, name: str) -> Held:
    (gpu,) = container.region().gpus
    return Held(("uid", name, gpu.uuid), frozenset({name}), gpu.used, container.limits[0])


def mib(real: int, accounted: int, reserve: int = RESERVE_MIB) -> Measured:
    return Measured(real * MIB, accounted * MIB, reserve * MIB)


def test_what_is_held_is_accounted_for_and_what_goes_around_it_is_not(
    fake_gpus: FakeGpus, new_container: Callable[..., Container]
) -> None:
    inside, around = new_container(LIMIT_MIB), new_container(LIMIT_MIB, isolated=False)
    with inside.run() as good, inside.run("direct") as second, around.run() as bad:
        for program, amount in (good, 1024), (second, 512), (bad, 6000):
            assert program.result(f"alloc {amount * MIB}") == 0
        owners = {good.process.pid: "a", second.process.pid: "a", bad.process.pid: "b"}
        both = [held(inside, "a"), held(around, "b")]
        used = occupancy(fake_gpus)
        a, b = (one.key for one in both)
        found = compare(both, used, owners, all_held=True)
        assert found == {
            a: mib(1536 + 2 * CONTEXT_MIB, 1536 + 2 * RESERVE_MIB),
            b: mib(6000 + CONTEXT_MIB, 0),
        }
        assert not found[a].too_much
        assert found[b].too_much
        # A driver whose pids say nothing: only the sum is wrong.
        assert compare(both, used, {}, all_held=True) == {
            uuid(1): mib(7536 + 3 * CONTEXT_MIB, 1536 + 2 * RESERVE_MIB, 2 * RESERVE_MIB)
        }
    assert occupancy(fake_gpus) == Occupancy(0, {})


def test_a_context_larger_than_the_reserve_by_less_than_it_is_no_news(
    fake_gpus: FakeGpus, new_container: Callable[..., Container]
) -> None:
    fake_gpus.run("set", f"context_mib={2 * RESERVE_MIB}")
    container = new_container(LIMIT_MIB)
    with container.run() as program:
        one = held(container, "a")
        found = compare([one], occupancy(fake_gpus), {program.process.pid: "a"}, all_held=True)
        assert found[one.key].unaccounted == RESERVE_MIB * MIB
        assert not found[one.key].too_much
        with container.run() as other:
            one = held(container, "a")
            owners = {program.process.pid: "a", other.process.pid: "a"}
            found = compare([one], occupancy(fake_gpus), owners, all_held=True)
            assert found[one.key].too_much
