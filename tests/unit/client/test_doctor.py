"""`tessera doctor`: work that waits in silence, and rights that are lacking, each found with the way out."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from tessera.client.cluster.doctor import (
    CLUSTER_WIDE,
    NO_SUSPENSION,
    OF_TENANT,
    ROLES,
    account,
    check_cluster,
    parts_that_change_nodes,
)
from tessera.client.cluster.findings import Finding
from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError
from tessera_schemas.cluster.cluster_roles import Right
from tessera_schemas.cluster.fencing import Fencing
from tessera_schemas.cluster.pools import Pool
from tessera_schemas.shard.services import COMPACT, LAYOUTS, SEPARATE
from tests.builders import config_body

Json = dict[str, Any]
EVERYTHING = frozenset(OF_TENANT.union(*CLUSTER_WIDE.values()))


def pod(namespace: str, node: str = "") -> Json:
    return {"metadata": {"namespace": namespace}, "spec": {"nodeName": node} if node else {}}


def suspended_job(namespace: str, scheduler: str = "tessera") -> Json:
    template = {"spec": {"schedulerName": scheduler}}
    return {"metadata": {"namespace": namespace}, "spec": {"suspend": True, "template": template}}


class Api:
    """
    Namespaces in `let_in` have the binder's RoleBinding; `lacks` are rights that nobody has, `gains` those that the
    binder has besides. Accounts are those of the layout's processes.
    """

    def __init__(
        self,
        *pods: Json,
        jobs: tuple[Json, ...] = (),
        let_in: tuple[str, ...] = (),
        lacks: frozenset[Right] = frozenset(),
        others: Mapping[str, list[Json]] = MappingProxyType({}),
        nodes: tuple[Json, ...] = (),
        fails: Exception | None = None,
        fails_to_say: Exception | None = None,
        layout: str = SEPARATE,
        gains: frozenset[Right] = frozenset(),
    ) -> None:
        self.gains = gains
        self.processes = LAYOUTS[layout]
        self.pods, self.jobs, self.let_in, self.lacks = list(pods), list(jobs), let_in, lacks
        self.others, self.nodes = dict(others), list(nodes)
        self.fails, self.fails_to_say = fails, fails_to_say

    async def list(self, kind: str, label_selector: str = "", field_selector: str = "") -> tuple[list[Json], str]:
        if self.fails is not None:
            raise self.fails
        assert kind != "pods" or field_selector == "spec.schedulerName=tessera"
        listed = {"pods": self.pods, "batch/v1/Job": self.jobs, "nodes": self.nodes, **self.others}
        if kind not in listed:
            raise ApiError(404, "NotFound", f"no kind {kind}")
        return listed[kind], "1"

    async def may(self, namespace: str, verb: str, resource: str, group: str = "", user: str = "") -> bool:
        if self.fails_to_say is not None:
            raise self.fails_to_say
        right = Right(group, resource, verb)
        if namespace:
            assert user == account("binder")
            return namespace in self.let_in and right in OF_TENANT - self.lacks
        hosted = self.processes.get(user.rpartition("-")[2], ())
        if "binder" in hosted and right in self.gains:
            return True
        return any(right in CLUSTER_WIDE.get(service, frozenset()) - self.lacks for service in hosted)


async def lines(api: Api, *tenants: str) -> list[str]:
    return [finding.line() for finding in await check_cluster(api, set(tenants), "main")]


async def test_a_namespace_that_is_not_let_in_is_named_with_its_waiting_work_and_the_way_in() -> None:
    api = Api(pod("default"), pod("lab"), jobs=(suspended_job("default"),), let_in=("lab",))
    (line,) = await lines(api, "default", "lab")
    waiting = "2 pods or suspended Jobs that name tessera wait, and no condition on them says why; "
    assert line.startswith(f"namespace default is not let in: {waiting}")
    assert line.endswith("name it under `tenants` in the values of the chart deploy/helm/tessera, and `helm upgrade`")


TEMPLATE = {"spec": {"schedulerName": "tessera", "containers": []}}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (
            "jobset.x-k8s.io/v1alpha2/JobSet",
            {"suspend": True, "replicatedJobs": [{"name": "w", "template": {"spec": {"template": TEMPLATE}}}]},
        ),
        ("ray.io/v1/RayCluster", {"suspend": True, "headGroupSpec": {"template": TEMPLATE}}),
        (
            "kubeflow.org/v1/PyTorchJob",
            {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": {"Worker": {"template": TEMPLATE}}},
        ),
    ],
)
async def test_whatever_waits_suspended_in_a_namespace_that_is_not_let_in_is_named(kind: str, spec: Json) -> None:
    listed = {"metadata": {"namespace": "default"}, "spec": spec}  # lists do not repeat the kind in each object
    (line,) = await lines(Api(others={kind: [listed]}), "default")
    assert "1 pod or suspended Job that names tessera waits" in line


async def test_a_tenant_whose_namespace_is_not_let_in_is_named_before_it_has_any_work() -> None:
    (line,) = await lines(Api(let_in=("lab",)), "lab", "sales")
    assert line.startswith("namespace sales is not let in: no pod of this tenant can be made or bound; name it")


async def test_a_namespace_that_is_no_tenant_is_named() -> None:
    (line,) = await lines(Api(pod("lab"), let_in=("lab",)))
    assert line.startswith("namespace lab is no tenant: 1 pod or suspended Job that names tessera waits; name it under")


async def test_nothing_is_found_where_all_is_well_and_what_runs_or_is_anothers_is_no_matter() -> None:
    api = Api(pod("lab"), pod("x", node="a"), jobs=(suspended_job("x", "default-scheduler"),), let_in=("lab",))
    assert await lines(api, "lab") == []


async def test_rights_that_an_older_role_did_not_give_are_named_once_for_all_namespaces() -> None:
    lacks = frozenset({Right("batch", "jobs", "patch"), Right("ray.io", "rayclusters", "get")})
    tenants = [f"t{number}" for number in range(6)]
    assert await lines(Api(let_in=tuple(tenants), lacks=lacks), *tenants) == [
        "binder may not get rayclusters of ray.io in the cluster; `helm upgrade` to the chart of this version",
        f"binder may not patch jobs of batch in t0, t1, t2, t3 and 2 more{NO_SUSPENSION}; {ROLES}",
    ]


async def test_a_right_to_read_what_makes_replicas_is_named() -> None:
    lacks = frozenset({Right("apps", "replicasets", "get"), Right("apps", "statefulsets", "get")})
    (line,) = await lines(Api(lacks=lacks))
    assert line.startswith("binder may not get replicasets of apps, get statefulsets of apps in the cluster; `helm")


async def test_services_that_share_a_process_have_the_rights_of_its_account() -> None:
    assert await lines(Api(let_in=("lab",), layout=COMPACT), "lab") == []
    found = await lines(Api(let_in=("lab",), layout=COMPACT, lacks=frozenset({Right("", "nodes", "get")})), "lab")
    assert [line.partition(" may not ")[0] for line in found] == ["reclamation", "binder"]


@pytest.mark.parametrize("layout", [SEPARATE, COMPACT])
async def test_a_binder_that_may_not_change_nodes_is_told_where_the_configuration_needs_it(layout: str) -> None:
    changes = {"configs": [{"name": name, "gives": {name: 1}} for name in ("1g.10gb", "7g.80gb")]}
    pool = {"name": "cut", "device_profile": "mig", "mig_changes": changes}
    parts = parts_that_change_nodes(config_body(pools=(Pool.model_validate(pool),)))
    assert parts == {"mig_changes of pool cut": "migChanges: true"}
    webhook = Fencing(url="https://power.example.com/fence")
    parts = parts_that_change_nodes(config_body(fencing=webhook))
    (finding,) = await check_cluster(Api(layout=layout), set(), "main", parts)
    assert finding.line() == (
        "binder may not patch nodes in the cluster, as fencing of the configuration needs; "
        "say fencing.enabled: true in the values of the chart deploy/helm/tessera, and `helm upgrade`"
    )
    able = Api(layout=layout, gains=frozenset({Right("", "nodes", "patch")}))
    assert await check_cluster(able, set(), "main", parts) == []
    assert await check_cluster(Api(layout=layout), set(), "main", parts_that_change_nodes(config_body())) == []


async def test_an_account_without_any_right_is_one_finding() -> None:
    found = await lines(Api(lacks=EVERYTHING), "lab")
    assert len(found) == 2
    assert all("has no rights at all; `helm upgrade` to the chart of this version" in line for line in found)


async def test_a_cluster_that_knows_no_rights_has_none_to_lack_and_who_may_not_ask_is_told() -> None:
    assert await lines(Api(fails_to_say=ApiError(404, "NotFound", "no such path")), "lab") == []
    (line,) = await lines(Api(fails_to_say=ApiError(403, "Forbidden", "cannot create")), "lab")
    assert "subjectaccessreviews" in line


async def test_an_api_that_does_not_answer_or_refuses_is_a_finding() -> None:
    for fails in (Transient("no route"), ApiError(403, "Forbidden", "cannot list pods")):
        (found,) = await check_cluster(Api(fails=fails), set(), "main")
        assert isinstance(found, Finding)
        assert "Kubernetes API" in found.what


def of_shard(shard: str, thing: Json) -> Json:
    """The same pod or node with a shard's label, or the same Job with the label on its pod template."""
    where = thing["spec"]["template"] if "template" in thing.get("spec", {}) else thing
    where.setdefault("metadata", {})["labels"] = {"tessera.io/shard": shard}
    return thing


