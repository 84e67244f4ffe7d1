"""Sessions: the limit of a user, what counts for it and when, and the class of those who come back."""

import pytest

from tessera.admission.decide.configuration import find_config_faults
from tessera.domain.storing.canonical import encode
from tessera_schemas.base import job_id
from tessera_schemas.config import Defaults, Limits, Tenant
from tessera_schemas.facts import CancelRequested, HoldRequested, JobAdmitted
from tessera_schemas.job import Session
from tessera_schemas.ledger import JobTurnedAway
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, role
from tests.rounds import Rounds

NOTEBOOK = Session(kind="notebook")


def limit(rounds: Rounds, sessions: int | None) -> None:
    body = rounds.state.config.body
    assert body is not None
    tenants = (Tenant(name="lab", limits=Limits(sessions_per_user=sessions)), Tenant(name="other"))
    rounds.commit(config_proposed(body.model_copy(update={"tenants": tenants}), rounds.state.config.version))


def limited(sessions: int | None) -> Rounds:
    rounds = Rounds(nodes={"node-a": 8})
    limit(rounds, sessions)
    return rounds


def session(key: str, user: str, kept: Session | None = NOTEBOOK) -> JobAdmitted:
    spec = job_spec(role(gpus=0)).model_copy(update={"user": user, "session": kept})
    return admitted(key, spec)


def refused(rounds: Rounds, *facts: JobAdmitted) -> list[tuple[str, str, dict[str, int]]]:
    """Field, detail and numbers of each refusal of what is submitted in one message."""
    turned = [record for record in rounds.commit(*facts).records if isinstance(record, JobTurnedAway)]
    return [(each.field, each.detail, dict(each.numbers)) for record in turned for each in record.reasons]


def test_so_many_live_sessions_of_each_user_and_none_more_until_one_has_ended() -> None:
    rounds = limited(1)
    assert refused(rounds, session("first", "ana")) == []
    over = [("limits.sessions_per_user", "of ana", {"sessions": 1, "limit": 1})]
    assert refused(rounds, session("second", "ana")) == over
    assert refused(rounds, session("training", "ana", kept=None)) == [], "work that nobody sits before is no session"
    assert refused(rounds, session("hers", "bea")) == []
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=job_id(SHARD, "lab", "first"), tenant="lab"))
    assert refused(rounds, session("third", "ana")) == []


def test_two_sessions_of_one_message_do_not_pass_the_limit_together() -> None:
    rounds = limited(1)
    assert len(refused(rounds, session("one", "ana"), session("two", "ana"))) == 1


def test_sessions_that_name_no_user_count_together() -> None:
    rounds = limited(1)
    assert refused(rounds, session("one", "")) == []
    (over,) = refused(rounds, session("two", ""))
    assert over[1] == "of jobs that name no user"


@pytest.mark.parametrize("before", [None, 100])
def test_a_new_limit_counts_what_is_there_and_stops_nobody(before: int | None) -> None:
    rounds = limited(before)
    assert refused(rounds, session("one", "ana"), session("two", "ana")) == []
    limit(rounds, 1)
    rounds.settle()
    assert rounds.state.runs.get(rounds.job("one").run_id) is not None
    assert refused(rounds, session("three", "ana"))[0][2] == {"sessions": 2, "limit": 1}
    limit(rounds, None)
    assert refused(rounds, session("four", "ana")) == []


def resumed(job_class: str, resume_class: str | None, kept: Session | None = NOTEBOOK, runs: bool = True) -> str:
    """The class in which a job waits once it was put back in line on hold, and released."""
    rounds = Rounds(nodes={"node-a": 8})
    body = rounds.state.config.body
    assert body is not None
    defaults = Defaults.model_validate({"sessions": {"resume_class": resume_class}})
    rounds.commit(config_proposed(body.model_copy(update={"defaults": defaults}), rounds.state.config.version))
    spec = job_spec(role(gpus=0)).model_copy(update={"session": kept, "priority_class": job_class})
    rounds.commit(admitted("one", spec))
    if runs:
        rounds.settle()
        assert rounds.job("one").attempt == 1
    hold = HoldRequested(kind="hold_requested", job_id=rounds.job("one").job_id, tenant="lab")
    rounds.commit(hold)
    rounds.commit(hold.model_copy(update={"undo": True}))
    assert not rounds.job("one").held
    return rounds.job("one").priority_class


@pytest.mark.parametrize(
    ("job_class", "resume_class", "kept", "runs", "then"),
    [
        ("normal", "high", NOTEBOOK, True, "high"),
        ("urgent", "high", NOTEBOOK, True, "urgent"),
        ("normal", "high", NOTEBOOK, False, "normal"),
        ("normal", "high", None, True, "normal"),
        ("normal", None, NOTEBOOK, True, "normal"),
    ],
    ids=["a paused session", "of a higher class", "that never ran", "no session", "without such a class"],
)
def test_a_session_that_comes_back_waits_in_the_class_for_those(
    job_class: str, resume_class: str | None, kept: Session | None, runs: bool, then: str
) -> None:
    assert resumed(job_class, resume_class, kept, runs) == then


def test_a_class_that_is_not_there_is_refused_with_the_configuration() -> None:
    defaults = Defaults.model_validate({"sessions": {"resume_class": "sessions"}})
    (reason,) = find_config_faults(config_body(defaults=defaults))
    assert (reason.code, reason.field) == ("NoSuchPriorityClass", "defaults.sessions.resume_class")


def test_without_a_limit_nothing_of_sessions_is_in_what_a_tenant_uses() -> None:
    rounds = limited(None)
    assert refused(rounds, session("one", "ana")) == []
    use = rounds.state.tenant_use.get("lab")
    assert use is not None
    assert b"sessions" not in encode(use)
