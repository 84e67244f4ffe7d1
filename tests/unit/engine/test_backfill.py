"""Earmarks for the blocked jobs that are due, and backfill around them, told on small rooms."""

from tessera.engine.queueing.backfill import Candidate, Pass, backfill
from tessera.engine.queueing.node_timeline import RoomAhead


def room(*sizes: int, running: tuple[tuple[str, int, int], ...] = ()) -> RoomAhead:
    """A room at time 0 with what runs in it: (job, GPUs, end)."""
    made = RoomAhead(sizes)
    made.begin(0, lambda job, now: now + 1)
    for job, gpus, end in running:
        assert made.start(Candidate(job, gpus, end))
    return made


def due(job: str, gpus: int, until: int = 10_000, closes: bool = False) -> Candidate:
    return Candidate(job, gpus, until, due=True, closes=closes)


def test_all_that_fits_starts_in_the_order_of_the_line() -> None:
    line = [Candidate("a", 2, 50), Candidate("b", 4, 50), Candidate("c", 2, 50)]
    assert backfill(line, room(8), depth=1) == Pass(("a", "b", "c"), ())


def test_a_job_that_ends_in_time_overtakes_the_earmarked_head_and_a_longer_one_waits() -> None:
    line = [due("head", 6), Candidate("long", 4, 101), Candidate("short", 4, 100)]
    assert backfill(line, room(8, running=(("r", 4, 100),)), depth=1) == Pass(("short",), (("head", 100),))


def test_a_longer_job_overtakes_on_gpus_that_the_head_will_leave() -> None:
    line = [due("head", 6), Candidate("small", 2, 10_000)]
    assert backfill(line, room(8, running=(("r", 4, 100),)), depth=1) == Pass(("small",), (("head", 100),))


def test_a_job_on_another_node_delays_nobody() -> None:
    held = room(8, 8, running=(("r", 8, 100), ("s", 6, 500)))
    assert backfill([due("head", 8), Candidate("b", 2, 9_000)], held, depth=1) == Pass(("b",), (("head", 100),))


def test_a_job_that_is_not_due_keeps_no_room() -> None:
    line = [Candidate("big", 8, 900), Candidate("long", 4, 10_000)]
    assert backfill(line, room(8, running=(("r", 4, 100),)), depth=1) == Pass(("long",), ())


def test_room_is_kept_for_no_more_jobs_than_the_depth_says() -> None:
    held = room(8, 8, running=(("r", 8, 100), ("s", 8, 200)))
    line = [due("a", 8), due("b", 8), due("c", 8)]
    assert backfill(line, held, depth=2).earmarked == (("a", 100), ("b", 200))


def test_behind_a_job_that_closes_the_line_nobody_starts_however_short() -> None:
    line = [due("head", 8, closes=True), Candidate("short", 1, 1)]
    assert backfill(line, room(8, running=(("r", 4, 100),)), depth=1) == Pass((), (("head", 100),))


def test_a_job_that_no_end_makes_room_for_holds_up_nobody() -> None:
    line = [due("never", 9, closes=True), Candidate("b", 8, 10)]
    assert backfill(line, room(8), depth=1) == Pass(("b",), ())


def test_a_gang_larger_than_a_node_waits_for_whole_nodes_and_may_share_its_last_one() -> None:
    held = room(8, 8, 8, running=(("r", 8, 300), ("s", 1, 200)))
    assert backfill([due("gang", 20)], held, depth=1) == Pass((), (("gang", 300),))
    assert backfill([due("gang", 12), Candidate("rest", 4, 50)], room(8, 8), depth=1).started == ("gang", "rest")


def test_several_earmarks_on_one_pool_add_up() -> None:
    held = room(16, running=(("r", 8, 100), ("s", 8, 200)))
    assert backfill([due("a", 6), due("b", 6)], held, depth=2).earmarked == (("a", 100), ("b", 200))


def test_jobs_that_end_late_come_to_lie_together() -> None:
    held = room(8, 8, running=(("long", 4, 10_000),))
    held.start(Candidate("fills", 4, 10_000))
    held.release("fills")
    assert held.start(Candidate("short", 4, 50))
    assert [bay.free for bay in held.bays] == [0, 8]
    assert held.start(Candidate("other", 5, 60))
    assert held.start(Candidate("late", 1, 50_000))
    assert [bay.free for bay in held.bays] == [0, 2]


def test_an_end_that_has_passed_is_revised_before_the_next_pass() -> None:
    held = room(8, running=(("r", 8, 100),))
    held.begin(150, lambda job, now: 400)
    assert backfill([due("head", 8)], held, depth=1).earmarked == (("head", 400),)


def test_a_job_passes_two_earmarks_on_its_node_only_if_both_get_their_gpus() -> None:
    held = room(16, running=(("r", 10, 100),))
    line = [due("a", 8), due("b", 8), Candidate("long", 1, 300), Candidate("short", 6, 100)]
    assert backfill(line, held, depth=2) == Pass(("short",), (("a", 100), ("b", 100)))
