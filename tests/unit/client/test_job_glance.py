"""Lists of very many jobs: what a glance at a row says, and that only rows that are shown are decoded."""

import asyncio
from typing import Any

import pytest

from tessera.client.connect.job_glance import JobFilter, JobGlance
from tessera.client.connect.shard_views import ShardViews
from tessera.kernel.clock import SystemClock
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tessera.kernel.ports import Change
from tessera.projection.views import all_views
from tessera_schemas.reasons import PublicReason
from tessera_schemas.views import ArrayView, JobView
from tests.random_ledger import random_ledger

LETTERS = str.maketrans("0123456789", "abcdefghij")


def job(number: int, **more: Any) -> JobView:
    known = {"tenant": "lab", "queue": "q", "name": f"n{number}", "key": f"k{number}", "phase": "queued", "priority": 0}
    told = known | {"attempt": 0, "pods": 1, "gpu_milli": 1000, "submitted_ts": 1000 + number} | more
    return JobView(job_id=f"{number:03}".translate(LETTERS) + "z" * 17, **told)


async def views(*jobs: JobView) -> ShardViews:
    store = MemoryStore(MemoryViews(SystemClock()))
    view = {True: "refused", False: "jobs"}
    await store.apply(1, 1, [Change(view[job.phase == "refused"], job.job_id, job.to_bytes()) for job in jobs])
    return ShardViews(store)


@pytest.mark.parametrize("seed", range(6))
def test_a_glance_at_any_row_says_what_the_whole_row_says(seed: int) -> None:
    changes = all_views(random_ledger(seed).state)
    rows = [change.value or b"" for change in changes if change.view in ("jobs", "refused")]
    assert rows
    assert [JobGlance.read(row) for row in rows] == [JobGlance.of(JobView.from_bytes(row)) for row in rows]


@pytest.mark.parametrize(
    "odd",
    [
        job(1, key='a","phase":"running","x":"b\\'),
        job(1, reason=PublicReason(code="NoFit", detail='"held_pods":7,"held_gpu_milli":9')),
        job(1, phase="running", saved_path=',"held_pods":7,"held_gpu_milli":9'),
        job(1, phase="running", attempt=2, started_ts=7, held_pods=3, held_gpu_milli=24_000),
        job(1, phase="running", held_pods=3),
        job(1, priority=-5, not_before=99, reason=PublicReason(code="SomethingNew")),
        job(1, name='of "another" build'),
        job(1, name=',"task_of":"aaaa"', task_of="b" * 20, task=3),
        job(1, name='"array":{', array=ArrayView(tasks="0-9", count=10, running=2)),
        job(1, phase="succeeded", array=ArrayView(tasks="0-9", count=10, succeeded=10)),
    ],
    ids=lambda view: view.key + view.name,
)
def test_texts_that_look_like_fields_mislead_no_glance(odd: JobView) -> None:
    assert JobGlance.read(odd.to_bytes()) == JobGlance.of(odd)


async def test_a_list_shows_the_oldest_live_jobs_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job(number, phase="succeeded" if number < 3 else "queued") for number in range(50)]
    refused = job(60, phase="refused", submitted_ts=1)
    found = await views(*reversed(jobs), refused)
    decoded: list[bytes] = []
    monkeypatch.setattr(JobView, "from_bytes", lambda row: decoded.append(row) or JobView.model_validate_json(row))
    shown, count = await found.list_work(JobFilter(), 5)
    assert (shown, count, len(decoded)) == (jobs[3:8], 51, 5)
    assert (await found.list_work(JobFilter(phases=frozenset({"refused"})), 5)) == ([refused], 1)
    assert (await found.list_work(JobFilter(queue="q", tenant="other"))) == ([], 0)
    assert (await found.list_work(JobFilter()))[0] == [*jobs[3:], refused, *jobs[:3]]


@pytest.mark.parametrize("named", ["n1", job(1).job_id, job(1).job_id[:8]], ids=["name", "id", "beginning"])
async def test_a_job_that_was_just_acknowledged_is_found_once_the_views_have_it(named: str) -> None:
    found = await views(job(0))
    looks = [asyncio.create_task(look(named)) for look in (found.job, found.work, found.live_job)]
    await SystemClock().sleep(0.02)
    await found.store.apply(2, 2, [Change("jobs", job(1).job_id, job(1).to_bytes())])
    assert await asyncio.gather(*looks) == [job(1)] * 3


async def test_a_job_is_found_by_name_or_beginning_without_decoding_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job(number) for number in range(50)]
    found = await views(*jobs)
    decoded: list[bytes] = []
    monkeypatch.setattr(JobView, "from_bytes", lambda row: decoded.append(row) or JobView.model_validate_json(row))
    assert await found.work("n17") == jobs[17]
    assert await found.job(jobs[23].job_id[:4]) == jobs[23]
    assert len(decoded) == 2
