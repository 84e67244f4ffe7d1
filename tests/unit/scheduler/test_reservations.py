"""What a blocked job and those behind it are told, and what besides GPUs a reservation keeps."""

from typing import Any

from tessera.domain.entities import Job
from tessera.engine.explain.explanation import explain
from tessera.engine.queueing.ordering import stuck_heads
from tessera_schemas.config import Policy, Queue, Quota
from tessera_schemas.facts import AnyFact, DrainRequested
from tessera_schemas.ledger import AnyRecord
from tessera_schemas.reasons import Code
from tests.builders import admitted, config_body, node_seen, role
from tests.builders import job_spec as spec
from tests.ledgers import Committed

HOUR = 3600


def shard(*nodes: AnyFact, quota: int | None = None, **policy: Any) -> Committed:
    quotas = () if quota is None else (Quota(resource="gpu_milli", nominal=quota * 1000),)
    body = config_body(
        Queue(name="research", quotas=quotas), policy=Policy.model_validate({"backfill": "reserve", **policy})
    )
    return Committed().begin(*(nodes or (node_seen("node-a"),)), body=body)


def submit(ledger: Committed, *jobs: tuple[str, int, int], cpu: int = 1, gang: int = 1) -> tuple[AnyRecord, ...]:
    """(key, GPUs, hours of the time limit) each, in one message; the records of the next one, which has the order."""
    ledger.commit(
        *(
            admitted(key, spec(role(replicas=gang, gpus=gpus, cpu_milli=cpu * 1000), time_limit_seconds=hours * HOUR))
            for key, gpus, hours in jobs
        )
    )
    return ledger.commit(orders=(ledger.line(),)).records


def job(ledger: Committed, key: str) -> Job:
    found = ledger.state.jobs.get(admitted(key).job_id)
    assert isinstance(found, Job)
    return found


def told(ledger: Committed, key: str) -> Code | None:
    reason = job(ledger, key).reason
    return None if reason is None else reason.code


def test_a_blocked_job_hears_that_room_is_kept_as_soon_as_somebody_could_be_in_its_way() -> None:
    ledger = shard()
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    assert told(ledger, "head") is Code.NO_FIT
    submit(ledger, ("long", 1, 3), ("short", 1, 1))
    assert [told(ledger, key) for key in ("head", "long", "short")] == [Code.RESERVED, Code.BEHIND_RESERVATION, None]
    assert job(ledger, "short").attempt == 1
    assert ledger.commit(orders=(ledger.line(),)).records == ()


def test_the_reasons_say_when_in_numbers_and_name_nobody() -> None:
    ledger = shard()
    submit(ledger, ("runs", 4, 2))
    end = ledger.ts + 2 * HOUR * 1000
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("long", 1, 3))
    head, behind = job(ledger, "head").reason, job(ledger, "long").reason
    assert head is not None
    assert behind is not None
    assert head.numbers == {"from_ts": end, "seconds": (end - ledger.ts) // 1000, "pods": 1}
    ends = ledger.ts + 3 * HOUR * 1000
    assert behind.numbers == {"from_ts": end, "expected_end_ts": ends, "jobs_with_reserved_room": 1}
    assert (behind.detail, behind.field) == ("", "")


def test_explain_says_when_and_where_and_that_who_is_held_back_would_fit() -> None:
    ledger = shard()
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("long", 1, 3))
    head = explain(ledger.state, job(ledger, "head").job_id, ledger.ts)
    long = explain(ledger.state, job(ledger, "long").job_id, ledger.ts)
    assert head is not None
    start = "it starts in 1h59m, by the time limits of runs"
    assert f"If runs end as expected {start}; room is kept on node-a." in head.sentences
    assert long is not None
    assert long.reason == job(ledger, "long").reason
    assert not long.changes


def test_nobody_is_kept_behind_a_job_that_has_not_waited_long_enough() -> None:
    ledger = shard(backfill_patience_seconds=60)
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("early", 1, 3))
    ledger.commit(ms=60_000)
    submit(ledger, ("late", 1, 3))
    assert (told(ledger, "early"), told(ledger, "head"), told(ledger, "late")) == (
        None,
        Code.RESERVED,
        Code.BEHIND_RESERVATION,
    )


def test_a_job_for_which_no_end_makes_room_holds_up_nobody() -> None:
    ledger = shard(node_seen("node-a"), node_seen("node-b"))
    ledger.commit(DrainRequested(kind="drain_requested", node="node-b"))
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1), gang=2)
    submit(ledger, ("long", 1, 3))
    assert (told(ledger, "head"), told(ledger, "long")) == (Code.NO_FIT, None)


def test_a_job_that_runs_on_takes_what_is_left_of_cpu_too_and_only_once() -> None:
    ledger = shard()
    submit(ledger, ("runs", 4, 2), cpu=40)
    submit(ledger, ("head", 8, 1), cpu=44)
    submit(ledger, ("one", 0, 9), ("two", 0, 9), cpu=12)
    assert (told(ledger, "one"), told(ledger, "two")) == (None, Code.BEHIND_RESERVATION)


def test_the_quota_is_kept_as_well_also_from_short_jobs() -> None:
    ledger = shard(quota=12)
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("short", 1, 1))
    reason = job(ledger, "short").reason
    assert reason is not None
    assert (reason.code, reason.field) == (Code.BEHIND_RESERVATION, "queues.research.gpu_milli")


def test_a_job_without_quota_is_given_no_room() -> None:
    ledger = shard(quota=8)
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("long", 1, 3))
    assert (told(ledger, "head"), told(ledger, "long")) == (Code.WAITING_FOR_QUOTA, None)


def test_room_is_kept_for_as_many_as_the_policy_says() -> None:
    for depth, expected in ((1, Code.NO_FIT), (2, Code.RESERVED)):
        ledger = shard(node_seen("node-a"), node_seen("node-b"), backfill_depth=depth)
        submit(ledger, ("a", 5, 2), ("b", 5, 4))
        submit(ledger, ("head", 8, 1), ("next", 8, 1), ("short", 1, 1))
        assert (told(ledger, "head"), told(ledger, "next"), told(ledger, "short")) == (Code.RESERVED, expected, None)
        submit(ledger, ("longer", 1, 3), ("longest", 1, 5))
        assert told(ledger, "longer") is None, "it has ended when the second reservation begins"
        assert told(ledger, "longest") is (None if depth == 1 else Code.BEHIND_RESERVATION)


def test_who_has_waited_for_too_long_is_passed_by_nobody() -> None:
    ledger = shard(backfill_closing_seconds=60)
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    ledger.commit(ms=60_000)
    submit(ledger, ("short", 1, 1))
    assert (told(ledger, "head"), told(ledger, "short")) == (Code.RESERVED, Code.BEHIND_RESERVATION)


def test_room_may_still_be_made_by_evictions_for_who_waits_for_reserved_room() -> None:
    ledger = shard()
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("long", 1, 3))
    assert [one.job_id for one in stuck_heads(ledger.state, ledger.ts, heads=2)] == [job(ledger, "head").job_id]


def test_when_the_room_is_there_the_job_starts_and_those_behind_it_are_asked_anew() -> None:
    ledger = shard(node_seen("node-a"))
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("long", 1, 3))
    ledger.commit(node_seen("node-b"))
    ledger.commit(orders=(ledger.line(),))
    assert (job(ledger, "head").attempt, job(ledger, "long").attempt) == (1, 1)
