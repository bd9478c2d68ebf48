"""The images, made here from a static busybox: nothing is fetched from an image registry.

Those of a node have the same one layer and differ in what they start. `python` in them is an honest
stand-in for the sample program of the documentation's Job: it says so, prints its environment and
sleeps until it is told to end. Tests make others of files of their own (`Image`, `layer`).
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

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

_FOLDERS = ("bin", "etc", "proc", "sys", "dev", "root", "usr", "usr/bin", "var", "run")

Files = Mapping[str, bytes | str]
"""Path without its first slash -> contents, or the target of a symbolic link."""


class Image(NamedTuple):
    """An image of one layer; command: what a container starts that names none."""

    name: str
    layer: bytes
    command: Sequence[str]


def archive(busybox: Path, names: Sequence[str] = ()) -> bytes:
    """A tar with the images above and `names` (each a busybox)."""
    scripts = {"pause": _PAUSE_SCRIPT.encode(), "usr/bin/python": _PYTHON_SCRIPT.encode()}
    one = layer({**busybox_files(busybox), **scripts})
    commands = {
        PAUSE: ["/pause"],
        SAMPLE: ["/bin/sh"],
        **{key: ["/bin/sh"] for key in (BUSYBOX, *names)},
    }
    return saved(Image(name, one, command) for name, command in commands.items())


def saved(images: Iterable[Image]) -> bytes:
    """A tar of images as `docker save` writes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        manifest = []
        written: set[str] = set()

        def once(name: str, data: bytes) -> str:
            if name not in written:
                _add(tar, name, data)
                written.add(name)
            return name

        for image in images:
            digest = hashlib.sha256(image.layer).hexdigest()
            config = _config(digest, image.command)
            file = once(f"{hashlib.sha256(config).hexdigest()}.json", config)
            layers = [once(f"{digest}.tar", image.layer)]
            manifest.append({"Config": file, "RepoTags": [image.name], "Layers": layers})
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return buffer.getvalue()


def busybox_files(busybox: Path) -> Files:
    """A shell and everything else a busybox can do, in bin."""
    applets = subprocess.run(
        [busybox, "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    links = {f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"}
    return {"bin/busybox": busybox.read_bytes(), **links}


def layer(files: Files) -> bytes:
    """A tar with these files, executable all, and the folders that every root file system has."""
    users = {
        "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:\n",
        "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
    }
    parents = {str(parent) for path in files for parent in PurePosixPath(path).parents} - {"."}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in sorted({*_FOLDERS, *parents}):
            _add_folder(tar, folder, 0o755)
        _add_folder(tar, "tmp", 0o1777)
        for path, content in {**users, **files}.items():
            if isinstance(content, bytes):
                _add(tar, path, content, 0o644 if path in users else 0o755)
            else:
                link = tarfile.TarInfo(path)
                link.type, link.linkname = tarfile.SYMTYPE, content
                tar.addfile(link)
    return buffer.getvalue()


def _config(digest: str, command: Sequence[str]) -> bytes:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return json.dumps(
        {
            "architecture": machine,
            "os": "linux",
            "config": {
                "Cmd": list(command),
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
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
