"""The images, made here from a static busybox: nothing is fetched from an image registry.

All have the same one layer and differ in what they start. `python` in them is an honest stand-in
for the sample program of the documentation's Job: it says so, prints its environment and sleeps
until it is told to end.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

PAUSE = "registry.k8s.io/pause:3.10"
BUSYBOX = "docker.io/library/busybox:1.35"
SAMPLE = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:tensorflow-1.5"

_WAIT = "trap 'exit 0' TERM INT; sleep 2147483647 & wait"
_PAUSE_SCRIPT = f"#!/bin/sh\n{_WAIT}\n"
_PYTHON_SCRIPT = f"""#!/bin/sh
echo "This stands in for the sample program of gpushare's test cluster; it was called with:"
echo "python $*"
env | sort
{_WAIT}
"""


def archive(busybox: Path, names: Sequence[str] = ()) -> bytes:
    """A tar as `docker save` writes it, with the images above and `names` (each a busybox)."""
    layer = _layer(busybox)
    commands = {
        PAUSE: ["/pause"],
        SAMPLE: ["/bin/sh"],
        **{key: ["/bin/sh"] for key in (BUSYBOX, *names)},
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        manifest = []
        for name, command in commands.items():
            config = _config(layer, command)
            file = f"{hashlib.sha256(config).hexdigest()}.json"
            if file not in tar.getnames():
                _add(tar, file, config)
            manifest.append({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]})
        _add(tar, "layer.tar", layer)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return buffer.getvalue()


def _layer(busybox: Path) -> bytes:
    applets = subprocess.run(
        [busybox, "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in ("bin", "etc", "proc", "sys", "dev", "root", "usr", "usr/bin", "var", "run"):
            _add_folder(tar, folder, 0o755)
        _add_folder(tar, "tmp", 0o1777)
        _add(tar, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in applets:
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        _add(tar, "pause", _PAUSE_SCRIPT.encode(), 0o755)
        _add(tar, "usr/bin/python", _PYTHON_SCRIPT.encode(), 0o755)
        _add(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:\n")
        _add(tar, "etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    return buffer.getvalue()


def _config(layer: bytes, command: list[str]) -> bytes:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return json.dumps(
        {
            "architecture": machine,
            "os": "linux",
            "config": {
                "Cmd": command,
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            },
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"],
            },
            "history": [{"created_by": "gpushare-testcluster"}],
        }
    ).encode()


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    tar.addfile(info)
