"""Marks of other systems: honoured, refused by name, or said; none is dropped without a word."""

from typing import Any

import pytest

from tessera.binder.adoption.decide.cluster_marks import GpuNames, asks_for_memory, with_models, with_share
from tessera.binder.adoption.decide.roles import role_of
from tessera.binder.adoption.decide.spec import Adoption, spec_of
from tessera.binder.workloads.mark_table import DOMAINS, MARKS, SYSTEMS, UNKNOWN, Mark, System, Treatment
from tessera.binder.workloads.marks import QUEUES, REQUIRED, not_honoured, refused_mark
from tessera.binder.workloads.port import GangMark, Group, GroupKind
from tessera.binder.workloads.registry import GANGS, group_of, size_of
from tessera_schemas.job import Role, Topology
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import an_object, batch_job, group, pod, ref

Json = dict[str, Any]
RACK = "cloud.provider.com/topology-rack"


def role(**said: Any) -> Role:
    found = role_of(pod(**said))
    assert isinstance(found, Role), found
    return found


def adoption(pods: list[Json], *objects: Json) -> Adoption:
    its = group(pods[0], *objects)
    owner = next((thing for thing in objects if its.owner == ref(thing)), None)
    size = size_of(its, owner, pods)
    assert isinstance(size, int), size
    found = spec_of(its, pods, size, owner)
    assert isinstance(found, Adoption), found
    return found


# -- the table --------------------------------------------------------------------------------------------------------


ROWS = [
    pytest.param(system, mark, key, id=f"{mark.treatment.value}: {key} {mark.value}")
    for system in SYSTEMS
    for mark in system.marks
    for key in mark.keys
]


@pytest.mark.parametrize(("system", "mark", "key"), ROWS)
@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_every_mark_of_the_table_is_treated_as_it_says(system: System, mark: Mark, key: str, where: str) -> None:
    """Refused by its name with the way out, told by its name, or taken without a word."""
    key = key.replace("*", "vendor.example.com")
    marked = pod(**{where: {key: mark.value or "8"}})
    against, said = refused_mark(marked), not_honoured(marked)
    refused = (Code.NOT_SUPPORTED_YET, f"metadata.{where}[{key}]", mark.detail)
    assert (against and (against.code, against.field, against.detail)) == (
        refused if mark.treatment is Treatment.REFUSED else None
    )
    told = [f"{key}: {mark.detail}"] if mark.treatment is Treatment.TOLD else []
    assert [sentence for sentence in said if "no domain is shared" not in sentence] == told
    if mark.treatment is not Treatment.NOTED:
        assert mark.detail, f"{key} of {system.name} says what is meant, or the way out"


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_mark_of_a_known_system_that_nobody_knows_is_told(domain: str) -> None:
    keys = [f"{domain}/brand-new", f"sub.{domain}/brand-new"] if "." in domain else [f"{domain}-brand-new"]
    for key in keys:
        assert not_honoured(pod(annotations={key: "x"})) == [f"{key}: {UNKNOWN}"]
        assert refused_mark(pod(annotations={key: "x"})) is None


def test_a_mark_that_is_nobodys_is_passed_over() -> None:
    assert not_honoured(pod(labels={"app": "x", "example.com/brand-new": "x", "notkueue.x-k8s.io/a": "x"})) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "true"),
        ("hami.io/vgpu-node", "n-0"),
        ("nvidia.com/numa-bind", "false"),
        ("gang.scheduling.koordinator.sh/groups", '["lab/one"]'),
        ("gang.scheduling.koordinator.sh/mode", "Strict"),
        ("slurmjob.slinky.slurm.net/exclusive", "false"),
        ("spark-role", "executor"),
    ],
)
def test_a_mark_that_asks_for_nothing_by_its_value_is_passed_over(key: str, value: str) -> None:
    assert (refused_mark(pod(annotations={key: value})), not_honoured(pod(annotations={key: value}))) == (None, [])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("karpenter.sh/do-not-disrupt", "true"),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
        ("autoscaling.cast.ai/removal-disabled", "true"),
    ],
)
def test_do_not_disrupt_keeps_its_whole_gang_unless_our_annotation_says_otherwise(key: str, value: str) -> None:
    job = batch_job(parallelism=2, completions=2)
    plain, marked = pod("a", owner=job), pod("b", owner=job, annotations={key: value})
    ours = [pod(name, owner=job, annotations={key: value, "tessera.io/preemptible": "true"}) for name in "ab"]
    assert adoption([plain, pod("b", owner=job)], job).spec.preemptible
    assert not adoption([plain, marked], job).spec.preemptible
    assert adoption(ours, job).spec.preemptible
    assert not_honoured(marked) == []


