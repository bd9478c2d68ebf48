"""The node's GPUs through NVML, by the official binding: what is there, and what is ill.

A GPU turns ill when the driver reports a critical Xid for it, when it falls off the bus, or when it
stops answering. It is well again when the driver says that nothing need be done any more (its
"recovery action"), or when it came back after it had been gone. A driver too old to say so leaves
an ill GPU ill until then: a dead GPU handed out is worse than one that waits for its reset.

NVML keeps what it saw when it was initialised: a lost GPU stays lost in every later answer, and one
that came back is not seen. So while anything is wrong each look starts NVML anew.

Everything here blocks, and belongs to one thread at a time.
"""

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pynvml as nvml  # type: ignore[import-untyped]

from gpushare.node.gpus import (
    GONE,
    SILENT,
    Driver,
    FoundGpu,
    GpuSource,
    GpusUnavailable,
    Occupancy,
    xid_problem,
)

_MIB: Final = 1 << 20

_APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that an application's own fault brings about; the GPU is well (NVIDIA's Xid catalogue)."""


class NvmlUnavailable(GpusUnavailable):
    """NVML cannot be used at all; the text says what to install or look at."""


class NvmlGpus(GpuSource):
    """The node's GPUs. Call `look` first, then `wait` and `look` in turn."""

    def __init__(self) -> None:
        self._initialised = False
        self._events: Any = None
        self._known: dict[str, FoundGpu] = {}
        """UUID -> the GPU as it was last seen."""
        self._xids: dict[str, int] = {}
        """UUID -> the critical Xid that made it ill."""

    def close(self) -> None:
        """Ends the use of NVML."""
        if self._initialised:
            self._initialised = False
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(self._events)
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def look(self) -> tuple[FoundGpu, ...]:
        """Every GPU seen so far, in PCI order; one that vanished stays, with its problem.

        Raises NvmlUnavailable.
        """
        if any(gpu.problem for gpu in self._known.values()):
            self.close()
        self._initialise()
        gone = set(self._known)
        for gpu in self._enumerated():
            before = self._known.get(gpu.uuid)
            if before is not None and before.problem == GONE:
                self._xids.pop(gpu.uuid, None)
            gone.discard(gpu.uuid)
            self._known[gpu.uuid] = gpu
        for uuid in gone:
            self._known[uuid] = replace(self._known[uuid], problem=GONE)
        return tuple(sorted(self._known.values(), key=lambda gpu: gpu.pci_bus_id))

    def wait(self, timeout_s: float) -> bool:
        """Waits for the driver to report something; False when nothing came in time."""
        if not self._initialised:
            raise RuntimeError("look comes first")
        try:
            event = nvml.nvmlEventSetWait_v2(self._events, int(timeout_s * 1000))
            uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
        except nvml.NVMLError_Timeout:
            return False
        except nvml.NVMLError:
            # A GPU is lost: which one, the next look tells.
            self._known = {
                uuid: replace(gpu, problem=gpu.problem or SILENT)
                for uuid, gpu in self._known.items()
            }
            return True
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            if event.eventData in _APPLICATION_XIDS:
                return False
            self._xids[uuid] = int(event.eventData)
        return True

    def occupancy(self) -> dict[str, Occupancy]:
        """GPU UUID -> what is used of it; without those that do not answer."""
        found: dict[str, Occupancy] = {}
        if self._initialised:
            for _, handle in _handles():
                with contextlib.suppress(nvml.NVMLError):
                    uuid = _text(nvml.nvmlDeviceGetUUID(handle))
                    found[uuid] = Occupancy(_used_bytes(handle), _processes(handle))
        return found

    def driver(self) -> Driver:
        """The driver, by its own word."""
        try:
            version = _text(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError:
            return Driver()
        library = ctypes.CDLL("libnvidia-ml.so.1")  # the one that is loaded already
        return Driver(version, hasattr(library, "nvmlDeviceSetMemoryLimits_v1"))

    def _initialise(self) -> None:
        if self._initialised:
            return
        try:
            nvml.nvmlInit()
        except nvml.NVMLError_LibraryNotFound:
            raise NvmlUnavailable(
                "libnvidia-ml.so.1 is not found: install the NVIDIA driver on the node, and run "
                "this container with it (NVIDIA's container toolkit, or a mounted driver)"
            ) from None
        except nvml.NVMLError as error:
            raise NvmlUnavailable(
                f"NVML cannot be started: {error}; does nvidia-smi work on the node?"
            ) from None
        self._events = nvml.nvmlEventSetCreate()
        self._initialised = True
        for _, handle in _handles():
            with contextlib.suppress(nvml.NVMLError):
                wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
                supported = nvml.nvmlDeviceGetSupportedEventTypes(handle)
                nvml.nvmlDeviceRegisterEvents(handle, wanted & supported, self._events)

    def _enumerated(self) -> Iterator[FoundGpu]:
        for _, handle in _handles():
            try:
                gpu = _read(handle)
            except nvml.NVMLError:
                continue  # gone between the two calls
            yield replace(gpu, problem=gpu.problem or self._illness(gpu.uuid, handle))

    def _illness(self, uuid: str, handle: Any) -> str | None:
        action = _recovery_action(handle)
        if action:
            return f"the driver asks for {_ACTIONS.get(action, f'recovery action {action}')}"
        if action == 0:
            self._xids.pop(uuid, None)
        xid = self._xids.get(uuid)
        return None if xid is None else xid_problem(xid)


_ACTIONS: Final = {
    1: "a GPU reset",
    2: "a reboot of the node",
    3: "its peers to be drained",
    4: "the GPU to be drained and reset",
    6: "a bus reset",
    7: "a reboot of the system",
}


def _handles() -> Iterator[tuple[int, Any]]:
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:
        return
    for index in range(count):
        with contextlib.suppress(nvml.NVMLError):
            yield index, nvml.nvmlDeviceGetHandleByIndex(index)


def _read(handle: Any) -> FoundGpu:
    memory_mib, problem = _memory_mib(handle)
    return FoundGpu(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        model=_text(nvml.nvmlDeviceGetName(handle)),
        memory_mib=memory_mib,
        pci_bus_id=_text(nvml.nvmlDeviceGetPciInfo(handle).busId).upper(),
        minor=int(nvml.nvmlDeviceGetMinorNumber(handle)),
        problem=problem,
        host_memory=_host_memory(handle),
        mig=_mig(handle),
    )


def _memory_mib(handle: Any) -> tuple[int, str | None]:
    """What it can really give, or why nothing can be shared of it."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return int(memory.total - memory.reserved) // _MIB, None
    except nvml.NVMLError_NotSupported:
        return 0, "it reports no memory of its own, so no share of it can be given"
    except nvml.NVMLError_FunctionNotFound:  # a driver before R510
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB, None


def _used_bytes(handle: Any) -> int | None:
    """What everybody uses; version 1 counts the driver's own part too, so it is no answer."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
    except nvml.NVMLError:
        return None


def _processes(handle: Any) -> dict[int, int | None] | None:
    """Pid -> what it uses. A process of both kinds is listed in both, with the same amount."""
    found: dict[int, int | None] = {}
    for functions in _COMPUTE, _GRAPHICS:
        listed = _listed(handle, functions)
        if listed is None and functions is _COMPUTE:
            return None
        for process in listed or ():
            pid = int(process.pid)
            known = [n for n in (found.get(pid), process.usedGpuMemory) if n is not None]
            found[pid] = max(known, default=None)
    return found


_COMPUTE: Final = tuple(f"nvmlDeviceGetComputeRunningProcesses_v{version}" for version in (3, 2))
_GRAPHICS: Final = tuple(f"nvmlDeviceGetGraphicsRunningProcesses_v{version}" for version in (3, 2))


def _listed(handle: Any, functions: tuple[str, ...]) -> list[Any] | None:
    """What the newest of these functions answers that the driver has."""
    for function in functions:
        try:
            listed: list[Any] = getattr(nvml, function)(handle)
        except nvml.NVMLError_FunctionNotFound:
            continue
        except nvml.NVMLError:
            break
        return listed
    return None


def _host_memory(handle: Any) -> bool:
    """Whether the GPU uses the host's page tables, as those do whose memory is the system's too."""
    try:
        mode = nvml.nvmlDeviceGetAddressingMode(handle)
    except nvml.NVMLError:  # a driver before R580 does not say, and no discrete GPU does it
        return any(name in _text(nvml.nvmlDeviceGetName(handle)) for name in _COHERENT)
    return bool(mode == nvml.NVML_DEVICE_ADDRESSING_MODE_ATS)


_COHERENT: Final = ("GH200", "GB200", "GB300")


def _mig(handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _recovery_action(handle: Any) -> int | None:
    """What the driver wants done to the GPU; 0 nothing, None where it does not say."""
    try:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    except nvml.NVMLError:
        return None
    return int(value.value.uiVal) if value.nvmlReturn == nvml.NVML_SUCCESS else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
