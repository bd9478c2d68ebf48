"""What the CDI device of an allocation changes in its container, composed of parts.

The device is ours, one for each allocation (`gpushare.dev/allocation=<id>`); it comes beside the
GPU's own. What it changes wins over the pod's manifest: the kubelet appends the pod's environment
to a device plugin's, but the runtime applies CDI last.

environment   the variables of the container's units
hook          tells us who got the allocation, before the container's first instruction, and refuses
              a container that would start without its GPU, or with another
isolation     the files that hold it to its share, and a second hook, which refuses a container
              whose final file system would not load the library
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from gpushare.isolation.backend import LIBRARY_IN_CONTAINER, Edits
from gpushare.node.cdi import ContainerEdits, Hook, Mount

HOOK_NAME: Final = "gpushare-hook"


def environment_part(variables: Mapping[str, str]) -> ContainerEdits:
    """Variables that the pod cannot overrule."""
    return ContainerEdits(env=tuple(f"{name}={value}" for name, value in variables.items()))


def hook_part(
    hook: Path, mailbox: Path, uuids: Sequence[str], device_files: Sequence[str]
) -> ContainerEdits:
    """The hook, which writes to `mailbox`.

    device_files   of the GPUs, where a CDI device makes them; otherwise the environment is checked
    """
    arguments = [HOOK_NAME, "attest", "--mailbox", str(mailbox)]
    arguments += [word for uuid in uuids for word in ("--gpu", uuid)]
    arguments += [word for file in device_files for word in ("--device", file)]
    # No time-out: a slow node is no reason to refuse a container.
    return ContainerEdits(
        hooks=(Hook(hook_name="createRuntime", path=str(hook), args=tuple(arguments)),)
    )


def isolation_part(edits: Edits, hook: Path | None) -> ContainerEdits:
    """What holds a container to its share; `hook` is on the host, None where there is none."""
    arguments = (HOOK_NAME, "check-preload", "--library", LIBRARY_IN_CONTAINER)
    checks = edits.preload_hook and hook is not None
    return ContainerEdits(
        mounts=tuple(
            Mount(
                host_path=mount.host_path,
                container_path=mount.container_path,
                options=(*_FILE, "ro" if mount.read_only else "rw"),
            )
            for mount in edits.mounts
        ),
        hooks=(Hook(hook_name="createContainer", path=str(hook), args=arguments),)
        if checks
        else (),
    )


_FILE: Final = ("bind", "nosuid", "nodev")


def composed(parts: Iterable[ContainerEdits]) -> ContainerEdits:
    """All parts together, in order."""
    parts = tuple(parts)
    return ContainerEdits(
        env=tuple(variable for part in parts for variable in part.env),
        device_nodes=tuple(node for part in parts for node in part.device_nodes),
        mounts=tuple(mount for part in parts for mount in part.mounts),
        hooks=tuple(hook for part in parts for hook in part.hooks),
    )
