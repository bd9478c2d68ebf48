"""What users install, applied to the test cluster unchanged: the files in the clone's `deploy/`.

The test cluster takes from them the kube-scheduler configuration (port and kubeconfig path
replaced) and every identity: ServiceAccounts and RBAC. A permission that is missing there is
missing here. The Deployments and DaemonSets are not applied: their processes run from the clone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gpushare_testcluster.errors import StartFailed
from gpushare_testcluster.state import Settings

# First the things that others refer to.
IDENTITY_KINDS = (
    "Namespace",
    "ServiceAccount",
    "ClusterRole",
    "Role",
    "ClusterRoleBinding",
    "RoleBinding",
)
_EXTENDER = "http://127.0.0.1:32766/"
_KUBECONFIG = "/etc/kubernetes/scheduler.conf"


def find_deploy_dir() -> Path:
    """The `deploy/` of the clone this package is installed from.

    Raises StartFailed outside a clone.
    """
    for folder in Path(__file__).resolve().parents:
        if (folder / "deploy" / "kube-scheduler" / "config.yaml").exists():
            return folder / "deploy"
    raise StartFailed(
        f"the manifests in deploy/ are not found above {Path(__file__).parent}; run the test "
        "cluster from a clone of gpushare (scripts/setup), or say where they are: --deploy DIR"
    )


def scheduler_config(deploy: Path, settings: Settings, kubeconfig: Path) -> str:
    """kube-scheduler/config.yaml with this cluster's extender port and kubeconfig.

    Raises StartFailed when the file does not hold exactly one of each.
    """
    path = deploy / "kube-scheduler" / "config.yaml"
    text = path.read_text()
    for old, new in (
        (_EXTENDER, f"http://127.0.0.1:{settings.extender_port}/"),
        (_KUBECONFIG, str(kubeconfig)),
    ):
        if text.count(old) != 1:
            raise StartFailed(f"{path} must hold {old!r} exactly once, for the test cluster")
        text = text.replace(old, new)
    return text


def manifests(deploy: Path) -> list[dict[str, Any]]:
    """Every object in deploy/*.yaml, in the order of the files."""
    return [
        obj
        for path in sorted(deploy.glob("*.yaml"))
        for obj in yaml.safe_load_all(path.read_text())
        if obj
    ]


def identities(deploy: Path) -> list[dict[str, Any]]:
    """The ServiceAccounts, roles and bindings of deploy/*.yaml, in an order that applies."""
    chosen = [obj for obj in manifests(deploy) if obj["kind"] in IDENTITY_KINDS]
    return sorted(chosen, key=lambda obj: IDENTITY_KINDS.index(obj["kind"]))
