"""When a job in line is expected to start, and that nobody is told a time that nobody knows."""

import pytest

from tessera.engine.queueing.expected_starts import ExpectedStart, expected_starts
from tessera.engine.queueing.timeline import KINDS_MAX
from tessera.gateway.reading.explaining import explained, known_starts, list_positions
from tessera_schemas.config import Policy
from tessera_schemas.facts import RunAbsent, RunEnded
from tests.builders import admitted, config_body, job_spec, role
from tests.ledgers import Committed

RESERVE = Policy(backfill="reserve", backfill_patience_seconds=0)
LARGE, SMALL = admitted("large").job_id, admitted("small").job_id


def full(policy: Policy = RESERVE, limit: int | None = 600) -> Committed:
    """Two nodes of 8 GPUs: one has a run of the limit, and a job that wants both waits."""
    made = Committed().begin(body=config_body().model_copy(update={"policy": policy}))
    made.commit(admitted("runs", job_spec(role(gpus=8), time_limit_seconds=limit)))
    made.start(admitted("runs").job_id, "runs")
    made.commit(admitted("large", job_spec(role(replicas=2, gpus=8), time_limit_seconds=60)))
    made.commit(orders=(made.line(),))
    return made


def starts(made: Committed) -> dict[str, ExpectedStart]:
    line = made.state.lines.get("default").jobs
    return expected_starts(made.state, "default", made.state.jobs.found(line))


def test_the_first_blocked_job_starts_when_the_run_before_it_reaches_its_time_limit() -> None:
    made = full()
    run = made.state.runs.get(f"{admitted('runs').job_id}-1")
    assert starts(made) == {LARGE: ExpectedStart(run.started_ts + 600_000, ("node-a", "node-b"), ("time_limits",))}


def test_kinds_that_no_node_could_hold_hide_nobodys_start() -> None:
    made = full()
    kinds = [job_spec(role(gpus=16, cpu_milli=1000 + at), priority_class="high") for at in range(KINDS_MAX + 1)]
    made.commit(*(admitted(f"useless-{at}", kind) for at, kind in enumerate(kinds)))
    made.commit(orders=(made.line(),))
    assert list(starts(made)) == [LARGE]


def test_who_waits_behind_the_kept_room_or_without_reservations_has_no_expected_start() -> None:
    made = full()
    made.commit(admitted("small", job_spec(role(gpus=8), time_limit_seconds=3600)))
    made.commit(orders=(made.line(),))
    assert made.state.jobs.get(LARGE).reason.code == "Reserved"
    assert made.state.jobs.get(SMALL).reason.code == "BehindReservation"
    assert list(starts(made)) == [LARGE]
    assert starts(full(Policy())) == {}
    assert starts(full(RESERVE.model_copy(update={"backfill_patience_seconds": 3600}))) == {}


def test_a_start_that_rests_on_a_run_of_which_nothing_is_known_is_a_guess_and_not_told() -> None:
    made = full(limit=None)
    (start,) = starts(made).values()
    assert start.is_guess
    assert known_starts(made.state, "default", made.ts) == {}


def test_once_such_a_job_has_ended_its_length_is_learnt_and_the_start_is_told_as_resting_on_it() -> None:
    made = Committed().begin(body=config_body().model_copy(update={"policy": RESERVE}))
    made.commit(admitted("before", job_spec(role(gpus=8))))
    before = made.start(admitted("before").job_id, "before")
    made.commit(RunEnded(kind="run_ended", run_id=before), ms=1_800_000)
    made.commit(RunAbsent(kind="run_absent", run_id=before))
    made.commit(admitted("runs", job_spec(role(gpus=8))))
    made.start(admitted("runs").job_id, "runs")
    made.commit(admitted("large", job_spec(role(replicas=2, gpus=8))))
    made.commit(orders=(made.line(),))
    assert known_starts(made.state, "default", made.ts)[LARGE].rests_on == ("learnt_runtimes",)
    # An hour later the run is longer than any that was seen: nobody knows its end any more.
    assert known_starts(made.state, "default", made.ts + 3_600_000) == {}


@pytest.mark.parametrize(("tenant", "told"), [("lab", True), (None, True), ("other", False)])
def test_the_start_is_told_to_the_jobs_tenant_and_to_operators_alone(tenant: str | None, told: bool) -> None:
    made = full()
    found = known_starts(made.state, "default", made.ts)
    (place,) = list_positions(made.state, "default", tenant, found)
    assert (place.expected_start is not None) is told


def test_line_and_explanation_say_the_start_in_the_same_words() -> None:
    made = full()
    (start,) = known_starts(made.state, "default", made.ts).values()
    answer = explained(made.state, LARGE, "lab", made.ts)
    assert answer is not None
    assert any(f"it starts {start.words}; room is kept on" in note for note in answer.notes), answer.notes
    guessed = explained(full(limit=None).state, LARGE, "lab", made.ts)
    assert guessed is not None
    assert any("Its start is not known; room is kept on" in note for note in guessed.notes), guessed.notes