NODES = ({"metadata": {"name": "a"}}, of_shard("east", {"metadata": {"name": "b"}}))


async def test_work_for_a_shard_that_no_node_is_of_waits_in_silence_and_is_said() -> None:
    typo = of_shard("esat", pod("lab")), of_shard("esat", pod("ops"))
    api = Api(*typo, pod("lab"), jobs=(of_shard("esat", suspended_job("lab")),), let_in=("lab",), nodes=NODES)
    (line,) = await lines(api, "lab")
    assert line.startswith("no node is of shard esat (label tessera.io/shard): 3 pods or suspended Jobs that name")
    assert line.endswith(
        "of lab, ops; correct the label on the pods or the pod template, or put it on the shard's nodes"
    )


async def test_work_of_another_shard_is_that_shards_to_judge() -> None:
    api = Api(of_shard("east", pod("nobodys")), of_shard("east", pod("lab")), let_in=("lab",), nodes=NODES)
    assert await lines(api, "lab") == []


async def test_a_cluster_without_nodes_yet_has_no_wrong_shards() -> None:
    assert await lines(Api(of_shard("east", pod("lab")), let_in=("lab",)), "lab") == []


async def test_pods_of_one_shard_that_two_ledgers_made_are_found() -> None:
    made = [pod("lab", "node-a"), pod("lab", "node-b"), pod("lab"), pod("lab", "node-a")]
    for each, ledger in zip(made, ("1111", "2222", "3333", "2222"), strict=True):
        each["metadata"]["labels"] = {"tessera.io/ledger": ledger}
    found = await lines(Api(*made, let_in=("lab",)), "lab")
    assert [line for line in found if "1111 (1 pods), 2222 (2 pods)" in line]
    assert not [line for line in await lines(Api(made[1], made[3], let_in=("lab",)), "lab") if "ledgers" in line]
