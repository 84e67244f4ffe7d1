"""`tessera doctor`: pods that wait in silence are found from outside, each with the way out."""

from typing import Any

from tessera.client.doctor import Finding, of_cluster
from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError

Json = dict[str, Any]


def pod(namespace: str, node: str = "") -> Json:
    return {"metadata": {"namespace": namespace}, "spec": {"nodeName": node} if node else {}}


class Api:
    """Namespaces in `let_in` have the binder's RoleBinding."""

    def __init__(self, *pods: Json, let_in: tuple[str, ...] = (), fails: Exception | None = None) -> None:
        self.pods, self.let_in, self.fails = list(pods), let_in, fails

    async def list(self, kind: str, label_selector: str = "", field_selector: str = "") -> tuple[list[Json], str]:
        assert (kind, field_selector) == ("pods", "spec.schedulerName=tessera")
        if self.fails is not None:
            raise self.fails
        return self.pods, "1"

    async def get_object(self, api_version: str, kind: str, namespace: str, name: str) -> Json:
        assert (kind, name) == ("RoleBinding", "tessera-binder")
        if namespace not in self.let_in:
            raise ApiError(404, "NotFound", "there is none")
        return {}


async def test_a_namespace_that_is_not_let_in_is_named_with_its_waiting_pods_and_the_way_in() -> None:
    found = await of_cluster(Api(pod("default"), pod("default"), pod("lab"), let_in=("lab",)), {"default", "lab"})
    assert [finding.what for finding in found] == [
        "namespace default is not let in: 2 pods that name tessera wait, and the binder may not tell them"
    ]
    assert "deploy/kubernetes/tenant" in found[0].way_out


async def test_a_namespace_that_is_no_tenant_is_named() -> None:
    (found,) = await of_cluster(Api(pod("lab"), let_in=("lab",)), set())
    assert found.line().startswith("namespace lab is no tenant: 1 pod that names tessera waits; name it under tenants")


async def test_nothing_is_found_where_all_is_well_and_pods_that_run_are_no_matter() -> None:
    assert await of_cluster(Api(pod("lab"), pod("default", node="a"), let_in=("lab",)), {"lab"}) == []


async def test_an_api_that_does_not_answer_or_refuses_is_a_finding() -> None:
    for fails in (Transient("no route"), ApiError(403, "Forbidden", "cannot list pods")):
        (found,) = await of_cluster(Api(fails=fails), set())
        assert isinstance(found, Finding)
        assert "Kubernetes API" in found.what
