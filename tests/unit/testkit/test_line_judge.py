"""The judge of the line on schedules made by hand: right ones pass, and each wrong one is found for what it is."""

from collections.abc import Sequence

import orjson

from tessera.testkit.line_judge import (
    AskedJob,
    LineVerdict,
    Schedule,
    SeenRun,
    WholeGpus,
    easy_starts,
    judge,
    read_schedule,
    sum_up,
)

S = 1000
H100, A100 = frozenset({"H100"}), frozenset({"A100"})
Lived = tuple[str, int, int, tuple[str, ...]]
"""A run's job, from when to when in seconds, and its nodes."""


def job(
    name: str, at: int, gpus: int, limit: int, pods: int = 1, value: int = 0, of: frozenset[str] = H100
) -> AskedJob:
    return AskedJob(name, at * S, pods, gpus, limit * S, value, of)


def judged(jobs: Sequence[AskedJob], lived: Sequence[Lived], models: Sequence[str] = ("H100",)) -> LineVerdict:
    nodes = tuple(WholeGpus(f"n{at}", 8, model) for at, model in enumerate(models))
    runs = [SeenRun(name, begin * S, on, end * S) for name, begin, end, on in lived]
    return judge(Schedule(nodes, {each.name: each for each in jobs}, runs))


RUNS = job("runs", 0, 6, 100)
HEAD = job("head", 5, 8, 50)


def test_short_work_beside_a_blocked_head_is_right() -> None:
    lived = [("runs", 0, 100, ("n0",)), ("short", 10, 50, ("n0",)), ("head", 100, 150, ("n0",))]
    found = judged([RUNS, HEAD, job("short", 10, 2, 50)], lived)
    assert (found.delays, found.idle, found.dearer, found.unfinished) == ([], [], [], [])
    assert sum_up([found]).mean_wait == 1.0


def test_a_start_that_puts_the_first_blocked_job_off_is_found_and_named() -> None:
    lived = [("runs", 0, 100, ("n0",)), ("long", 10, 200, ("n0",)), ("head", 200, 250, ("n0",))]
    found = judged([RUNS, HEAD, job("long", 10, 2, 190)], lived)
    assert found.delays == ["long (1 x 2) began at 10.0 s and put head (1 x 8) off from 100.0 to 200.0 s"]
    assert (1, 195 * S, 95 * S) in found.waits


def test_a_start_a_moment_too_long_is_within_the_time_that_starts_and_ends_take() -> None:
    lived = [("runs", 0, 100, ("n0",)), ("near", 10, 102, ("n0",)), ("head", 102, 150, ("n0",))]
    assert judged([RUNS, HEAD, job("near", 10, 2, 92)], lived).delays == []
    late = [("runs", 0, 100, ("n0",)), ("near", 10, 103, ("n0",)), ("head", 103, 150, ("n0",))]
    assert len(judged([RUNS, HEAD, job("near", 10, 2, 93)], late).delays) == 1


def test_what_was_taken_for_longer_by_its_limit_delays_though_it_ended_sooner() -> None:
    """Nobody could know that it would."""
    lived = [("runs", 0, 100, ("n0",)), ("lucky", 10, 20, ("n0",)), ("head", 100, 150, ("n0",))]
    assert len(judged([RUNS, HEAD, job("lucky", 10, 2, 500)], lived).delays) == 1


def test_a_start_on_nodes_that_the_blocked_job_cannot_use_delays_nobody() -> None:
    lived = [("runs", 0, 100, ("n0",)), ("other", 10, 300, ("n1",)), ("head", 100, 150, ("n0",))]
    assert judged([RUNS, HEAD, job("other", 10, 2, 290, of=A100)], lived, ("H100", "A100")).delays == []


def test_who_had_room_and_was_passed_is_delayed_as_well() -> None:
    lived = [("late", 10, 60, ("n0",)), ("first", 60, 110, ("n0",))]
    found = judged([job("first", 1, 8, 50), job("late", 5, 8, 50)], lived)
    assert len(found.delays) == 1
    assert found.idle_gpu_ms > 0


def test_a_higher_class_goes_before_an_older_job() -> None:
    lived = [("runs", 0, 100, ("n0",)), ("high", 100, 150, ("n0",)), ("head", 150, 200, ("n0",))]
    assert judged([RUNS, HEAD, job("high", 10, 8, 50, value=100)], lived).delays == []


def test_a_gpu_that_a_waiting_job_could_use_stands_idle_in_seconds_beyond_a_decision() -> None:
    lived = [("runs", 0, 100, ("n0",)), ("head", 100, 150, ("n0",)), ("short", 150, 160, ("n0",))]
    found = judged([RUNS, HEAD, job("short", 10, 2, 20)], lived)
    # In line at 10 s, decided for by 12, late from 14 s on, until the head's room would be in danger: 100 - 14.
    assert found.idle_gpu_ms == 86 * 2 * S


