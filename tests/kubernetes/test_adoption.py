"""
Everything that users may already have, on a real API server: gangs by label and by PodGroup, suspended Jobs, bare pods,
pods under a disruption budget, and pods that cannot be honoured. One line in them names our scheduler.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.domain.state import State
from tessera_schemas.config import Policy
from tessera_schemas.job import Role, Volume
from tests.e2e.lasting import LONG
from tests.e2e.live import at_least, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.api import STRATEGIC_PATCH
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.deployed import deploy, let_in
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users, condition, scheduled
from tests.kubernetes.users_objects import Json, batch_job, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

POD_GROUPS: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.x-k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
    "spec": {
        "group": "scheduling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(2, "gpu", gpus=8, cpu="16")
    own_plane.api().create(POD_GROUPS)
    body = configuration(policy=Policy(preset="priority", min_runtime_seconds=0, earmark_seconds=10))
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), body) as live:
        Users(live).apply("priorities")
        yield live


def pod_of_gang(gang: str, number: int, size: int, labels: Json | None = None, **more: Any) -> Json:
    """One pod of a gang that is named by label and sized by annotation."""
    notes = {"tessera.io/gang-size": str(size)}
    return pod(f"{gang}-{number}", labels={"tessera.io/gang": gang, **(labels or {})}, notes=notes, **more)


def run_of(one: Json) -> str:
    found: str = one["metadata"]["annotations"]["tessera.io/run"]
    return found


# -- gangs ------------------------------------------------------------------------------------------------------------


async def test_no_pod_of_a_labelled_gang_is_placed_before_the_last_one_is_there(users: Users) -> None:
    for number in range(2):
        users.create(pod_of_gang("trio", number, 3))
    for name in ("trio-0", "trio-1"):
        told = await users.until_told(name, "GangIncomplete")
        assert told["status"] == "False"
    users.create(pod_of_gang("trio", 2, 3))
    await users.until_succeeded("trio-0", "trio-1", "trio-2")
    users.delete_pods("trio-0", "trio-1", "trio-2")


async def test_a_pod_that_has_succeeded_gives_its_gpus_to_who_waits_while_its_gang_goes_on(users: Users) -> None:
    for number, seconds in enumerate((1, LONG)):
        users.create(pod_of_gang("uneven", number, 2, gpus=8, seconds=seconds))
    await users.until_phase("uneven-1", "Running")
    users.create(pod("next", gpus=8))
    await users.until_succeeded("uneven-0", "next")
    told = users.pod("uneven-1")
    assert told is not None
    assert told["status"]["phase"] == "Running"
    users.delete_pods("uneven-0", "uneven-1", "next")


async def test_two_sizes_in_one_gang_are_refused_on_its_pods_by_name(users: Users) -> None:
    users.create(pod_of_gang("odd", 0, 2))
    users.create(pod_of_gang("odd", 1, 3))
    told = await users.until_told("odd-0", "GangDisagrees")
    assert "tessera.io/gang-size" in told["message"]
    users.delete_pods("odd-0", "odd-1")


async def test_a_refused_job_is_listed_says_so_itself_and_is_listed_no_more_once_it_is_gone(users: Users) -> None:
    users.create(batch_job("lost", labels={"tessera.io/queue": "nowhere"}))
    await eventually(lambda: refused(users) == [("Job/lost", "NoSuchQueue")], "it is noted")
    noted = users.live.state.n
    async with users.live.store() as store:
        await eventually(lambda: at_least(store, noted), "the views have it")
    rows = (await users.live.command("ls", "-o", "json", "--phase", "refused")).json["items"]
    assert [(row["name"], row["owner"], row["reason"]["code"]) for row in rows] == [("lost", "Job/lost", "NoSuchQueue")]
    assert "NoSuchQueue" in users.kubectl("describe", "job", "lost", "--namespace", users.namespace)
    users.delete("job", "lost")
    await eventually(lambda: refused(users) == [], "nothing is refused any more")


def refused(users: Users) -> list[tuple[str, str]]:
    return [(work.owner, work.reasons[0].code) for work in users.live.state.refused.values()]


async def test_pods_of_a_pod_group_wait_for_it_and_then_start_together(users: Users) -> None:
    label = {"scheduling.x-k8s.io/pod-group": "duo"}
    for number in range(2):
        users.create(pod(f"duo-{number}", labels=label))
    await users.until_told("duo-0", "OwnerNotFound")
    api = "scheduling.x-k8s.io/v1alpha1"
    spec = {"minMember": 2, "scheduleTimeoutSeconds": 30}
    users.create({"apiVersion": api, "kind": "PodGroup", "metadata": {"name": "duo"}, "spec": spec})
    await users.until_succeeded("duo-0", "duo-1")
    said = condition(users.pod("duo-0") or {}, "tessera.io/NotHonoured")
    assert "PodGroup.spec.scheduleTimeoutSeconds" in said["message"]
    users.delete_pods("duo-0", "duo-1")


async def test_a_job_of_many_pods_is_a_gang_and_completes(users: Users) -> None:
    users.create(batch_job("many", 8, completionMode="Indexed"))
    await users.until_complete("many")
    users.delete("job", "many")


async def test_a_job_whose_pods_come_in_waves_completes_pod_by_pod(users: Users) -> None:
    users.create(batch_job("waves", 2, completions=5, seconds=0.2))
    await users.until_complete("waves")
    users.delete("job", "waves")


async def test_the_next_pod_of_a_job_whose_pods_start_one_by_one_avoids_the_node_that_failed_one(users: Users) -> None:
    failing = {"tessera.io/simulate-exit-code": "1"}
    users.create(batch_job("stubborn", completions=2, seconds=0.2, notes=failing, backoffLimit=1))
    await users.until(lambda: condition(users.job("stubborn"), "Failed", "True"), "two of its pods have failed")
    nodes = [one["spec"]["nodeName"] for one in users.pods("stubborn")]
    assert len(nodes) == len(set(nodes)) == 2
    users.delete("job", "stubborn")


# -- suspended Jobs ---------------------------------------------------------------------------------------------------


async def test_a_job_begins_with_the_minimum_and_ends_in_the_time_of_kueues_marks(
    users: Users,
) -> None:
    more_than_there_is = batch_job("least", 3, gpus=8)
    more_than_there_is["metadata"]["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": "2"}
    users.create(more_than_there_is)
    endless = batch_job("endless", gpus=0, seconds=3600, backoffLimit=0)
    endless["metadata"]["labels"] = {"kueue.x-k8s.io/max-exec-time-seconds": "1"}
    users.create(endless)
    await users.until_complete("least")
    await users.until(lambda: condition(users.job("endless"), "Failed", "True"), "its time is over")
    users.delete("job", "least")
    users.delete("job", "endless")


async def test_a_suspended_job_is_let_go_once_there_is_room_for_it(users: Users) -> None:
    users.create(batch_job("full", 2, gpus=8, seconds=LONG))
    await users.until_running("full")
    users.create(batch_job("parked", 2, gpus=8, suspend=True))
    await users.until(lambda: users.events("parked"), "the suspended Job is told why it waits")
    assert users.job("parked")["spec"]["suspend"] is True
    assert users.pods("parked") == []
    users.finish("full")
    await users.until_complete("full", "parked")
    assert users.job("parked")["spec"]["suspend"] is False
    users.delete("job", "full")
    users.delete("job", "parked")


async def test_a_job_of_a_queue_that_waits_suspended_has_pods_only_while_it_has_room(users: Users) -> None:
    users.create(batch_job("full", 2, gpus=8, seconds=LONG))
    await users.until_running("full")
    patient = batch_job("patient", 2, gpus=8, completionMode="Indexed", backoffLimit=0)
    patient["metadata"] |= {"annotations": {"tessera.io/suspend-waiting": "true"}}
    users.create(patient)
    await users.until(lambda: users.job("patient")["spec"]["suspend"] and not users.pods("patient"), "it has no pods")
    await users.until(lambda: any(e["reason"] == "WaitsSuspended" for e in users.events("patient")), "it is told why")
    users.delete("job", "full")
    await users.until_complete("patient")
    assert users.job("patient")["metadata"]["annotations"]["tessera.io/suspended"] == "false"
    ranks = {
        pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]: pod["metadata"]["annotations"][
            "tessera.io/rank"
        ]
        for pod in users.pods("patient")
    }
    assert ranks == {"0": "0", "1": "1"}
    users.delete("job", "patient")


async def test_a_job_written_for_kueue_waits_for_us_if_it_says_so_and_for_kueue_otherwise(users: Users) -> None:
    for name, notes in (("moved", {"tessera.io/suspend-waiting": "true"}), ("stays", {})):
        made = batch_job(name, suspend=True)
        made["metadata"] |= {"labels": {"kueue.x-k8s.io/queue-name": "default"}, "annotations": notes}
        users.create(made)
    await users.until_complete("moved")
    # The first word is the Job controller's.
    both = {"SuspendedByAnother", "Suspended"}
    await users.until(lambda: {event["reason"] for event in users.events("stays")} == both, "it says who resumes it")
    assert users.job("stays")["spec"]["suspend"] is True
    users.delete("job", "moved")
    users.delete("job", "stays")


# -- who may be preempted ---------------------------------------------------------------------------------------------


async def test_a_bare_pod_is_not_preempted_unless_it_says_so(users: Users) -> None:
    users.create(pod("bare", gpus=8, seconds=LONG))
    users.create(pod("willing", gpus=8, seconds=LONG, notes={"tessera.io/preemptible": "true"}))
    await users.until_phase("bare", "Running")
    await users.until_phase("willing", "Running")
    users.create(batch_job("urgent", gpus=8, template={"priorityClassName": "high"}))
    await users.until_running("urgent")
    assert users.pod("willing") is None, "nobody brings it back"
    await users.until_complete("urgent")
    users.finish("bare")
    await users.until_succeeded("bare")
    users.delete("job", "urgent")
    users.delete_pods("bare")


async def test_a_gang_is_evicted_whole_and_comes_back_whole_as_the_next_attempt(users: Users) -> None:
    users.create(batch_job("evicted", 2, gpus=8, seconds=LONG))
    await users.until(lambda: len(users.in_phase("evicted", "Running")) == 2, "both run")
    first = {one["metadata"]["uid"] for one in users.pods("evicted")}
    users.create(batch_job("urgent", 2, gpus=8, seconds=1, template={"priorityClassName": "high"}))
    await users.until_complete("urgent")
    await users.until(
        lambda: len([one for one in users.in_phase("evicted", "Running") if one["metadata"]["uid"] not in first]) == 2,
        "both run again",
    )
    users.finish("evicted")
    await users.until_complete("evicted")
    last = users.in_phase("evicted", "Succeeded")
    assert len(last) == 2
    assert first.isdisjoint(one["metadata"]["uid"] for one in last)
    assert len({run_of(one) for one in last}) == 1
    assert run_of(last[0]).endswith("-2")
    users.delete("job", "urgent")
    users.delete("job", "evicted")


async def test_a_gang_of_more_pods_than_its_job_allows_failures_is_stopped_by_suspension(users: Users) -> None:
    users.create(batch_job("eight", 8, gpus=2, seconds=LONG))
    await users.until(lambda: len(users.in_phase("eight", "Running")) == 8, "all eight run")
    users.delete_pods(users.pods("eight")[0]["metadata"]["name"])
    await users.until(
        lambda: (
            users.job("eight")["metadata"].get("annotations", {}).get("tessera.io/suspended") == "false"
            and len(users.in_phase("eight", "Running")) == 8
        ),
        "the eight run again, since one of them was deleted",
    )
    users.create(batch_job("urgent", gpus=8, seconds=1, template={"priorityClassName": "high"}))
    await users.until_complete("urgent")
    await users.until(lambda: len(users.in_phase("eight", "Running")) == 8, "all eight run again")
    users.finish("eight")
    await users.until_complete("eight")
    assert users.job("eight")["status"]["failed"] == 1, "the pod that its user deleted"
    users.delete("job", "urgent")
    users.delete("job", "eight")


async def test_a_job_that_fails_for_good_or_is_deleted_leaves_the_queue(users: Users, live: KubernetesLive) -> None:
    users.create(batch_job("hopeless", backoffLimit=0, seconds=0.2, notes={"tessera.io/simulate-exit-code": "3"}))
    users.create(batch_job("regretted", template={"nodeSelector": {"kubernetes.io/hostname": "gpu-0"}}, gpus=8))
    await users.until(lambda: condition(users.job("hopeless"), "Failed"), "the Job has failed")
    users.delete("job", "regretted")
    await live.until(lambda state: not len(state.jobs), "no job is left in any queue")
    users.delete("job", "hopeless")


async def test_a_disruption_budget_is_respected_and_shown_and_the_urgent_job_goes_on_waiting(users: Users) -> None:
    users.create(batch_job("guarded", 2, gpus=8, seconds=LONG, labels={"app": "guarded"}))
    await users.until(lambda: len(users.in_phase("guarded", "Running")) == 2, "both run")
    budget = {"selector": {"matchLabels": {"app": "guarded"}}, "minAvailable": 2}
    users.create(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "all"}, "spec": budget}
    )
    guarded = [one["metadata"]["name"] for one in users.in_phase("guarded", "Running")]
    users.create(batch_job("pressing", gpus=8, template={"priorityClassName": "high"}))
    await users.until(
        lambda: any(event["reason"] == "BlockedByDisruptionBudget" for name in guarded for event in users.events(name)),
        "an eviction is blocked, and said to be",
    )
    assert len(users.in_phase("guarded", "Running")) == 2
    users.delete("poddisruptionbudget", "all")
    users.finish("guarded")
    await users.until_complete("pressing", "guarded")
    users.delete("job", "pressing")
    users.delete("job", "guarded")


async def test_the_rest_of_a_gang_that_lost_a_pod_is_not_kept_for_ever_by_its_budget(users: Users) -> None:
    for number in range(2):
        users.create(pod_of_gang("halved", number, 2, labels={"app": "halved"}, seconds=3600))
    await users.until_phase("halved-0", "Running")
    await users.until_phase("halved-1", "Running")
    budget = {"selector": {"matchLabels": {"app": "halved"}}, "minAvailable": 2}
    users.create(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "all"}, "spec": budget}
    )
    users.delete_pods("halved-0")
    await users.until(
        lambda: (
            {"BlockedByDisruptionBudget", "DisruptionBudgetOverridden"}
            <= {event["reason"] for event in users.events("halved-1")}
        ),
        "its budget is asked, and then overridden, and both are said",
    )
    await users.until(lambda: users.pod("halved-1") is None, "the rest of the gang is gone")
    users.delete("poddisruptionbudget", "all")


# -- pods that are resized in place -----------------------------------------------------------------------------------


def of_cpu(name: str, cpu: str, scheduler: str = "tessera", **spec: Any) -> Json:
    """A pod without a GPU on the second node."""
    made = pod(name, gpus=0, seconds=60, nodeSelector={"kubernetes.io/hostname": "gpu-1"}, **spec)
    made["spec"] |= {"schedulerName": scheduler}
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}
    return made


def resize(users: Users, name: str, cpu: str) -> None:
    """As a user does, on a node whose kubelet says what it has allocated: KWOK's does not."""
    path, now = f"/api/v1/namespaces/{users.namespace}/pods/{name}", users.pod(name) or {}
    had = now["spec"]["containers"][0]["resources"]
    said = {"resources": had, "allocatedResources": had["requests"]}
    statuses = [status | said for status in now["status"]["containerStatuses"]]
    users.api.patch(f"{path}/status", {"status": {"containerStatuses": statuses}})
    change = {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}}]}
    users.api.patch(f"{path}/resize", {"spec": change}, STRATEGIC_PATCH)


