"""The cluster is found as every Kubernetes program finds it."""

from pathlib import Path

import pytest

from tessera.kernel.errors import StartupError
from tessera.kernel.kubeconfig import SAME_TOKEN_SECONDS, find_access, kept
from tests.virtual_time import VirtualClock

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://cluster.example:6443"}}]
users: [{name: u, user: {token: secret-token}}]
"""


def test_the_kubeconfig_names_server_and_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    access = find_access()
    assert (access.url, access.token()) == ("https://cluster.example:6443", "secret-token")


def test_without_any_configuration_one_line_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    missing = str(tmp_path / "none")
    monkeypatch.setenv("KUBECONFIG", missing)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", missing)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(StartupError, match="TESSERA_CLUSTER_URL") as failure:
        find_access()
    assert "\n" not in str(failure.value)


async def test_a_token_is_asked_for_again_after_a_while():
    clock, tokens = VirtualClock(), iter(["first", "second"])
    token = kept(lambda: next(tokens), clock)
    assert [token(), token()] == ["first", "first"]
    await clock.run(SAME_TOKEN_SECONDS)
    assert token() == "second"
