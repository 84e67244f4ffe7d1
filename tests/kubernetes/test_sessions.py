"""
Sessions on a real API server: the address of one behind an Ingress is there with its pod, and gone with it; pods of
JupyterHub and Kubeflow, as these make them, are sessions of their users, and stop when these stop them.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import yaml

from tessera.client.outcomes import Refused
from tessera_schemas.cluster.labels import RUN_LABEL
from tessera_schemas.config import Defaults, Tenant
from tessera_schemas.job import JobSpec, Session
from tessera_schemas.work.pod_template import PodGrants
from tessera_schemas.work.tenant_shares import Limits
from tests.e2e.live import Json, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.deployed import Kubectl, documents, rendered
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users

pytestmark = pytest.mark.asyncio(loop_scope="module")

INGRESSES = "/apis/networking.k8s.io/v1/namespaces/lab/ingresses"
LONG = 600.0
RIGHT, HUB = "tessera-session-ingress", "singleuser-server"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    """The tenant `lab` may have sessions behind an Ingress, and one session of each of its users."""
    own_plane.add_nodes(2, "gpu")
    form = {"host": "nb.example.com", "path": "/{tenant}/{job}", "tls_secret": "nb-tls"}
    body = configuration(defaults=Defaults.model_validate({"sessions": {"ingress": form}}))
    told = {"lab": {"pod_grants": PodGrants(session_ingress=True), "limits": Limits(sessions_per_user=1)}}
    tenants = [one.model_copy(update=told.get(one.name)) for one in body.tenants]
    body = body.model_copy(update={"tenants": tuple[Tenant, ...](tenants)})
    async with live_on(own_plane, tmp_path_factory.mktemp("sessions"), body) as live:
        yield live


def let_make_ingresses(plane: ControlPlane) -> None:
    found = documents(rendered({"tenants": ["lab"], "sessionIngress.enabled": True}), "ClusterRole", "RoleBinding")
    right = [one for one in found if one["metadata"]["name"] == RIGHT]
    assert len(right) == 2
    Kubectl(plane)("apply", "-f", "-", stdin=yaml.safe_dump_all(right))


def ingresses(live: KubernetesLive) -> list[Json]:
    found: list[Json] = live.plane.api().items(INGRESSES)
    return found


async def services(live: KubernetesLive) -> list[Json]:
    cluster = live.cluster()
    try:
        return (await cluster.list("services", RUN_LABEL))[0]
    finally:
        await cluster.close()


def notebook(name: str) -> JobSpec:
    spec = job(name, seconds=LONG, session=Session(kind="notebook", ingress=True))
    template = spec.roles[0].template
    ported = template.model_validate(template.model_dump() | {"ports": [{"port": 8888, "name": "notebook"}]})
    return spec.model_copy(update={"roles": (spec.roles[0].model_copy(update={"template": ported}),)})


def endpoints(live: KubernetesLive, service: str) -> list[tuple[str, int, bool]]:
    """Address, port and readiness of all pods to which a proxy would lead from a Service."""
    asked = f"?labelSelector=kubernetes.io/service-name={service}"
    slices = live.plane.api().call("GET", f"/apis/discovery.k8s.io/v1/namespaces/lab/endpointslices{asked}")["items"]
    return [
        (address, port["port"], endpoint["conditions"]["ready"])
        for each in slices
        for endpoint in each.get("endpoints") or ()
        for address in endpoint["addresses"]
        for port in each["ports"]
    ]


async def test_without_the_right_a_session_does_not_start_and_says_why(live: KubernetesLive) -> None:
    job_id = (await live.submit(notebook("early"))).job_id

    async def told() -> bool:
        said = (await live.command("explain", job_id)).out
        return "ingresses" in said and "forbidden" in said

    await eventually(told, "explain has the API server's words")
    assert ingresses(live) == []
    await live.clients["lab"].cancel(job_id)
    await live.until_ended(job_id)


async def test_a_session_has_a_service_and_an_ingress_that_go_with_it_and_lead_to_a_pod_that_is_not_ready(
    live: KubernetesLive,
) -> None:
    let_make_ingresses(live.plane)
    job_id = (await live.submit(notebook("book"))).job_id
    await live.until_phase(job_id, "running")
    (service,), (ingress,) = await services(live), ingresses(live)
    name = f"run-{job_id}-1"
    assert service["metadata"]["name"] == ingress["metadata"]["name"] == name
    (owner,) = ingress["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Service", service["metadata"]["uid"])
    assert ingress["spec"]["tls"] == [{"hosts": ["nb.example.com"], "secretName": "nb-tls"}]
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    led_to = rule["host"], path["path"], path["backend"]["service"]["name"]
    assert led_to == ("nb.example.com", f"/lab/{job_id}", name)
    shown = (await live.command("get", job_id, "-o", "json")).json
    assert shown["address"] == f"https://nb.example.com/lab/{job_id}/"
    assert shown["address"] in " ".join((await live.command("explain", job_id)).out.split())

    warned = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    status = {"podIP": "10.9.0.1", "podIPs": [{"ip": "10.9.0.1"}], "conditions": [warned]}
    cluster = live.cluster()
    try:
        await cluster.patch_pod_status("lab", f"{job_id}-1-0", {"status": status})
    finally:
        await cluster.close()
    await eventually(lambda: endpoints(live, name) == [("10.9.0.1", 8888, True)], "it is reached all the same")

    await live.clients["lab"].cancel(job_id)
    await live.until_ended(job_id)

    async def gone() -> bool:
        return await services(live) == [] and ingresses(live) == []

    await eventually(gone, "service and ingress are gone")
    await assert_all_is_well(live)


async def test_a_tenant_without_the_grant_is_refused_by_its_name(live: KubernetesLive) -> None:
    with pytest.raises(Refused, match=r"^NotGranted: session\.ingress: "):
        await live.submit(notebook("theirs"), "ops")


# -- pods of hubs and controllers -------------------------------------------------------------------------------------

NOTEBOOKS: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "notebooks.kubeflow.org"},
    "spec": {
        "group": "kubeflow.org",
        "scope": "Namespaced",
        "names": {"kind": "Notebook", "listKind": "NotebookList", "plural": "notebooks", "singular": "notebook"},
        "versions": [
            {
                "name": name,
                "served": True,
                "storage": name == "v1",
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
            for name in ("v1", "v1beta1", "v1alpha1")
        ],
    },
}
"""Names and versions as Kubeflow publishes them; the schema of its pod template is left open."""
STOPPED = "kubeflow-resource-stopped"


def of_hub(name: str, user: str, slug: str, server: str = "") -> Json:
    """
    A pod as KubeSpawner makes it by Zero to JupyterHub's chart, with what this cluster needs: the scheduler's name.

    It belongs to no controller; the hub looks at it, makes it and deletes it.
    """
    common = {"app": "jupyterhub", "release": "hub", "chart": "jupyterhub-4.3.1", "heritage": "jupyterhub"}
    recommended = {"name": "jupyterhub", "instance": "hub", "managed-by": "kubespawner", "component": HUB}
    labels = {"component": HUB, "hub.jupyter.org/network-access-hub": "true", "helm.sh/chart": "jupyterhub-4.3.1"}
    labels |= {"hub.jupyter.org/servername": server, "hub.jupyter.org/username": slug}
    notes = {"hub.jupyter.org/username": user, **({"hub.jupyter.org/servername": server} if server else {})}
    notes |= {"hub.jupyter.org/kubespawner-version": "7.0.0", "hub.jupyter.org/jupyterhub-version": "5.4.0"}
    purpose = {"matchExpressions": [{"key": "hub.jupyter.org/node-purpose", "operator": "In", "values": ["user"]}]}
    dedicated = {"operator": "Equal", "value": "user", "effect": "NoSchedule"}
    served = {
        "name": "notebook",
        "image": "jupyter:1",
        "imagePullPolicy": "IfNotPresent",
        "args": ["jupyterhub-singleuser"],
        "env": [{"name": "JUPYTERHUB_USER", "value": user}, {"name": "JUPYTERHUB_SERVER_NAME", "value": server}],
        "lifecycle": {},
        "ports": [{"name": "notebook-port", "containerPort": 8888, "protocol": "TCP"}],
        "resources": {
            "limits": {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"},
            "requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"},
        },
        "securityContext": {"allowPrivilegeEscalation": False, "runAsUser": 1000},
        "volumeMounts": [{"mountPath": "/dev/shm", "name": "shm"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": common | labels | {f"app.kubernetes.io/{key}": value for key, value in recommended.items()},
            "annotations": notes | {"tessera.io/simulate-seconds": str(LONG)},
        },
        "spec": {
            "schedulerName": "tessera",
            "restartPolicy": "OnFailure",
            "automountServiceAccountToken": False,
            "securityContext": {"fsGroup": 100},
            "affinity": {
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": purpose}]
                }
            },
            "tolerations": [{"key": f"hub.jupyter.org{mark}dedicated"} | dedicated for mark in "/_"],
            "containers": [served],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }


def of_kubeflow(name: str, owner: Json, replicas: int = 1) -> Json:
    """The StatefulSet that the notebook controller makes of a Notebook: its labels, and no other mark."""
    ours = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": name, "uid": owner["metadata"]["uid"]}
    labels = {"statefulset": name, "notebook-name": name} | owner["metadata"].get("labels", {})
    spec = owner["spec"]["template"]["spec"]
    served = spec["containers"][0] | {
        "workingDir": "/home/jovyan",
        "ports": [{"containerPort": 8888, "name": "notebook-port", "protocol": "TCP"}],
        "env": [{"name": "NB_PREFIX", "value": f"/notebook/lab/{name}"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": name,
            "namespace": "lab",
            "ownerReferences": [ours | {"controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "selector": {"matchLabels": {"statefulset": name}},
            "template": {
                "metadata": {"labels": labels, "annotations": {"tessera.io/simulate-seconds": str(LONG)}},
                "spec": spec | {"containers": [served], "securityContext": {"fsGroup": 100}},
            },
        },
    }


def a_notebook(name: str, user: str) -> Json:
    asked = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    served = {"name": name, "image": "jupyter:1", "resources": {"requests": asked, "limits": asked}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "Notebook",
        "metadata": {"name": name, "namespace": "lab", "labels": {"app": name, "opendatahub.io/user": user}},
        "spec": {"template": {"spec": {"schedulerName": "tessera", "containers": [served]}}},
    }


async def assert_all_was_well(live: KubernetesLive) -> None:
    """The checks count what was submitted, which pods of users alone are not."""
    done = await live.submit(job("last"))
    await live.until_ended(done.job_id)
    await assert_all_is_well(live)


async def session_at(users: Users, pod: str) -> Json:
    """What is shown of the job that a running pod of a user's is."""
    await users.until_phase(pod, "Running")
    found = users.pod(pod)
    assert found is not None
    job_id = found["metadata"]["annotations"]["tessera.io/run"].rpartition("-")[0]
    await users.live.until_shown()
    rows: list[Json] = (await users.live.command("ls", "-o", "json")).json["items"]
    (shown,) = [row for row in rows if row["job_id"] == job_id]
    return shown