@pytest.mark.parametrize("scheduler", ["tessera", "another"])
async def test_a_pod_that_grew_in_place_gets_no_neighbour_that_does_not_fit(
    users: Users, live: KubernetesLive, scheduler: str
) -> None:
    await live.until(lambda state: not len(state.runs), "nothing of the test before holds CPU")
    users.create(of_cpu("grows", "1", scheduler, **({} if scheduler == "tessera" else {"nodeName": "gpu-1"})))
    await users.until_phase("grows", "Running")
    before = live.state.nodes.get("gpu-1").cpu_free
    resize(users, "grows", "12")
    await live.until(lambda state: state.nodes.get("gpu-1").cpu_free <= before - 11_000, "what it grew by is counted")
    users.create(of_cpu("neighbour", "8"))
    assert "NoFit" in (await users.until_told("neighbour", "NoFit"))["reason"]
    users.delete_pods("grows")
    await users.until_phase("neighbour", "Running")
    users.delete_pods("neighbour")


# -- node affinity ----------------------------------------------------------------------------------------------------


def needing(name: str, *terms: list[Json]) -> Json:
    """A pod for nodes on which all conditions of one of the terms hold."""
    required = {"nodeSelectorTerms": [{"matchExpressions": conditions} for conditions in terms]}
    return pod(name, seconds=1, affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}})


