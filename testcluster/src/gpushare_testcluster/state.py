"""What a cluster is on disk: one folder with everything in it, so that removing it is the end.

    DIR/cluster.json      the settings below; written before the first process starts
    DIR/lock              held by `up` and `down` while they work
    DIR/kubeconfig        the administrator's
    DIR/pki/              certificates and keys
    DIR/processes/        one record per process (see processes.py)
    DIR/identities/       tokens of ServiceAccounts and kubeconfigs that name them
    DIR/logs/             one file per process
    DIR/etcd/             etcd's data

Several clusters live side by side: each has its own folder and its own loopback address.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpushare_testcluster.errors import TestClusterError

OWN_ENTRIES = frozenset(
    {
        "cluster.json",
        "lock",
        "kubeconfig",
        "kube-scheduler.yaml",
        "play-kubelet",
        "real-nodes",
        "pki",
        "processes",
        "identities",
        "logs",
        "etcd",
        "flexvolume",
        "node",
    }
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster's fixed facts, kept in cluster.json.

    address: the cluster's own address in 127.0.0.0/8; the API server listens there, and the
        Service `kubernetes` has it too, so that pods on the host network reach the API server.
    large: node Leases are not renewed, the controller waits 10 hours for them instead.
    owner_pid, owner_start: the process whose end is the cluster's end too (pid 0: nobody's).
    tokens: user name → static token of the control plane's own components.
    """

    id: str
    address: str
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    controller_manager_port: int
    scheduler_port: int
    extender_port: int
    service_range: str
    large: bool = False
    owner_pid: int = 0
    owner_start: int = 0
    verbosity: int = 1
    tokens: dict[str, str] = {}
    deploy_dir: str = ""

    @property
    def api_url(self) -> str:
        return f"https://{self.address}:{self.api_port}"

    @property
    def etcd_url(self) -> str:
        return f"http://{self.address}:{self.etcd_port}"


def default_dir() -> Path:
    """Where `up` puts a cluster when it is not told: `$XDG_RUNTIME_DIR`, else /tmp."""
    base = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
    return Path(base) / "gpushare-testcluster"


class StateDir:
    """The folder of one cluster; see the module's docstring."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.pki = self.path / "pki"
        self.logs = self.path / "logs"
        self.processes = self.path / "processes"
        self.identities = self.path / "identities"
        self.kubeconfig = self.path / "kubeconfig"
        self.play_kubelet = self.path / "play-kubelet"
        self._settings = self.path / "cluster.json"
        self._real_nodes = self.path / "real-nodes"

    def create(self, settings: Settings) -> None:
        """Makes the folder, readable by its owner alone, and writes the settings."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.pki, self.logs, self.processes, self.identities):
            folder.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self._settings, msgspec.json.encode(settings))

    def exists(self) -> bool:
        """True where a cluster was started and not taken down, whether it runs or not."""
        return self._settings.exists()

    def settings(self) -> Settings:
        """Raises TestClusterError where there is no cluster."""
        try:
            return msgspec.json.decode(self._settings.read_bytes(), type=Settings)
        except FileNotFoundError:
            raise TestClusterError(
                f"no test cluster in {self.path}; start one with 'gpushare-testcluster up'"
            ) from None

    def change(self, settings: Settings) -> None:
        """Replaces the settings."""
        write_atomically(self._settings, msgspec.json.encode(settings))

    def real_nodes(self) -> list[str]:
        """Names of the nodes that have a kubelet."""
        try:
            return self._real_nodes.read_text().split()
        except FileNotFoundError:
            return []

    def set_real_nodes(self, names: list[str]) -> None:
        write_atomically(self._real_nodes, "\n".join(names))

    def strangers(self) -> list[str]:
        """What lies in the folder that no cluster has put there."""
        if not self.path.is_dir():
            return []
        return sorted(
            entry.name
            for entry in self.path.iterdir()
            if entry.name not in OWN_ENTRIES and not entry.name.startswith(".cluster.json.")
        )

    def remove(self) -> None:
        """Removes everything a cluster puts there, and the folder if nothing else is in it.

        The settings go last: a removal cut short is seen by the next `down`.
        """
        for name in sorted(OWN_ENTRIES, key=("cluster.json", "lock").__contains__):
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for rest in self.path.glob(".cluster.json.*"):
            rest.unlink()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    @contextlib.contextmanager
    def lock(self, timeout_s: float = 5) -> Iterator[None]:
        """Keeps `up` and `down` of one folder apart; the kernel releases it with its holder.

        Raises TestClusterError, naming the holder, when it is not free within timeout_s.
        """
        path = self.path / "lock"
        deadline = time.monotonic() + timeout_s
        while True:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("a+") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        handle.seek(0)
                        raise TestClusterError(
                            f"the cluster in {self.path} is being started or stopped by process "
                            f"{handle.read().strip() or '?'}; wait for it or end it first"
                        ) from None
                    time.sleep(0.05)
                    continue
                if not _is_at(handle.fileno(), path):  # removed by a `down` that came before us
                    continue
                handle.truncate(0)
                handle.write(f"{os.getpid()}\n")
                handle.flush()
                yield
                return


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def write_atomically(path: Path, data: bytes | str, mode: int = 0o600) -> None:
    """Writes a file so that a reader sees the old one or the new one, never a part."""
    raw = data.encode() if isinstance(data, str) else data
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        os.chmod(name, mode)
        os.rename(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
