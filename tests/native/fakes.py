"""Fake GPUs: one state file that all processes of a test share."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class FakeGpus:
    """A fake machine's GPUs, in a file that all processes of a test share."""

    build: Path
    state: Path

    def run(self, verb: str, *words: str) -> str:
        """The `fakegpu` tool on this machine's state."""
        return subprocess.run(
            [self.build / "fake" / "fakegpu", verb, self.state, *words],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def show(self) -> dict[str, list[dict[str, object]]]:
        shown: dict[str, list[dict[str, object]]] = json.loads(self.run("show"))
        return shown

    @property
    def libraries(self) -> Path:
        """The folder with the fake libnvidia-ml.so.1 and libcuda.so.1."""
        return self.build / "fake"

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "FAKE_GPU_STATE": str(self.state),
            "LD_LIBRARY_PATH": str(self.libraries),
        }


def uuid(number: int) -> str:
    """The UUID of a test's GPU."""
    return f"GPU-00000000-0000-4000-8000-{number:012x}"