async def test_one_of_several_terms_of_a_users_pod_holds_on_its_node(users: Users, live: KubernetesLive) -> None:
    slots = "example.org/slots"
    users.api.patch("/api/v1/nodes/gpu-1", {"metadata": {"labels": {slots: "12"}}})
    await live.until(lambda state: state.nodes.get("gpu-1").label(slots) == "12", "the label is known")
    nowhere: Json = {"key": "example.org/none", "operator": "Exists"}
    more, less = ({"key": slots, "operator": each, "values": [n]} for each, n in (("Gt", "3"), ("Lt", "20")))
    users.create(needing("either", [nowhere], [more, less]))
    await users.until_phase("either", "Succeeded")
    assert (users.pod("either") or {})["spec"]["nodeName"] == "gpu-1"
    users.create(needing("neither", [nowhere], [more | {"values": ["12"]}]))
    assert "affinity" in (await users.until_told("neither", "Inadmissible"))["message"]
    users.delete_pods("either", "neither")


async def test_the_preferred_node_of_a_users_pod_is_taken_before_others(users: Users, live: KubernetesLive) -> None:
    label = "example.org/preferred"
    users.api.patch("/api/v1/nodes/gpu-1", {"metadata": {"labels": {label: "7"}}})
    await live.until(lambda state: state.nodes.get("gpu-1").label(label) == "7", "the label is known")
    for node, operator in (("gpu-1", "Gt"), ("gpu-0", "DoesNotExist")):
        condition: Json = {"key": label, "operator": operator} | ({"values": ["6"]} if operator == "Gt" else {})
        term = {"weight": 1, "preference": {"matchExpressions": [condition]}}
        preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [term]}
        users.create(pod(f"prefers-{node}", seconds=1, affinity={"nodeAffinity": preferred}))
        await users.until_phase(f"prefers-{node}", "Succeeded")
        assert (users.pod(f"prefers-{node}") or {})["spec"]["nodeName"] == node
        users.delete_pods(f"prefers-{node}")


