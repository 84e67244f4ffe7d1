"""Limits of a tenant's services and of all its sessions: what counts, when it is refused, and what is measured."""

import pytest

from tessera.domain.storing.canonical import encode
from tessera.scheduler.free_slots import sharing
from tessera_schemas.base import job_id
from tessera_schemas.config import Limits, Tenant
from tessera_schemas.facts import CancelRequested, JobAdmitted
from tessera_schemas.job import Session
from tessera_schemas.ledger import JobTurnedAway
from tessera_schemas.work.arrays import SERVICE_TASKS, JobArray, ServiceSize
from tests.builders import SHARD, admitted, config_proposed, job_spec, role
from tests.rounds import Rounds

Refusal = tuple[str, dict[str, int]]


def limit(rounds: Rounds, **limits: int) -> None:
    body = rounds.state.config.body
    assert body is not None
    tenants = (Tenant(name="lab", limits=Limits.model_validate(limits)), Tenant(name="other"))
    rounds.commit(config_proposed(body.model_copy(update={"tenants": tenants}), rounds.state.config.version))


def limited(**limits: int) -> Rounds:
    rounds = Rounds(nodes={"node-a": 8})
    limit(rounds, **limits)
    return rounds


def service(key: str) -> JobAdmitted:
    size = ServiceSize(min_replicas=0, max_replicas=4, replicas=2)
    return admitted(key, job_spec(role(gpus=0), service=size, array=JobArray(tasks=SERVICE_TASKS)))


def session(key: str, user: str) -> JobAdmitted:
    kept = {"user": user, "session": Session(kind="notebook")}
    return admitted(key, job_spec(role(gpus=0)).model_copy(update=kept))


def refused(rounds: Rounds, *facts: JobAdmitted) -> list[Refusal]:
    """Field and numbers of each refusal of what is submitted in one message."""
    turned = [record for record in rounds.commit(*facts).records if isinstance(record, JobTurnedAway)]
    return [(each.field, dict(each.numbers)) for record in turned for each in record.reasons]


def cancel(rounds: Rounds, key: str) -> None:
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=job_id(SHARD, "lab", key), tenant="lab"))


def test_so_many_services_and_none_more_until_one_has_ended() -> None:
    rounds = limited(services=1)
    assert refused(rounds, service("chat")) == []
    rounds.settle()  # its replicas are jobs, and no services
    over = [("limits.services", {"services": 1, "limit": 1})]
    assert refused(rounds, service("search")) == over
    assert refused(rounds, admitted("training", job_spec(role(gpus=0)))) == []
    cancel(rounds, "chat")
    rounds.settle()
    assert refused(rounds, service("search")) == []


def test_no_services_at_all() -> None:
    assert refused(limited(services=0), service("chat")) == [("limits.services", {"services": 0, "limit": 0})]


def test_sessions_of_all_users_count_together() -> None:
    rounds = limited(sessions=2, sessions_per_user=1)
    assert refused(rounds, session("one", "ana"), session("two", "bea")) == []
    assert refused(rounds, session("three", "eve")) == [("limits.sessions", {"sessions": 2, "limit": 2})]
    cancel(rounds, "one")
    assert refused(rounds, session("three", "eve")) == []


def test_two_of_one_message_do_not_pass_a_limit_together() -> None:
    assert len(refused(limited(services=1), service("one"), service("two"))) == 1
    assert len(refused(limited(sessions=1), session("one", "ana"), session("two", "bea"))) == 1


@pytest.mark.parametrize("name", ["services", "sessions"])
def test_a_new_limit_counts_what_is_there_and_stops_nothing(name: str) -> None:
    rounds = limited()
    made = service if name == "services" else (lambda key: session(key, key))
    assert refused(rounds, made("one"), made("two")) == []
    limit(rounds, **{name: 1})
    assert refused(rounds, made("three")) == [(f"limits.{name}", {name: 2, "limit": 1})]
    assert rounds.state.jobs.get(job_id(SHARD, "lab", "one")) is not None


def test_without_limits_nothing_of_them_is_in_what_a_tenant_uses() -> None:
    rounds = limited()
    assert refused(rounds, service("chat"), session("one", "ana")) == []
    use = rounds.state.tenant_use.get("lab")
    assert use is not None
    assert b"services" not in encode(use)
    assert b"sessions" not in encode(use)


def test_what_counts_against_each_limit_is_measured_and_the_limit_beside_it() -> None:
    rounds = limited(jobs=9, pods=7, services=2, sessions=3)
    assert refused(rounds, service("chat"), session("one", "ana"), admitted("two", job_spec(role(gpus=2)))) == []
    shown = {(name, labels): value for name, labels, value in sharing(rounds.state)}
    counted = {"jobs": (3, 9), "pods": (2, 7), "services": (1, 2), "sessions": (1, 3)}
    for name, (used, most) in counted.items():
        assert shown["tenant_counted", ("lab", name)] == used, name
        assert shown["tenant_counted_max", ("lab", name)] == most, name
    assert not any(labels == ("lab", "gpus") for name, labels in shown if name.startswith("tenant_counted"))
