"""Kubeconfig files, written as JSON (which every YAML reader reads)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from gpushare_testcluster.state import write_atomically


def write(
    path: Path,
    *,
    server: str,
    ca: Path,
    user: str,
    token: str = "",
    token_file: Path | None = None,
    namespace: str = "default",
) -> Path:
    """Writes a kubeconfig with one cluster, one user and one context, and returns its path.

    token: a fixed one; token_file: a file that the client reads again as it changes.
    """
    credentials: dict[str, Any] = (
        {"tokenFile": str(token_file)} if token_file is not None else {"token": token}
    )
    cluster = {
        "server": server,
        "certificate-authority-data": base64.b64encode(ca.read_bytes()).decode(),
    }
    context = {"cluster": "testcluster", "user": user, "namespace": namespace}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testcluster", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "testcluster", "context": context}],
        "current-context": "testcluster",
    }
    write_atomically(path, json.dumps(config, indent=1) + "\n")
    return path
