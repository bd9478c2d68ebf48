"""The control plane's processes: their command lines, and how to tell that each is ready.

All listen on the cluster's own loopback address. etcd does not wait for the disk
(`--unsafe-no-fsync`): its data goes when the cluster goes.
"""

from __future__ import annotations

import http.client
import secrets
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from gpushare_testcluster import kubeconfig
from gpushare_testcluster.api import Api
from gpushare_testcluster.deploying import scheduler_config
from gpushare_testcluster.errors import StartFailed
from gpushare_testcluster.pki import Pki
from gpushare_testcluster.ports import api_port, free_ports, own_address
from gpushare_testcluster.processes import Processes
from gpushare_testcluster.procfs import Process
from gpushare_testcluster.state import Settings, StateDir, write_atomically

ETCD = "etcd"
APISERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"

# user → group, as in the file of static tokens
USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
}


def new_settings(
    deploy: Path, *, large: bool, owner: Process | None, verbosity: int = 1
) -> Settings:
    """Chooses an address, ports and tokens for a new cluster. Raises CannotRun."""
    address = own_address()
    etcd, peer, controller_manager, scheduler = free_ports(address, 4)
    (extender,) = free_ports("127.0.0.1", 1)
    return Settings(
        id=secrets.token_hex(4),
        address=address,
        api_port=api_port(),
        etcd_port=etcd,
        etcd_peer_port=peer,
        controller_manager_port=controller_manager,
        scheduler_port=scheduler,
        extender_port=extender,
        service_range=address.removesuffix(".1") + ".0/24",
        large=large,
        owner_pid=owner.pid if owner else 0,
        owner_start=owner.start if owner else 0,
        verbosity=verbosity,
        tokens={user: secrets.token_hex(16) for user in USERS},
        deploy_dir=str(deploy),
    )


def write_files(state: StateDir, settings: Settings) -> None:
    """Certificates, tokens, kubeconfigs and the scheduler's configuration.

    Raises StartFailed when the configuration in deploy/ cannot be used.
    """
    pki = Pki(state.pki)
    pki.create_authority()
    kubernetes = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    pki.issue(
        "server",
        "kube-apiserver",
        names=(*kubernetes, "localhost"),
        addresses=(settings.address, "127.0.0.1"),
    )
    pki.issue("apiserver-kubelet", "kube-apiserver", groups=("system:masters",))
    lines = []
    for user, group in USERS.items():
        groups = f',"{group}"' if group else ""
        lines.append(f"{settings.tokens[user]},{user},{user}{groups}\n")
        kubeconfig.write(
            kubeconfig_of(state, user),
            server=settings.api_url,
            ca=pki.ca,
            user=user,
            token=settings.tokens[user],
        )
    write_atomically(state.pki / "tokens.csv", "".join(lines))
    config = scheduler_config(
        Path(settings.deploy_dir), settings, kubeconfig_of(state, "system:kube-scheduler")
    )
    write_atomically(state.path / "kube-scheduler.yaml", config)


def kubeconfig_of(state: StateDir, user: str) -> Path:
    """The kubeconfig of one of the control plane's own users."""
    if user == "admin":
        return state.kubeconfig
    return state.pki / f"{user.removeprefix('system:')}.kubeconfig"


def admin_api(state: StateDir, settings: Settings) -> Api:
    """A client with all rights."""
    return Api(settings.api_url, Pki(state.pki).ca, settings.tokens["admin"])


def etcd_argv(binary: Path, state: StateDir, settings: Settings) -> list[str]:
    peers = f"http://{settings.address}:{settings.etcd_peer_port}"
    return [
        str(binary),
        "--name=testcluster",
        f"--data-dir={state.path / 'etcd'}",
        f"--listen-client-urls={settings.etcd_url}",
        f"--advertise-client-urls={settings.etcd_url}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=testcluster={peers}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver_argv(binary: Path, state: StateDir, settings: Settings) -> list[str]:
    pki = Pki(state.pki)
    return [
        str(binary),
        f"--etcd-servers={settings.etcd_url}",
        f"--bind-address={settings.address}",
        f"--advertise-address={settings.address}",
        f"--secure-port={settings.api_port}",
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={settings.service_range}",
        f"--tls-cert-file={pki.crt('server')}",
        f"--tls-private-key-file={pki.key('server')}",
        f"--client-ca-file={pki.ca}",
        f"--token-auth-file={state.pki / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={state.pki / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={pki.key('service-accounts')}",
        f"--kubelet-client-certificate={pki.crt('apiserver-kubelet')}",
        f"--kubelet-client-key={pki.key('apiserver-kubelet')}",
        "--kubelet-preferred-address-types=Hostname,InternalIP",
        "--allow-privileged=true",
        "--profiling=false",
        f"-v={settings.verbosity}",
    ]


def controller_manager_argv(binary: Path, state: StateDir, settings: Settings) -> list[str]:
    pki = Pki(state.pki)
    grace = ["--node-monitor-grace-period=10h"] if settings.large else []
    return [
        str(binary),
        f"--kubeconfig={kubeconfig_of(state, 'system:kube-controller-manager')}",
        f"--bind-address={settings.address}",
        f"--secure-port={settings.controller_manager_port}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki.key('service-accounts')}",
        f"--root-ca-file={pki.ca}",
        f"--cluster-signing-cert-file={pki.ca}",
        f"--cluster-signing-key-file={pki.key('ca')}",
        f"--flex-volume-plugin-dir={state.path / 'flexvolume'}",
        # A Job of some hundred pods would otherwise take as many seconds to make them.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--profiling=false",
        f"-v={settings.verbosity}",
        *grace,
    ]


def scheduler_argv(binary: Path, state: StateDir, settings: Settings) -> list[str]:
    return [
        str(binary),
        f"--config={state.path / 'kube-scheduler.yaml'}",
        f"--bind-address={settings.address}",
        f"--secure-port={settings.scheduler_port}",
        "--leader-elect=false",
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        "--profiling=false",
        f"-v={settings.verbosity}",
    ]


def wait_ready(
    processes: Processes, name: str, probe: Callable[[], bool], timeout_s: float = 60
) -> None:
    """Waits until `probe` answers true.

    Raises StartFailed, with the end of its log, when the process ends first or time runs out.
    """
    deadline = time.monotonic() + timeout_s
    while not probe():
        if not processes.running(name):
            raise StartFailed(
                f"{name} ended while starting; the end of {processes.log_of(name)}:\n"
                f"{processes.tail(name)}"
            )
        if time.monotonic() > deadline:
            raise StartFailed(
                f"{name} was not ready within {timeout_s:g} s; the end of "
                f"{processes.log_of(name)}:\n{processes.tail(name)}"
            )
        time.sleep(0.05)


def http_ok(address: str, port: int, path: str) -> bool:
    """True when a GET over plain HTTP is answered with 200."""
    connection = http.client.HTTPConnection(address, port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def healthz(settings: Settings, port: int) -> bool:
    """True when a component that serves HTTPS with a certificate of its own making is healthy."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(settings.address, port, context=context, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