async def test_the_pods_of_a_job_are_spread_as_its_constraint_says_also_of_a_suspended_one(users: Users) -> None:
    for name, suspended in (("apart", False), ("resumed", True)):
        over_nodes = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"batch.kubernetes.io/job-name": name}},
        }
        template = {"topologySpreadConstraints": [over_nodes]}
        users.create(batch_job(name, 2, gpus=1, suspend=suspended, template=template))
        await users.until_complete(name)
        assert {pod["spec"]["nodeName"] for pod in users.pods(name)} == {"gpu-0", "gpu-1"}
        users.delete("job", name)


# -- anti-affinity ----------------------------------------------------------------------------------------------------


def kept_apart(app: str) -> Json:
    """What manifests in the field say so that no two pods of an application are on one node."""
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


async def test_pods_of_a_deployment_that_keep_apart_are_on_different_nodes(users: Users) -> None:
    app = {"app": "front"}
    made = pod("front", gpus=0, labels=app, affinity=kept_apart("front"), restartPolicy="Always")
    template = {"metadata": {key: made["metadata"][key] for key in ("labels", "annotations")}, "spec": made["spec"]}
    template["metadata"]["annotations"]["tessera.io/simulate-seconds"] = "600"
    spec = {"replicas": 3, "selector": {"matchLabels": app}, "template": template}
    users.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "front"}, "spec": spec})
    pods = f"/api/v1/namespaces/{users.namespace}/pods"

    def there() -> list[Json]:
        return [each for each in users.api.items(pods, labelSelector="app=front") if each["spec"].get("nodeName")]

    await users.until(lambda: len(there()) == 2, "two of three pods have a node")
    assert {each["spec"]["nodeName"] for each in there()} == {"gpu-0", "gpu-1"}
    (waiting,) = (e for e in users.api.items(pods, labelSelector="app=front") if not e["spec"].get("nodeName"))
    told = await users.until_told(waiting["metadata"]["name"], "NoFit")
    assert "with pods to keep apart from" in told["message"], told
    wish = condition(users.pod(waiting["metadata"]["name"]) or {}, "tessera.io/NotHonoured")
    assert "have an equal term" in wish["message"]
    # Another application is not in its way.
    users.create(pod("other", gpus=0, labels={"app": "other"}, affinity=kept_apart("other")))
    await users.until_phase("other", "Succeeded")
    users.delete("deployment", "front")
    users.delete_pods("other")
    await users.until(lambda: not there(), "they are gone")


