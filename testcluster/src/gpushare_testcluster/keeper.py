"""The keeper: the one process of ours that stays with a cluster after `up` has returned.

It renews the identities' tokens and the fake nodes' Leases, and plays the kubelet on them where it
is asked to. A cluster that belongs to a process (a test run) is taken down when that process is
gone, however it went.

    python -m gpushare_testcluster.keeper DIR
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
import traceback
from pathlib import Path

from gpushare_testcluster import hollow, identities, nodes
from gpushare_testcluster.api import Api, ApiError
from gpushare_testcluster.controlplane import admin_api
from gpushare_testcluster.procfs import Process, alive
from gpushare_testcluster.state import Settings, StateDir

LEASES_EVERY_S = 10
TICK_S = 0.5


def main() -> int:
    """Runs until the cluster's folder is gone, or its owner."""
    state = StateDir(Path(sys.argv[1]))
    settings = state.settings()
    owner = Process(settings.owner_pid, settings.owner_start)
    threading.Thread(target=_start_work, args=(state, settings), daemon=True).start()
    while state.exists():
        if owner.pid and not alive(owner):
            _log(f"the owner, process {owner.pid}, is gone: taking the cluster down")
            from gpushare_testcluster.lifecycle import take_down
            from gpushare_testcluster.say import Say

            take_down(state, Say(quiet=True), timeout_s=60)
            return 0
        time.sleep(TICK_S)
    return 0


def _start_work(state: StateDir, settings: Settings) -> None:
    # We are here before the first build and the certificates, to see the owner go even then.
    while not state.kubeconfig.exists():
        time.sleep(TICK_S)
    api = admin_api(state, settings)
    threading.Thread(target=hollow.play, args=(state, api), daemon=True).start()
    _work(state, api)


def _work(state: StateDir, api: Api) -> None:
    leases_at = 0.0
    while True:
        try:
            for name, namespace in identities.due(state):
                try:
                    identities.renew(api, state, name, namespace)
                except ApiError as error:
                    if error.status != 404:  # an account that a test has taken away
                        raise
            if time.monotonic() - leases_at > LEASES_EVERY_S:
                settings = state.settings()
                if not settings.large:
                    _renew_leases(state, settings, api)
                leases_at = time.monotonic()
        except (OSError, ApiError, http.client.HTTPException) as error:
            _log(f"will try again: {error}")  # the API server is starting, or away
        except Exception:
            _log(traceback.format_exc())
        time.sleep(TICK_S)


def _renew_leases(state: StateDir, settings: Settings, api: Api) -> None:
    real = state.real_nodes()
    fake = [node["metadata"]["name"] for node in api.list("nodes")]
    for name in fake:
        if name not in real:
            nodes.renew_lease(api, name)


def _log(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
