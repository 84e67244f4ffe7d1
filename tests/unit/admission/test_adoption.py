"""What the binder found in Kubernetes: judged like any job, and nobody else may say that it came from there."""

from typing import Any

import pytest

from tessera_schemas import subjects
from tessera_schemas.config import Queue
from tessera_schemas.facts import CancelRequested, JobAdmitted, JobRefused
from tessera_schemas.shard.streams import streams
from tests.builders import SHARD, config_body
from tests.unit.admission.admission_world import SPEC, World, node, submit

OWNER = {"api_version": "batch/v1", "owner_kind": "Job", "owner_name": "train", "owner_uid": "u1", "priority": 7}
FROM_KUBERNETES = f"lab.{subjects.KUBERNETES}"


def adopt(key: str = "u1", spec: Any = None, **owner: Any) -> dict[str, Any]:
    return {"kind": "adopt_job", "v": 1, "key": key, "spec": spec or SPEC, "adopted": OWNER | owner}


async def test_what_was_adopted_is_a_job_of_its_namespace_with_its_owner() -> None:
    world = await World.with_policy(nodes=[node()])
    await world.submits(adopt(), tenant=FROM_KUBERNETES)
    (fact,) = world.facts
    assert isinstance(fact, JobAdmitted)
    assert (fact.tenant, fact.key) == ("lab", "u1")
    assert fact.adopted is not None
    assert (fact.adopted.owner, fact.adopted.priority) == ("Job/train", 7)


async def test_a_submit_of_a_tenant_is_not_adopted() -> None:
    world = await World.with_policy(nodes=[node()])
    await world.submits(submit())
    (fact,) = world.facts
    assert isinstance(fact, JobAdmitted)
    assert fact.adopted is None


@pytest.mark.parametrize(
    ("body", "sender"), [(adopt(), "lab"), (submit(), FROM_KUBERNETES), (submit() | {"adopted": OWNER}, "lab")]
)
async def test_where_a_job_came_from_is_said_by_the_subject_and_not_by_the_payload(body: Any, sender: str) -> None:
    world = await World.with_policy(nodes=[node()])
    await world.submits(body, tenant=sender)
    (fact,) = world.facts
    assert isinstance(fact, JobRefused)
    assert fact.tenant == "lab"


async def test_the_priority_class_of_adopted_work_is_kubernetes_to_check_and_its_queue_is_ours() -> None:
    world = await World.with_policy(config_body(Queue(name="research", tenants=("other",))), [node()])
    await world.submits(adopt(spec=SPEC | {"priority_class": "no-such-class"}), tenant=FROM_KUBERNETES)
    (fact,) = world.facts
    assert isinstance(fact, JobRefused)
    assert {reason.code for reason in fact.reasons} >= {"QueueNotAllowed"}
    assert not {reason.code for reason in fact.reasons} & {"NoSuchPriorityClass", "PriorityNotAllowed"}


@pytest.mark.parametrize(
    "owner",
    [
        {"priority": 2**31},
        {"priority": -(2**31) - 1},
        {"priority": True},
        {"owner_kind": ""},
        {"owner_kind": "a/b"},
        {"owner_name": "x" * 300},
        {"more": 1},
    ],
)
async def test_an_owner_that_cannot_be_is_refused(owner: dict[str, Any]) -> None:
    world = await World.with_policy(nodes=[node()])
    await world.submits(adopt(**owner), tenant=FROM_KUBERNETES)
    assert [type(fact) for fact in world.facts] == [JobRefused]


async def test_the_binder_may_cancel_what_it_adopted_and_give_no_other_order() -> None:
    world = await World.with_policy(nodes=[node()])
    job = "abcdefghij234567abcd"
    await world.submits({"kind": "cancel_job", "v": 1, "job_id": job, "why": "gone"}, tenant=FROM_KUBERNETES)
    await world.submits({"kind": "hold_job", "v": 1, "job_id": job}, tenant=FROM_KUBERNETES)
    cancel, hold = world.facts
    assert isinstance(cancel, CancelRequested)
    assert (cancel.tenant, cancel.why) == ("lab", "gone")
    assert isinstance(hold, JobRefused)


@pytest.mark.parametrize(
    "subject", ["submit.main.lab.other", "submit.main.lab.kubernetes.x", "submit.main", "x.main.lab"]
)
def test_any_other_subject_has_no_tenant(subject: str) -> None:
    assert subjects.sent_by(subject) == ("", "")
    assert subjects.sent_by(subjects.submit(SHARD, "kubernetes")) == ("kubernetes", "")
    assert subjects.sent_by(subjects.submit_adopted(SHARD, "lab")) == ("lab", "kubernetes")
    assert subjects.sent_by(subjects.submit_by_operator(SHARD, "lab")) == ("lab", "operator")


def test_a_tenant_is_never_let_near_the_subjects_of_the_binder() -> None:
    submits = next(spec for spec in streams(SHARD) if spec.name == f"SUBMIT_{SHARD}")
    assert submits.written_by("tenant", "lab") == (f"submit.{SHARD}.lab",)
    assert submits.written_by("gateway", "gateway") == (f"submit.{SHARD}.*", f"submit.{SHARD}.*.operator")
    assert submits.written_by("binder", "binder") == (f"submit.{SHARD}.*.kubernetes",)
