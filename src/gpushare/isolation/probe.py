"""Which backend can hold the containers of a node to their share, and why another cannot.

Probing gathers facts (`Facts`), deciding is a pure function of them. The answer is published as the
node's label `gpushare.dev/isolation` and, where it is `none` on a node that should isolate, in an
Event.

* **driver**: the NVIDIA driver's own per-cgroup limits (R615 or newer, cgroup v2, no MIG).
  Detected, not used yet.
* **interposer**: our library in front of libcuda; needs it installed for this architecture, and a
  tmpfs for the regions.
* **none**: nothing holds the limit.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpushare.isolation.limits import UUID

_DRIVER_SINCE: Final = 615
"""The first driver branch with per-cgroup memory limits."""

_UNTESTED_SANDBOXES: Final = ("gvisor", "runsc", "kata")
"""Whose processes the library may not reach; refused until they were tested."""


class Backend(StrEnum):
    """What holds a limit; the value is that of the node's label."""

    DRIVER = "driver"
    INTERPOSER = "interposer"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What matters of one GPU."""

    uuid: str
    memory_mib: int
    host_page_tables: bool = False
    """The operating system manages its memory (GH200, GB200): a process gets it by malloc."""
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What matters of a node."""

    gpus: tuple[GpuFacts, ...]
    driver_version: str = ""
    memory_limits_function: bool = False
    """NVML has nvmlDeviceSetMemoryLimits_v1."""
    cgroup_v2: bool = False
    library: str | None = None
    """Path of the installed interposer; None where it could not be installed."""
    library_problem: str | None = None
    region_problem: str | None = None
    """Why regions cannot lie where they should; None if they can."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """The answer for a node."""

    backend: Backend
    problems: tuple[str, ...] = ()
    """Why the node cannot isolate; sentences for an Event. Empty unless the backend is none."""
    refused: dict[str, str] = field(default_factory=dict)
    """UUID -> why that GPU cannot be isolated, on a node whose others can."""
    notes: tuple[str, ...] = ()
    """Worth knowing, nothing to do about."""


def decide(facts: Facts) -> Isolation:
    """The best backend that is built and works on the node."""
    refused = {gpu.uuid: why for gpu in facts.gpus if (why := _not_isolatable(gpu)) is not None}
    notes = (
        ("the driver's own memory limits would work here; this version does not use them yet",)
        if driver_would_work(facts)
        else ()
    )
    problems = tuple(
        problem
        for problem in (
            "there is no GPU" if not facts.gpus else None,
            "none of its GPUs can be isolated: " + "; ".join(sorted(set(refused.values())))
            if facts.gpus and len(refused) == len(facts.gpus)
            else None,
            None if facts.library else facts.library_problem or "the library is not installed",
            facts.region_problem,
        )
        if problem is not None
    )
    if problems:
        return Isolation(Backend.NONE, problems, refused, notes)
    return Isolation(Backend.INTERPOSER, (), refused, notes)


def driver_would_work(facts: Facts) -> bool:
    """Whether the NVIDIA driver could hold the limits by itself."""
    branch = facts.driver_version.partition(".")[0]
    return (
        facts.memory_limits_function
        and facts.cgroup_v2
        and branch.isdecimal()
        and int(branch) >= _DRIVER_SINCE
        and not any(gpu.mig for gpu in facts.gpus)
    )


def untested_sandbox(runtime_class: str | None) -> str | None:
    """Why a pod of a runtime class cannot be held to its share; None: it can.

    The class is known by its name alone.
    """
    name = (runtime_class or "").lower()
    if not any(sandbox in name for sandbox in _UNTESTED_SANDBOXES):
        return None
    return (
        f"its runtime class {runtime_class} is a sandbox in which memory limits were never tested. "
        "Use a node without isolation, or another runtime class"
    )


def _not_isolatable(gpu: GpuFacts) -> str | None:
    if not UUID.fullmatch(gpu.uuid):
        return f"{gpu.uuid!r} is no UUID as NVIDIA's GPUs have"
    if gpu.memory_mib <= 0:
        return "it reports no memory"
    if gpu.host_page_tables:
        return "the operating system manages its memory, so ordinary allocations use it too"
    return None
