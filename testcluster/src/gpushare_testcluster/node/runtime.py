"""containerd: its configuration, its start, and what runs in it.

Containers are read from the files that containerd keeps of each (its bundle): that takes a
millisecond and works while containerd is down.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpushare_testcluster import binaries
from gpushare_testcluster import controlplane as cp
from gpushare_testcluster.errors import StartFailed
from gpushare_testcluster.node import images, namespace
from gpushare_testcluster.node.layout import Facts, Layout
from gpushare_testcluster.node.requirements import static_busybox
from gpushare_testcluster.processes import Processes
from gpushare_testcluster.state import write_atomically

CONTAINERD = "containerd"
SOCKET = "/run/containerd/containerd.sock"  # inside the namespace

# Answers for the network plugin that a node here does not need: pods get a network namespace with
# loopback in it and an address that is only a name.
_CNI_PLUGIN = r"""#!/bin/sh
case $CNI_COMMAND in
ADD)
    n=$(printf %s "$CNI_CONTAINERID" | cksum | cut -d' ' -f1)
    printf '{"cniVersion":"1.0.0","interfaces":[{"name":"%s","sandbox":"%s"}],' \
        "$CNI_IFNAME" "$CNI_NETNS"
    printf '"ips":[{"interface":0,"address":"10.%d.%d.%d/8"}]}\n' \
        $((n / 64516 % 256)) $((n / 254 % 254 + 1)) $((n % 254 + 1)) ;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' ;;
*) echo '{}' ;;
esac
"""
_CNI_CONFIG = {"cniVersion": "1.0.0", "name": "stub", "plugins": [{"type": "gpushare-stub"}]}


class Container(NamedTuple):
    """A container that runs; pid: of its first process, as this machine counts."""

    namespace: str
    pod: str
    uid: str
    name: str
    id: str
    pid: int


def write_config(layout: Layout, facts: Facts) -> None:
    plugins = layout.config / "cni-bin"
    networks = layout.config / "cni"
    for folder in (plugins, networks):
        folder.mkdir(exist_ok=True)
    for name in ("gpushare-stub", "loopback"):
        write_atomically(plugins / name, _CNI_PLUGIN, mode=0o755)
    write_atomically(networks / "10-stub.conflist", json.dumps(_CNI_CONFIG))
    cdi = '["/etc/cdi", "/run/cdi"]' if facts.cdi else "[]"
    text = f"""\
version = 3
root = "{layout.containerd}"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.differ.v1.erofs", "io.containerd.internal.v1.tracing",
]

[grpc]
  address = "{SOCKET}"

[ttrpc]
  address = "{SOCKET}.ttrpc"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{images.PAUSE}"

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  cdi_spec_dirs = {cdi}
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{plugins}"]
    conf_dir = "{networks}"
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = false

[plugins.'io.containerd.grpc.v1.cri']
  stream_server_address = "{facts.address}"
  stream_server_port = "0"

[plugins.'io.containerd.nri.v1.nri']
  socket_path = "/run/nri/nri.sock"
"""
    write_atomically(layout.config / "containerd.toml", text)


def start(layout: Layout, processes: Processes, *, timeout_s: float = 30) -> None:
    """Starts containerd in the node's namespace and waits until it answers. Raises StartFailed."""
    shim = binaries.path_of("containerd-shim-runc-v2")
    runc = binaries.path_of("runc")
    path = f"{shim.parent}:{runc.parent}:{os.environ.get('PATH', '')}"
    command = [str(binaries.path_of("containerd")), "--config"]
    command += [str(layout.config / "containerd.toml"), "--log-level", "info"]
    argv = [*namespace.enter(layout, processes), *command]
    processes.spawn(CONTAINERD, argv, {"PATH": path})
    cp.wait_ready(processes, CONTAINERD, lambda: _answers(layout, processes), timeout_s)


def import_images(layout: Layout, processes: Processes, names: Sequence[str] = ()) -> None:
    """Puts the images into containerd, and all `names` so far. Raises StartFailed."""
    known = layout.config / "images.json"
    if known.exists():
        names = sorted({*json.loads(known.read_bytes()), *names})
    write_atomically(known, json.dumps(list(names)))
    busybox = static_busybox()
    assert busybox is not None  # required before
    _import(layout, processes, images.archive(busybox, names))


def import_missing(layout: Layout, processes: Processes, wanted: Sequence[images.Image]) -> None:
    """Puts those images into containerd that it does not have. Raises StartFailed."""
    known = set(ctr(layout, processes, "images", "ls", "-q").split())
    if missing := [image for image in wanted if image.name not in known]:
        _import(layout, processes, images.saved(missing))


def _import(layout: Layout, processes: Processes, archive: bytes) -> None:
    file = layout.run / "images.tar"
    file.write_bytes(archive)
    try:
        ctr(layout, processes, "images", "import", "/run/images.tar")
    finally:
        file.unlink()


def ctr(layout: Layout, processes: Processes, *args: str, timeout_s: float = 60) -> str:
    """Runs ctr on the kubelet's containers; returns its output. Raises StartFailed."""
    command = [str(binaries.path_of("ctr")), "-a", SOCKET, "-n", "k8s.io", *args]
    done = subprocess.run(
        [*namespace.enter(layout, processes), *command],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=processes.environ(),
    )
    if done.returncode:
        raise StartFailed(f"ctr {' '.join(args)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def containers(layout: Layout) -> list[Container]:
    """The containers that run now, without the pods' sandboxes."""
    found = []
    for bundle in sorted(layout.bundles.glob("*")):
        try:
            pid = int((bundle / "init.pid").read_text())
            config = json.loads((bundle / "config.json").read_bytes())
        except (OSError, ValueError):
            continue  # being made or removed
        notes = config.get("annotations", {})
        if notes.get("io.kubernetes.cri.container-type") != "container":
            continue
        if Path("/proc", str(pid), "exe").is_symlink():
            found.append(
                Container(
                    notes["io.kubernetes.cri.sandbox-namespace"],
                    notes["io.kubernetes.cri.sandbox-name"],
                    notes["io.kubernetes.cri.sandbox-uid"],
                    notes["io.kubernetes.cri.container-name"],
                    bundle.name,
                    pid,
                )
            )
    return found


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with. Raises OSError when it is gone."""
    raw = Path("/proc", str(pid), "environ").read_bytes().decode(errors="surrogateescape")
    return dict(part.split("=", 1) for part in raw.split("\0") if "=" in part)


def _answers(layout: Layout, processes: Processes) -> bool:
    if not layout.containerd_socket.exists():
        return False
    try:
        ctr(layout, processes, "version")
    except (StartFailed, subprocess.TimeoutExpired):
        return False
    return True
