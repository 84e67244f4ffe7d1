"""Quotes of pools in which the right answer can be told."""

import sys
from types import FrameType

from tessera.domain.runtimes import JobKind
from tessera.engine.quoting import LEVELS, Quote, quote
from tessera.engine.quoting.arrivals import PastArrivals
from tessera.engine.quoting.chance import quantile_of
from tessera.engine.quoting.future import NEVER_MS
from tessera.engine.quoting.lengths import KNOWN_ENDS, LearntLengths
from tessera.engine.quoting.outlook import Outlook
from tessera.engine.quoting.pool_now import PoolNow, QueueNow, pool_now
from tests.builders import admitted, config_body, job_spec, role
from tests.ledgers import Committed
from tests.unit.engine.quoting.pools import FREE, MINUTE, NOW, outlook, pool, running, shape, waiting

WHOLE = shape(8)


def quoted(now: PoolNow, name: str = "mine", **known: object) -> Quote:
    [found] = quote(outlook(now, **known), 7, [name])  # type: ignore[arg-type]
    return found


def learnt(minutes: int, name: str = "train", gpus: int = 8) -> LearntLengths:
    made = LearntLengths()
    for at in range(300):
        made.start(str(at), JobKind("lab", "research", name, gpus), at * minutes * MINUTE)
        made.end(str(at), (at + 1) * minutes * MINUTE)
    return made


def test_a_job_that_has_room_starts_at_once() -> None:
    assert set(quoted(pool(1, (), (waiting(WHOLE),))).waits_ms) == {0}
    assert set(quoted(pool(1, (), (waiting(WHOLE, "new"),)), "new").waits_ms) == {0}


def test_a_job_starts_when_the_run_before_it_ends_which_its_limit_bounds() -> None:
    found = quoted(pool(1, (running(WHOLE, 0),), (waiting(WHOLE),)))
    assert found.waits_ms[-1] <= 9 * MINUTE
    assert list(found.waits_ms) == sorted(found.waits_ms)


def test_runs_that_share_a_gpu_give_back_no_more_than_their_node_has() -> None:
    shares = tuple(running(shape(1), 0) for _ in range(3))
    now = pool(1, (running(shape(7), 0), *shares[:1]), (waiting(WHOLE), waiting(WHOLE, "behind")))
    shared = now._replace(runs=(*now.runs, *shares[1:]))
    assert 0 < quoted(shared).waits_ms[0] <= quoted(shared, "behind").waits_ms[0]


def test_the_median_follows_what_such_runs_took() -> None:
    now = pool(1, (running(shape(8, limit_ms=0), 0, since_ms=0),), (waiting(shape(8, limit_ms=0)),))
    assert 20 * MINUTE < quoted(now, lengths=learnt(30)).wait_at(500) < 50 * MINUTE


def test_who_is_behind_others_waits_for_them_and_a_higher_class_does_not() -> None:
    line = tuple(waiting(shape(8, limit_ms=0), f"before-{at}", MINUTE) for at in range(4))
    run = running(shape(8, limit_ms=0), 0, since_ms=0)
    behind = quoted(pool(1, (run,), (*line, waiting(shape(8, limit_ms=0)))), lengths=learnt(30))
    above = quoted(pool(1, (run,), (*line, waiting(shape(8, limit_ms=0, priority=1)))), lengths=learnt(30))
    assert behind.wait_at(500) > 100 * MINUTE
    assert above.wait_at(500) < 50 * MINUTE


def test_who_may_start_later_takes_its_place_by_age_from_then_on() -> None:
    unlimited = shape(8, limit_ms=0)
    held = waiting(unlimited, waited_ms=9 * MINUTE)._replace(not_before=NOW + MINUTE)
    younger = tuple(waiting(unlimited, f"younger-{at}", MINUTE) for at in range(3))
    run = running(unlimited, 0, since_ms=0)
    assert quoted(pool(1, (run,), (held, *younger)), lengths=learnt(30)).wait_at(500) < 50 * MINUTE


def test_one_set_of_futures_serves_all_who_wait_in_their_order() -> None:
    line = tuple(waiting(shape(8, limit_ms=0), f"job-{at}", (9 - at) * MINUTE) for at in range(4))
    found = quote(outlook(pool(1, (running(shape(8, limit_ms=0), 0),), line), learnt(30)), 7)
    medians = [each.wait_at(500) for each in found]
    assert [each.job_id for each in found] == [job.job_id for job in line]
    assert medians == sorted(set(medians))


def test_a_queue_at_its_quota_waits_though_nodes_are_free() -> None:
    bounded = {"research": QueueNow("age", False, 1, 8, 8)}
    found = quoted(pool(2, (running(WHOLE, 0),), (waiting(WHOLE),), queues=bounded))
    assert 0 < found.waits_ms[0] <= found.waits_ms[-1] <= 9 * MINUTE


def test_the_tenant_that_holds_less_goes_first() -> None:
    mine, other = shape(8, limit_ms=0, tenant="small"), shape(8, limit_ms=0)
    line = (*(waiting(other, f"before-{at}", MINUTE) for at in range(3)), waiting(mine))
    runs = (running(other, 0, since_ms=0), running(other, 1, since_ms=0))
    assert quoted(pool(2, runs, line), lengths=learnt(30)).wait_at(500) < 40 * MINUTE


def test_nobody_passes_the_first_of_a_strict_queue() -> None:
    line = (waiting(shape(16), "wide", MINUTE), waiting(WHOLE))
    strict = {"research": QueueNow("age", True, 1, FREE, FREE)}
    assert quoted(pool(2, (running(WHOLE, 0),), line, queues=strict)).waits_ms[0] > 0
    assert set(quoted(pool(2, (running(WHOLE, 0),), line)).waits_ms) == {0}


