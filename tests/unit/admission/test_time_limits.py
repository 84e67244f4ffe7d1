"""Time limits by the configuration: a default for jobs that say none, and the longest per queue and per tenant."""

from typing import Any

import orjson
import pytest

from tessera.admission.decide.outcome import Origin, Outcome, judge_tenant_command
from tessera.admission.decide.policy import AdmissionPolicy, tree_of
from tessera.binder.workloads.mark_table import TIME_LIMIT
from tessera.client.input.files import config_body
from tessera.client.outcomes import Failure
from tessera_schemas.config import Config, ConfigBody
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.text.reading import read_cluster_command, read_tenant_command

HOUR, DAY = 3600, 86_400
NIGHT = "queues.night.time_limit_max_seconds"


def policy(default: str | None = None, tenant: str | None = None, **queues: str) -> AdmissionPolicy:
    """As a file says it: two queues below `all`, with the longest time limits that are named."""
    limits = {"limits": {"time_limit_max": tenant}} if tenant else {}
    named = [{"name": name, "parent": None if name == "all" else "all"} for name in ("all", "day", "night")]
    written = {
        "tenants": [{"name": "lab", **limits}],
        "queues": [
            each | ({"time_limit_max": queues[str(each["name"])]} if each["name"] in queues else {}) for each in named
        ],
    } | ({"defaults": {"time_limit": default}} if default else {})
    body = ConfigBody.model_validate(config_body(written, "file"))
    return AdmissionPolicy(1, tree_of(Config(version=1, body=body)))


def judged(
    known: AdmissionPolicy, seconds: int | None = None, queue: str = "night", kind: str = "submit_job"
) -> Outcome:
    resources = {"cpu_milli": 1, "memory_bytes": 1}
    spec: dict[str, Any] = {"name": "train", "queue": queue, "time_limit_seconds": seconds}
    spec["roles"] = [{"name": "worker", "resources": resources, "template": {"image": "a"}}]
    command = {"kind": kind, "v": 1, "key": "k1", "spec": spec}
    if kind == "submit_job":
        return judge_tenant_command(read_tenant_command(orjson.dumps(command)), Origin("main", "lab", 1), known)
    command["adopted"] = {"api_version": "batch/v1", "owner_kind": "Job", "owner_name": "train", "owner_uid": "u1"}
    parsed = read_cluster_command(orjson.dumps(command))
    return judge_tenant_command(parsed, Origin("main", "lab", 1, adopted=True), known)


def taken(outcome: Outcome) -> tuple[int | None, tuple[str, ...]]:
    assert isinstance(outcome.fact, JobAdmitted), outcome.answer.reasons
    return outcome.fact.spec.time_limit_seconds, outcome.answer.notes


@pytest.mark.parametrize(
    ("known", "seconds", "by"),
    [
        (policy("12h"), 12 * HOUR, "defaults.time_limit_seconds"),
        (policy("12h", night="1d"), 12 * HOUR, "defaults.time_limit_seconds"),
        (policy("2d", night="1d"), DAY, NIGHT),
        (policy(night="1d"), DAY, NIGHT),
        (policy(night="2d", all="1d"), DAY, "queues.all.time_limit_max_seconds"),
        (policy(night="2d", tenant="1d"), DAY, "limits.time_limit_max_seconds"),
    ],
    ids=["default", "below the longest", "above it", "the longest", "of a queue above", "of the tenant"],
)
def test_a_job_without_a_time_limit_gets_one_and_its_answer_says_by_what(
    known: AdmissionPolicy, seconds: int, by: str
) -> None:
    found, notes = taken(judged(known))
    assert found == seconds
    assert by in notes[0]
    assert notes[0].endswith("say time_limit for another")


def test_what_a_job_says_itself_stays_and_nothing_is_said_of_it() -> None:
    assert taken(judged(policy("12h", night="1d"), 60)) == (60, ())
    assert taken(judged(policy())) == (None, ())
    assert taken(judged(policy(night="1d"), queue="day")) == (None, ())


def test_the_same_submit_is_the_same_job_after_the_default_has_changed() -> None:
    facts = [judged(known).fact for known in (policy(), policy("12h"), policy("1d"))]
    assert len({fact.digest() for fact in facts if isinstance(fact, JobAdmitted)}) == 1


@pytest.mark.parametrize(
    ("known", "field"),
    [
        (policy(night="1d"), NIGHT),
        (policy("1h", all="1d"), "queues.all.time_limit_max_seconds"),
        (policy(night="2d", tenant="1d"), "limits.time_limit_max_seconds"),
    ],
    ids=["queue", "queue above", "tenant"],
)
def test_a_job_above_the_longest_time_limit_is_refused_by_its_name(known: AdmissionPolicy, field: str) -> None:
    assert taken(judged(known, DAY)) == (DAY, ())
    (reason,) = judged(known, DAY + 1).answer.reasons
    assert (reason.code, reason.field) == ("ExceedsJobLimit", field)
    assert reason.numbers == {"time_limit_seconds": DAY + 1, "time_limit_max_seconds": DAY}


def test_users_own_pods_get_no_time_limit_and_are_told_where_they_need_one() -> None:
    assert taken(judged(policy("12h"), kind="adopt_job")) == (None, ())
    assert taken(judged(policy(night="1d"), DAY, kind="adopt_job")) == (DAY, ())
    (reason,) = judged(policy(night="1d"), kind="adopt_job").answer.reasons
    assert (reason.code, "activeDeadlineSeconds" in reason.detail) == ("ExceedsJobLimit", True)


def test_what_never_ends_is_told_its_two_ways_out() -> None:
    """Kubernetes forbids activeDeadlineSeconds in the templates of Deployments, StatefulSets and DaemonSets."""
    (reason,) = judged(policy(night="1d"), kind="adopt_job").answer.reasons
    assert all(kind in reason.detail for kind in ("Deployment", "StatefulSet", "DaemonSet"))
    assert f"label {TIME_LIMIT} of the pod template" in reason.detail
    assert "a queue without a longest time limit" in reason.detail
    assert taken(judged(policy(night="1d"), kind="adopt_job", queue="day")) == (None, ())


def test_a_configuration_without_them_is_stored_as_before_and_a_time_that_is_none_is_said() -> None:
    body = ConfigBody.model_validate({"tenants": [{"name": "lab"}], "queues": [{"name": "q", "quotas": []}]})
    assert b"time_limit" not in body.to_bytes()
    assert "time_limit" not in body.model_dump_json()
    assert "defaults" not in body.model_dump_json()
    with pytest.raises(Failure, match="file: time_limit_max: "):
        policy(night="soon")