def test_a_preference_not_to_be_evicted_is_told_until_the_pod_says_it_in_our_words() -> None:
    key = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
    (said,) = not_honoured(pod(annotations={key: "true"}))
    assert "tessera.io/preemptible" in said
    assert not_honoured(pod(annotations={key: "true", "tessera.io/preemptible": "false"})) == []


def test_every_mark_that_names_a_gang_or_its_size_is_in_the_table() -> None:
    ours = ("tessera.io/", "applicationId")
    keys = {key for gang in GANGS for key in (*gang.names, gang.size, gang.parts, gang.only_with) if key}
    assert {key for key in keys if not key.startswith(ours)} <= MARKS.keys()


def test_every_mark_that_names_a_queue_is_in_the_table() -> None:
    assert {key for key in QUEUES if not key.startswith("tessera.io/")} <= MARKS.keys()


# -- choice of models -------------------------------------------------------------------------------------------------


GPU = {"cpu": "1", "nvidia.com/gpu": "1"}
CLUSTER: list[GpuNames] = [
    ("NVIDIA-A100-SXM4-80GB", ("", "NVIDIA-A100-SXM4-80GB")),
    ("big", ("big", "NVIDIA-H100-80GB-HBM3")),
    ("Tesla-V100-PCIE-32GB", ("", "Tesla-V100-PCIE-32GB")),
]


@pytest.mark.parametrize(
    ("words", "models"),
    [
        ("H100", ("big",)),
        ("a100,v100", ("NVIDIA-A100-SXM4-80GB", "Tesla-V100-PCIE-32GB")),
        ("Tesla V100-PCIE-32GB, NVIDIA A10", ("Tesla-V100-PCIE-32GB", "NVIDIA-A100-SXM4-80GB")),
        ("B200", ("B200",)),
        (" , ", ()),
    ],
    ids=["by the product", "two words", "with spaces, as HAMi has names", "none that is there", "none"],
)
def test_models_that_hamis_mark_asks_for_are_the_roles(words: str, models: tuple[str, ...]) -> None:
    found = role_of(with_models(pod(asks=GPU, annotations={"nvidia.com/use-gputype": words}), CLUSTER))
    assert isinstance(found, Role), found
    assert set(found.gpu_models) == set(models)


def test_a_model_that_hamis_mark_excludes_is_a_condition_on_node_labels() -> None:
    asked = pod(asks=GPU, annotations={"nvidia.com/nouse-gputype": "H100,1080"})
    found = role_of(with_models(asked, CLUSTER))
    assert isinstance(found, Role), found
    assert [(each.key, each.operator, each.values) for each in found.affinity] == [
        ("nvidia.com/gpu.product", "NotIn", ("NVIDIA-H100-80GB-HBM3",))
    ]
    more = [*CLUSTER, ("L4", ("", "NVIDIA-L4"))]
    assert role_of(with_models(asked, more)) == found, "a model that comes later and is none of it changes nothing"


def test_conditions_of_the_pod_stay_beside_an_excluded_model() -> None:
    own = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [own]}}}
    asked = pod(asks=GPU, annotations={"nvidia.com/nouse-gputype": "big"}, affinity=affinity)
    found = role_of(with_models(asked, CLUSTER))
    assert isinstance(found, Role), found
    assert {each.key for each in found.affinity} == {"zone", "tessera.io/gpu-model"}


def test_our_own_annotation_names_models_of_pods_with_gpus_alone() -> None:
    notes = {"tessera.io/gpu-models": "H100, A100,H100"}
    assert role(asks=GPU, annotations=notes).gpu_models == ("H100", "A100")
    assert role(annotations=notes).gpu_models == ()
    found = role_of(pod(asks=GPU, annotations={"tessera.io/gpu-models": "no model"}))
    assert isinstance(found, Reason)
    assert found.code is Code.INVALID_FIELD


def test_an_owners_mark_that_asks_for_another_system_is_refused_by_the_owners_field() -> None:
    job = batch_job(parallelism=1)
    job["metadata"]["annotations"] = {"kueue.x-k8s.io/elastic-job": "true"}
    found = spec_of(group(pod(owner=job), job), [pod(owner=job)], 1, job)
    assert isinstance(found, Reason)
    assert found.field == "Job.metadata.annotations[kueue.x-k8s.io/elastic-job]"


def test_preferences_are_said_by_the_name_of_their_field() -> None:
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": named}]}
    said = not_honoured(
        pod(
            affinity={"nodeAffinity": preferred, "podAntiAffinity": preferred},
            topologySpreadConstraints=[{"whenUnsatisfiable": "ScheduleAnyway"}],
        )
    )
    assert [sentence.partition(".prefer")[0].partition(":")[0] for sentence in said] == [
        "spec.affinity.nodeAffinity",
        "spec.affinity.podAntiAffinity",
        "spec.topologySpreadConstraints[0]",
    ]
    assert not_honoured(pod()) == []