async def test_pods_of_a_job_that_keep_apart_are_on_different_nodes(users: Users) -> None:
    template = {"affinity": kept_apart("pair")}
    users.create(batch_job("pair", 2, labels={"app": "pair"}, template=template, completionMode="Indexed"))
    await users.until_complete("pair")
    assert {each["spec"]["nodeName"] for each in users.pods("pair")} == {"gpu-0", "gpu-1"}
    users.delete("job", "pair")


# -- volume claims ----------------------------------------------------------------------------------------------------


def with_claim(name: str) -> Json:
    """A pod with the claim of its own name."""
    made = pod(name, seconds=2, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": name}}])
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    return made


def make_claim(users: Users, name: str, storage_class: str = "", **more: Any) -> None:
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **more}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
    users.create(claim | {"spec": asked | {"storageClassName": storage_class}})


def make_volume(users: Users, name: str, node: str, storage_class: str = "", mode: str = "ReadWriteOnce") -> None:
    """A disk of one node, for the claim of the same name."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": [mode],
        "storageClassName": storage_class,
        "local": {"path": "/disk"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        "claimRef": {"namespace": users.namespace, "name": name},
    }
    users.api.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})


async def test_a_pod_waits_for_its_claim_by_name_and_goes_where_its_volume_is(users: Users) -> None:
    users.create(with_claim("disk"))
    told = await users.until_told("disk", "VolumeNotReady")
    assert "claim disk is not there" in told["message"]
    make_volume(users, "disk", "gpu-1")
    make_claim(users, "disk", volumeName="disk")
    await users.until_phase("disk", "Running", "Succeeded")
    assert (users.pod("disk") or {})["spec"]["nodeName"] == "gpu-1"
    users.delete_pods("disk")


async def test_a_job_of_ours_goes_where_the_volumes_of_its_roles_are(users: Users, live: KubernetesLive) -> None:
    homes = {"left": "gpu-1", "right": "gpu-0"}
    plain, roles = job("sorted", seconds=2), list[Role]()
    for name, node in homes.items():
        make_claim(users, name)
        make_volume(users, name, node)
        template = plain.roles[0].template.model_copy(
            update={"volumes": (Volume(kind="claim", name=name, mount_path="/data"),)}
        )
        roles.append(plain.roles[0].model_copy(update={"name": name, "template": template}))
    claims = "/api/v1/namespaces/lab/persistentvolumeclaims/"
    await users.until(
        lambda: all(users.api.get(f"{claims}{name}")["status"]["phase"] == "Bound" for name in homes), "both are bound"
    )
    submitted = await live.submit(plain.model_copy(update={"roles": tuple(roles)}))

    def placed(state: State) -> dict[str, str]:
        runs = [run for run in state.runs.values() if run.job_id == submitted.job_id and run.started]
        return {place.role: place.node for run in runs for place in run.placements}

    await live.until(lambda state: placed(state) == homes, "each role runs where its volume is")
    await live.until_ended(submitted.job_id)


async def test_a_volume_is_made_on_the_node_of_its_first_consumer_before_the_pod_is_bound(users: Users) -> None:
    kind = {"provisioner": "volumes.example.com", "volumeBindingMode": "WaitForFirstConsumer"}
    users.api.create({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "later"}, **kind})
    make_claim(users, "made", "later")
    users.create(with_claim("made"))
    path = f"/api/v1/namespaces/{users.namespace}/persistentvolumeclaims/made"

    def chosen() -> str:
        notes = users.api.get(path)["metadata"].get("annotations") or {}
        return str(notes.get("volume.kubernetes.io/selected-node", ""))

    await users.until(chosen, "a node is written on the claim")
    assert "nodeName" not in (users.pod("made") or {})["spec"]
    make_volume(users, "made", chosen(), "later")
    await users.until_phase("made", "Running", "Succeeded")
    assert (users.pod("made") or {})["spec"]["nodeName"] == chosen()
    users.delete_pods("made")


async def test_of_two_pods_with_a_claim_for_one_pod_the_second_waits_by_its_name_and_comes_after_the_first(
    users: Users,
) -> None:
    make_volume(users, "single", "gpu-0", mode="ReadWriteOncePod")
    make_claim(users, "single", volumeName="single", accessModes=["ReadWriteOncePod"])
    pair = []
    for name in ("single-a", "single-b"):
        made = with_claim("single")
        made["metadata"] |= {"name": name, "annotations": {"tessera.io/simulate-seconds": "3600"}}
        pair.append(users.create(made)["metadata"]["name"])

    def bound() -> list[str]:
        return [name for name in pair if (users.pod(name) or {"spec": {}})["spec"].get("nodeName")]

    await users.until(bound, "one of the two is bound")
    first = bound()[0]
    (second,) = set(pair) - {first}
    told = await users.until_told(second, "VolumeNotReady")
    assert f"pod {first} has it" in told["message"]
    users.delete_pods(first)
    await users.until_phase(second, "Running")
    users.delete_pods(second)


# -- what is refused --------------------------------------------------------------------------------------------------


async def test_pods_that_cannot_be_honoured_say_the_field_and_the_way_out(users: Users) -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    users.create(pod("spread", topologySpreadConstraints=[spread]))
    told = await users.until_told("spread", "NotSupportedYet")
    assert "topologySpreadConstraints[0].labelSelector" in told["message"]
    described = users.describe(users.pod("spread") or {})
    assert "NotSupportedYet" in described.partition("Events:")[2]
    users.delete_pods("spread")


async def test_marks_of_other_systems_are_honoured_refused_or_told(users: Users) -> None:
    users.create(pod("card", notes={"nvidia.com/use-gpuuuid": "GPU-1"}))
    users.create(pod("part", labels={"grove.io/podgang-name": "serve-0"}))
    users.create(pod("model", notes={"nvidia.com/nouse-gputype": "h100"}))
    notes = {"descheduler.alpha.kubernetes.io/prefer-no-eviction": "true", "koordinator.sh/brand-new": "x"}
    silent = {
        "karpenter.sh/do-not-disrupt": "true",
        "slurmjob.slinky.slurm.net/timelimit": "10",
        "nvidia.com/use-gputype": "a100,h100",
    }
    users.create(pod("kept", notes=notes | silent))
    armada = {"armadaproject.io/gangId": "pair", "armadaproject.io/gangCardinality": "2"}
    users.create(pod("pair-0", notes=armada))
    for name, field in (("card", "nvidia.com/use-gpuuuid"), ("part", "grove.io/podgang-name")):
        told = await users.until_told(name, "NotSupportedYet")
        assert field in told["message"]
    await users.until_told("model", "Inadmissible", "NoFit")
    await users.until_told("pair-0", "GangIncomplete")
    await users.until_succeeded("kept")
    said = condition(users.pod("kept") or {}, "tessera.io/NotHonoured")["message"]
    assert all(key in said for key in notes)
    assert not any(key in said for key in silent)
    users.create(pod("pair-1", notes=armada))
    await users.until_succeeded("pair-0", "pair-1")
    users.delete_pods("card", "part", "model", "kept", "pair-0", "pair-1")


async def test_a_pod_that_no_node_can_ever_hold_is_refused_with_the_numbers(users: Users) -> None:
    users.create(pod("giant", gpus=9))
    told = await users.until_told("giant", "Inadmissible")
    assert any(letter.isdigit() for letter in told["message"])
    users.delete_pods("giant")


async def test_a_pod_with_an_unknown_queue_is_told_so_and_starts_once_it_has_another(users: Users) -> None:
    users.create(pod("lost", labels={"tessera.io/queue": "nowhere"}))
    await users.until_told("lost", "NoSuchQueue")
    users.kubectl("label", "pod", "lost", "--namespace", users.namespace, "tessera.io/queue=default", "--overwrite")
    await users.until_succeeded("lost")
    users.delete_pods("lost")


async def test_nothing_is_said_twice_to_a_pod_whose_reason_stays_the_same(users: Users, live: KubernetesLive) -> None:
    users.create(pod("stuck", nodeSelector={"no": "such"}))
    told = await users.until_told("stuck", "Inadmissible", "NoFit")
    await eventually(lambda: len(users.events("stuck")) == 1, "the event follows the condition")
    async with live.down("binder"):
        pass
    await live.until_ready("binder")
    other = await live.submit(job("another"))
    await live.until_ended(other.job_id)
    stuck = users.pod("stuck") or {}
    assert scheduled(stuck)["lastTransitionTime"] == told["lastTransitionTime"]
    assert len(users.events("stuck")) == 1
    users.delete_pods("stuck")


async def test_after_all_of_it_everything_is_well_and_no_pod_of_a_user_has_our_finalizer(
    users: Users, live: KubernetesLive
) -> None:
    seen = [change.object for change in live.pods]
    theirs = [one for one in seen if "tessera.io/spec" not in (one["metadata"].get("labels") or {})]
    assert theirs
    assert not any("tessera.io/held" in one["metadata"].get("finalizers", ()) for one in theirs)
    assert not any(condition(one, "PodScheduled", "False") for one in theirs if one["spec"].get("nodeName"))
    await assert_all_is_well(live)


# -- namespaces that are not let in, and what the doctor says of them ------------------------------------------------


async def test_work_of_a_namespace_that_is_not_let_in_waits_unsubmitted_and_the_doctor_names_it(
    live: KubernetesLive, users: Users
) -> None:
    live.plane.add_namespace("closed")
    strangers = Users(live, "closed")
    strangers.create(pod("shut-out"))
    await eventually(lambda: "namespace_not_let_in" in logs_of(live, "binder"), "the binder has asked")
    found = await doctor(live)
    assert "namespace closed is not let in: 1 pod or suspended Job that names tessera waits" in found
    assert "name it under `tenants` in the values of the chart" in found
    assert "namespace closed is no tenant" in found
    assert "binder may not" not in found
    let_in(live.plane, "closed")
    told = await strangers.until_told("shut-out", "NoSuchTenant")  # so it was submitted
    assert told["status"] == "False"
    strangers.delete_pods("shut-out")


async def test_the_doctor_names_exactly_the_rights_that_an_older_role_lacks(live: KubernetesLive, users: Users) -> None:
    await eventually(lambda: users.pod("shut-out") is None, "the pod before is gone")
    assert "nothing found" in await doctor(live)
    role = users.api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/tessera-binder")
    rules = [rule for rule in role["rules"] if rule["resources"] != ["jobs"]]
    users.kubectl("apply", "-f", "-", stdin=json.dumps({**role, "rules": rules}))
    try:
        assert "binder may not patch jobs of batch in " in await doctor(live)
    finally:
        deploy(live.plane)


async def doctor(live: KubernetesLive) -> str:
    """What it prints for an administrator of the cluster."""
    environment = {"KUBECONFIG": str(live.plane.kubeconfig()), "TESSERA_ALLOW_UNSYNCED": "true"}
    said = await live.command("doctor", environment={**environment, "TESSERA_ALLOW_ANYBODY": "true"})
    print(said.out, said.err)
    return said.out + said.err


def logs_of(live: KubernetesLive, service: str) -> str:
    return "".join(log.read_text() for log in (live.platform.directory / "logs").glob(f"*{service}*.log"))
