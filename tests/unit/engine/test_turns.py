"""Who comes first: the least expected GPU time, but the oldest of those that waited long; and nobody starves."""

from tessera.domain.table import Table
from tessera.engine.queueing.backfill import backfill
from tessera.engine.queueing.durations import JobKind, Sketch, learn
from tessera.engine.queueing.expected_order import ExpectedOrderPolicy, Lanes, WaitingJob, runtime
from tessera.engine.queueing.node_timeline import RoomAhead

HOUR = 3_600_000
SHORT, LONG, BIG = JobKind("t", "q", "short", 1), JobKind("t", "q", "long", 1), JobKind("t", "q", "big", 8)
POLICY = ExpectedOrderPolicy(patience_ms=10 * HOUR, closing_ms=40 * HOUR, depth=1)


def learnt() -> Table[Sketch]:
    rows: Table[Sketch] = Table()
    for ts in range(20):
        learn(rows, SHORT, HOUR // 10, ts)
        learn(rows, LONG, 30 * HOUR, ts)
        learn(rows, BIG, HOUR, ts)
    return rows


def names(waiting: list[WaitingJob], now_ms: int, policy: ExpectedOrderPolicy = POLICY) -> list[str]:
    lanes = Lanes(policy, learnt())
    for job in waiting:
        lanes.add(job)
    return [candidate.job_id for candidate in lanes.in_order(now_ms, set())]


def test_the_least_expected_gpu_time_goes_first_and_equal_ones_by_age_then_id() -> None:
    line = [WaitingJob("c", LONG, 0), WaitingJob("b", BIG, 0), WaitingJob("z", SHORT, 0), WaitingJob("a", SHORT, 1)]
    line.append(WaitingJob("y", SHORT, 1))
    assert names(line, HOUR) == ["z", "a", "y", "b", "c"]


def test_who_has_waited_out_the_patience_goes_before_all_others_the_oldest_first() -> None:
    line = [WaitingJob("long", LONG, 5), WaitingJob("big", BIG, 3), WaitingJob("new", SHORT, 9 * HOUR)]
    assert names(line, 5 + POLICY.patience_ms) == ["big", "long", "new"]
    assert names(line, 4 + POLICY.patience_ms) == ["big", "new", "long"]


def test_a_time_limit_is_believed_where_it_is_shorter_than_what_was_learnt() -> None:
    line = [WaitingJob("learnt", SHORT, 0), WaitingJob("limited", LONG, 0, limit_ms=HOUR // 100)]
    assert names(line, 0) == ["limited", "learnt"]


def test_a_time_limit_bounds_the_runtime_and_one_that_has_passed_is_about_to_be_enforced() -> None:
    assert runtime(learnt(), LONG, 2 * HOUR, POLICY) == 2 * HOUR
    assert runtime(learnt(), LONG, 2 * HOUR, POLICY, elapsed_ms=3 * HOUR) == 3 * HOUR + 1


def test_a_kind_that_is_closed_yields_only_those_that_are_due() -> None:
    lanes = Lanes(POLICY, learnt())
    for job in (WaitingJob("due", BIG, 0), WaitingJob("later", BIG, HOUR), WaitingJob("last", LONG, HOUR)):
        lanes.add(job)
    now, closed, seen = POLICY.patience_ms, set(), []
    for candidate in lanes.in_order(now, closed):
        seen.append((candidate.job_id, candidate.due))
        closed.add(candidate.alike)
    assert seen == [("due", True), ("last", False)]


def test_what_ended_changes_the_order_of_those_that_wait() -> None:
    lanes = Lanes(POLICY, learnt())
    for job in (WaitingJob("l", LONG, 0), WaitingJob("s", SHORT, 0)):
        lanes.add(job)
    assert [c.job_id for c in lanes.in_order(0, set())] == ["s", "l"]
    for ts in range(200):
        lanes.learn(SHORT, 90 * HOUR, 100 + ts)
    assert [c.job_id for c in lanes.in_order(0, set())] == ["l", "s"]


def test_an_endless_stream_of_small_jobs_with_wrong_forecasts_cannot_starve_a_gang() -> None:
    """Each small job is taken to end at once and runs for three hours; one arrives every half hour on a full node."""
    policy = ExpectedOrderPolicy(patience_ms=2 * HOUR, closing_ms=6 * HOUR, depth=1)
    rows: Table[Sketch] = Table()
    for ts in range(20):
        learn(rows, SHORT, 1, ts)
    lanes, room, ends, start = Lanes(policy, rows), RoomAhead([8]), {}, None
    waiting = {"big": WaitingJob("big", BIG, 0)}
    lanes.add(waiting["big"])
    for step in range(200):
        now = step * HOUR // 2
        for name in [name for name, end in ends.items() if end <= now]:
            room.release(name)
            del ends[name]
        small = WaitingJob(f"s{step:03d}", SHORT, now - HOUR if step == 0 else now)
        if step == 0:  # it holds a GPU when the gang arrives
            lanes.remove(waiting.pop("big"))
            lanes.add(small)
        else:
            lanes.add(small)
        waiting[small.job_id] = small
        room.begin(now, lambda job, at: at + 1)
        done = backfill(lanes.in_order(now, set()), room, policy.depth)
        for name in done.started:
            lanes.remove(waiting.pop(name))
            ends[name] = now + 3 * HOUR
        if "big" in done.started:
            start = now
            break
        if step == 0:
            waiting["big"] = WaitingJob("big", BIG, 0)
            lanes.add(waiting["big"])
    assert start is not None
    assert start <= policy.closing_ms + 3 * HOUR