def test_what_stands_free_for_a_head_is_not_idle() -> None:
    lived = [("runs", 0, 100, ("n0",)), ("head", 100, 150, ("n0",)), ("long", 150, 350, ("n0",))]
    assert judged([RUNS, HEAD, job("long", 10, 2, 200)], lived).idle == []


def test_a_head_that_can_have_other_nodes_at_the_same_time_keeps_none_idle() -> None:
    """Two nodes end at once, a third is free: the head of two nodes needs those two alone."""
    wide, head = job("wide", 0, 8, 100, pods=2), job("head", 5, 8, 50, pods=2)
    lived = [("wide", 0, 100, ("n0", "n1")), ("head", 100, 150, ("n0", "n1")), ("long", 100, 300, ("n2",))]
    found = judged([wide, head, job("long", 10, 4, 200)], lived, ("H100",) * 3)
    assert found.idle_gpu_ms == 86 * 4 * S


def evicting(victim: str, gpus: int = 1) -> LineVerdict:
    """A node of a dear run of 6 GPUs and a cheap one of 2; a job of a higher class has one of them stopped."""
    dear, cheap = job("dear", 0, 6, 900, value=-100), job("cheap", 0, 2, 900, value=-100)
    urgent = job("urgent", 100, gpus, 50, value=100)
    runs = [
        SeenRun("dear", 0, ("n0",), 900 * S),
        SeenRun("cheap", 0, ("n0",), 900 * S),
        SeenRun("urgent", 101 * S, ("n0",), 140 * S),
        SeenRun(victim, 140 * S, ("n0",), 1000 * S),
    ]
    (stopped,) = [run for run in runs[:2] if run.job == victim]
    stopped.ended_ms, stopped.stopped_ms, stopped.by, stopped.why = 101 * S, 100 * S, "urgent", "Preempted"
    jobs = {each.name: each for each in (dear, cheap, urgent)}
    return judge(Schedule((WholeGpus("n0", 8, "H100"),), jobs, runs))


def test_an_eviction_that_costs_more_than_another_that_would_do_is_found() -> None:
    assert evicting("cheap").dearer == []
    assert evicting("dear").dearer == ["dear stopped for urgent at 100.0 s; cheap would do"]
    assert evicting("dear", gpus=3).dearer == []


def test_easy_passes_with_true_ends_and_keeps_the_heads_room() -> None:
    jobs = [RUNS, HEAD, job("short", 10, 2, 500), job("long", 11, 2, 500)]
    schedule = Schedule((WholeGpus("n0", 8, "H100"),), {each.name: each for each in jobs})
    lengths = {"runs": 60 * S, "head": 10 * S, "short": 50 * S, "long": 51 * S}
    assert easy_starts(schedule, lengths) == {"runs": 0, "short": 10 * S, "head": 60 * S, "long": 70 * S}


def test_the_public_events_tell_the_schedule() -> None:
    def event(seconds: int, kind: str, **more: object) -> bytes:
        told = {"specversion": "1.0", "id": "1.0", "source": "/tessera/main", "subject": "id-1", "tenant": "lab"}
        told |= {"time": f"2026-01-01T00:00:{seconds:02}.000Z", "type": f"io.tessera.job.{kind}.v1", "sequence": "1"}
        return orjson.dumps({**told, "dataschema": "x", "data": {"job_id": "id-1", "queue": "q", **more}})

    places = {"placements": [{"node": "n0", "rank": 0}, {"node": "n1", "rank": 1}]}
    stored = [
        event(1, "admitted", key="k"),
        event(2, "allocated", attempt=1, **places),
        event(3, "running", attempt=1),
        event(5, "evicting", attempt=1, reason={"code": "Preempted"}, by="id-2"),
        event(6, "released", attempt=1),
        event(6, "requeued", attempt=1, not_before=0, reason={"code": "Preempted"}),
        event(8, "allocated", attempt=2, **places),
        event(9, "released", attempt=2),
    ]
    asked = {"id-1": job("a", 0, 8, 50, pods=2), "id-2": job("b", 0, 1, 50)}
    found = read_schedule((WholeGpus("n0", 8), WholeGpus("n1", 8)), asked, stored, begin_ms=1_767_225_600_000)
    assert found.jobs["a"].at_ms == 1 * S
    first, second = found.runs
    assert first == SeenRun("a", 2 * S, ("n0", "n1"), 6 * S, 5 * S, "b", "Preempted", 6 * S)
    assert second == SeenRun("a", 8 * S, ("n0", "n1"), 9 * S)