def test_which_pods_a_term_means_is_said() -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    (said,) = not_honoured(pod(affinity={"podAffinity": {REQUIRED: [term]}}))
    assert said.startswith("spec.affinity: of other pods those are looked at that Tessera places")
    assert said.endswith("tessera.io/found-by")


def test_what_anti_affinity_does_not_look_at_is_said() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}
    (said,) = not_honoured(pod(labels={"app": "web"}, affinity={"podAntiAffinity": {REQUIRED: [term]}}))
    assert said.startswith(f"spec.affinity.podAntiAffinity.{REQUIRED}: ")
    assert said.endswith("others are not looked at")


@pytest.mark.parametrize(
    ("is_volcano", "field", "value"),
    [
        (False, "scheduleTimeoutSeconds", 60),
        (False, "minResources", {"cpu": 9}),
        (True, "priorityClassName", "high"),
        (True, "minResources", {"cpu": 9}),
        (True, "brandNew", True),
    ],
)
def test_a_field_of_a_pod_group_that_is_not_honoured_is_said(is_volcano: bool, field: str, value: Any) -> None:
    api = "scheduling.volcano.sh/v1beta1" if is_volcano else "scheduling.x-k8s.io/v1alpha1"
    key = "scheduling.k8s.io/group-name" if is_volcano else "scheduling.x-k8s.io/pod-group"
    its = an_object(api, "PodGroup", "one", minMember=1, **{field: value})
    found = of_group(its, pod(annotations={key: "one"}))
    assert isinstance(found, Adoption), found
    assert [sentence.partition(":")[0] for sentence in found.wishes] == [f"PodGroup.spec.{field}"]


def test_a_training_jobs_policy_for_its_scheduler_is_honoured_or_said() -> None:
    policy = {
        "queue": "research",
        "minAvailable": 2,
        "priorityClass": "high",
        "minResources": {"cpu": 9},
        "scheduleTimeoutSeconds": 60,
    }
    replicas = {"Worker": {"replicas": 2}}
    job = an_object(
        "kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs=replicas, runPolicy={"schedulingPolicy": policy}
    )
    its = {"training.kubeflow.org/job-name": "train"}
    found = adoption([pod(f"train-{n}", owner=job, labels=its) for n in range(2)], job)
    assert found.spec.queue == "research"
    assert [sentence.partition(":")[0].rpartition(".")[2] for sentence in found.wishes] == [
        "minResources",
        "priorityClass",
        "scheduleTimeoutSeconds",
    ]
    policy["minAvailable"] = 1
    found = adoption([pod(f"train-{n}", owner=job, labels=its) for n in range(2)], job)
    assert any("spec.runPolicy.schedulingPolicy.minAvailable" in sentence for sentence in found.wishes)


def test_groups_within_a_group_of_volcano_are_refused_by_name() -> None:
    named = {"scheduling.k8s.io/group-name": "one"}
    rule = {"name": "stage", "subGroupSize": 2, "networkTopology": {"mode": "hard", "highestTierName": "rack"}}
    its = an_object("scheduling.volcano.sh/v1beta1", "PodGroup", "one", minMember=1, subGroupPolicy=[rule])
    found = of_group(its, pod(annotations=named))
    assert isinstance(found, Reason)
    assert (found.code, found.field) == (Code.NOT_SUPPORTED_YET, "PodGroup.spec.subGroupPolicy")


@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_a_domain_that_kai_requires_is_refused_and_one_that_it_prefers_is_said(where: str) -> None:
    found = role_of(pod(**{where: {"kai.scheduler/topology-required-placement": RACK}}))
    assert isinstance(found, Reason)
    assert "kai.scheduler/topology-required-placement" in found.field
    (said,) = not_honoured(pod(**{where: {"kai.scheduler/topology-preferred-placement": RACK}}))
    assert "podset-preferred-topology" in said, "what is honoured instead"


# -- topology ---------------------------------------------------------------------------------------------------------


INDEX = "batch.kubernetes.io/job-completion-index"


def sliced(count: int, size: str, indexed: bool = True, skip: int = 0, **notes: str) -> Adoption | Reason:
    """A Job of so many pods in slices, of which the first `skip` have succeeded."""
    job = batch_job(parallelism=count, completions=count)
    asked = {"kueue.x-k8s.io/podset-slice-required-topology": RACK, "kueue.x-k8s.io/podset-slice-size": size}
    pods = [
        pod(f"train-{n}", owner=job, annotations=asked | notes, labels={INDEX: str(n)} if indexed else {})
        for n in range(skip, count)
    ]
    return spec_of(group(pods[0], job), pods, count - skip, job)


def shape(found: Adoption | Reason) -> list[tuple[str, int]]:
    assert isinstance(found, Adoption), found
    topologies = [role.topology for role in found.spec.roles]
    assert {(topology.level, topology.required, topology.group) for topology in topologies if topology} == {
        (RACK, True, None)
    }
    return [(role.name, role.replicas) for role in found.spec.roles]


