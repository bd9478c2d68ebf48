"""The device plugin with a fault, for tests of what happens then: python faulty_plugin.py FAULT …

no-preference   it does not tell the kubelet which ids to take
kill=FILE       once FILE is there, which holds a pid: at the next Allocate that process is killed
                (0: this one) and the file removed. That is after GetPreferredAllocation was
                answered, before Allocate is

The remaining arguments are the plugin's own.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from gpushare.deviceplugin import main, service
from gpushare.node import kubelet
from gpushare.node.api import deviceplugin_pb2 as api


def without_preference() -> None:
    async def options(self: object, request: object, context: object) -> object:
        return api.DevicePluginOptions(get_preferred_allocation_available=False)

    service.DevicePlugin.GetDevicePluginOptions = options  # type: ignore[method-assign,assignment]
    plain = kubelet.api.DevicePluginOptions

    class Without:
        """`kubelet.register` names the options once more."""

        def __getattr__(self, name: str) -> object:
            if name == "DevicePluginOptions":
                return lambda **_: plain(get_preferred_allocation_available=False)
            return getattr(api, name)

    kubelet.api = Without()  # type: ignore[assignment]


def killing(order: Path) -> None:
    allocate = service.DevicePlugin.Allocate

    async def fatal(self: service.DevicePlugin, request: object, context: object) -> object:
        _obey(order)
        return await allocate(self, request, context)  # type: ignore[arg-type]

    service.DevicePlugin.Allocate = fatal  # type: ignore[method-assign,assignment]


def _obey(order: Path) -> None:
    if order.exists() and (text := order.read_text()):
        order.unlink()
        os.kill(int(text) or os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    fault, *arguments = sys.argv[1:]
    if fault == "no-preference":
        without_preference()
    elif fault.startswith("kill="):
        killing(Path(fault.removeprefix("kill=")))
    sys.exit(main.main(arguments))
