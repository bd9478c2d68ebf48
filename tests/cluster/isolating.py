"""Containers that run the CUDA test program on a fake GPU, and talking to it from outside.

The driver's libraries and its GPUs' state come with the GPU's CDI device, as NVIDIA's do. A pod's
program waits for commands on its standard input (`kubectl attach`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpushare.contract import names
from gpushare.isolation.backend import LIBRARY_IN_CONTAINER
from gpushare.isolation.limits import MIB
from gpushare_testcluster import binaries, wait_for
from gpushare_testcluster.cluster import kubectl_path
from gpushare_testcluster.errors import TimedOut
from gpushare_testcluster.node.images import Image
from gpushare_testcluster.pods import pod as plain_pod
from tests.cluster import extending, gpuimages, injecting, plugging
from tests.native.container import OUT_OF_MEMORY, Program
from tests.native.fakes import FakeGpus

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

Object = dict[str, Any]

UUID = "GPU-00000000-0000-4000-8000-{:012x}"
GRANULE_MIB = 2
"""Large memory is handed out in such pages."""
CONTEXT_MIB = 300
"""What a context takes of a fake GPU."""
DRIVER_MIB = 254
"""What the driver keeps for itself, beside what is offered."""


def machine(folder: Path, gpus: int = 1) -> FakeGpus:
    """GPUs of plugging.T4_MIB as their driver has them."""
    fakes = FakeGpus(injecting.fake_driver().parent, folder / "gpus")
    total = plugging.T4_MIB + DRIVER_MIB
    fakes.run("create", *(f"{UUID.format(i)},Tesla T4,{total},{DRIVER_MIB}" for i in range(gpus)))
    fakes.run("set", f"context_mib={CONTEXT_MIB}")
    return fakes


def driver_files(fakes: FakeGpus) -> dict[str, Path]:
    """Path in a container -> what of the driver is mounted there."""
    driver = ("libcuda.so.1", "libnvidia-ml.so.1")
    return {
        **{f"{gpuimages.LIBRARIES}/{name}": fakes.libraries / name for name in driver},
        "/etc/fake-gpu/state": fakes.state,
    }


def specify(cluster: Cluster, fakes: FakeGpus) -> None:
    """The stand-in for NVIDIA's specification, with the driver's files."""
    count = len(fakes.show()["gpus"])
    files = {UUID.format(i): f"/dev/nvidia{i}" for i in range(count)}
    injecting.specify(cluster, files, driver_files(fakes))


def mount_driver(one: Object, fakes: FakeGpus) -> Object:
    """Gives a pod the driver's files, where no CDI device does, as NVIDIA's runtime would."""
    for number, (inside, file) in enumerate(driver_files(fakes).items()):
        add_mount(one, f"driver{number}", {"hostPath": {"path": str(file)}}, mountPath=inside)
    return one


def add_mount(one: Object, name: str, volume: Object, **mount: str) -> None:
    """Mounts a volume of its own, once or more, into a pod's first container."""
    spec = one["spec"]
    volumes = spec.setdefault("volumes", [])
    if not any(other["name"] == name for other in volumes):
        volumes.append({"name": name, **volume})
    spec["containers"][0].setdefault("volumeMounts", []).append({"name": name, **mount})


def start(
    cluster: Cluster, folder: Path, *options: str, mode: str = "cgpu", gpus: int = 1
) -> FakeGpus:
    """Extender and device plugin on a node with fake GPUs, whose driver's state is in `folder`."""
    fakes = machine(folder, gpus)
    specify(cluster, fakes)
    sizes = (plugging.T4_MIB,) * gpus
    plugging.start(cluster, *sizes, options=(*_shipped(), *options), mode=mode, uuid=UUID)
    return fakes


def start_on_driver(
    cluster: Cluster, folder: Path, *options: str, library: bool = True, units: int = 15
) -> FakeGpus:
    """The same with a plugin that asks the GPUs' driver what they are and what is used of them.

    library   whether it is shipped with one
    units     that are offered then
    """
    fakes = machine(folder)
    specify(cluster, fakes)
    cluster.admin.label("nodes", cluster.node.name, **{names.LABEL_MODE: names.Mode.CGPU})
    extending.start(cluster)
    where = ("--kubeconfig", "{kubeconfig}", "--node", "{node}", "--listen", "{listen}")
    shipped = _shipped() if library else _shipped()[:2]
    cluster.node.start_plugin(
        [sys.executable, "-m", "gpushare", "device-plugin", *where, *shipped, *options],
        environ=fakes.environment(),
        ready="/readyz",
    )
    cluster.node.wait_allocatable(names.RESOURCE_MEM, units)
    return fakes


