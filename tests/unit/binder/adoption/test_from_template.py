"""A suspended Job as the job that its pods will be."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.binder.adoption.decide.from_template import priority_of, sets_of_suspended, spec_of_suspended
from tessera.binder.adoption.decide.spec import Adoption, spec_of
from tessera.binder.workloads.registry import group_of
from tessera_schemas.cluster.labels import GANG_LABEL, GANG_SIZE_ANNOTATION
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import batch_job, group, pod

Json = dict[str, Any]


def suspended(template: Json | None = None, labels: Json | None = None, notes: Json | None = None, **spec: Any) -> Json:
    return batch_job(
        suspend=True,
        template={
            "metadata": {"labels": labels or {}, "annotations": notes or {}},
            "spec": {
                "schedulerName": "tessera",
                "containers": [{"resources": {"limits": {"cpu": "2"}}}],
                **(template or {}),
            },
        },
        **spec,
    )


def found_of(owner: Json, classes: Sequence[Json] = ()) -> Adoption | Reason | None:
    """The job of a suspended owner, as the binder asks for it."""
    sets = sets_of_suspended(owner)
    return sets if sets is None or isinstance(sets, Reason) else spec_of_suspended(owner, sets, classes)


def template_of(job: Json) -> Json:
    found: Json = job["spec"]["template"]
    return found


def test_a_suspended_job_is_the_job_that_its_pods_will_be() -> None:
    job = suspended(parallelism=2, completions=2)
    found = found_of(job, [{"value": 5, "globalDefault": True}])
    assert isinstance(found, Adoption)
    resumed = [pod(f"t-{n}", owner=job, asks={"cpu": "2"}, priority=5) for n in range(2)]
    later = spec_of(group(resumed[0], job), resumed, 2, job)
    assert isinstance(later, Adoption)
    assert (found.key, found.spec) == (later.key, later.spec)
    assert (found.uids, found.adopted.suspended, later.adopted.suspended) == ((), True, False)


@pytest.mark.parametrize(
    "job",
    [
        batch_job(),
        suspended() | {"status": {"conditions": [{"type": "Failed", "status": "True"}]}},
        suspended({"schedulerName": "default-scheduler"}),
        batch_job(owner=batch_job("other")),
    ],
    ids=["it goes on", "it has ended", "another scheduler's", "no template"],
)
def test_only_a_suspended_job_that_names_us_and_that_nobody_else_looks_after_is_taken(job: Json) -> None:
    assert found_of(job) is None


def test_a_job_suspended_by_a_job_set_or_kueue_is_left_to_them_and_names_the_field() -> None:
    queued, owned, managed = suspended(), suspended(), suspended(managedBy="kueue.x-k8s.io/multikueue")
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    reference = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "name": "s",
        "uid": "u",
        "controller": True,
    }
    owned["metadata"]["ownerReferences"] = [reference]
    assert found_of(owned) is None
    fields = ("metadata.labels[kueue.x-k8s.io/queue-name]", "spec.managedBy")
    for job, field in zip((queued, managed), fields, strict=True):
        found = found_of(job)
        assert isinstance(found, Reason)
        assert (found.code, found.field) == (Code.ON_HOLD, field)


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (suspended(parallelism=1, completions=9), "spec.completions"),
        (suspended(labels={GANG_LABEL: "g"}, notes={GANG_SIZE_ANNOTATION: "9"}), "spec.suspend"),
        (suspended({"preemptionPolicy": "Never"}), "spec.preemptionPolicy"),
    ],
    ids=["waves", "part of a gang", "a field"],
)
def test_one_that_cannot_be_let_go_says_so_by_the_name_of_the_field(job: Json, field: str) -> None:
    found = found_of(job)
    assert isinstance(found, Reason)
    assert (found.code, found.field) == (Code.NOT_SUPPORTED_YET, field)


def test_what_a_gang_needs_without_its_name_is_refused_as_its_pods_would_be() -> None:
    job = suspended(parallelism=1, completions=1, notes={GANG_SIZE_ANNOTATION: "9"})
    found = found_of(job)
    assert isinstance(found, Reason)
    assert found == group_of(pod("t-0", owner=job, annotations={GANG_SIZE_ANNOTATION: "9"}), {})
    assert found.code is Code.MISSING_FIELD


CLASSES = [
    {"metadata": {"name": "high"}, "value": 1_000_000},
    {"metadata": {"name": "usual"}, "value": 10, "globalDefault": True},
    {"metadata": {"name": "old-usual"}, "value": 7, "globalDefault": True},
]


def test_the_priority_is_the_classes_or_the_lowest_default_or_none() -> None:
    assert priority_of(template_of(suspended({"priorityClassName": "high"})), CLASSES) == 1_000_000
    assert priority_of(template_of(suspended()), CLASSES) == 7
    assert priority_of(template_of(suspended()), CLASSES[:1]) == 0
    found = priority_of(template_of(suspended({"priorityClassName": "none"})), CLASSES)
    assert isinstance(found, Reason)
    assert (found.code, found.detail) == (Code.NO_SUCH_PRIORITY_CLASS, "none")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
JOB_PARTS = st.sampled_from(["parallelism", "completions", "selector", "podFailurePolicy", "backoffLimit", "managedBy"])
POD_PARTS = st.sampled_from(["containers", "tolerations", "affinity", "priorityClassName", "volumes"])


@given(st.dictionaries(JOB_PARTS, ANYTHING), st.dictionaries(POD_PARTS, ANYTHING), ANYTHING)
def test_no_job_whatever_its_shape_makes_the_question_fail(spec: Json, template: Json, status: Any) -> None:
    hostile = suspended(template) | {"status": status}
    hostile["spec"] |= spec
    assert isinstance(found_of(hostile), Adoption | Reason | None)
    assert isinstance(
        priority_of(template_of(hostile), [{"metadata": status, "value": status, "globalDefault": True}]), int | Reason
    )
