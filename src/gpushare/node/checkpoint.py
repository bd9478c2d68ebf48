"""The kubelet's own checkpoint of device allocations: every container's ids, by the pod's UID.

The kubelet writes it after each allocation, before the container is created, and replaces the file
as a whole (kubernetes/pkg/kubelet/cm/devicemanager/checkpoint). It is no published API, but its
form has been the same since Kubernetes 1.20; a file of another form is SourceUnavailable, and other
sources have to do. Pods that ended stay in it until the kubelet's next allocation.
"""

from pathlib import Path
from typing import Final

import msgspec

from gpushare.node.containers import ContainerDevices, SourceUnavailable

FILE: Final = "kubelet_internal_checkpoint"
"""In the kubelet's folder of device plugins."""


class _Entry(msgspec.Struct, gc=False):
    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    ids: dict[str, list[str]] | None = msgspec.field(name="DeviceIDs")
    """NUMA node -> device ids."""


class _Data(msgspec.Struct, gc=False):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries")


class _Checkpoint(msgspec.Struct, gc=False):
    data: _Data = msgspec.field(name="Data")


_decoder = msgspec.json.Decoder(_Checkpoint)


def read_checkpoint(folder: Path, *resources: str) -> list[ContainerDevices]:
    """Who has ids of `resources`. `folder` is the kubelet's for device plugins.

    A kubelet that has never allocated has no file: nobody has any. Raises SourceUnavailable.
    """
    path = folder / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SourceUnavailable(f"{path}: {error.strerror or error}") from error
    try:
        checkpoint = _decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise SourceUnavailable(f"{path} is not of the form known here: {error}") from error
    return [
        ContainerDevices(
            entry.container,
            frozenset(i for ids in (entry.ids or {}).values() for i in ids),
            uid=entry.pod_uid,
            resource=entry.resource,
        )
        for entry in checkpoint.data.entries or ()
        if entry.resource in resources
    ]
