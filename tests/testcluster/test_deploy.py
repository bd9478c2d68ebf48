"""The manifests users install: no wildcard, and what the test cluster takes from them."""

import pytest
import yaml

from gpushare_testcluster import deploying
from gpushare_testcluster.controlplane import new_settings
from gpushare_testcluster.errors import StartFailed

DEPLOY = deploying.find_deploy_dir()
OBJECTS = deploying.manifests(DEPLOY)
ROLES = [obj for obj in OBJECTS if obj["kind"] in ("ClusterRole", "Role")]


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role["metadata"]["name"])
def test_no_role_has_a_wildcard_or_a_way_to_secrets_or_more_rights(role):
    for rule in role["rules"]:
        for key in ("apiGroups", "resources", "verbs", "resourceNames", "nonResourceURLs"):
            assert "*" not in rule.get(key, []), rule
        assert not {"secrets", "roles", "clusterroles"} & set(rule.get("resources", []))
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_every_binding_and_workload_names_what_exists():
    names = {(obj["kind"], obj["metadata"]["name"]) for obj in OBJECTS}
    for obj in OBJECTS:
        if obj["kind"].endswith("Binding"):
            assert (obj["roleRef"]["kind"], obj["roleRef"]["name"]) in names
            for subject in obj["subjects"]:
                assert (subject["kind"], subject["name"]) in names
        if obj["kind"] in ("Deployment", "DaemonSet"):
            account = obj["spec"]["template"]["spec"]["serviceAccountName"]
            assert ("ServiceAccount", account) in names


def test_the_scheduler_configuration_is_taken_as_it_is_but_for_port_and_kubeconfig(tmp_path):
    settings = new_settings(DEPLOY, large=False, owner=None)
    text = deploying.scheduler_config(DEPLOY, settings, tmp_path / "config")
    ours = yaml.safe_load(text)
    theirs = yaml.safe_load((DEPLOY / "kube-scheduler" / "config.yaml").read_text())
    port = settings.extender_port
    (extender,) = ours["extenders"]
    assert extender["urlPrefix"] == f"http://127.0.0.1:{port}/gpushare-scheduler"
    assert ours["clientConnection"]["kubeconfig"] == str(tmp_path / "config")
    extender["urlPrefix"] = theirs["extenders"][0]["urlPrefix"]
    ours["clientConnection"]["kubeconfig"] = theirs["clientConnection"]["kubeconfig"]
    assert ours == theirs


def test_a_scheduler_configuration_with_another_port_is_refused(tmp_path):
    (tmp_path / "kube-scheduler").mkdir()
    (tmp_path / "kube-scheduler" / "config.yaml").write_text("extenders: []\n")
    settings = new_settings(DEPLOY, large=False, owner=None)
    with pytest.raises(StartFailed, match="exactly once"):
        deploying.scheduler_config(tmp_path, settings, tmp_path / "config")