def start_anew(cluster: Cluster, library: Path) -> None:
    """Ends the plugin of `start` and starts one that brings another build of the library."""
    cluster.node.stop_plugin()
    options = ("--hook", str(injecting.hook()), "--library", str(library))
    plugging.start(
        cluster, plugging.T4_MIB, options=options, mode="cgpu", uuid=UUID, extender=False
    )


def _shipped() -> tuple[str, ...]:
    return ("--hook", str(injecting.hook()), "--library", str(injecting.library()))


# -- pods -----------------------------------------------------------------------------------------


def pod(
    cluster: Cluster,
    name: str,
    units: int,
    *,
    image: Image | None = None,
    env: dict[str, str] | None = None,
    container: Object | None = None,
    **spec: Any,
) -> Object:
    """A pod with one container, which runs the test program.

    container, spec   further fields of it and of the pod
    """
    image = image or gpuimages.glibc()
    cluster.node.import_images(image)
    spec.setdefault("restartPolicy", "Never")
    one = plain_pod(name, gpu_mem=units, image=image.name, **spec)
    one["spec"]["containers"][0] |= {
        "stdin": True,
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        **(container or {}),
    }
    return one


def run(cluster: Cluster, one: Object) -> str:
    """Creates a pod and waits until it runs and its units, if any, are attested; its name."""
    name: str = cluster.admin.create(one)["metadata"]["name"]
    try:
        cluster.node.wait_running(name)
    except TimedOut:
        events = cluster.admin.list("events", fields=f"involvedObject.name={name}")
        print(*(event["message"] for event in events), sep="\n")
        raise
    if not any("resources" in container for container in one["spec"]["containers"]):
        return name
    wait_for(lambda: plugging.assigned(cluster.admin.get("pods", name)), 20, f"{name} attested")
    return name


def deploy(cluster: Cluster, one: Object) -> str:
    """Creates a Deployment of one such pod, under its name; the pod's name, once it runs."""
    app = one["metadata"]["name"]
    labels = {"app": app}
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": one["spec"]},
    }
    meta = {"name": app, "namespace": "default"}
    cluster.admin.create(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
    )
    return deployed(cluster, app)


def deployed(cluster: Cluster, app: str) -> str:
    """The pod of a Deployment of one, once a container of it runs and its units are attested."""

    def up() -> str:
        run = {container.pod for container in cluster.node.containers()}
        for one in cluster.admin.list("pods", labels=f"app={app}"):
            name: str = one["metadata"]["name"]
            running = one["status"].get("phase") == "Running"
            if running and name in run and plugging.assigned(one):
                return name
        return ""

    return wait_for(up, 30, f"a pod of {app} runs")


def restarted(cluster: Cluster, name: str, timeout_s: float = 30) -> None:
    """Waits until a pod's container runs that is not its first."""

    def again() -> bool:
        (container,) = cluster.admin.get("pods", name)["status"]["containerStatuses"]
        return container["restartCount"] > 0 and "running" in container["state"]

    wait_for(again, timeout_s, f"{name} runs again")


def take_away_files(cluster: Cluster) -> None:
    """The limits and regions of all containers, from the node."""
    script = "rm -r /run/gpushare/*"
    subprocess.run([*cluster.node.enter(), "sh", "-c", script], check=True)


def refusal(cluster: Cluster, name: str, text: str) -> str:
    """What the status of a pod says whose container could not start, for `text`; waits for it."""

    def refused() -> str:
        (container,) = cluster.admin.get("pods", name)["status"].get("containerStatuses") or [{}]
        for when in ("state", "lastState"):
            for state in container.get(when, {}).values():
                if text in state.get("message", ""):
                    return str(state["message"])
        raise AssertionError(container)

    return wait_for(refused, 20, f"{name} refused")


def why_no_user_namespaces(cluster: Cluster) -> str:
    """Why this node gives pods no user namespace of their own, as it says; empty when it does."""
    status = cluster.admin.get("nodes", cluster.node.name)["status"]
    handlers = {one["name"]: one.get("features", {}) for one in status["runtimeHandlers"]}
    if handlers[""].get("userNamespaces"):
        return ""
    cluster.admin.create(plain_pod("user-namespace", hostUsers=False))
    event = cluster.wait_event("user-namespace", "FailedCreatePodSandBox")
    command = [str(binaries.path_of("runc")), "--version"]
    runc = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return f"{event['message']} ({runc[0]})"


_USER_NAMESPACES = """
mkdir -p /run/ns/proc /run/ns/upper /run/ns/work
mount -t proc proc /run/ns/proc
mount -t overlay -o lowerdir=/dev,upperdir=/run/ns/upper,workdir=/run/ns/work dev /dev
mknod /dev/nvidia0 c 1 3
"""