def test_each_slice_by_kueues_marks_is_a_role_in_a_domain_of_its_own() -> None:
    assert shape(sliced(4, "2")) == [("pods-0", 2), ("pods-1", 2)]
    assert shape(sliced(4, "2", indexed=False)) == [("pods-0", 2), ("pods-1", 2)]


def test_pods_keep_their_slice_when_others_of_it_have_succeeded() -> None:
    assert shape(sliced(6, "2", skip=1)) == [("pods-0", 1), ("pods-1", 2), ("pods-2", 2)]


@pytest.mark.parametrize(
    ("found", "code", "field"),
    [
        (sliced(4, ""), Code.MISSING_FIELD, "podset-slice-size"),
        (sliced(4, "none"), Code.INVALID_FIELD, "podset-slice-size"),
        (sliced(5, "2", indexed=False), Code.INVALID_FIELD, "podset-slice-size"),
        (
            sliced(4, "2", **{"kueue.x-k8s.io/podset-group-name": "both"}),
            Code.NOT_SUPPORTED_YET,
            "podset-slice-required-topology",
        ),
        (sliced(64, "2"), Code.INVALID_FIELD, "spec.roles"),
        (
            sliced(32, "2", **{"kueue.x-k8s.io/podset-required-topology": "zone"}),
            Code.INVALID_FIELD,
            "spec.groups",
        ),
    ],
    ids=["no size", "no number", "a part of a slice", "a name in common", "more slices than roles", "than groups"],
)
def test_slices_that_cannot_be_are_refused_by_the_field(found: Adoption | Reason, code: Code, field: str) -> None:
    assert isinstance(found, Reason)
    assert (found.code, field in found.field) == (code, True)


@pytest.mark.parametrize(("kind", "required"), [("required", True), ("preferred", False)])
def test_slices_of_a_pod_set_with_a_domain_are_groups_within_it(kind: str, required: bool) -> None:
    found = sliced(5, "2", **{f"kueue.x-k8s.io/podset-{kind}-topology": "zone"})
    assert isinstance(found, Adoption), found
    assert [(role.name, role.topology) for role in found.spec.roles] == [(f"pods-{n}", None) for n in range(3)]
    whole, *slices = found.spec.groups
    assert (whole.name, whole.topology) == ("pods-podset", Topology(level="zone", required=required))
    assert whole.pods == {"pods-0": 2, "pods-1": 2, "pods-2": 1}
    assert [(each.within, each.pods, each.topology) for each in slices] == [
        ("pods-podset", {name: pods}, Topology(level=RACK)) for name, pods in whole.pods.items()
    ]


@pytest.mark.parametrize(("kind", "required"), [("required", True), ("preferred", False)])
def test_kueues_topology_is_the_roles(kind: str, required: bool) -> None:
    topology = role(annotations={f"kueue.x-k8s.io/podset-{kind}-topology": RACK}).topology
    assert topology is not None
    assert (topology.level, topology.required) == (RACK, required)


def test_pod_sets_of_one_group_share_their_domain() -> None:
    notes = {"kueue.x-k8s.io/podset-required-topology": RACK, "kueue.x-k8s.io/podset-group-name": "both"}
    topology = role(annotations=notes).topology
    assert topology is not None
    assert topology.group == "both"


def test_pods_that_start_one_by_one_are_not_promised_one_domain() -> None:
    job = batch_job(parallelism=2, completions=9)
    member = pod(owner=job, annotations={"kueue.x-k8s.io/podset-required-topology": RACK})
    found = spec_of(group(member, job), [member], 1, job)
    assert isinstance(found, Reason)
    assert "podset-required-topology" in found.field


def test_a_preferred_domain_of_pods_that_start_one_by_one_is_said() -> None:
    job = batch_job(parallelism=2, completions=9)
    member = pod(owner=job, annotations={"kueue.x-k8s.io/podset-preferred-topology": RACK})
    found = spec_of(group(member, job), [member], 1, job)
    assert isinstance(found, Adoption), found
    assert any("podset-preferred-topology" in sentence for sentence in found.wishes)


def test_a_shared_domain_of_no_level_is_said() -> None:
    (said,) = not_honoured(pod(annotations={"kueue.x-k8s.io/podset-group-name": "both"}))
    assert "kueue.x-k8s.io/podset-group-name" in said


def test_a_topology_that_binds_nothing_is_honoured_without_a_word() -> None:
    member = pod(annotations={"kueue.x-k8s.io/podset-unconstrained-topology": "true"})
    assert (not_honoured(member), role_of(member)) == ([], role_of(pod()))


