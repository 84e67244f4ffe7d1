"""An array is one row in lists, with how far it is, and its screen names the tasks that failed and why."""

from typing import Any

import pytest

from tessera.client.commands.jobs import logs
from tessera.client.commands.shard.views import job_columns, job_facts
from tessera.client.connect.shard_views import ShardViews
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.arrays import SHOWN, array_lines, count_tasks, failed_lines, failed_tasks, phase_now
from tessera_schemas.reasons import PublicReason
from tessera_schemas.views import ArrayView, JobView
from tessera_schemas.work.arrays import task_id
from tests.unit.client.job_views import named
from tests.unit.client.listed import views_over

SWEEP = named("a", "queued", "sweep").model_copy(
    update={"array": ArrayView(tasks="0-99", count=100, running=3, waiting=5, succeeded=60, failed=30), "gpu_milli": 0}
)


def task(index: int, phase: str, **more: Any) -> JobView:
    its = {"job_id": task_id(SWEEP.job_id, index), "task_of": SWEEP.job_id, "task": index, **more}
    return named("a", phase, "sweep").model_copy(update=its)


TASKS = [task(index, "failed" if index < 30 else "running" if index < 33 else "succeeded") for index in range(93)]


@pytest.fixture
def views() -> ShardViews:
    return views_over(SWEEP, *reversed(TASKS), named("b", "running", "other"))


async def test_a_list_has_one_row_for_an_array_and_all_its_tasks_when_asked(views: ShardViews) -> None:
    assert [job.name for job in await views.all_work(tasks="false")] == ["sweep", "other"]
    assert len(await views.all_work()) == 95
    assert [job.name for job in await views.all_work(("running",), tasks="false")] == ["sweep", "other"]


def test_the_row_says_how_far_it_is_and_no_gpus_of_its_own() -> None:
    row = {column.title: column.value(SWEEP) for column in job_columns(1)}
    assert (row["PHASE"], row["GPUS"], row["PODS"]) == ("running", "-", "-")
    assert row["WHY"] == "3 running, 7 waiting, 60 succeeded, 30 failed"
    assert phase_now(SWEEP.model_copy(update={"phase": "failed"})) == "failed"
    facts = dict(job_facts(SWEEP, 1))
    assert "gpus" not in facts
    assert "pods" not in facts


async def test_failed_tasks_are_named_by_index_with_their_reasons(views: ShardViews) -> None:
    failed = await failed_tasks(views, SWEEP)
    assert [each.task for each in failed] == list(range(30))
    why = PublicReason(code="PodFailed", detail="a-7 on node-a: OOMKilled")
    lines = failed_lines(SWEEP, [task(7, "failed", reason=why, exit_code=137), *failed])
    assert lines[:2] == ["30 of 100 tasks failed:", f"  - task 7: exit code 137; {why.sentence()}"]
    assert len(lines) == 1 + SHOWN + 1
    assert lines[-1].startswith("  - and 10 more")
    assert array_lines(SWEEP, ())[0] == f"Of its 100 tasks: {count_tasks(SWEEP.array or ArrayView(tasks='', count=0))}."
    assert await failed_tasks(views, named("b", "running", "other")) == ()


async def test_the_log_of_a_task_is_found_by_its_index_and_an_array_has_none(
    monkeypatch: pytest.MonkeyPatch, views: ShardViews
) -> None:
    assert (await views.job("sweep_7")).task == 7
    monkeypatch.setattr(logs, "views_of", lambda *_: views)
    with pytest.raises(Failure, match="is an array; name a task, such as sweep_0") as told:
        await logs.until_started(Where("main"), None, "sweep", follow=True)
    assert told.value.code is Exit.USAGE
