"""A cluster's beginning and end.

Both hold the folder's lock. A start that fails, or is interrupted, ends everything it started
and leaves only the logs; one that is killed outright leaves a folder from which `take_down` finds
the rest.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from gpushare_testcluster import binaries, deploying
from gpushare_testcluster import controlplane as cp
from gpushare_testcluster.api import Api, ApiError
from gpushare_testcluster.errors import CannotRun, TestClusterError
from gpushare_testcluster.node import leftovers
from gpushare_testcluster.processes import MARK, Processes
from gpushare_testcluster.procfs import Process
from gpushare_testcluster.resources import resource_of_kind
from gpushare_testcluster.say import Say
from gpushare_testcluster.state import StateDir

KEEPER = "keeper"


def bring_up(
    state: StateDir,
    say: Say,
    *,
    large: bool = False,
    owner: Process | None = None,
    deploy: Path | None = None,
    verbosity: int = 1,
) -> Processes:
    """Starts a control plane in an empty folder and waits until it is ready.

    Raises CannotRun, BuildFailed or StartFailed; nothing of it runs then.
    """
    if platform.system() != "Linux":
        raise CannotRun(f"the test cluster runs on Linux only, this is {platform.system()}")
    deploy = deploy or deploying.find_deploy_dir()
    with state.lock():
        if strangers := state.strangers():
            raise TestClusterError(
                f"{state.path} holds {strangers[0]!r}, which is not a test cluster's; "
                "give an empty folder or one that does not exist"
            )
        if state.exists():
            raise TestClusterError(
                f"there is a cluster in {state.path} already; take it down first"
            )
        processes = Processes(state)
        with _undone_on_failure(state, processes, say):
            state.create(cp.new_settings(deploy, large=large, owner=owner, verbosity=verbosity))
            _start(state, processes, say)
    return processes


def _start(state: StateDir, processes: Processes, say: Say) -> None:
    settings = state.settings()
    # The keeper first: from here on a cluster with an owner cannot outlive it.
    start_keeper(state, processes)
    mark = {MARK: str(state.path)}
    paths = binaries.ensure(binaries.CONTROL_PLANE, say, mark)
    cp.write_files(state, settings)
    with say.step("etcd"):
        processes.spawn(cp.ETCD, cp.etcd_argv(paths["etcd"], state, settings))
        cp.wait_ready(
            processes,
            cp.ETCD,
            lambda: cp.http_ok(settings.address, settings.etcd_port, "/health"),
        )
    api = cp.admin_api(state, settings)
    with say.step("kube-apiserver"):
        argv = cp.apiserver_argv(paths[cp.APISERVER], state, settings)
        processes.spawn(cp.APISERVER, argv)
        cp.wait_ready(processes, cp.APISERVER, api.ready)
    with say.step("kube-controller-manager and kube-scheduler"):
        argv = cp.controller_manager_argv(paths[cp.CONTROLLER_MANAGER], state, settings)
        processes.spawn(cp.CONTROLLER_MANAGER, argv)
        argv = cp.scheduler_argv(paths[cp.SCHEDULER], state, settings)
        processes.spawn(cp.SCHEDULER, argv)
        apply_identities(api, Path(settings.deploy_dir))
        for name, port in (
            (cp.SCHEDULER, settings.scheduler_port),
            (cp.CONTROLLER_MANAGER, settings.controller_manager_port),
        ):
            cp.wait_ready(processes, name, lambda port=port: cp.healthz(settings, port))  # type: ignore[misc]
        cp.wait_ready(processes, KEEPER, lambda: processes.running(KEEPER))
        # Pods need it; the controller manager makes it.
        cp.wait_ready(
            processes,
            cp.CONTROLLER_MANAGER,
            lambda: api.find("serviceaccounts", "default") is not None,
        )


def start_keeper(state: StateDir, processes: Processes) -> None:
    """Starts the process that stays with the cluster."""
    argv = [sys.executable, "-m", "gpushare_testcluster.keeper", str(state.path)]
    processes.spawn(KEEPER, argv)


def apply_identities(api: Api, deploy: Path) -> None:
    """Creates the ServiceAccounts, roles and bindings of deploy/, or puts them back."""
    for obj in deploying.identities(deploy):
        try:
            api.create(obj)
        except ApiError as error:
            if error.status != 409:
                raise
            resource, meta = resource_of_kind(obj["kind"]), obj["metadata"]
            if obj["kind"] != "ServiceAccount":
                # A replaced role keeps its bindings; a binding's role cannot be changed in place.
                namespace = meta.get("namespace", "default")
                api.delete(resource, meta["name"], namespace=namespace)
                api.create(obj)


def take_down(state: StateDir, say: Say, *, timeout_s: float = 5, keep_logs: bool = False) -> bool:
    """Ends every process of the cluster and removes its folder; False where there was nothing.

    keep_logs: the folder stays, with logs/ and the settings. Raises TestClusterError when somebody
    else is starting or stopping it, or when a process does not end.
    """
    if not state.path.is_dir():
        return False
    with state.lock(timeout_s):
        return _take_down(state, Processes(state), say, keep_logs=keep_logs)


def _take_down(state: StateDir, processes: Processes, say: Say, *, keep_logs: bool) -> bool:
    existed = state.exists()
    with say.step("ending the cluster's processes") if existed else contextlib.nullcontext():
        killed = processes.stop_all()
        leftovers.clear(state)
    if keep_logs:
        for record in processes.records():
            processes.forget(record.name)
    elif existed or not state.strangers():
        state.remove()
    else:
        (state.path / "lock").unlink(missing_ok=True)  # ours; the rest of the folder is not
    return existed or bool(killed)


@contextlib.contextmanager
def _undone_on_failure(state: StateDir, processes: Processes, say: Say) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _take_down(state, processes, say, keep_logs=True)
        if any(state.logs.glob("*.log")):
            say.note(
                f"The logs are in {state.logs}; 'gpushare-testcluster down --dir {state.path}' "
                "removes them."
            )
        raise
