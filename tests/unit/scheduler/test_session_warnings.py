"""The warning of a session in the ledger: a change each time, of a session that is watched, with its user's event."""

from typing import Any

import orjson
import pytest

from tessera.client.views.event_story import told_by
from tessera.client.views.story import story
from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import apply_record
from tessera.projection.events import events_of
from tessera_schemas.events import CloudEvent
from tessera_schemas.facts import CancelRequested
from tessera_schemas.job import Session
from tessera_schemas.ledger import LedgerMessage
from tessera_schemas.shard.records import SessionUnused, SessionWarned
from tests.builders import SHARD, admitted, job_spec, role
from tests.rounds import Rounds

NOTEBOOK = Session(kind="notebook", idle_seconds=7200, warning_seconds=600, on_idle="end")


def running(session: Session | None = NOTEBOOK) -> Rounds:
    rounds = Rounds(nodes={"node-a": 8})
    rounds.commit(admitted("one", job_spec(role(gpus=1)).model_copy(update={"user": "ana", "session": session})))
    rounds.settle()
    return rounds


def say(rounds: Rounds, again: bool = False) -> LedgerMessage:
    return rounds.commit(SessionUnused(kind="session_unused", run_id=rounds.job("one").run_id, again=again), ms=1000)


def event(rounds: Rounds, message: LedgerMessage) -> dict[str, Any]:
    (found,) = events_of(SHARD, message, rounds.state)
    said: dict[str, Any] = orjson.loads(found.data)
    return said


def test_each_change_is_one_record_with_an_event_that_names_the_user_and_the_moment() -> None:
    rounds = running()
    message = say(rounds)
    (record,) = message.records
    assert isinstance(record, SessionWarned)
    run = rounds.state.runs.get(rounds.job("one").run_id)
    assert run is not None
    assert record.stops_ts == message.ts + 600_000 == run.unused_until
    told = event(rounds, message)
    assert told["type"] == "io.tessera.job.session-warned.v1"
    assert told["data"].items() >= {"user": "ana", "action": "end", "stops_ts": record.stops_ts}.items()
    assert "nobody uses the session of ana: end about" in told_by(CloudEvent.model_validate(told))
    assert "stops about" in next(line.text for line in story(message, rounds.job("one").job_id))
    assert say(rounds).records == (), "a repeat is no news"

    message = say(rounds, again=True)
    told = event(rounds, message)
    assert "stops_ts" not in told["data"]
    assert told_by(CloudEvent.model_validate(told)) == "the session of ana is in use again"
    assert "in use again" in next(line.text for line in story(message, rounds.job("one").job_id))
    assert say(rounds, again=True).records == ()


@pytest.mark.parametrize("session", [None, Session(kind="notebook", idle_seconds=0), Session(kind="workspace")])
def test_what_no_watch_stops_is_not_warned(session: Session | None) -> None:
    assert say(running(session)).records == ()


def test_a_session_that_is_being_stopped_is_not_warned() -> None:
    rounds = running()
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=rounds.job("one").job_id, tenant="lab"))
    assert say(rounds).records == ()


@pytest.mark.parametrize(("session", "stops_ts"), [(None, 1), (NOTEBOOK, 0)], ids=["no session", "no change"])
def test_a_record_that_says_nothing_new_is_a_contradiction(session: Session | None, stops_ts: int) -> None:
    rounds = running(session)
    record = SessionWarned(kind="session_warned", run_id=rounds.job("one").run_id, stops_ts=stops_ts)
    with pytest.raises(Contradiction, match="was not warned"):
        apply_record(rounds.state, record, ())