@contextmanager
def user_namespaces(cluster: Cluster) -> Iterator[None]:
    """Makes the node one on which a pod's own user namespace works as on a machine with a GPU.

    It gets a /proc of its own only where another is seen whole, and on this node some of /proc/sys
    is covered. Its containers cannot make device files, so the node's own are mounted.
    """

    def do(script: str) -> None:
        subprocess.run([*cluster.node.enter(), "sh", "-euc", script], check=True)

    do(_USER_NAMESPACES)
    try:
        yield
    finally:
        do("umount -l /dev; umount -l /run/ns/proc; rm -r /run/ns")


def unprotected(cluster: Cluster, name: str) -> str:
    """What a pod's annotation says of why it is not held; waits for it."""

    def why() -> str:
        annotations = cluster.admin.get("pods", name)["metadata"].get("annotations") or {}
        return str(annotations.get(names.ANNOTATION_UNPROTECTED, ""))

    return wait_for(why, 30, f"{name} found unprotected")


# -- the program in a container -------------------------------------------------------------------


class Inside(Program):
    """The test program in a container."""

    def __init__(self, process: subprocess.Popen[str], pid: int) -> None:
        super().__init__(process)
        self.pid = pid
        """As this machine counts."""

    def kill(self) -> None:
        """Ends the program itself, hard."""
        os.kill(self.pid, signal.SIGKILL)

    def wait_gone(self) -> None:
        """Waits until the program that was killed is no more."""
        wait_for(lambda: not Path(f"/proc/{self.pid}/exe").is_symlink(), 5, "the program has ended")

    @property
    def library(self) -> bytes:
        """The interposer that its container was given."""
        return Path(f"/proc/{self.pid}/root{LIBRARY_IN_CONTAINER}").read_bytes()

    @property
    def maps(self) -> str:
        """The files it has mapped."""
        return Path(f"/proc/{self.pid}/maps").read_text()

    @property
    def total(self) -> int:
        """MiB that cuMemGetInfo shows in all."""
        result, _, total = self.ask("info")
        assert result == 0
        return total // MIB

    def granted(self, mib: int) -> bool:
        """Whether that much is to be had in one piece; it is given back."""
        result, *handle = self.ask(f"alloc {mib * MIB}")
        if result:
            assert result == OUT_OF_MEMORY
            return False
        assert self.result(f"free {handle[0]}") == 0
        return True

    def fill(self) -> int:
        """Takes pages until none is granted; MiB."""
        result, count = self.ask(f"fill {GRANULE_MIB * MIB}")
        assert result == OUT_OF_MEMORY
        return count * GRANULE_MIB


@contextmanager
def attached(
    cluster: Cluster, name: str, container: str = "c0", *, device: int | None = 0
) -> Iterator[Inside]:
    """The program that a pod's container runs, with a context on a device unless that is None."""
    pid = cluster.node.container(name, container).pid
    words = ("attach", "--quiet", "--stdin", "--container", container, name)
    with _talking(cluster, words, lambda: pid) as program:
        if device is not None:
            assert program.result(f"init {device}") == 0
        yield program


@contextmanager
def executed(cluster: Cluster, name: str, device: int | None = 0) -> Iterator[Inside]:
    """Another program in a pod's container, by `kubectl exec`."""
    before = _programs(cluster, name)
    words = ("exec", "--stdin", name, "--", *gpuimages.COMMAND)
    with _talking(cluster, words, lambda: min(_programs(cluster, name) - before)) as program:
        if device is not None:
            assert program.result(f"init {device}") == 0
        yield program


ANSWERS_S = 5.0


@contextmanager
def _talking(
    cluster: Cluster, command: tuple[str, ...], pid: Callable[[], int]
) -> Iterator[Inside]:
    process = subprocess.Popen(
        [kubectl_path(), *command],
        env=cluster.environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(3):  # what is answered while kubectl still connects is lost
            process.stdin.write("sync\n")
            process.stdin.flush()
            if select.select([process.stdout], [], [], ANSWERS_S)[0]:
                break
        process.stdout.readline()
        yield Inside(process, pid())
    finally:
        process.kill()
        process.wait(10)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _programs(cluster: Cluster, name: str) -> set[int]:
    """The test programs in a pod's container, as this machine counts."""
    own = os.readlink(f"/proc/{cluster.node.container(name).pid}/ns/pid")
    found = set()
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if not entry.name.isdigit() or os.readlink(f"{entry.path}/ns/pid") != own:
                continue
            if Path(entry.path, "comm").read_text().startswith("gpuprog"):
                found.add(int(entry.name))
    return found
