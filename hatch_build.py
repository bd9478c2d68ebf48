"""What a wheel of this checkout carries besides Python: the hook and the library, if built.

`make native` builds them. A wheel without them is for every machine; its device plugin isolates
nothing and starts containers without the hook, and says so.
"""

import platform
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = ("gpushare-hook", "libgpushare-interposer.so")


class NativeFiles(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version != "standard":
            return
        machine = platform.machine()
        built = Path(self.root) / "build" / "native" / machine
        if all((built / name).exists() for name in FILES):
            for name in FILES:
                build_data["force_include"][str(built / name)] = f"gpushare/native/{name}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-linux_{machine}"
