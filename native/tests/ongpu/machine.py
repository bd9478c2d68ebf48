"""The GPU as NVML tells this script, which the interposer is not in front of."""

import ctypes
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
FAKE_UUID = "GPU-00000000-0000-4000-8000-000000000001"
NOT_AVAILABLE = (1 << 64) - 1


class Unusable(Exception):
    """This machine cannot show anything; the text says why."""


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _MemoryV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    ]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


@dataclass(frozen=True)
class Memory:
    """Bytes. NVML's first version counts the reserved part as used."""

    v1_total: int
    total: int
    reserved: int
    used: int

    @property
    def usable(self) -> int:
        return self.total - self.reserved


class Machine:
    """One GPU and its driver."""

    def __init__(self, index: int, fake: Path | None, scratch: Path) -> None:
        self.fake = fake
        self.environment: dict[str, str] = {**os.environ}
        library = "libnvidia-ml.so.1"
        if fake:
            state = scratch / "gpus"
            gpu = f"{FAKE_UUID},Fake T4,15360,443"
            subprocess.run([fake / "fakegpu", "create", state, gpu], check=True)
            os.environ["FAKE_GPU_STATE"] = str(state)
            self.environment |= {"FAKE_GPU_STATE": str(state), "LD_LIBRARY_PATH": str(fake)}
            library = str(fake / library)
        try:
            self._nvml = ctypes.CDLL(library)
        except OSError as error:
            raise Unusable(f"no NVIDIA driver here: {error}") from None
        self._call("nvmlInit_v2")
        self._device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(self._device))
        self.uuid = self._text("nvmlDeviceGetUUID", self._device)
        self.name = self._text("nvmlDeviceGetName", self._device)
        self.driver = self._text("nvmlSystemGetDriverVersion")
        version = ctypes.c_int()
        self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(version))
        self.cuda_version = version.value
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        arguments = (self._device, ctypes.byref(current), ctypes.byref(pending))
        if self._answers("nvmlDeviceGetMigMode", *arguments) and current.value:
            raise Unusable("this GPU is cut by MIG, which this script does not cover")
        # The fake knows no CUDA_VISIBLE_DEVICES; it has one GPU.
        self.environment["CUDA_VISIBLE_DEVICES"] = self.uuid

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._nvml, name)(*arguments)
        if result:
            raise Unusable(f"{name} answers {result}")

    def _answers(self, name: str, *arguments: object) -> bool:
        function = getattr(self._nvml, name, None)
        return function is not None and function(*arguments) == 0

    def _text(self, name: str, *before: object) -> str:
        text = ctypes.create_string_buffer(96)
        self._call(name, *before, text, 96)
        return text.value.decode()

    def memory(self) -> Memory:
        one, two = _Memory(), _MemoryV2()
        two.version = ctypes.sizeof(two) | 2 << 24
        self._call("nvmlDeviceGetMemoryInfo", self._device, ctypes.byref(one))
        self._call("nvmlDeviceGetMemoryInfo_v2", self._device, ctypes.byref(two))
        return Memory(one.total, two.total, two.reserved, two.used)

    def processes(self) -> dict[int, int]:
        """pid → bytes, of the processes with a context that the driver tells us of."""
        found = (_Process * 256)()
        count = ctypes.c_uint(256)
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        if not self._answers(name, self._device, ctypes.byref(count), found):
            return {}
        return {
            process.pid: process.used
            for process in found[: count.value]
            if process.used != NOT_AVAILABLE
        }


@dataclass(frozen=True)
class Meter:
    """What a process really takes: by its pid where the driver lists it, else the GPU's sum."""

    machine: Machine
    by_process: bool
    before: int
    """What the GPU's sum was without any of ours."""

    def used(self, pid: int) -> int:
        if self.by_process:
            return self.machine.processes().get(pid, 0)
        return self.machine.memory().used - self.before
