"""Bad input: a typed refusal with all reasons, one audit record, and no other effect on anybody."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera_schemas.config import ConfigBody, Level, Limits, PriorityClass, Queue, Tenant
from tessera_schemas.facts import JobAdmitted, JobRefused
from tessera_schemas.reasons import Reason
from tessera_schemas.subjects import FACT_BYTES_MAX, SUBMIT_BYTES_MAX
from tessera_schemas.text.reading import read_tenant_command
from tests.unit.admission.admission_world import SPEC, World, changed, encoded, node, submit

BODY = ConfigBody(
    tenants=(
        Tenant(name="lab", limits=Limits(gpus_per_job=16, pods_per_job=8), priority_classes=("normal", "low")),
        Tenant(name="other"),
    ),
    queues=(Queue(name="research"), Queue(name="private", tenants=("other",))),
    priority_classes=(
        PriorityClass(name="low", value=-1),
        PriorityClass(name="normal", value=0),
        PriorityClass(name="urgent", value=9),
    ),
    topology=(Level(name="rack", label="example.org/rack"),),
)
ROLE = SPEC["roles"][0]
RESOURCES = "spec.roles.0.resources"
TEMPLATE = "spec.roles.0.template"


def without(path: str) -> dict[str, Any]:
    command = changed(path, None)
    *way, last = path.split(".")
    at: Any = command
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    del at[last]
    return command


def repeated(text: str, once: str, twice: str) -> bytes:
    assert once in text
    return text.replace(once, twice, 1).encode()


GOOD = json.dumps(submit())
BAD: dict[str, tuple[object, list[tuple[str, str]]]] = {
    "nothing at all": (b"", [("NotJson", "")]),
    "bytes that are not UTF-8": (b'{"kind": "\xff"}', [("NotJson", "")]),
    "UTF-16": (GOOD.encode("utf-16"), [("NotJson", "")]),
    "half of a command": (GOOD[:40].encode(), [("NotJson", "")]),
    "a list instead of an object": (b"[]", [("NotJson", "")]),
    "a body above the limit": (b'"' + b"x" * 400_000 + b'"', [("TooLarge", "")]),
    "objects 100,000 deep": (b'{"a":' * 20_000 + b"1" + b"}" * 20_000, [("NotJson", "")]),
    "lists 100,000 deep": (b"[" * 100_000, [("NotJson", "")]),
    "a lone surrogate": (repeated(GOOD, '"k1"', '"\\ud800"'), [("NotJson", "")]),
    "a key twice": (repeated(GOOD, '"v": 1', '"v": 1, "v": 1'), [("DuplicateKey", "v")]),
    "a nested key twice": (repeated(GOOD, '"gpus": 2', '"gpus": 2, "gpus": 64'), [("DuplicateKey", "gpus")]),
    "NaN": (repeated(GOOD, "8000", "NaN"), [("NotJson", "")]),
    "Infinity": (repeated(GOOD, "8000", "-Infinity"), [("NotJson", "")]),
    "1e999": (repeated(GOOD, "8000", "1e999"), [("InvalidField", "roles[0].resources.cpu_milli")]),
    "a number of 10,000 digits": (repeated(GOOD, "8000", "9" * 10_000), [("NotJson", "")]),
    "a number above 2**53": (repeated(GOOD, "8000", str(2**53)), [("InvalidField", "roles[0].resources.cpu_milli")]),
    "a fraction": (changed(f"{RESOURCES}.cpu_milli", 0.5), [("InvalidField", "roles[0].resources.cpu_milli")]),
    "a quantity as text": (changed(f"{RESOURCES}.cpu_milli", "2"), [("InvalidField", "roles[0].resources.cpu_milli")]),
    "a negative quantity": (
        changed(f"{RESOURCES}.memory_bytes", -1),
        [("InvalidField", "roles[0].resources.memory_bytes")],
    ),
    "a zero quantity": (changed(f"{RESOURCES}.cpu_milli", 0), [("InvalidField", "roles[0].resources.cpu_milli")]),
    "a truth instead of a number": (changed(f"{RESOURCES}.gpus", True), [("InvalidField", "roles[0].resources.gpus")]),
    "a number instead of a truth": (changed("spec.preemptible", 1), [("InvalidField", "preemptible")]),
    "a word instead of a truth": (changed("spec.preemptible", "no"), [("InvalidField", "preemptible")]),
    "whole GPUs and a share": (changed(f"{RESOURCES}.gpu_milli", 500), [("InvalidField", "roles[0].resources")]),
    "no replicas": (changed("spec.roles.0.replicas", 0), [("InvalidField", "roles[0].replicas")]),
    "no roles": (changed("spec.roles", []), [("InvalidField", "roles")]),
    "two roles of one name": (changed("spec.roles", [ROLE, ROLE]), [("InvalidField", "spec")]),
    "a bad name": (changed("spec.name", " train"), [("InvalidField", "name")]),
    "a name with a line end": (changed("spec.name", "train\n"), [("InvalidField", "name")]),
    "a bad key": (changed("key", "two words"), [("InvalidField", "key")]),
    "a bad variable name": (changed(f"{TEMPLATE}.env", {"A B": "1"}), [("InvalidField", "roles[0].template.env.A B")]),
    "a missing field": (without("spec.queue"), [("MissingField", "queue")]),
    "no spec": (without("spec"), [("MissingField", "spec")]),
    "an unknown field": (changed("spec.colour", "red"), [("UnknownField", "colour")]),
    "an unknown field at the top": (changed("hello", 1), [("UnknownField", "hello")]),
    "no kind": (without("kind"), [("MissingField", "kind")]),
    "an unknown kind": (changed("kind", "do_it"), [("UnknownVersion", "kind")]),
    "a kind that is a list": (changed("kind", ["submit_job"]), [("UnknownVersion", "kind")]),
    "an operator's command": (changed("kind", "apply_config"), [("InvalidField", "kind")]),
    "an unknown version": (changed("v", 2), [("UnknownVersion", "v")]),
    "a version that only looks like 1": (changed("v", True), [("UnknownVersion", "v")]),
    "another tenant": (submit(tenant="other"), [("TenantMismatch", "tenant")]),
    "no such topology level": (
        changed("spec.roles.0.topology", {"level": "rak", "wider": ["example.org/row"]}),
        [("NoSuchTopologyLevel", "roles[0].topology.level")],
    ),
    "no such level to spread over": (
        changed("spec.roles.0.spread", "rak"),
        [("NoSuchTopologyLevel", "roles[0].spread")],
    ),
    "no such queue": (changed("spec.queue", "nowhere"), [("NoSuchQueue", "queue")]),
    "a queue of others": (changed("spec.queue", "private"), [("QueueNotAllowed", "queue")]),
    "no such priority": (changed("spec.priority_class", "top"), [("NoSuchPriorityClass", "priority_class")]),
    "a priority not granted": (changed("spec.priority_class", "urgent"), [("PriorityNotAllowed", "priority_class")]),
    "more than a job may have, and than any node has": (
        changed("spec.roles.0.resources.gpus", 9),
        [("ExceedsJobLimit", "limits.gpus_per_job"), ("Inadmissible", "roles.worker")],
    ),
    "too many pods for one job": (
        changed("spec.roles.0", {**ROLE, "replicas": 9, "resources": {"cpu_milli": 1, "memory_bytes": 1}}),
        [("ExceedsJobLimit", "limits.pods_per_job")],
    ),
    "a domain of a label that no node has": (
        changed("spec.roles.0.topology", {"level": "example.org/rakc"}),
        [("Inadmissible", "roles.worker.topology")],
    ),
    "a spread over a label that no node has": (
        changed("spec.roles.0.spread", "example.org/zoen"),
        [("Inadmissible", "roles.worker.spread")],
    ),
    "an affinity that no node has": (
        changed("spec.roles.0.affinity", [{"key": "ssd", "operator": "Exists"}]),
        [("Inadmissible", "roles.worker")],
    ),
    "a preference of no weight": (
        changed(
            "spec.roles.0.affinity_preferred",
            [{"weight": 0, "terms": [{"key": "ssd", "operator": "Exists"}]}],
        ),
        [("InvalidField", "roles[0].affinity_preferred[0].weight")],
    ),
    "an affinity that says too little": (
        changed("spec.roles.0.affinity", [{"key": "ssd", "operator": "In"}]),
        [("InvalidField", "roles[0].affinity[0]")],
    ),
    "a NIC that no node has": (changed(f"{RESOURCES}.devices", {"rdma/hca": 1}), [("Inadmissible", "roles.worker")]),
    "an instance where GPUs are whole": (
        changed(RESOURCES, {"cpu_milli": 1, "memory_bytes": 1, "mig_profile": "1g.10gb"}),
        [("Inadmissible", "roles.worker")],
    ),
    "a variable that would show other cards": (
        changed("spec.roles.0.template.env", {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_DISABLE_CONTROL": "1"}),
        [
            ("ForbiddenField", "roles[0].template.env.NVIDIA_VISIBLE_DEVICES"),
            ("ForbiddenField", "roles[0].template.env.CUDA_DISABLE_CONTROL"),
        ],
    ),
    "an annotation that a device plugin reads": (
        changed("spec.roles.0.template.annotations", {"hami.io/vgpu-devices-to-allocate": "x"}),
        [("ForbiddenField", "roles[0].template.annotations.hami.io/vgpu-devices-to-allocate")],
    ),
    "GPUs under another name": (
        changed(f"{RESOURCES}.devices", {"nvidia.com/gpu": 1}),
        [("InvalidField", "roles[0].resources.devices")],
    ),
    "more GPU memory than is known of": (
        changed(f"{RESOURCES}.gpu_memory_bytes", 2**40),
        [("Inadmissible", "roles.worker")],
    ),
    "a GPU model nobody has": (
        changed("spec.roles.0.gpu_models", ["b300"]),
        [("Inadmissible", "roles.worker")],
    ),
    "a data set of no known size": (
        changed("spec.datasets", [{"name": "d"}]),
        [("MissingField", "datasets[0].size_bytes")],
    ),
    "a role whose least is more than what it asks for": (
        changed("spec.roles.0.min_replicas", 5),
        [("InvalidField", "roles[0]")],
    ),
    "a role that may grow beyond the limit of one job": (
        changed("spec.roles.0.max_replicas", 999),
        [("ExceedsJobLimit", "limits.pods_per_job"), ("ExceedsJobLimit", "limits.gpus_per_job")],
    ),
    "a priority class that is not there": (
        {"kind": "set_priority", "v": 1, "job_id": "a" * 20, "priority_class": "golden"},
        [("NoSuchPriorityClass", "priority_class")],
    ),
    "a queue that is not there to go to": (
        {"kind": "move_job", "v": 1, "job_id": "a" * 20, "queue": "nowhere"},
        [("NoSuchQueue", "queue")],
    ),
    "a drain by a tenant": ({"kind": "drain_node", "v": 1, "node": "node-a"}, [("InvalidField", "kind")]),
    "a cancel without a job": ({"kind": "cancel_job", "v": 1}, [("MissingField", "job_id")]),
    "a cancel for somebody else": (
        {"kind": "cancel_job", "v": 1, "job_id": "a" * 20, "tenant": "other"},
        [("TenantMismatch", "tenant")],
    ),
    "our own label": (changed("spec.labels", {"tessera.io/run": "x"}), [("ForbiddenField", "labels.tessera.io/run")]),
    "an annotation of Kubernetes": (
        changed(f"{TEMPLATE}.annotations", {"container.apparmor.security.beta.kubernetes.io/main": "unconfined"}),
        [("ForbiddenField", "roles[0].template.annotations.container.apparmor.security.beta.kubernetes.io/main")],
    ),
    "a variable that shows every GPU": (
        changed(f"{TEMPLATE}.env", {"NVIDIA_VISIBLE_DEVICES": "all"}),
        [("ForbiddenField", "roles[0].template.env.NVIDIA_VISIBLE_DEVICES")],
    ),
    "a volume of the host": (
        changed(f"{TEMPLATE}.volumes", [{"kind": "hostPath", "mount_path": "/x", "name": "a"}]),
        [("ForbiddenField", "roles[0].template.volumes[0].kind")],
    ),
    "danger inside an unknown field": (
        changed("spec.pod", {"spec": {"containers": [{"securityContext": {"privileged": True}}]}}),
        [
            ("UnknownField", "pod"),
            ("ForbiddenField", "pod.spec.containers[0].securityContext"),
            ("ForbiddenField", "pod.spec.containers[0].securityContext.privileged"),
        ],
    ),
    "everything wrong at once": (
        changed("spec", {**SPEC, "name": "", "queue": "nowhere", "hostPID": True, "priority_class": "urgent"})
        | {"tenant": "other", "v": 9},
        [
            ("UnknownVersion", "v"),
            ("InvalidField", "name"),
            ("ForbiddenField", "hostPID"),
            ("TenantMismatch", "tenant"),
            ("NoSuchQueue", "queue"),
            ("PriorityNotAllowed", "priority_class"),
        ],
    ),
}


def told(reasons: tuple[Reason, ...]) -> list[tuple[str, str]]:
    return [(reason.code.value, reason.field) for reason in reasons]


async def world() -> World:
    return await World.with_policy(BODY, [node("node-a", gpus=8), node("node-b", gpus=8)])


@pytest.mark.parametrize("sentence", BAD)
async def test_bad_input_is_refused_with_all_reasons_and_leaves_one_record(sentence: str) -> None:
    sent, expected = BAD[sentence]
    here = await world()
    results = await here.batch(("other", submit("before")), ("lab", sent), ("other", submit("after")))
    before, refused, after = here.facts
    assert isinstance(before, JobAdmitted)
    assert isinstance(after, JobAdmitted)
    assert isinstance(refused, JobRefused)
    assert sorted(told(refused.reasons)) == sorted(expected)
    assert refused.tenant == "lab"
    assert not any(isinstance(result, Exception) for result in results)


@pytest.mark.parametrize(
    "name",
    ["hostPath", "host_path", "HOST-PATH", "ｈostNetwork", "hostPID", "host_ipc", "privileged", "securityContext",
     "capabilities", "procMount", "nodeName", "node_name", "schedulerName", "serviceAccount", "service_account_name",
     "finalizers", "ownerReferences", "owner_references", "runtimeClassName"],
)  # fmt: skip
@pytest.mark.parametrize("at", ["", "spec.", "spec.roles.0.", "spec.roles.0.template.", "spec.roles.0.resources."])
def test_a_field_that_gives_rights_on_the_node_is_called_forbidden_in_any_spelling(name: str, at: str) -> None:
    parsed = read_tenant_command(encoded(changed(f"{at}{name}", True)))
    (reason,) = parsed.reasons
    assert reason.code == "ForbiddenField"
    assert reason.field.endswith(name)


async def test_a_refusal_lists_at_most_64_reasons_and_says_how_many_more_there_are() -> None:
    here = await world()
    await here.submits({**submit(), **{f"x{i}": 1 for i in range(100)}})
    (refused,) = here.facts
    assert isinstance(refused, JobRefused)
    assert len(refused.reasons) == 64
    assert refused.reasons[-1].numbers["further"] == 37


async def test_a_subject_that_names_no_tenant_is_poison_and_nobody_elses_business() -> None:
    here = await world()
    poison, fine = await here.batch(("Not_A_Tenant", submit()), ("lab", submit()))
    assert type(poison).__name__ == "Poison"
    assert not isinstance(fine, Exception)
    assert [fact.kind for fact in here.facts] == ["job_admitted"]


async def test_a_job_of_the_greatest_size_becomes_a_fact_that_the_committer_takes_and_a_byte_more_does_not() -> None:
    here, words = await world(), ["x" * 32_768] * 11
    for size, kind in ((SUBMIT_BYTES_MAX, "job_admitted"), (SUBMIT_BYTES_MAX + 1, "job_refused")):
        sent = changed("spec.roles.0.template.command", [*words])
        sent["spec"]["roles"][0]["template"]["command"].append("x" * (size - len(encoded(sent)) - len(', ""')))
        assert len(encoded(sent)) == size
        await here.submits(sent)
        assert here.facts[-1].kind == kind
    assert len(here.stored[0].data) < FACT_BYTES_MAX


async def test_a_tenant_that_is_not_configured_is_refused() -> None:
    here = await world()
    await here.submits(submit(), tenant="stranger")
    (refused,) = here.facts
    assert isinstance(refused, JobRefused)
    assert told(refused.reasons) == [("NoSuchTenant", "tenant")]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
places = st.sampled_from(
    ["kind", "v", "key", "tenant", "spec", "spec.name", "spec.queue", "spec.roles", "spec.roles.0", "spec.labels",
     "spec.retry", "spec.preemptible", "spec.roles.0.resources", "spec.roles.0.template", "spec.roles.0.template.env",
     "spec.roles.0.template.annotations", "spec.roles.0.node_selector", "spec.priority_class", "spec.new", "new"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | json_values | st.builds(changed, places, json_values))
async def test_whatever_comes_in_gives_exactly_one_fact_and_never_an_error(sent: object) -> None:
    here = await world()
    results = await here.submits(sent)
    assert len(here.facts) == 1
    assert not any(isinstance(result, Exception) for result in results)
