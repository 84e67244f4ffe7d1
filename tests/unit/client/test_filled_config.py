"""What a person's file leaves out is written out, shown, and stays; what it says is never touched."""

from typing import Any

import pytest

from tessera.client.cluster import applying
from tessera.client.input import files
from tessera.client.outcomes import Failure, Refused
from tessera.domain.work.live_names import LiveJob
from tessera_schemas.config import Config, ConfigBody, Policy, Queue
from tessera_schemas.shard.recommended import POLICY, explicit, filled
from tessera_schemas.views import JobView

LEAST = "tenants: [{name: lab}]\nqueues: [{name: q}]\n"
RECOMMENDED = {found.field: found.value for found in POLICY}


def read(text: str) -> applying.Read:
    return applying.read_file(files.parse_yaml(text, "file"), "file")


def test_who_configures_nothing_gets_preemption_backfill_defragmentation_and_warnings() -> None:
    policy = read(LEAST).body.policy
    assert (policy.preset, policy.backfill, policy.defragment, policy.idle) == ("fair", "reserve", True, "warn")
    assert read(LEAST).body.tenants[0].priority_classes == ("normal", "low")


def test_each_value_that_was_filled_is_told_with_its_reason() -> None:
    lines = read(LEAST).lines
    assert lines[0].startswith("filled in: policy.preset: fair (")
    assert lines[-1] == "filled in: tenants.lab.priority_classes: [normal, low]"
    assert len(lines) == len(POLICY) + 1


@pytest.mark.parametrize("off", ["off", "'off'", "false"])
def test_what_the_file_says_stays_also_the_word_off(off: str) -> None:
    words, patience, near = (
        f"preset: {off}, backfill: {off}, idle: {off}",
        "order_patience_seconds: 172800, cordoned: restart, kept_beside_gpus_percent: 0, lent_kept_seconds: 0",
        "gang_topology: unconstrained, move_answer_seconds: 0",
    )
    policy = f"policy: {{{words}, defragment: false, defragment_min_gain_gpu_seconds: 0, {patience}, {near}}}"
    found = read(f"tenants: [{{name: lab, priority_classes: []}}]\nqueues: [{{name: q}}]\n{policy}\n")
    assert found.body.policy == Policy()
    assert found.body.tenants[0].priority_classes == ()
    assert found.lines == []


def test_a_configuration_stored_without_remedies_is_shown_so_and_its_file_adds_them() -> None:
    """As a shard of 0.3 has it: the difference names every value that changes before anybody agrees."""
    stored = Config(
        version=3, body=ConfigBody.model_validate({"tenants": [{"name": "lab"}], "queues": [{"name": "q"}]})
    )
    lines = applying.ConfigChange(stored, read(LEAST).body).lines
    assert "-  preset: 'off'" in lines
    assert "+  preset: fair" in lines
    assert "-  defragment: false" in lines


def test_a_shown_configuration_is_applied_again_without_a_change() -> None:
    for body in (read(LEAST).body, ConfigBody.model_validate({"tenants": [{"name": "a"}], "queues": [{"name": "q"}]})):
        assert applying.ConfigChange(Config(version=1, body=body), read(applying.shown(body)).body).lines == []


def test_the_wire_and_the_stored_form_carry_every_filled_value() -> None:
    """They leave out what equals the models' defaults, which are those of 0.3: no recommendation may equal one."""
    assert all(value != getattr(Policy(), field) for field, value in RECOMMENDED.items())
    body = read(LEAST).body
    assert ConfigBody.model_validate_json(body.to_bytes()) == body
    assert explicit(body)["policy"] == RECOMMENDED


def test_grants_are_only_those_that_the_configuration_has() -> None:
    classes = "priority_classes: [{name: normal, value: 0}, {name: gold, value: 9}]\n"
    assert read(LEAST + classes).body.tenants[0].priority_classes == ("normal",)


@pytest.mark.parametrize(
    "wrong", ["policy: 3", "tenants: 3", "tenants: [3]", "priority_classes: {a: b}", "policy: null"]
)
def test_what_is_malformed_is_refused_by_the_contract_and_not_here(wrong: str) -> None:
    kept = "".join(line + "\n" for line in LEAST.splitlines() if not line.startswith(wrong.split(":")[0]))
    with pytest.raises(Refused, match=wrong.split(":")[0]):
        read(f"{kept}{wrong}\n")


def test_filling_changes_nothing_of_what_was_given() -> None:
    given = {"tenants": [{"name": "lab"}], "queues": [{"name": "q"}], "policy": {"idle": "fail"}}
    before = {**given, "policy": dict(given["policy"])}  # type: ignore[call-overload]
    made, _ = filled(given)
    assert given == before
    assert made["policy"]["idle"] == "fail"


def in_force(*queues: Queue, version: int = 3) -> Config:
    return Config(version=version, body=read(LEAST).body.model_copy(update={"queues": queues}))


@pytest.mark.parametrize("policy", ["hold", "hold_and_drain"])
def test_a_queue_that_an_operator_stopped_stays_stopped_when_its_file_does_not_say_so(policy: Any) -> None:
    now = in_force(Queue(name="q", stop_policy=policy))
    found = read(LEAST).over(now)
    assert found.body.queues[0].stop_policy == policy
    assert found.lines[-1] == f"filled in: queues.q.stop_policy: {policy} (as it is in force)"
    assert applying.ConfigChange(now, found.body).lines == []


def test_what_a_file_says_of_a_stop_counts_and_a_stop_goes_with_a_renamed_queue() -> None:
    now = in_force(Queue(name="q", stop_policy="hold"))
    opened = read("tenants: [{name: lab}]\nqueues: [{name: q, stop_policy: none}]\n").over(now)
    assert opened.body.queues[0].stop_policy == "none"
    renamed = read("tenants: [{name: lab}]\nqueues: [{name: new, was: q}, {name: other}]\n").over(now)
    assert [queue.stop_policy for queue in renamed.body.queues] == ["hold", "none"]


def test_a_file_that_names_another_version_than_the_one_in_force_is_refused() -> None:
    now = in_force(Queue(name="q"))
    assert read(LEAST + "version: 3\n").over(now).body == read(LEAST).body
    for version in (2, 4):
        with pytest.raises(Refused, match="ConfigConflict: version") as refused:
            read(LEAST + f"version: {version}\n").over(now)
        assert refused.value.reasons[0].numbers == {"expected_version": version, "version": 3}
    with pytest.raises(Failure, match="must be the number of a version"):
        read(LEAST + "version: v3\n")


def test_live_jobs_of_the_views_name_what_the_state_says() -> None:
    common = {"key": "k", "attempt": 1, "pods": 1, "gpu_milli": 0, "submitted_ts": 1, "priority": 0, "started_ts": 0}
    common |= {"tenant": "lab", "queue": "q", "name": "train", "priority_class": "high"}
    array = {"tasks": "0-9", "count": 10, "left": "4-9"}
    jobs = [
        JobView.model_validate({**common, "job_id": "a", "phase": "queued", "array": array}),
        JobView.model_validate({**common, "job_id": "b", "phase": "running", "flavor": "h100"}),
        JobView.model_validate({**common, "job_id": "c", "phase": "queued", "owner": "Job/train"}),
        JobView.model_validate({**common, "job_id": "d", "phase": "failed"}),
    ]
    assert list(applying.named_by(jobs)) == [
        LiveJob("q", "lab", "high", "", False, 6),
        LiveJob("q", "lab", "high", "h100", True),
        LiveJob("q", "lab", "", "", False),
    ]
