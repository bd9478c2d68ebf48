"""The identities of gpushare's processes: ServiceAccounts with short-lived tokens in a file.

As in a pod, the token is valid for ten minutes and the file is replaced long before that, so a
process that reads it only once fails here as it would there. The keeper process renews them.

    DIR/identities/NAMESPACE.NAME.token       the token
    DIR/identities/NAMESPACE.NAME.kubeconfig  names the token's file
"""

from __future__ import annotations

import time
from pathlib import Path

from gpushare_testcluster.api import Api
from gpushare_testcluster.errors import TestClusterError
from gpushare_testcluster.state import StateDir, write_atomically

VALID_S = 600  # the shortest the API server grants
RENEW_AFTER_S = 60


def token_file(state: StateDir, name: str, namespace: str) -> Path:
    return state.identities / f"{namespace}.{name}.token"


def renew(api: Api, state: StateDir, name: str, namespace: str) -> Path:
    """Asks the API server for a token and replaces the file. Raises ApiError (404: no account)."""
    answer = api.request(
        "POST",
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": VALID_S},
        },
    )
    path = token_file(state, name, namespace)
    write_atomically(path, answer["status"]["token"])
    return path


def revoke(api: Api, state: StateDir, name: str, namespace: str) -> None:
    """Makes every token of the account invalid and writes a new one.

    The account is deleted and created again: tokens carry its UID. The API server forgets a token
    it has seen after ten seconds.
    """
    account = api.get("serviceaccounts", name, namespace=namespace)
    api.delete("serviceaccounts", name, namespace=namespace)
    kept = {
        key: value
        for key, value in account["metadata"].items()
        if key in ("name", "namespace", "labels", "annotations")
    }
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": kept})
    renew(api, state, name, namespace)


def due(state: StateDir) -> list[tuple[str, str]]:
    """The (name, namespace) of each token that is older than RENEW_AFTER_S."""
    found = []
    for path in state.identities.glob("[!.]*.token"):
        try:
            age = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            continue
        if age > RENEW_AFTER_S:
            namespace, _, name = path.stem.partition(".")
            found.append((name, namespace))
    return found


def check_name(name: str, namespace: str) -> None:
    """Raises TestClusterError where the file names could not be read back."""
    if "." in namespace or not name:
        raise TestClusterError(f"no identity can be called {namespace}/{name}")
