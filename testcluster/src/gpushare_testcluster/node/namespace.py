"""The node's own view of the file system: a mount namespace, held open by one sleeping process.

In it /run, /var/lib/kubelet, /var/log, /etc/cdi and /var/lib/gpushare are folders of the cluster,
so that kubelet, containerd and device plugin use the very paths they have in production; the
machine's own are neither covered nor written. What the kubelet would set machine-wide (sysctls)
it sets in files of its own. With the last process in it the kernel takes down the namespace and
every mount in it, containers' and volumes' included: nothing is left to be unmounted.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from gpushare_testcluster import controlplane as cp
from gpushare_testcluster.errors import TestClusterError
from gpushare_testcluster.node.layout import Layout
from gpushare_testcluster.node.requirements import find
from gpushare_testcluster.processes import Processes

ANCHOR = "node-namespace"

# Everything the kubelet sets, and the values it wants (pkg/kubelet/cm/container_manager_linux.go).
_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}

# $1: the cluster's folder. Run in a new mount namespace whose changes stay inside.
_SCRIPT = r"""
cluster=$1 node=$1/node
cd "$cluster"
layer() {  # $1: a folder of the machine, to be written to without changing it
    mkdir -p "$node/overlay$1/upper" "$node/overlay$1/work"
    mount -t overlay -o "lowerdir=$1,upperdir=$node/overlay$1/upper,workdir=$node/overlay$1/work" \
        node "$1"
}
put() {  # $1 appears as $2
    mkdir -p "$2"
    mount --bind "$1" "$2"
}
keep() {  # the cluster's folder stays where it is, also if it lies below what was just covered
    [ "$(stat -c %d:%i . 2>&1)" = "$(stat -c %d:%i "$cluster" 2>&1)" ] && return
    mkdir -p "$cluster"
    mount --no-canonicalize --bind . "$cluster"  # "." is still the one from before
}
put "$node/run" /run
keep
layer /etc
layer /var/lib
keep
put "$node/kubelet" /var/lib/kubelet
put "$node/gpushare" /var/lib/gpushare
put "$node/etc-cdi" /etc/cdi
put "$node/log" /var/log
cd "$node/config/sysctl"
for file in */* */*/*; do
    [ ! -f "$file" ] || [ ! -e "/proc/sys/$file" ] || mount --bind "$file" "/proc/sys/$file"
done
mount --make-rshared /
: > "$node/run/namespace-ready"
exec sleep 2147483647
"""


def start(layout: Layout, processes: Processes) -> None:
    """Makes the namespace, with a new boot id, and waits for it. Raises StartFailed."""
    for name, value in {**_SYSCTLS, "kernel/random/boot_id": str(uuid.uuid4())}.items():
        path = layout.config / "sysctl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    ready = layout.run / "namespace-ready"
    ready.unlink(missing_ok=True)
    argv = [find("unshare"), "--mount", "--propagation", "private", "--"]
    argv += [find("sh"), "-euc", _SCRIPT, "sh", str(layout.cluster)]
    processes.spawn(ANCHOR, argv)
    cp.wait_ready(processes, ANCHOR, ready.exists, 20)


def enter(layout: Layout, processes: Processes) -> list[str]:
    """What to put before a command so that it runs in the namespace, under the same pid.

    Raises TestClusterError while the node is off.
    """
    record = processes.record(ANCHOR)
    if record is None or not processes.running(ANCHOR):
        raise TestClusterError(
            f"the node of the cluster in {layout.cluster} is off; Node.power_on() starts it"
        )
    return [find("nsenter"), f"--mount=/proc/{record.pid}/ns/mnt", f"--wd={layout.root}", "--"]


def entered(argv: list[str]) -> bool:
    """Whether this command line was made with `enter`."""
    return len(argv) > 1 and argv[1].startswith("--mount=/proc/")


def inhabitants(processes: Processes) -> list[int]:
    """The pids of all processes in the namespace (containers have one of their own)."""
    record = processes.record(ANCHOR)
    if record is None or not processes.running(ANCHOR):
        return []
    wanted = _namespace(record.pid)
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [pid for pid in pids if wanted and _namespace(pid) == wanted]


def _namespace(pid: int) -> str:
    try:
        return os.readlink(Path("/proc", str(pid), "ns", "mnt"))
    except OSError:
        return ""
