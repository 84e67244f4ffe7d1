"""What a blocked job and those behind it are told, and what besides GPUs a reservation keeps."""

import pytest

from tessera.engine.explain.explanation import explain
from tessera.engine.queueing.ordering import stuck_heads
from tessera.engine.queueing.timeline import KINDS_MAX
from tessera_schemas.config import Policy, Queue, Quota
from tessera_schemas.facts import AnyFact, DrainRequested
from tessera_schemas.reasons import Code
from tests.builders import admitted, config_body, node_seen, role
from tests.builders import job_spec as spec
from tests.ledgers import Committed
from tests.rounds import Rounds, share
from tests.unit.scheduler.reserving_world import (
    HOUR,
    end,
    ids,
    job,
    of_model,
    passed_within_a_strict_queue,
    shard,
    start,
    submit,
)


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


def test_cpu_beside_promised_gpus_is_kept_until_they_are_taken_and_nobody_is_told_in_turn() -> None:
    ledger = shard(kept_beside_gpus_percent=50)
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("long", 0, 9), ("other", 0, 9), cpu=52)  # of 64 CPUs 16 are kept beside the four idle GPUs
    assert [job(ledger, key).attempt for key in ("long", "other")] == [0, 0]
    assert [ledger.commit(orders=(ledger.line(),)).records for _ in range(3)] == [(), (), ()]


def test_quota_is_kept_from_when_the_job_starts_and_not_from_who_has_ended_by_then() -> None:
    ledger = shard(quota=12)
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("short", 1, 1), ("long", 1, 3))
    assert (told(ledger, "short"), told(ledger, "long")) == (None, Code.BEHIND_RESERVATION)


def test_a_job_whose_quota_comes_back_with_the_ends_of_runs_is_given_room_as_well() -> None:
    """Nominal quota is the pool, as `config init` writes it: who finds no GPU finds no quota either."""
    ledger = shard(quota=8)
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    assert told(ledger, "head") is Code.WAITING_FOR_QUOTA
    submit(ledger, ("long", 1, 3), ("short", 1, 1))
    assert [told(ledger, key) for key in ("head", "long", "short")] == [Code.RESERVED, Code.BEHIND_RESERVATION, None]


def test_a_wide_gang_is_passed_by_nobody_under_a_quota_that_is_the_pool() -> None:
    ledger = shard(*(node_seen(f"node-{i}") for i in range(6)), quota=48)
    submit(ledger, *((f"short-{i}", 8, 2) for i in range(3)), *((f"long-{i}", 8, 4) for i in range(3)))
    submit(ledger, ("wide", 8, 1), gang=6)
    submit(ledger, *((f"later-{i}", 8, 3) for i in range(4)), ("quick", 8, 1))
    start(ledger)
    end(ledger, *ids("short-0", "short-1", "short-2"), ms=2 * HOUR * 1000 - 60_000)
    assert told(ledger, "wide") is Code.RESERVED
    assert [told(ledger, f"later-{i}") for i in range(4)] == [Code.BEHIND_RESERVATION] * 4
    assert job(ledger, "quick").attempt == 1, "it has ended when the gang starts"
    end(ledger, *ids("long-0", "long-1", "long-2", "quick"))
    assert job(ledger, "wide").attempt == 1


def test_backfill_goes_on_beside_a_head_that_leaves_room_and_quota() -> None:
    ledger = shard(*(node_seen(f"node-{i}") for i in range(3)), quota=24)
    submit(ledger, ("busy-1", 5, 24), ("busy-2", 5, 24))
    submit(ledger, ("head", 7, 24), gang=2)
    submit(ledger, *((f"small-{i}", 1, 1) for i in range(4)))
    assert told(ledger, "head") is Code.RESERVED
    assert [job(ledger, f"small-{i}").attempt for i in range(4)] == [1] * 4


