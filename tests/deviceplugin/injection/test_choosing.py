"""How containers get their GPUs on a node: what is decided, from what."""

from __future__ import annotations

import pytest

from gpushare.deviceplugin.injection.choosing import Choice, Injection, Way, decide, does_cdi
from gpushare.node.cdi import CdiDevices, SpecProblem

CONTAINERD = "containerd://2.1.4"
OLD = "containerd://1.7.27"
BOTH = CdiDevices({"nvidia.com/gpu=GPU-a": "/x", "nvidia.com/gpu=GPU-b": "/x"})
NONE = CdiDevices({})
NAMED = {"GPU-a": "nvidia.com/gpu=GPU-a", "GPU-b": "nvidia.com/gpu=GPU-b"}


def decided(
    choice: Choice = Choice.AUTO,
    *,
    fake: bool = False,
    runtime: str | None = CONTAINERD,
    specs: CdiDevices = BOTH,
) -> Injection:
    return decide(choice, fake=fake, runtime=runtime, specs=specs, uuids=["GPU-a", "GPU-b"])


@pytest.mark.parametrize(
    ("runtime", "does"),
    [
        ("containerd://2.4.2", True),
        ("containerd://v2.0.0-rc.1", True),
        ("containerd://10.0", True),
        ("containerd://1.7.27-gke", False),
        ("cri-o://1.30.2", True),
        ("docker://27.1.1", False),
        ("containerd://", False),
        ("containerd://two", False),
        ("", False),
        (None, False),
    ],
)
def test_which_runtimes_do_cdi(runtime: str | None, does: bool) -> None:
    assert does_cdi(runtime) is does


def test_cdi_where_the_runtime_does_it_and_every_gpu_is_named() -> None:
    assert decided() == Injection(Way.CDI, cdi=True, devices=NAMED)


def test_a_gpu_without_a_device_stops_the_offer() -> None:
    """Its units would be given to containers that never see it."""
    specs = CdiDevices({"nvidia.com/gpu=GPU-a": "/x"})
    found = decided(specs=specs)
    assert (found.way, found.cdi, found.devices) == (
        Way.CDI,
        True,
        {"GPU-a": "nvidia.com/gpu=GPU-a"},
    )
    assert "1 of 2 GPUs (GPU-b)" in str(found.problem)
    assert "nvidia-ctk cdi generate" in str(found.problem)
    assert "--injection env" in str(found.problem)


def test_a_broken_specification_is_named_in_the_problem() -> None:
    specs = CdiDevices({}, (SpecProblem("/etc/cdi/nvidia.yaml", "it is empty"),))
    assert "/etc/cdi/nvidia.yaml: it is empty" in str(decided(specs=specs).problem)


def test_a_runtime_that_ignores_cdi_is_not_trusted_with_it() -> None:
    found = decided(runtime=OLD)
    assert (found.cdi, found.devices) == (False, {})
    assert OLD in str(found.problem)
    assert decided(Choice.CDI, runtime=OLD) == Injection(Way.CDI, cdi=True, devices=NAMED)


def test_the_environment_alone_is_never_guessed() -> None:
    assert decided(specs=NONE, runtime=OLD).way is Way.CDI
    assert decided(Choice.ENV) == Injection(Way.ENV, cdi=False)


@pytest.mark.parametrize(
    ("choice", "runtime", "specs", "cdi", "devices"),
    [
        (Choice.AUTO, CONTAINERD, BOTH, True, NAMED),
        (Choice.AUTO, CONTAINERD, NONE, True, {}),
        (Choice.AUTO, OLD, BOTH, False, {}),
        (Choice.CDI, OLD, BOTH, True, NAMED),
        (Choice.ENV, CONTAINERD, BOTH, False, {}),
    ],
)
def test_pretended_gpus_are_always_offered(
    choice: Choice, runtime: str, specs: CdiDevices, cdi: bool, devices: dict[str, str]
) -> None:
    found = decided(choice, fake=True, runtime=runtime, specs=specs)
    assert found == Injection(Way.FAKE, cdi=cdi, devices=devices)


def test_a_node_without_gpus_has_no_problem() -> None:
    assert decide(Choice.AUTO, fake=False, runtime=CONTAINERD, specs=NONE, uuids=[]).problem is None
