"""
`tessera doctor`: what keeps work from starting and that no pod can say itself, each in a line with the way out.

Read only, with the rights of whoever asks: the servers by what they say of themselves, Kubernetes by the kubeconfig.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tessera.kernel.errors import StartupError, Transient
from tessera.kernel.ports import ApiError, JsonObject
from tessera.kernel.preflight import check_redis, check_synced
from tessera.kernel.settings import ServiceSettings
from tessera_schemas.labels import NAMES_US, USERS_PODS

RBAC, BINDING = "rbac.authorization.k8s.io/v1", "tessera-binder"
LET_IN = "kubectl apply -k deploy/kubernetes/tenant, with its name in place of demo (deploy/kubernetes/README.md)"


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    way_out: str

    def line(self) -> str:
        return f"{self.what}; {self.way_out}"


class Reader(Protocol):
    """What is asked of the Kubernetes API."""

    async def list(
        self, kind: str, label_selector: str = "", field_selector: str = ""
    ) -> tuple[list[JsonObject], str]: ...
    async def get_object(self, api_version: str, kind: str, namespace: str, name: str) -> JsonObject: ...


async def of_servers(settings: ServiceSettings) -> list[Finding]:
    """NATS syncs each write, and Redis evicts nothing."""
    found: list[Finding] = []
    for check in (check_synced, check_redis):
        try:
            await check(settings)
        except StartupError as error:
            what, _, way_out = str(error).partition("; ")
            found.append(Finding(what, way_out or "see docs/operations.md"))
    return found


async def of_cluster(cluster: Reader, tenants: Collection[str]) -> list[Finding]:
    """The API answers; whoever has pods that name our scheduler is let in, and is a tenant."""
    try:
        pods, _ = await cluster.list("pods", USERS_PODS, NAMES_US)
        waiting = waiting_by_namespace(pods)
        return [
            finding
            for namespace, count in sorted(waiting.items())
            for finding in await _of_namespace(cluster, namespace, count, tenants)
        ]
    except ApiError as error:
        return [Finding(f"Kubernetes API: {error}", "use a kubeconfig that may list pods and read role bindings")]
    except Transient as error:
        return [Finding(f"Kubernetes API does not answer ({error})", "set KUBECONFIG or TESSERA_CLUSTER_URL")]


def waiting_by_namespace(pods: Sequence[JsonObject]) -> Counter[str]:
    """How many pods without a node each namespace has."""
    return Counter(
        pod["metadata"]["namespace"]
        for pod in pods
        if not (pod.get("spec") or {}).get("nodeName") and "deletionTimestamp" not in pod["metadata"]
    )


async def _of_namespace(cluster: Reader, namespace: str, count: int, tenants: Collection[str]) -> list[Finding]:
    pods = "1 pod that names tessera waits" if count == 1 else f"{count} pods that name tessera wait"
    found: list[Finding] = []
    if not await _is_let_in(cluster, namespace):
        found.append(Finding(f"namespace {namespace} is not let in: {pods}, and the binder may not tell them", LET_IN))
    if namespace not in tenants:
        way_out = "name it under tenants in the configuration and `tessera apply` it"
        found.append(Finding(f"namespace {namespace} is no tenant: {pods}", way_out))
    return found


async def _is_let_in(cluster: Reader, namespace: str) -> bool:
    try:
        await cluster.get_object(RBAC, "RoleBinding", namespace, BINDING)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True