def test_an_exclusive_domain_is_honoured_where_job_set_has_chosen_the_nodes() -> None:
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": RACK}
    assert isinstance(role_of(pod(annotations=exclusive)), Reason)
    assert role(annotations=exclusive | {"alpha.jobset.sigs.k8s.io/node-selector": "true"})


def volcano(pods: int, **spec: Any) -> tuple[list[Json], Json]:
    its = an_object("scheduling.volcano.sh/v1beta1", "PodGroup", "one", minMember=pods, **spec)
    named = {"scheduling.k8s.io/group-name": "one"}
    return [pod(f"one-{number}", annotations=named) for number in range(pods)], its


def of_group(its: Json, *pods: Json) -> Adoption | Reason:
    """What pods amount to whose mark names this object."""
    asked = group_of(pods[0], {})
    found = group_of(pods[0], {asked: its})  # type: ignore[dict-item]
    assert isinstance(found, Group), found
    return spec_of(found, pods, len(pods), its)


def of_volcano(pods: list[Json], its: Json) -> Adoption | Reason:
    return of_group(its, *pods)


@pytest.mark.parametrize(("mode", "required"), [({}, True), ({"mode": "hard"}, True), ({"mode": "soft"}, False)])
def test_a_tier_of_volcano_that_has_a_name_is_a_domain(mode: Json, required: bool) -> None:
    found = of_volcano(*volcano(2, networkTopology={**mode, "highestTierName": "rack"}))
    assert isinstance(found, Adoption), found
    (role,) = found.spec.roles
    assert role.topology is not None
    assert (role.topology.level, role.topology.required) == ("rack", required)
    assert role.topology.group, "all pods of the group share it"


def test_a_tier_of_volcano_by_its_number_is_refused_by_name_where_it_is_a_condition() -> None:
    found = of_volcano(*volcano(2, networkTopology={"mode": "hard", "highestTierAllowed": 2}))
    assert isinstance(found, Reason)
    assert (found.code, found.field) == (
        Code.NOT_SUPPORTED_YET,
        "PodGroup.spec.networkTopology.highestTierAllowed",
    )


def test_a_tier_of_volcano_by_its_number_is_said_where_it_is_a_preference() -> None:
    found = of_volcano(*volcano(2, networkTopology={"mode": "soft", "highestTierAllowed": 2}))
    assert isinstance(found, Adoption), found
    assert any("PodGroup.spec.networkTopology" in sentence for sentence in found.wishes)


@pytest.mark.parametrize(
    "tasks", [{"nginx": 6}, {"nginx": 2, "ps": 2}, {"nginx": 2}], ids=["6 of 3", "4 of 3", "2 of 3"]
)
def test_least_numbers_of_volcanos_tasks_that_sum_to_more_than_the_gang_are_none(tasks: Json) -> None:
    its = an_object("scheduling.volcano.sh/v1beta1", "PodGroup", "one", minMember=3, minTaskMember=tasks)
    notes = {"scheduling.k8s.io/group-name": "one", "volcano.sh/task-spec": "nginx"}
    pods = [pod(f"nginx-{n}", annotations={**notes, "volcano.sh/task-index": str(n)}) for n in range(6)]
    group = group_of(pods[0], {group_of(pods[0], {}): its})  # type: ignore[dict-item]
    assert isinstance(group, Group), group
    assert size_of(group, its, pods) == 3
    found = spec_of(group, pods, 3, its)
    assert isinstance(found, Adoption), found
    assert found.spec.pods() == 3


def test_pods_of_a_job_set_whose_jobs_have_no_indexes_all_count() -> None:
    spec = {"completionMode": "NonIndexed", "parallelism": 4, "completions": 4}
    parts = [{"name": "w", "template": {"spec": spec}}]
    whole = an_object("jobset.x-k8s.io/v1alpha2", "JobSet", "ni", replicatedJobs=parts)
    job = batch_job("ni-w-0", owner=whole, **spec)
    its = {"jobset.sigs.k8s.io/replicatedjob-name": "w", "jobset.sigs.k8s.io/job-index": "0"}
    found = adoption([pod(f"ni-w-0-{name}", owner=job, labels=its) for name in "abcd"], whole, job)
    assert len(set(found.uids)) == found.spec.pods() == 4


# -- time and number --------------------------------------------------------------------------------------------------


def marked_job(key: str, value: str, where: str = "labels", **spec: Any) -> tuple[Json, list[Json]]:
    job = batch_job(**spec)
    job["metadata"][where] = {f"kueue.x-k8s.io/{key}": value}
    return job, [pod(f"train-{number}", owner=job) for number in range(spec["parallelism"])]


def test_kueues_longest_execution_time_is_the_time_limit() -> None:
    job, pods = marked_job("max-exec-time-seconds", "3600", parallelism=2, completions=2)
    assert adoption(pods, job).spec.time_limit_seconds == 3600
    shorter = [{**each, "spec": {**each["spec"], "activeDeadlineSeconds": 60}} for each in pods]
    assert adoption(shorter, job).spec.time_limit_seconds == 60