async def test_a_pod_of_a_hub_is_a_session_of_its_user_that_waits_for_its_limit_and_ends_with_its_pod(
    users: Users,
) -> None:
    users.create(of_hub("jupyter-ana-example-com---1f2e", "ana@example.com", "ana-example-com---1f2e"))
    first = await session_at(users, "jupyter-ana-example-com---1f2e")
    assert (first["session"], first["user"], first["phase"]) == ("notebook", "ana-example-com---1f2e", "running")
    second = "jupyter-ana-example-com---1f2e--gpu"
    users.create(of_hub(second, "ana@example.com", "ana-example-com---1f2e", "gpu"))
    users.create(of_hub("jupyter-bea", "bea", "bea"))
    told = await users.until_told(second, "LimitExceeded")
    assert "sessions_per_user" in told["message"]
    other = await session_at(users, "jupyter-bea")
    assert other["user"] == "bea", "another user has a limit of their own"
    said = await users.live.command("pause", first["job_id"], "--as", "lab")
    assert (said.code, first["owner"] in said.err) == (2, True), said

    users.delete_pods("jupyter-ana-example-com---1f2e")  # the hub culled it, or its user stopped it
    await users.live.until_ended(first["job_id"])
    assert (await session_at(users, second))["user"] == "ana-example-com---1f2e"
    users.delete_pods(second, "jupyter-bea")
    await assert_all_was_well(users.live)


