"""Inventory and health through the real binding, over the fake libnvidia-ml."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.native.container import Container
from tests.native.fakes import FakeGpus, uuid

MIB = 1 << 20

SESSION = """
import json, sys
from dataclasses import asdict
from gpushare.node.nvml import NvmlGpus, NvmlUnavailable
gpus = NvmlGpus()
for line in sys.stdin:
    verb, *rest = line.split()
    try:
        if verb == "look":
            answer = [asdict(gpu) for gpu in gpus.look()]
        elif verb == "occupancy":
            answer = {uuid: asdict(used) for uuid, used in gpus.occupancy().items()}
        else:
            answer = gpus.wait(float(rest[0]))
    except NvmlUnavailable as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
gpus.close()
"""


class Session:
    """A process that uses NVML: the library is loaded once per process."""

    def __init__(self, gpus: FakeGpus, environment: dict[str, str]) -> None:
        self.gpus = gpus
        self.process = subprocess.Popen(
            [sys.executable, "-c", SESSION],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def ask(self, command: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def look(self) -> dict[str, dict[str, Any]]:
        return {gpu["uuid"]: gpu for gpu in self.ask("look")}

    def problems(self) -> list[str | None]:
        return [gpu["problem"] for gpu in self.look().values()]

    def wait(self, seconds: float = 2) -> bool:
        return bool(self.ask(f"wait {seconds}"))


@pytest.fixture
def session(fake_gpus: FakeGpus) -> Iterator[Session]:
    session = Session(fake_gpus, fake_gpus.environment())
    yield session
    session.process.communicate()
    assert session.process.returncode == 0


def test_the_inventory_is_what_the_gpu_can_really_give(session: Session) -> None:
    assert session.look() == {
        uuid(number): {
            "uuid": uuid(number),
            "model": "Tesla T4",
            "memory_mib": 15360 - 443,
            "pci_bus_id": f"00000000:{0x0F + number:02X}:00.0",
            "minor": number - 1,
            "problem": None,
            "host_memory": False,
            "mig": False,
        }
        for number in (1, 2)
    }


def test_a_critical_xid_makes_one_gpu_ill_and_the_driver_says_when_it_is_well(
    session: Session,
) -> None:
    session.gpus.run("gpu", "1", "recovery=255")
    session.look()
    session.gpus.run("xid", "1", "79")
    assert session.wait() is True
    one, two = session.problems()
    assert one is None
    assert two is not None
    assert two.startswith("Xid 79")
    # An old driver never says that it is well.
    assert session.problems() == [None, two]
    session.gpus.run("gpu", "1", "recovery=1")
    assert session.problems() == [None, "the driver asks for a GPU reset"]
    session.gpus.run("gpu", "1", "recovery=0")
    assert session.problems() == [None, None]


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_an_applications_own_fault_does_not(session: Session, xid: int) -> None:
    session.gpus.run("gpu", "0", "recovery=255")
    session.look()
    session.gpus.run("xid", "0", str(xid))
    assert session.wait(0.2) is False
    assert session.problems() == [None, None]


def test_nothing_happens_for_a_while(session: Session) -> None:
    session.look()
    assert session.wait(0.05) is False


def test_a_gpu_that_falls_off_the_bus_stays_known_and_comes_back(session: Session) -> None:
    session.look()
    session.gpus.run("xid", "0", "79")
    assert session.wait() is True
    session.gpus.run("gpu", "0", "lost=1")
    assert session.wait() is True
    seen = session.look()
    assert list(seen) == [uuid(1), uuid(2)]
    assert "fallen off the bus" in seen[uuid(1)]["problem"]
    assert seen[uuid(1)]["memory_mib"] == 15360 - 443
    assert seen[uuid(2)]["problem"] is None
    session.gpus.run("gpu", "0", "lost=0")
    assert session.problems() == [None, None]


def test_a_gpu_that_reports_no_memory_says_so(session: Session) -> None:
    session.gpus.run("gpu", "1", "no_memory=1")
    gpu = session.look()[uuid(2)]
    assert gpu["memory_mib"] == 0
    assert "reports no memory" in gpu["problem"]


def test_what_is_used_is_told_of_all_and_of_each_process(
    session: Session, new_container: Callable[..., Container]
) -> None:
    session.look()
    nothing = {"used_bytes": 0, "processes": {}}
    assert session.ask("occupancy") == {uuid(1): nothing, uuid(2): nothing}
    with new_container(isolated=False).run() as one, new_container(isolated=False).run() as other:
        one.handle(f"alloc {512 * MIB}")
        used = {one.process.pid: 812 * MIB, other.process.pid: 300 * MIB}
        assert session.ask("occupancy") == {
            uuid(1): {
                "used_bytes": 1112 * MIB,  # without the 443 MiB of the driver's own
                "processes": {str(pid): amount for pid, amount in used.items()},
            },
            uuid(2): nothing,
        }


def test_of_a_gpu_that_does_not_answer_nothing_is_told(session: Session) -> None:
    assert session.ask("occupancy") == {}  # nobody has looked yet
    session.look()
    session.gpus.run("gpu", "0", "no_memory=1")
    session.gpus.run("gpu", "1", "lost=1")
    assert session.ask("occupancy") == {uuid(1): {"used_bytes": None, "processes": {}}}


def test_without_a_driver_it_says_what_to_install(fake_gpus: FakeGpus) -> None:
    fake_gpus.run("set", "init_error=9")
    session = Session(fake_gpus, fake_gpus.environment())
    assert "nvidia-smi" in session.ask("look")
    session.process.communicate()


def test_without_the_library_too(fake_gpus: FakeGpus) -> None:
    session = Session(fake_gpus, {**fake_gpus.environment(), "LD_LIBRARY_PATH": ""})
    assert "install the NVIDIA driver" in session.ask("look")
    session.process.communicate()