@pytest.mark.parametrize(("words", "seconds"), [("30", 1800), ("2:00:00", 7200), ("1-12", 129_600)])
def test_slurm_bridges_time_limit_is_the_time_limit(words: str, seconds: int) -> None:
    mark = {"slurmjob.slinky.slurm.net/timelimit": words}
    assert adoption([pod(annotations=mark)]).spec.time_limit_seconds == seconds
    both = {**mark, "kueue.x-k8s.io/max-exec-time-seconds": "60"}
    assert adoption([pod(annotations=both)]).spec.time_limit_seconds == 60
    found = spec_of(group(pod()), [pod(annotations={"slurmjob.slinky.slurm.net/timelimit": "UNLIMITED"})], 1)
    assert isinstance(found, Reason)
    assert found.field == "metadata.annotations[slurmjob.slinky.slurm.net/timelimit]"


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet"])
def test_a_pod_of_what_never_ends_has_the_time_limit_of_its_own_label(kind: str) -> None:
    """Its template may have no activeDeadlineSeconds; when the time is over its controller makes another pod."""
    one = pod("serve-0", owner=an_object("apps/v1", kind), labels={"kueue.x-k8s.io/max-exec-time-seconds": "3600"})
    assert adoption([one]).spec.time_limit_seconds == 3600


@pytest.mark.parametrize("words", ["soon", "-1", "0"])
def test_an_execution_time_that_is_none_is_refused_by_name(words: str) -> None:
    job, pods = marked_job("max-exec-time-seconds", words, parallelism=1, completions=1)
    found = spec_of(group(pods[0], job), pods, 1, job)
    assert isinstance(found, Reason)
    assert (found.code, found.field) == (
        Code.INVALID_FIELD,
        "Job.metadata.labels[kueue.x-k8s.io/max-exec-time-seconds]",
    )


def test_a_job_starts_with_the_least_of_its_pods_that_it_names() -> None:
    job, pods = marked_job("job-min-parallelism", "2", "annotations", parallelism=4, completions=4)
    its = group(pods[0], job)
    assert (its.kind, size_of(its, job), its.at_least) == (GroupKind.JOB, 2, True)
    assert adoption(pods, job).spec.roles[0].replicas == 2


def test_more_than_it_has_in_parallel_is_all_of_a_job() -> None:
    job, pods = marked_job("job-min-parallelism", "9", "annotations", parallelism=4, completions=4)
    assert size_of(group(pods[0], job), job) == 4


def test_a_least_number_that_is_none_is_refused_by_name() -> None:
    job, pods = marked_job("job-min-parallelism", "half", "annotations", parallelism=4, completions=4)
    found = group_of(pods[0], {ref(job): job})
    assert isinstance(found, Reason)
    assert found.field == "Job.metadata.annotations[kueue.x-k8s.io/job-min-parallelism]"


def test_a_least_number_of_pods_that_start_one_by_one_is_said() -> None:
    job, pods = marked_job("job-min-parallelism", "2", "annotations", parallelism=4, completions=9)
    found = spec_of(group(pods[0], job), pods[:1], 1, job)
    assert isinstance(found, Adoption), found
    assert any("job-min-parallelism" in sentence for sentence in found.wishes)


# -- Spark ------------------------------------------------------------------------------------------------------------


def test_a_driver_of_spark_is_placed_and_told_that_its_executors_come_one_by_one() -> None:
    spark = {"spark-app-selector": "spark-1"}
    driver = pod("driver", labels={"spark-role": "driver", **spark})
    assert group(driver).kind is GroupKind.POD
    assert [sentence.partition(":")[0] for sentence in not_honoured(driver)] == ["spark-role"]
    maker = {"apiVersion": "v1", "kind": "Pod", **driver}
    executor = pod("executor", labels={"spark-role": "executor", **spark}, owner=maker)
    assert (group(executor).kind, not_honoured(executor)) == (GroupKind.POD, [])


# -- shares -----------------------------------------------------------------------------------------------------------


def test_a_fraction_of_a_gpu_is_a_share_of_it() -> None:
    assert role(annotations={"gpu-fraction": "0.5"}).resources.gpu_milli == 500
    assert role(annotations={"gpu-fraction": "0.5", "tessera.io/gpu-milli": "250"}).resources.gpu_milli == 250


def test_a_fraction_of_several_gpus_is_a_share_of_each() -> None:
    notes = {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}
    asked = role(annotations=notes).resources
    assert (asked.gpu_milli, asked.gpu_parts, asked.total_gpu_milli) == (500, 2, 1000)


