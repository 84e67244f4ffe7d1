"""
What each service may do on the API server, and that this is all: compared, answer by answer, with `rights.yaml`.

After a change of `tessera_schemas/cluster/cluster_roles.py`, run with TESSERA_WRITE_RIGHTS=1 and read the difference.
"""

import os
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tessera_schemas.shard.services import COMPACT, LAYOUTS, SERVICES
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.deployed import NAMESPACE, Kubectl, deploy, documents, let_in, may, rendered, token_of

FLOW_HEADER = "X-Kubernetes-PF-FlowSchema-UID"
GOLDEN = Path(__file__).with_name("rights.yaml")
PLACES = {"the tenant's namespace": "tenant-a", "another namespace": "elsewhere", "its own": NAMESPACE, "all": ""}
VERBS = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
RESOURCES = (
    *("pods", "pods/binding", "pods/eviction", "pods/status", "pods/exec", "pods/attach", "pods/portforward"),
    "pods/resize",
    *("pods/ephemeralcontainers", "pods/log", "nodes", "nodes/status", "nodes/proxy", "events", "services"),
    *("secrets", "configmaps", "serviceaccounts", "serviceaccounts/token", "namespaces", "persistentvolumeclaims"),
    *("persistentvolumes", "storage.k8s.io/storageclasses"),
    *("batch/jobs", "batch/jobs/status", "batch/cronjobs", "apps/deployments", "policy/poddisruptionbudgets"),
    *("apps/replicasets", "apps/statefulsets", "networking.k8s.io/ingresses"),
    *(
        "jobset.x-k8s.io/jobsets",
        "jobset.x-k8s.io/jobsets/status",
        "ray.io/rayclusters/status",
        "scheduling.x-k8s.io/podgroups",
        "scheduling.k8s.io/podgroups",
    ),
    "scheduling.k8s.io/podgroups/status",
    "leaderworkerset.x-k8s.io/leaderworkersets",
    *("resource.k8s.io/resourceclaims", "resource.k8s.io/resourceclaims/status"),
    *("resource.k8s.io/resourceclaims/binding", "resource.k8s.io/resourceclaims/driver"),
    *("resource.k8s.io/resourceclaimtemplates", "resource.k8s.io/resourceslices", "resource.k8s.io/deviceclasses"),
    *("ray.io/rayclusters", "scheduling.volcano.sh/podgroups", "kubeflow.org/pytorchjobs"),
    *("ray.io/rayjobs", "trainer.kubeflow.org/trainjobs", "scheduler.grove.io/podgangs"),
    *("scheduling.k8s.io/compositepodgroups", "scheduling.k8s.io/compositepodgroups/status"),
    *("resource.k8s.io/devicetaintrules", "topology.node.k8s.io/noderesourcetopologies"),
    *("rbac.authorization.k8s.io/roles", "rbac.authorization.k8s.io/clusterroles"),
    *("rbac.authorization.k8s.io/rolebindings", "rbac.authorization.k8s.io/clusterrolebindings"),
    *("scheduling.k8s.io/priorityclasses", "certificates.k8s.io/certificatesigningrequests"),
    *("admissionregistration.k8s.io/validatingwebhookconfigurations",),
)


@pytest.fixture(scope="module")
def deployed(plane: ControlPlane) -> ControlPlane:
    deploy(plane)
    let_in(plane, "tenant-a")
    plane.add_namespace("elsewhere")
    return plane


def test_each_service_may_do_what_the_golden_file_says_and_nothing_else(deployed: ControlPlane) -> None:
    rights = rights_of(deployed, *SERVICES)
    if os.environ.get("TESSERA_WRITE_RIGHTS"):
        GOLDEN.write_text(yaml.safe_dump(rights, sort_keys=True, width=120))
    assert rights == yaml.safe_load(GOLDEN.read_text())
    allowed = sum(len(verbs.split()) for each in rights.values() for there in each.values() for verbs in there.values())
    assert len(SERVICES) * len(PLACES) * len(RESOURCES) * len(VERBS) > 10 * allowed


def test_a_process_of_several_services_may_do_what_these_may_and_nothing_else(deployed: ControlPlane) -> None:
    """Of those that the compact layout puts together, the golden file knows rights of reclamation alone."""
    golden = yaml.safe_load(GOLDEN.read_text())
    assert golden.keys() & set(LAYOUTS[COMPACT]["followers"]) == {"reclamation"}
    deploy(deployed, layout=COMPACT)
    try:
        assert rights_of(deployed, "followers") == {"followers": golden["reclamation"]}
    finally:
        deploy(deployed)  # others share this cluster


def test_ingresses_are_made_where_the_value_of_the_chart_says_so_and_nothing_else_of_them(
    deployed: ControlPlane,
) -> None:
    made = documents(rendered({"tenants": ["tenant-a"], "sessionIngress.enabled": True}), "ClusterRole", "RoleBinding")
    option = yaml.safe_dump_all(one for one in made if one["metadata"]["name"] == "tessera-session-ingress")
    kubectl, resource = Kubectl(deployed), "networking.k8s.io/ingresses"
    kubectl("apply", "-f", "-", stdin=option)
    try:
        asked = [(place, verb) for place in PLACES for verb in VERBS]
        allowed = [(place, verb) for place, verb in asked if may(deployed, "binder", resource, verb, PLACES[place])]
        assert allowed == [("the tenant's namespace", "create")]
    finally:
        kubectl("delete", "-f", "-", stdin=option)  # others share this cluster


def rights_of(plane: ControlPlane, *accounts: str) -> dict[str, dict[str, dict[str, str]]]:
    """What each account may do, by place and resource; accounts that may do nothing are left out."""
    asked = [(one, place, r, v) for one in accounts for place in PLACES for r in RESOURCES for v in VERBS]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: may(plane, one[0], one[2], one[3], PLACES[one[1]]), asked))
    rights: dict[str, dict[str, dict[str, str]]] = {}
    for (account, place, resource, verb), allowed in zip(asked, answers, strict=True):
        if allowed:
            there = rights.setdefault(account, {}).setdefault(place, {})
            there[resource] = f"{there.get(resource, '')} {verb}".strip()
    return rights


def test_nobody_may_do_everything(deployed: ControlPlane) -> None:
    ours = deployed.api().items("/apis/rbac.authorization.k8s.io/v1/clusterroles")
    rules = [rule for role in ours if role["metadata"]["name"].startswith("tessera-") for rule in role["rules"]]
    assert rules
    assert not any("*" in rule[part] for rule in rules for part in ("apiGroups", "resources", "verbs"))


@pytest.mark.parametrize(("service", "ours"), [("binder", True), ("reclamation", True), ("gateway", False)])
def test_what_binds_and_frees_does_not_wait_behind_everybodys_accounts(
    deployed: ControlPlane, service: str, ours: bool
) -> None:
    """As whose flow the API server's priority and fairness took a call, it says with its answer."""
    schema = deployed.api().get("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/tessera")
    assert schema["spec"]["priorityLevelConfiguration"]["name"] == "workload-high"
    as_it = {"Authorization": f"Bearer {token_of(deployed, service)}"}
    request = urllib.request.Request(f"{deployed.url}/api/v1/nodes?limit=1", headers=as_it)
    try:
        with urllib.request.urlopen(request, timeout=60, context=deployed.api().tls) as answer:
            taken_as = answer.headers[FLOW_HEADER]
    except urllib.error.HTTPError as refused:
        taken_as = refused.headers[FLOW_HEADER]
    assert taken_as
    assert (taken_as == schema["metadata"]["uid"]) is ours