def test_who_would_outlast_the_room_that_is_kept_does_not_pass() -> None:
    wide = waiting(shape(16), "wide", MINUTE)
    long, short = shape(8, limit_ms=60 * MINUTE), shape(8, limit_ms=MINUTE)
    runs = (running(WHOLE, 0),)
    assert quoted(pool(2, runs, (wide, waiting(long)), depth=1)).waits_ms[0] > 0
    assert set(quoted(pool(2, runs, (wide, waiting(short)), depth=1)).waits_ms) == {0}


def test_shorter_jobs_that_come_pass_where_the_order_lets_them() -> None:
    past = PastArrivals(0)
    for at in range(NOW // (5 * MINUTE)):
        past.note(at * 5 * MINUTE, shape(8, limit_ms=4 * MINUTE, name="short"))
    job, run = waiting(shape(8, limit_ms=0)), running(shape(8, limit_ms=0), 0, since_ms=0)
    by = {order: {"research": QueueNow(order, False, 1, FREE, FREE)} for order in ("age", "expected")}
    by_age, by_length = (
        quoted(pool(1, (run,), (job,), queues=queues), lengths=learnt(30), arrivals=past) for queues in by.values()
    )
    assert by_length.wait_at(500) > by_age.wait_at(500)


def test_equal_seeds_give_equal_quotes_and_others_other_ones() -> None:
    now = pool(1, (running(shape(8, limit_ms=0), 0),), (waiting(shape(8, limit_ms=0)),))
    first, again, other = (quote(outlook(now, learnt(30)), seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_job_that_never_starts_is_told_no_less_than_was_looked_ahead() -> None:
    now = pool(1, (running(WHOLE, 0),), (waiting(shape(16)), waiting(WHOLE, "behind")))
    assert quoted(now).waits_ms[0] >= NEVER_MS


def test_quantiles_lie_between_their_neighbours() -> None:
    sample = list(range(0, 3200, 100))
    assert quantile_of(sample, 500) == 1550
    assert quantile_of(sample, 25) == 0
    assert quantile_of([7], 975) == 7


def test_a_state_gives_the_pool_with_its_free_gpus_its_runs_and_its_line() -> None:
    made = Committed().begin(body=config_body())
    made.commit(admitted("runs", job_spec(role(gpus=8), time_limit_seconds=600)))
    made.start(admitted("runs").job_id, "runs")
    made.commit(admitted("wide", job_spec(role(replicas=2, gpus=8))), admitted("cpu", job_spec(role(gpus=0))))
    found = pool_now(made.state, "default")
    assert sorted(node.free for node in found.nodes) == [0, 8]
    assert [(run.shape.gpus, run.shape.limit_ms) for run in found.runs] == [(8, 600_000)]
    assert [(job.job_id, job.shape.pieces) for job in found.waiting] == [(admitted("wide").job_id, ((8, 2),))]
    ahead = Outlook(found, made.state.runtimes, LearntLengths(), PastArrivals())
    [told] = quote(ahead, 1)
    assert 0 < told.wait_at(500) <= 600_000
    assert len(told.waits_ms) == len(LEVELS)


def test_room_that_is_kept_is_sought_at_nodes_that_changed_since_the_last_search() -> None:
    """Counted in calls: a future that seeks room for blocked jobs costs at most 3.5 times as much as one without."""

    def calls(depth: int) -> int:
        small, gang = shape(4, limit_ms=1000 * MINUTE), shape(64, name="gang", limit_ms=10 * MINUTE)
        runs = tuple(running(small, at // 2, since_ms=at * MINUTE) for at in range(400))
        jobs = (waiting(gang, "first", 60 * MINUTE), *(waiting(small, f"{at}") for at in range(40)))
        made = 0

        def note(frame: FrameType, event: str, value: object) -> None:
            nonlocal made
            made += 1

        seen = outlook(pool(200, runs, jobs, depth=depth))
        sys.setprofile(note)
        try:
            quote(seen, 1, futures=2)
        finally:
            sys.setprofile(None)
        return made

    assert calls(4) < 3.5 * calls(0)


def test_a_young_shard_says_that_runs_may_take_what_they_asked_for() -> None:
    hour = shape(8, limit_ms=60 * MINUTE)
    young = tuple(running(hour, node, since_ms=MINUTE // 6) for node in range(4))
    found = quoted(pool(4, young, (waiting(hour),)))
    assert found.wait_at(950) > 55 * MINUTE
    assert 5 * MINUTE < found.wait_at(500) < 60 * MINUTE


def test_runs_without_a_limit_are_not_taken_to_end_because_they_are_young() -> None:
    endless = shape(8, limit_ms=0)
    young = tuple(running(endless, node, since_ms=MINUTE // 6) for node in range(4))
    found = quoted(pool(4, young, (waiting(endless),)))
    assert found.wait_at(500) > 2 * MINUTE
    assert found.wait_at(950) > 15 * MINUTE


def test_a_guess_of_lengths_fades_with_the_ends_that_are_seen() -> None:
    hour = shape(8, limit_ms=60 * MINUTE)
    young = tuple(running(hour, node, since_ms=MINUTE // 6) for node in range(4))
    now, seen = pool(4, young, (waiting(hour),)), list[int]()
    for ends in (0, KNOWN_ENDS // 2, KNOWN_ENDS):
        made = LearntLengths()
        for at in range(ends):
            made.start(str(at), hour.kind, at * MINUTE)
            made.end(str(at), (at + 1) * MINUTE)
        seen.append(quoted(now, lengths=made).wait_at(500))
    assert 5 * MINUTE < seen[0] > seen[1] > seen[2] < MINUTE