@pytest.mark.parametrize(
    ("notes", "code"),
    [
        ({"gpu-fraction": "1.5"}, Code.INVALID_FIELD),
        ({"gpu-fraction": "half"}, Code.INVALID_FIELD),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"}, Code.INVALID_FIELD),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "65"}, Code.INVALID_FIELD),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "two"}, Code.INVALID_FIELD),
        ({"gpu-fraction-num-devices": "2"}, Code.INVALID_FIELD),
        ({"gpu-memory": "4096"}, Code.NOT_SUPPORTED_YET),
    ],
)
def test_a_share_that_cannot_be_given_is_refused_by_its_name(notes: Json, code: Code) -> None:
    found = role_of(pod(annotations=notes))
    assert isinstance(found, Reason)
    assert (found.code, found.field) == (code, f"metadata.annotations[{list(notes)[-1]}]")


SIZES = (80 * 2**30, 40 * 2**30, 16 * 2**30)


@pytest.mark.parametrize(("mib", "share"), [("4096", 250), ("16384", 400), ("20000", 489), ("79000", 965)])
def test_a_memory_of_a_gpu_is_a_share_of_the_smallest_that_has_as_much(mib: str, share: int) -> None:
    found = role_of(with_share(pod(annotations={"gpu-memory": mib}), SIZES))
    assert isinstance(found, Role), found
    assert (found.resources.gpu_milli, found.resources.gpu_memory_bytes) == (share, int(mib) * 2**20)


@pytest.mark.parametrize("mib", ["81920", "half", "0", "-5"])
def test_a_memory_that_no_share_has_is_refused_by_its_name(mib: str) -> None:
    found = role_of(with_share(pod(annotations={"gpu-memory": mib}), SIZES))
    assert isinstance(found, Reason)
    assert found.field == "metadata.annotations[gpu-memory]"


def test_a_memory_of_several_gpus_is_not_taken_for_one() -> None:
    assert not asks_for_memory(pod(annotations={"gpu-memory": "4096", "gpu-fraction-num-devices": "2"}))
    assert not asks_for_memory(pod(annotations={"gpu-memory": "4096", "tessera.io/gpu-milli": "250"}))


# -- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {"labels": {"kueue.x-k8s.io/queue-name": "research"}},
        {"annotations": {"scheduling.volcano.sh/queue-name": "research"}},
        {"labels": {"kai.scheduler/queue": "research"}},
        {"labels": {"kai.scheduler/queue": "other", "tessera.io/queue": "research"}},
        {"labels": {"applicationId": "app", "queue": "research"}},
        {"labels": {"quota.scheduling.koordinator.sh/name": "research"}},
        {"annotations": {"slurmjob.slinky.slurm.net/partition": "research"}},
    ],
    ids=["kueue", "volcano", "kai", "ours first", "yunikorn's older label", "koordinator", "slurm-bridge"],
)
def test_a_queue_named_by_another_systems_mark_is_ours_of_that_name(more: Json) -> None:
    assert adoption([pod(**more)]).spec.queue == "research"


def test_the_queue_of_volcanos_group_counts_where_its_pods_name_none() -> None:
    pods, its = volcano(1, queue="research")
    found = of_volcano(pods, its)
    assert isinstance(found, Adoption), found
    assert (found.spec.queue, found.wishes) == ("research", ())
    pods[0]["metadata"]["labels"]["tessera.io/queue"] = "other"
    found = of_volcano(pods, its)
    assert isinstance(found, Adoption), found
    assert found.spec.queue == "other"


def test_a_label_that_happens_to_be_called_queue_is_nobodys_mark() -> None:
    assert adoption([pod(labels={"queue": "mails"})]).spec.queue == "default"


def test_a_name_that_no_queue_may_have_is_refused_by_the_field_that_says_it() -> None:
    member = pod(labels={"yunikorn.apache.org/queue": "root.research"})
    found = spec_of(group(member), [member], 1)
    assert isinstance(found, Reason)
    assert found.field == "metadata.labels[yunikorn.apache.org/queue]"


# -- gangs ------------------------------------------------------------------------------------------------------------


def test_armadas_gang_has_so_many_pods_in_one_domain() -> None:
    notes = {"armadaproject.io/gangId": "g", "armadaproject.io/gangCardinality": "2"}
    pods = [pod(f"g-{n}", annotations={**notes, "armadaproject.io/gangNodeUniformityLabel": RACK}) for n in range(2)]
    found = adoption(pods)
    assert (found.group.kind, found.group.name, found.spec.pods()) == (GroupKind.GANG, "g", 2)
    topology = found.spec.roles[0].topology
    assert topology is not None
    assert (topology.level, topology.required) == (RACK, True)


def test_ours_counts_before_any_other_mark() -> None:
    labels = {"tessera.io/gang": "ours", "kueue.x-k8s.io/pod-group-name": "theirs"}
    found = group(pod(labels=labels, annotations={"tessera.io/gang-size": "2"}))
    assert (found.kind, found.name) == (GroupKind.GANG, "ours")