@pytest.mark.parametrize("useless", [0, 3, 6, KINDS_MAX - 1, KINDS_MAX, 3 * KINDS_MAX])
def test_jobs_that_nothing_can_help_take_no_reservation_from_those_that_wait_for_runs(useless: int) -> None:
    nodes = [node_seen("sick", gpu_model="h100"), *(node_seen(f"node-{i}", gpu_model="a100") for i in range(2))]
    ledger = shard(*nodes, quota=24)
    ledger.commit(DrainRequested(kind="drain_requested", node="sick"))
    ledger.commit(*(of_model(f"run-{i}", "a100", 4, 2) for i in range(4)))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(*(of_model(f"useless-{i}", "h100", gpus=1 + i % 8, cpu=1 + i // 8) for i in range(useless)))
    ledger.commit(of_model("head", "a100"))
    ledger.commit(*(of_model(f"single-{i}", "a100", 1, 9) for i in range(4)))
    end(ledger, *ids("run-0"))
    assert told(ledger, "head") is Code.RESERVED
    assert {told(ledger, f"single-{i}") for i in range(4)} == {Code.BEHIND_RESERVATION}


@pytest.mark.parametrize(("free", "heads", "passes"), [(1, 2, 1), (2, 3, 1), (1, 3, 0), (3, 4, 1), (3, 5, 0)])
def test_a_head_is_kept_what_ends_will_free_before_what_is_free_now(free: int, heads: int, passes: int) -> None:
    """Two nodes come free at once; of those that are free now a gang of `heads` nodes needs what these two lack."""
    ledger = shard(*(node_seen(f"node-{at}") for at in range(2 + free)))
    fill = [f"fill-{at}" for at in range(free)]
    submit(ledger, *((key, 8, 9) for key in fill))
    submit(ledger, ("wide", 8, 2), gang=2)
    end(ledger, *ids(*fill))
    submit(ledger, ("head", 8, 1), gang=heads)
    submit(ledger, *((f"long-{at}", 7, 3) for at in range(free)))
    assert told(ledger, "head") is Code.RESERVED
    assert sum(job(ledger, f"long-{at}").attempt for at in range(free)) == passes


def test_each_model_has_a_head_of_its_own() -> None:
    ledger = shard(node_seen("node-h", gpu_model="h100"), node_seen("node-a", gpu_model="a100"), quota=16)
    ledger.commit(of_model("run-h", "h100", 4, 24), of_model("run-a", "a100", 4, 2))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(of_model("head-h", "h100"), of_model("head-a", "a100"), of_model("single-a", "a100", 1, 9))
    ledger.commit(orders=(ledger.line(),))
    assert [told(ledger, key) for key in ("head-h", "head-a", "single-a")] == [
        Code.RESERVED,
        Code.RESERVED,
        Code.BEHIND_RESERVATION,
    ]


def test_room_that_was_kept_once_stays_kept_while_fair_share_moves_the_order() -> None:
    ledger = shard(*(node_seen(f"node-{i}") for i in range(3)), quota=24)
    ledger.commit(admitted("mine", spec(role(gpus=8), time_limit_seconds=9 * HOUR)))
    singles = [admitted(f"b-{i}", spec(role(gpus=1), time_limit_seconds=2 * HOUR), "other") for i in range(40)]
    ledger.commit(*singles)
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(admitted("gang", spec(role(gpus=8, replicas=2), time_limit_seconds=HOUR)))
    for single in singles[:17]:  # the order in which the gang stands comes after the first has ended
        end(ledger, single.job_id)
    passed = [single.job_id for single in singles[17:] if ledger.state.jobs.get(single.job_id).attempt]  # type: ignore[union-attr]
    assert (job(ledger, "gang").attempt, passed) == (1, [])


def test_room_stays_kept_when_the_run_that_is_waited_for_outlives_what_was_learnt() -> None:
    """Under the quota that `config init` writes; its expected end moves on by as much as it ran, step by step."""
    ledger = shard(quota=8)
    for key in ("learnt", "outlives"):
        ledger.commit(admitted(key, spec(role(gpus=4), name="train")))
        ledger.commit(orders=(ledger.line(),))
        start(ledger)
        if key == "learnt":
            end(ledger, *ids(key), ms=HOUR * 1000)
    begun = ledger.ts
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("long", 1, 9))
    younger = list[str]()
    for minutes in (50, 61, 121, 241, 479):
        younger.append(f"younger-{minutes}")
        ledger.commit(ms=begun + minutes * 60_000 - ledger.ts)
        submit(ledger, (younger[-1], 1, 1))
        assert told(ledger, "head") is Code.RESERVED
        # Expected after 70 minutes, and after twice as long each time that it goes on: 140, 280, 560.
        passed = younger[:4] if minutes == 479 else []
        assert [key for key in younger if job(ledger, key).attempt] == passed, minutes
    assert job(ledger, "long").attempt == 0


def lending(*, nodes: int = 4) -> Committed:
    queues = [Queue(name="org"), *(Queue(name=name, parent="org", quotas=(SIXTEEN,)) for name in ("a", "b"))]
    body = config_body(*queues, policy=Policy(backfill="reserve"))
    return Committed().begin(*(node_seen(f"node-{i}") for i in range(nodes)), body=body)


SIXTEEN = Quota(resource="gpu_milli", nominal=16_000)


def in_queue(key: str, queue: str, pods: int, hours: int) -> AnyFact:
    return admitted(key, spec(role(gpus=8, replicas=pods), queue=queue, time_limit_seconds=hours * HOUR))


def test_a_victim_comes_before_a_younger_job_of_its_line_that_was_kept_room_meanwhile() -> None:
    rounds = Rounds(share("research", 8, parent=None), backfill="reserve")
    rounds.submit("old", 8, time_limit_seconds=600)
    rounds.settle()
    rounds.submit("young", 8, time_limit_seconds=600)
    rounds.submit("long", 1, time_limit_seconds=900)
    rounds.submit("urgent", 1, priority="high", time_limit_seconds=60)
    rounds.settle()
    assert rounds.evicted() == [["old"]]
    rounds.finish("urgent")
    assert rounds.settle().running("old")


def test_an_owner_within_its_nominal_quota_closes_what_it_lacks_to_borrowers() -> None:
    ledger = lending()
    ledger.commit(*(in_queue(f"a-{i}", "a", 1, 5) for i in range(4)))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(in_queue("owner", "b", 2, 1), in_queue("borrower", "a", 1, 1))
    end(ledger, *ids("a-0"))
    reason = job(ledger, "borrower").reason
    assert reason is not None
    assert (reason.code, reason.detail) == (Code.WAITING_FOR_QUOTA, "an owner within its nominal quota waits for it")
    end(ledger, *ids("a-1"))
    assert (job(ledger, "owner").attempt, job(ledger, "borrower").attempt) == (1, 0)


def test_an_owner_that_no_end_can_help_closes_nothing() -> None:
    ledger = lending()
    ledger.commit(*(DrainRequested(kind="drain_requested", node=f"node-{i}") for i in (2, 3)))
    ledger.commit(in_queue("a-0", "a", 1, 5))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(admitted("owner", spec(role(gpus=8, replicas=2, gpu_models=("b200",)), queue="b")))
    ledger.commit(in_queue("a-1", "a", 1, 1))
    ledger.commit(orders=(ledger.line(),))
    assert job(ledger, "a-1").attempt == 1


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


def test_who_comes_behind_the_first_job_of_a_strict_queue_loses_its_kept_room_and_is_told_once() -> None:
    """Told both in each message, it would fill the ledger without end while nothing moves."""
    ledger = passed_within_a_strict_queue()
    assert (told(ledger, "first"), told(ledger, "kept")) == (Code.NO_FIT, Code.BEHIND_QUEUE_HEAD)
    assert [ledger.commit(ms=0).records for _ in range(3)] == [()] * 3
    assert ledger.commit(orders=(ledger.line(),)).records == ()
