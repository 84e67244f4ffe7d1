"""The pod of a rank: nothing gets in that the contract does not name, and ours cannot be overruled."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.binder.decide.devices import at_bind
from tessera.binder.decide.pods import pod_of, tolerations
from tessera.domain.work.gang import bearing
from tessera_schemas.base import Json
from tessera_schemas.cluster import labels as contract
from tessera_schemas.job import AffinityTerm, JobSpec, Operator, Role, Session, Template, Toleration, Volume
from tests.builders import GIB, job_spec, placement, role
from tests.kubelet import expanded
from tests.unit.binder.binder_builders import JOB, RUN, job, node, run

POD = {"apiVersion", "kind", "metadata", "spec"}
METADATA = {"name", "namespace", "labels", "annotations", "finalizers"}
SPEC = {
    "schedulerName",
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "automountServiceAccountToken",
    "enableServiceLinks",
    "nodeSelector",
    "tolerations",
    "affinity",
    "volumes",
    "containers",
    "activeDeadlineSeconds",
}
CONTAINER = {"name", "image", "command", "args", "env", "resources", "securityContext", "volumeMounts", "workingDir"}
SOURCES = {"emptyDir", "persistentVolumeClaim", "configMap", "secret", "downwardAPI"}


def allowed(pod: Json) -> bool:
    """The allow-list, written down a second time: what the API may see of a job."""
    (container,) = pod["spec"]["containers"]
    return (
        set(pod) == POD
        and set(pod["metadata"]) == METADATA
        and set(pod["spec"]) <= SPEC
        and set(container) <= CONTAINER
        and pod["spec"]["automountServiceAccountToken"] is False
        and pod["spec"]["schedulerName"] == "tessera"
        and pod["spec"]["restartPolicy"] == "Never"
        and pod["metadata"]["finalizers"] == [contract.FINALIZER]
        and container["securityContext"]
        == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        and set(container["resources"]) == {"requests", "limits"}
        and container["resources"]["requests"] == container["resources"]["limits"]
        and set(container["resources"]["limits"]) <= {"cpu", "memory", contract.GPU_RESOURCE, "rdma/hca"}
        and all(set(mount) == {"name", "mountPath", "readOnly"} for mount in container["volumeMounts"])
        and all(len(set(v) - {"name"}) == 1 and set(v) - {"name"} <= SOURCES for v in pod["spec"]["volumes"])
        and all(set(entry) == {"name", "value"} for entry in container["env"])
        and all(set(t) <= {"key", "operator", "value", "effect"} for t in pod["spec"]["tolerations"])
    )


def made(spec: JobSpec, rank: int = 0) -> Json:
    return pod_of(job(spec), run(spec), rank, spec, 7, node())


def with_template(**template: Any) -> JobSpec:
    return job_spec(role().model_copy(update={"template": Template(image="train:1", **template)}))


def env_of(pod: Json) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}


KEYS = st.sampled_from(
    [
        "tessera.io/permit",
        "tessera.io/devices",
        "tessera.io/run",
        "tessera.io/new",
        "tessera.io/simulate-x",
        "a.b/c",
        "c",
    ]
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
VALUES = st.from_regex(r"^[A-Za-z0-9]{1,8}$", fullmatch=True)
VOLUMES = st.one_of(
    st.just(Volume(kind="empty", mount_path="/scratch")),
    st.sampled_from(("claim", "config_map", "secret")).map(
        lambda kind: Volume.model_validate({"kind": kind, "mount_path": "/data", "name": "x"})
    ),
)
TEMPLATES = st.builds(
    Template,
    image=st.just("train:1"),
    command=st.lists(TEXTS, max_size=3).map(tuple),
    args=st.lists(TEXTS, max_size=3).map(tuple),
    env=st.dictionaries(st.sampled_from(["PATH", "TESSERA_RANK", "TESSERA_JOB_ID"]), TEXTS),
    working_dir=st.none() | st.just("/work"),
    volumes=st.lists(VOLUMES, max_size=3).map(tuple),
    annotations=st.dictionaries(KEYS, TEXTS),
)


@given(TEMPLATES, st.dictionaries(KEYS, VALUES), st.integers(0, 2), st.sampled_from((0, 500)), st.none() | st.just(60))
def test_every_pod_passes_the_allow_list_and_says_about_itself_what_we_say(
    template: Template, own_labels: dict[str, str], gpus: int, share: int, limit: int | None
) -> None:
    asked = role(gpus=gpus, gpu_milli=0 if gpus else share, tolerations=(Toleration(key="own", value="x"),))
    spec = job_spec(asked.model_copy(update={"template": template}), labels=own_labels, time_limit_seconds=limit)
    pod = made(spec)
    assert allowed(pod)
    ours = {contract.RUN_LABEL: RUN, contract.JOB_LABEL: JOB, contract.RANK_LABEL: "0", contract.TENANT_LABEL: "lab"}
    assert ours.items() <= pod["metadata"]["labels"].items()
    named = {key for key in pod["metadata"]["labels"] if key.startswith(contract.RESERVED_PREFIX)}
    reserved = {key for key in named if not key.startswith(contract.SIMULATE_PREFIX)}
    assert reserved | {contract.MANAGED_BY_LABEL} == {
        *ours,
        contract.ROLE_LABEL,
        contract.QUEUE_LABEL,
        contract.SPEC_LABEL,
        contract.MANAGED_BY_LABEL,
    }
    annotations = pod["metadata"]["annotations"]
    assert not {contract.PERMIT_ANNOTATION, contract.DEVICES_ANNOTATION, contract.RUN_LABEL} & set(annotations)
    assert env_of(pod)["TESSERA_RANK"] == "0"
    assert env_of(pod)["TESSERA_JOB_ID"] == JOB


def test_a_user_of_its_own_takes_root_away_and_nothing_else() -> None:
    (plain,) = made(with_template())["spec"]["containers"]
    (container,) = made(with_template(run_as_user=1000))["spec"]["containers"]
    assert container["securityContext"] == plain["securityContext"] | {"runAsUser": 1000, "runAsNonRoot": True}
    assert plain["securityContext"].keys().isdisjoint({"runAsUser", "runAsNonRoot"})


def test_a_job_cannot_say_which_devices_it_has_or_that_it_is_permitted() -> None:
    hostile = {
        contract.PERMIT_ANNOTATION: "uid-0",
        contract.DEVICES_ANNOTATION: "0,1,2",
        contract.GPU_MILLI_ANNOTATION: "8000",
        contract.ALLOCATED_N_ANNOTATION: "999",
        contract.TTL_ANNOTATION: "1",
    }
    annotations = made(with_template(annotations=hostile))["metadata"]["annotations"]
    assert annotations == {
        contract.NAME_ANNOTATION: "train",
        contract.ALLOCATED_N_ANNOTATION: "7",
        contract.TTL_ANNOTATION: "3600",
        contract.GPU_MILLI_ANNOTATION: "1000",
    }


def test_a_jobs_own_annotations_and_labels_get_through() -> None:
    spec = with_template(annotations={"example.com/team": "vision"}).model_copy(update={"labels": {"team": "vision"}})
    pod = made(spec)
    assert pod["metadata"]["annotations"]["example.com/team"] == "vision"
    assert pod["metadata"]["labels"]["team"] == "vision"


def test_a_job_cannot_take_the_labels_by_which_we_find_pods() -> None:
    spec = job_spec(
        labels={contract.RUN_LABEL: "another-1", contract.MANAGED_BY_LABEL: "helm", contract.POOL_LABEL: "x"}
    )
    labels = made(spec)["metadata"]["labels"]
    assert (labels[contract.RUN_LABEL], labels[contract.MANAGED_BY_LABEL]) == (RUN, "tessera")
    assert contract.POOL_LABEL not in labels


def test_a_pod_asks_for_exactly_what_was_allocated() -> None:
    (container,) = made(job_spec(role(gpus=2, cpu_milli=1500, memory_bytes=3 * GIB)))["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "1500m", "memory": str(3 * GIB), "nvidia.com/gpu": "2"}


def test_a_pod_without_a_whole_gpu_asks_the_device_plugin_for_none() -> None:
    (container,) = made(job_spec(role(gpus=0, gpu_milli=500)))["spec"]["containers"]
    assert contract.GPU_RESOURCE not in container["resources"]["limits"]


def test_each_rank_is_told_who_it_is() -> None:
    spec = job_spec(role("worker", replicas=2), role("server"))
    pods = [made(spec, rank) for rank in range(3)]
    assert [pod["metadata"]["name"] for pod in pods] == [f"{RUN}-{rank}" for rank in range(3)]
    assert [(env_of(pod)["TESSERA_ROLE"], env_of(pod)["TESSERA_WORLD_SIZE"]) for pod in pods] == [
        ("worker", "3"),
        ("worker", "3"),
        ("server", "3"),
    ]


def test_the_same_run_and_rank_give_the_same_pod() -> None:
    spec = job_spec(role(replicas=2))
    assert made(spec, 1) == made(spec, 1)


def test_a_time_limit_is_the_kubelets_to_keep() -> None:
    assert made(job_spec(time_limit_seconds=60))["spec"]["activeDeadlineSeconds"] == 60
    assert "activeDeadlineSeconds" not in made(job_spec())["spec"]


def test_tolerations_say_to_kubernetes_what_they_said_to_us() -> None:
    asked = (Toleration(key="a"), Toleration(key="b", value="x", effect="NoExecute"))
    asked += (Toleration(key="c", operator="Equal"), Toleration(key="d", operator="Exists"))
    spec = job_spec(Role.model_validate({**role().model_dump(), "tolerations": [t.model_dump() for t in asked]}))
    assert made(spec)["spec"]["tolerations"][:4] == [
        {"key": "a", "operator": "Exists"},
        {"key": "b", "operator": "Equal", "value": "x", "effect": "NoExecute"},
        {"key": "c", "operator": "Equal"},
        {"key": "d", "operator": "Exists"},
    ]


OF_GPUS = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def test_a_pod_tolerates_the_taints_of_the_devices_that_it_asks_for_as_kubernetes_adds_them() -> None:
    assert made(job_spec(role(gpus=0)))["spec"]["tolerations"] == []
    assert made(job_spec(role(gpus=1)))["spec"]["tolerations"] == [OF_GPUS]
    asked = tolerations(role(gpus=0, mig_profile="1g.5gb", devices={"rdma/hca": 1}), None)
    assert asked == [OF_GPUS, OF_GPUS | {"key": "nvidia.com/mig-1g.5gb"}, OF_GPUS | {"key": "rdma/hca"}]
    said = (Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"),)
    assert tolerations(role(tolerations=said), None) == [OF_GPUS]


def test_a_pod_has_the_standing_tolerations_of_its_nodes_pool() -> None:
    standing = (("a", "", ""), ("b", "=", "NoExecute"), ("c", "x", "NoSchedule"))
    assert tolerations(role(gpus=0), replace(node(), tolerated=standing)) == [
        {"key": "a", "operator": "Exists"},
        {"key": "b", "operator": "Equal", "effect": "NoExecute"},
        {"key": "c", "operator": "Equal", "value": "x", "effect": "NoSchedule"},
    ]


def test_a_pod_has_the_standing_tolerations_of_its_tenant_beside_those_of_the_pool() -> None:
    spec = job_spec(role(gpus=0))
    of = job(spec)
    of = replace(of, roles=bearing(of.roles, (("a", "", ""), ("c", "x", "NoSchedule"))))
    where = replace(node(), tolerated=(("a", "", ""), ("b", "=", "NoExecute")))
    assert pod_of(of, run(spec), 0, spec, 7, where)["spec"]["tolerations"] == [
        {"key": "a", "operator": "Exists"},
        {"key": "c", "operator": "Equal", "value": "x", "effect": "NoSchedule"},
        {"key": "b", "operator": "Equal", "effect": "NoExecute"},
    ]


def test_conditions_on_the_node_say_to_kubernetes_what_they_said_to_us() -> None:
    terms = (
        AffinityTerm(key="rack", operator=Operator.NOT_IN, values=("r1", "r2")),
        AffinityTerm(key="ssd", operator=Operator.EXISTS),
    )
    pod = made(job_spec(role(affinity=terms)))
    assert allowed(pod)
    needed = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert needed == {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {"key": "rack", "operator": "NotIn", "values": ["r1", "r2"]},
                    {"key": "ssd", "operator": "Exists"},
                ]
            }
        ]
    }
    assert "affinity" not in made(job_spec())["spec"]


def test_lists_of_conditions_are_terms_each_with_the_conditions_that_hold_besides() -> None:
    rack, east, west = ({"key": key, "operator": "Exists"} for key in ("rack", "east", "west"))
    pod = made(job_spec(role(affinity=(rack,), affinity_any=((east,), (west,)))))
    assert allowed(pod)
    needed = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["matchExpressions"] for term in needed["nodeSelectorTerms"]] == [[rack, east], [rack, west]]


def test_what_a_role_prefers_of_nodes_stands_in_the_pod_as_well() -> None:
    east = {"key": "zone", "operator": "In", "values": ["east"]}
    pod = made(job_spec(role(affinity_preferred=({"weight": 30, "terms": [east]},))))
    assert allowed(pod)
    preferred = {"weight": 30, "preference": {"matchExpressions": [east]}}
    assert pod["spec"]["affinity"] == {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def test_further_devices_are_asked_of_the_kubelet_by_their_name() -> None:
    pod = made(job_spec(role(devices={"rdma/hca": 2})))
    assert allowed(pod)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"]["rdma/hca"] == "2"


def test_the_bind_says_the_devices() -> None:
    assert at_bind(placement(devices=(0, 5)), node(), datetime.fromtimestamp(0, UTC)) == {
        contract.DEVICES_ANNOTATION: "0,5",
        contract.GPU_MILLI_ANNOTATION: "1000",
    }


def test_a_job_that_declares_checkpoints_can_read_its_notice_as_a_file() -> None:
    spec = JobSpec.model_validate(
        job_spec().model_dump() | {"checkpoint": {"interval_seconds": 600, "notice_seconds": 30}}
    )
    pod = made(spec)
    (container,) = pod["spec"]["containers"]
    (volume,) = [volume for volume in pod["spec"]["volumes"] if "downwardAPI" in volume]
    field = {"fieldPath": "metadata.annotations['tessera.io/evict-at']"}
    assert volume["downwardAPI"] == {"items": [{"path": "evict-at", "fieldRef": field}]}
    mounted = {"name": volume["name"], "mountPath": "/etc/tessera", "readOnly": True}
    assert mounted in container["volumeMounts"]
    assert pod["metadata"]["annotations"][contract.NOTICE_ANNOTATION] == "30"
    assert allowed(pod)


def test_a_job_cannot_say_for_its_pods_that_work_is_saved_or_that_they_are_to_go() -> None:
    hostile = {
        contract.CHECKPOINT_ANNOTATION: "/x",
        contract.CHECKPOINT_AT_ANNOTATION: "1",
        contract.EVICT_AT_ANNOTATION: "2999-01-01T00:00:00Z",
        contract.NOTICE_ANNOTATION: "9",
    }
    assert not set(hostile) & set(made(with_template(annotations=hostile))["metadata"]["annotations"])


def test_the_next_attempt_gets_the_checkpoint_of_the_one_before() -> None:
    spec = job_spec()
    resumed = replace(job(spec), saved_path="s3://bucket/7")
    assert env_of(pod_of(resumed, run(spec), 0, spec, 7, node()))["TESSERA_CHECKPOINT_PATH"] == "s3://bucket/7"
    assert "TESSERA_CHECKPOINT_PATH" not in env_of(made(spec))


def test_a_checkpoints_path_is_handed_on_as_it_was_said_and_a_command_as_the_template_has_it() -> None:
    spec = with_template(command=("sh", "$(TESSERA_RANK)"), args=("$$",), env={"A": "$(TESSERA_JOB_ID)"})
    pod = pod_of(replace(job(spec), saved_path="/$(date)/$$"), run(spec), 0, spec, 7, node())
    assert expanded(env_of(pod)["TESSERA_CHECKPOINT_PATH"], {"date": "today"}) == "/$(date)/$$"
    (container,) = pod["spec"]["containers"]
    assert (container["command"], container["args"]) == (["sh", "$(TESSERA_RANK)"], ["$$"])
    assert env_of(pod)["A"] == "$(TESSERA_JOB_ID)"


def test_the_pod_of_a_session_has_its_label_and_is_told_the_rule_by_which_it_stops_itself() -> None:
    spec = job_spec()
    rule = Session(kind="notebook", idle_seconds=7200, warning_seconds=300, on_idle="end")
    told = {"IDLE_SECONDS": "7200", "WARNING_SECONDS": "300", "ON_IDLE": "end"}
    for session, expected in ((rule, told), (Session(kind="terminal"), {}), (None, {})):
        pod = pod_of(replace(job(spec), session=session), run(spec), 0, spec, 7, node())
        env = {name.removeprefix("TESSERA_SESSION_"): value for name, value in env_of(pod).items() if "SESSION" in name}
        assert env == expected
        assert pod["metadata"]["labels"].get("tessera.io/session") == (session.kind if session else None)
        probe = pod["spec"]["containers"][0].get("readinessProbe")
        assert (probe is None) == (session is not rule)
        assert probe is None or probe["exec"]["command"][-1] == "! test -s /tmp/tessera-idle-warning"
