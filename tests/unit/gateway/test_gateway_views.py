"""Redis is read once for all who ask at the same moment, and only what changed is decoded again."""

import asyncio

import pytest

from tessera.gateway.entrance.problems import Refusal
from tessera.gateway.reading import views as reading_views
from tessera.gateway.reading.views import JobList, Rows, SharedViews
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tessera.kernel.ports import Change
from tessera_schemas.views import JobView
from tests.unit.gateway.gateway_world import Away
from tests.virtual_time import VirtualClock


def view(job: str, tenant: str = "lab", ts: int = 1, phase: str = "queued") -> JobView:
    return JobView(
        job_id=job,
        tenant=tenant,
        queue="research",
        name="train",
        key=job,
        phase=phase,
        priority=0,
        attempt=0,
        pods=1,
        gpu_milli=0,
        submitted_ts=ts,
    )


class Shelf:
    """Views in memory, and a count of what was asked."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.shared, self.faults = MemoryViews(self.clock), Away()
        self.asked: list[str] = []
        before = self.faults.before

        async def counted(op: str, subject: str = "") -> None:
            self.asked.append(op)
            await before(op, subject)

        self.faults.before = counted  # type: ignore[method-assign]
        self.store = MemoryStore(self.shared, self.faults)

    async def hold(self, n: int, *jobs: JobView) -> None:
        await MemoryStore(self.shared).replace(n, [Change("jobs", job.job_id, job.to_bytes()) for job in jobs])


async def ids(jobs: JobList, tenant: str | None = None) -> list[str]:
    await jobs.fresh()
    return [job.job_id for job in jobs.after(tenant, None)]


async def test_a_list_follows_what_comes_changes_and_goes_newest_first() -> None:
    shelf = Shelf()
    jobs = JobList(shelf.store, shelf.clock, 0)
    await shelf.hold(1, view("a", ts=1), view("b", "ops", ts=2))
    assert await ids(jobs) == ["b", "a"]
    await shelf.hold(2, view("a", ts=1, phase="running"), view("c", ts=1), view("d", "ops", ts=3))
    assert await ids(jobs) == ["d", "a", "c"]
    assert [job.phase for job in jobs.after("lab", None)] == ["running", "queued"]
    assert await ids(jobs, "ops") == ["d"]
    assert await ids(jobs, "nobody") == []


async def test_whoever_asks_at_the_same_moment_shares_one_reading() -> None:
    shelf = Shelf()
    await shelf.hold(1, view("a"))
    rows = Rows("jobs", JobView, shelf.store, shelf.clock, 60)
    await asyncio.gather(*(rows.fresh() for _ in range(50)))
    await rows.fresh()
    assert shelf.asked == ["cursor", "get"]


async def test_views_that_did_not_move_are_not_read_again() -> None:
    shelf = Shelf()
    await shelf.hold(1, view("a"))
    rows = Rows("jobs", JobView, shelf.store, shelf.clock, 0)
    for _ in range(3):
        await rows.fresh()
    assert shelf.asked.count("get") == 1


async def test_one_who_gives_up_does_not_end_the_reading_of_the_others() -> None:
    shelf = Shelf()
    await shelf.hold(1, view("a"))
    rows = Rows("jobs", JobView, shelf.store, shelf.clock, 0)
    shelf.faults.go_away(None)
    first, second = asyncio.create_task(rows.fresh()), asyncio.create_task(rows.fresh())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    shelf.faults.come_back()
    await second
    assert list(rows.rows) == ["a"]


async def test_a_reading_that_fails_is_a_refusal_and_the_next_one_is_tried() -> None:
    shelf = Shelf()
    await shelf.hold(1, view("a"))
    views = SharedViews(shelf.store, shelf.clock, 1, 0)
    shelf.faults.go_away(Transient("Redis: away"))
    with pytest.raises(Refusal) as caught:
        await views.jobs()
    assert (caught.value.status, caught.value.retry_after) == (503, 1)
    shelf.faults.come_back()
    n, jobs = await views.jobs()
    assert (n, [job.job_id for job in jobs.after(None, None)]) == (1, ["a"])


@pytest.mark.parametrize(("took", "again"), [(0.2, False), (0.009, True)])
async def test_views_that_take_long_to_read_are_read_less_often_whoever_asks(
    monkeypatch: pytest.MonkeyPatch, took: float, again: bool
) -> None:
    """A tenant that asks without end for lists of a large shard would have them read without end, uncharged."""
    shelf, spent = Shelf(), 0.0
    loads = JobView.from_bytes

    def slow(data: bytes) -> JobView:
        nonlocal spent
        spent += took
        return loads(data)

    monkeypatch.setattr(reading_views, "thread_seconds", lambda: spent)
    monkeypatch.setattr(JobView, "from_bytes", slow)
    clock = VirtualClock()
    await shelf.hold(1, view("a"))
    jobs = JobList(shelf.store, clock, 0)
    assert await ids(jobs) == ["a"]
    await shelf.hold(2, view("b"))
    clock.pause(0.99)
    assert await ids(jobs) == (["b"] if again else ["a"])
    clock.pause(0.02)
    assert await ids(jobs) == ["b"]
