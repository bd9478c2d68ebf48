"""How a container is given its GPU on this node: the decision.

cdi    by CDI devices, which the container runtime makes of specifications on the node: NVIDIA's own
       for the GPU, and one of ours for the allocation (edits)
env    by NVIDIA_VISIBLE_DEVICES alone, which the nvidia runtime reads where it is the default
fake   the GPUs are pretended: the environment says which, and CDI devices apply where there are any

`auto` is CDI, where the runtime does it and a specification names every GPU that is well. It never
is `env`: which runtime is the default stands in the container runtime's own configuration, and
neither the kubelet nor the API server tells it. A variable that nobody reads gives a container no
GPU, so whoever knows that the nvidia runtime is the default says so by `--injection env`. That is
also the way out where a runtime that could do CDI has been told not to: nothing but the environment
is answered then.

Where no way works the node offers no units, and says what to install.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpushare.node.cdi import CdiDevices

CDI_SINCE: Final = 2
"""containerd does CDI unless told otherwise from this version on; 1.7 ignores it silently."""


class Choice(StrEnum):
    """Of the administrator."""

    AUTO = "auto"
    CDI = "cdi"
    ENV = "env"


class Way(StrEnum):
    """As it is published (CONTRACT: our own names, `gpushare.dev/node`)."""

    CDI = "cdi"
    ENV = "env"
    FAKE = "fake"


@dataclass(frozen=True, slots=True)
class Injection:
    """The decision."""

    way: Way
    cdi: bool
    """Whether the kubelet is told of CDI devices."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """GPU UUID -> its CDI device, where a specification names it."""
    problem: str | None = None
    """Why the GPUs reach no container, and what to install. None: they do."""


def decide(
    choice: Choice, *, fake: bool, runtime: str | None, specs: CdiDevices, uuids: Collection[str]
) -> Injection:
    """How containers get their GPUs.

    runtime   the node's containerRuntimeVersion, `containerd://2.1.4`; None if it says none
    uuids     of the GPUs that are well
    """
    if choice is Choice.ENV:
        return Injection(Way.FAKE if fake else Way.ENV, cdi=False)
    devices = {uuid: device for uuid in uuids if (device := specs.device_for(uuid)) is not None}
    able = choice is Choice.CDI or does_cdi(runtime)
    if fake:
        return Injection(Way.FAKE, cdi=able, devices=devices if able else {})
    if not able:
        return Injection(Way.CDI, cdi=False, problem=_no_cdi(runtime))
    missing = sorted(set(uuids) - set(devices))
    problem = _no_device(missing, len(uuids), specs) if missing else None
    return Injection(Way.CDI, cdi=True, devices=devices, problem=problem)


def does_cdi(runtime: str | None) -> bool:
    """Whether a container runtime does CDI without being told to."""
    name, _, version = (runtime or "").partition("://")
    if name == "cri-o":
        return True
    major = re.match(r"v?(\d+)\.", version)
    return name == "containerd" and major is not None and int(major[1]) >= CDI_SINCE


def _no_cdi(runtime: str | None) -> str:
    return (
        f"no GPU can be given to a container: the container runtime {runtime or '(unknown)'} is "
        f"not known to do CDI. Install containerd {CDI_SINCE} or CRI-O; or start the device plugin "
        "with --injection cdi if CDI is enabled, or with --injection env if NVIDIA's runtime is "
        "the default"
    )


def _no_device(missing: list[str], count: int, specs: CdiDevices) -> str:
    of = f"{len(missing)} of {count} GPUs ({missing[0]}{', …' if len(missing) > 1 else ''})"
    broken = f" ({specs.problems[0].file}: {specs.problems[0].reason})" if specs.problems else ""
    return (
        f"no CDI specification on the node names {of}{broken}. Install the NVIDIA Container "
        "Toolkit and run `nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml`; or start the "
        "device plugin with --injection env if NVIDIA's runtime is the default"
    )