async def test_a_notebook_of_kubeflow_is_a_session_whose_stop_and_end_are_its_controllers(users: Users) -> None:
    """Kubernetes' own controllers make the pod and collect it; the test says what the notebook controller would."""
    users.api.create(NOTEBOOKS)
    kubectl = users.kubectl
    kubectl("wait", "--for=condition=Established", "crd/notebooks.kubeflow.org", "--timeout=240s")
    notebook = users.create(a_notebook("book", "bea"))
    users.create(of_kubeflow("book", notebook))
    first = await session_at(users, "book-0")
    assert (first["session"], first["user"], first["phase"]) == ("notebook", "bea", "running")
    (adopted,) = users.live.state.jobs.found((first["job_id"],))
    assert not adopted.preemptible

    kubectl("annotate", "-n", "lab", "notebooks.kubeflow.org", "book", f"{STOPPED}=2026-11-30T04:00:00Z")
    kubectl("scale", "-n", "lab", "statefulset/book", "--replicas=0")  # as the controller culls it
    await users.live.until_ended(first["job_id"])
    await users.live.until_idle()

    kubectl("annotate", "-n", "lab", "notebooks.kubeflow.org", "book", f"{STOPPED}-")
    kubectl("scale", "-n", "lab", "statefulset/book", "--replicas=1")
    again = await session_at(users, "book-0")
    assert (again["session"], again["user"], again["job_id"] != first["job_id"]) == ("notebook", "bea", True)

    kubectl("delete", "-n", "lab", "notebooks.kubeflow.org", "book", "--wait=false")
    await users.live.until_ended(again["job_id"])
    await users.until(lambda: users.pod("book-0") is None, "the pod went with its Notebook")
    await assert_all_was_well(users.live)