def test_gangs_of_one_name_by_different_marks_are_different_gangs() -> None:
    kueue = pod(
        labels={"kueue.x-k8s.io/pod-group-name": "g"}, annotations={"kueue.x-k8s.io/pod-group-total-count": "2"}
    )
    ours = pod(labels={"tessera.io/gang": "g"}, annotations={"tessera.io/gang-size": "2"})
    assert group(kueue).id != group(ours).id


def test_a_pod_group_of_kueue_without_its_count_is_refused_by_the_annotations_name() -> None:
    found = group_of(pod(labels={"kueue.x-k8s.io/pod-group-name": "g"}), {})
    assert isinstance(found, Reason)
    assert found.field == "metadata.annotations[kueue.x-k8s.io/pod-group-total-count]"


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        ({}, 1),
        ({"workerGroupSpecs": [{"replicas": 2}, {"replicas": 3, "maxReplicas": 1}]}, 4),
        ({"workerGroupSpecs": [{"replicas": 2, "minReplicas": 4, "numOfHosts": 2}]}, 9),
        ({"workerGroupSpecs": [{"replicas": 5, "minReplicas": 1}], "enableInTreeAutoscaling": True}, 2),
        ({"workerGroupSpecs": [{"replicas": 5, "suspend": True}]}, 1),
    ],
    ids=["a head alone", "at most so many", "hosts of a slice", "the least of an autoscaler", "suspended workers"],
)
def test_a_ray_cluster_is_its_head_and_the_workers_that_its_operator_keeps(spec: Json, pods: int) -> None:
    cluster = an_object("ray.io/v1", "RayCluster", "one", **spec)
    member = pod(labels={"ray.io/cluster": "one"})
    asked = group_of(member, {})
    found = group_of(member, {asked: cluster})  # type: ignore[dict-item]
    assert isinstance(found, Group)
    assert (found.kind, size_of(found, cluster), found.at_least) == (GroupKind.RAY_CLUSTER, pods, True)


def task_groups(**more: Any) -> Json:
    listed = '[{"name": "driver", "minMember": 1}, {"name": "executor", "minMember": 2}]'
    notes = {"yunikorn.apache.org/task-group-name": "executor", "yunikorn.apache.org/task-groups": listed}
    return pod(
        labels={"applicationId": "app", **more.pop("labels", {})}, annotations=notes | more.pop("notes", {}), **more
    )


@pytest.mark.parametrize(
    ("member", "code", "field"),
    [
        (task_groups(notes={"yunikorn.apache.org/task-groups": "{"}), Code.INVALID_FIELD, "task-groups"),
        (task_groups(notes={"yunikorn.apache.org/task-groups": '[{"name": 1}]'}), Code.INVALID_FIELD, "task-groups"),
        (task_groups(notes={"yunikorn.apache.org/task-groups": ""}), Code.MISSING_FIELD, "task-groups"),
        (task_groups(labels={"spark-role": "driver"}), Code.NOT_SUPPORTED_YET, "task-groups"),
    ],
    ids=["no JSON", "no number", "nobody lists them", "a driver that makes its executors"],
)
def test_task_groups_that_cannot_be_a_gang_are_refused_by_name(member: Json, code: Code, field: str) -> None:
    found = size_of(group(member), None, [member])
    assert isinstance(found, Reason)
    assert (found.code, field in found.field) == (code, True)


@pytest.mark.parametrize("mark", [mark for mark in GANGS if mark.size or mark.parts], ids=lambda mark: mark.names[0])
def test_what_a_gang_needs_without_the_mark_that_names_it_is_refused_by_that_mark(mark: GangMark) -> None:
    found = group_of(pod(annotations={mark.size or mark.parts: "3"}), {})
    assert isinstance(found, Reason)
    assert (found.code, mark.names[-1] in found.field) == (Code.MISSING_FIELD, True)


@pytest.mark.parametrize(
    ("more", "missing"),
    [
        ({"annotations": {"yunikorn.apache.org/task-group-name": "w"}}, "applicationId"),
        ({"labels": {"applicationId": "app"}, "annotations": {"yunikorn.apache.org/task-groups": "[]"}}, "group-name"),
    ],
)
def test_a_task_group_without_its_application_and_an_application_without_its_own_group_are_refused(
    more: Json, missing: str
) -> None:
    found = group_of(pod(**more), {})
    assert isinstance(found, Reason)
    assert (found.code, missing in found.field) == (Code.MISSING_FIELD, True)


def test_a_pod_without_marks_is_no_gang_and_has_nothing_against_it() -> None:
    assert group(pod()).kind is GroupKind.POD
    assert refused_mark(pod()) is None
