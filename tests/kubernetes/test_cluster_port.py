"""The Cluster port's tests on a real API server: what the simulated cluster must do, as the real one does it."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.kubernetes.kubeconfig import find_access
from tessera.kernel.ports import ApiError
from tests.contract import cluster_suite
from tests.contract.cluster_suite import *  # noqa: F403  (the tests themselves)
from tests.contract.cluster_suite import Setup, pod
from tests.kubernetes.api import Api
from tests.kubernetes.control_plane import ControlPlane, wait_until
from tests.kubernetes.nodes import kwok_node
from tests.kubernetes.proxy import Proxy

NAMESPACE = "contract"
READER = "node-reader"


@pytest.fixture(scope="module")
def shared(plane: ControlPlane) -> ControlPlane:
    plane.add_namespace(NAMESPACE)
    plane.grant(READER, [{"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}])
    return plane


@pytest.fixture
async def api(shared: ControlPlane) -> AsyncIterator[Setup]:
    cluster, reader = shared.cluster(), shared.cluster(READER)
    admin = shared.api()
    try:
        yield Setup(
            cluster,
            reader,
            add_node=lambda name: asyncio.to_thread(add_node, shared, name),
            create=lambda obj: asyncio.to_thread(admin.create, obj),
            ancient=lambda: ancient(shared),
            forbid_eviction=lambda labels: asyncio.to_thread(add_budget, admin, labels),
            ns=NAMESPACE,
            prefix=f"pod-{secrets.token_hex(4)}",
        )
    finally:
        await cluster.close()
        await reader.close()


def add_node(plane: ControlPlane, name: str) -> None:
    try:
        plane.api().create(kwok_node(name, gpus=2))
    except ApiError as error:
        if error.status != 409:
            raise
    plane.wait_for_nodes([name])


async def ancient(plane: ControlPlane) -> str:
    """Of before the API server started: it reads what there is, and knows of no change before."""
    version: str = plane.api().get("/api/v1/pods")["metadata"]["resourceVersion"]
    plane.api().create(pod(f"filler-{secrets.token_hex(4)}"))
    plane.restart_api_server()
    return version


def add_budget(admin: Api, labels: dict[str, str]) -> None:
    name = secrets.token_hex(4)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
    }
    admin.create(budget)
    path = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/{name}"
    wait_until(lambda: admin.get(path).get("status", {}).get("currentHealthy") == 1, "the budget counts its pod")


async def test_a_pod_is_forbidden_until_its_namespace_has_a_service_account(api, shared):
    """Between a namespace and its account is a moment in which no pod can be made: worth another try."""
    namespace = f"fresh-{secrets.token_hex(4)}"
    shared.parts["kube-controller-manager"].freeze()
    try:
        shared.api().create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        with pytest.raises(ApiError, match="serviceaccount") as caught:
            await api.cluster.create_pod(namespace, pod("early"))
        assert caught.value.status == 403
    finally:
        shared.parts["kube-controller-manager"].thaw()
    shared.wait_for_namespace(namespace)
    await api.cluster.create_pod(namespace, pod("early"))


async def test_a_lost_answer_is_transient_and_a_repeat_finds_the_effect(api, shared):
    async with Proxy(shared).running() as proxy:
        cluster = HttpCluster(proxy.url, shared.token())
        try:
            through = replace(api, cluster=cluster, lose_answer=proxy.lose_answer)
            await cluster_suite.test_a_lost_answer_is_transient_and_a_repeat_finds_the_effect(through)
        finally:
            await cluster.close()


async def test_a_kubeconfig_with_a_client_certificate_lets_in_as_whom_it_names(
    shared: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of kind and kubeadm do; a certificate whose group has no rights is somebody all the same."""

    async def look(user: str, group: str) -> None:
        path = str(shared.kubeconfig_by_certificate(user, group))
        monkeypatch.setenv("KUBECONFIG", path)
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", path)
        access = find_access()
        cluster = HttpCluster(access.url, access.token, access.ca_file, client=access.client)
        try:
            await cluster.list("nodes")
        finally:
            await cluster.close()

    await look("kubernetes-admin", "system:masters")
    with pytest.raises(ApiError, match='User "stranger" cannot list') as refused:
        await look("stranger", "nobodies")
    assert refused.value.status == 403
