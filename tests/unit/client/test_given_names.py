"""Names of jobs as people give them: kept, shown, and found again."""

from typing import Any

import pytest
from pydantic import ValidationError

from tessera.client.connect.shard_views import is_whole_id
from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.listing import fields
from tessera_schemas.job import JobSpec
from tessera_schemas.views import ArrayView, JobView
from tessera_schemas.work.arrays import task_id
from tests.builders import job_spec
from tests.unit.client.listed import views_over
from tests.unit.client.slurm_builders import job

NAMES = [
    "my_train",
    "XGBoost",
    "train.sh",
    "訓練",
    "a b",
    'says "hi" \\ $$',
    "t",
    "exp=0.1,lr/2",
    "MyTrainingRunNumber1",
]


def view(name: str, letter: str = "a", phase: str = "running", **more: Any) -> JobView:
    base = {"job_id": letter * 20, "tenant": "lab", "queue": "q", "key": "k", "priority": 0, "attempt": 1, "pods": 1}
    return JobView.model_validate({**base, "name": name, "phase": phase, "gpu_milli": 0, "submitted_ts": 1, **more})


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_is_kept_as_it_is_given_and_found_by_it(name: str) -> None:
    assert JobSpec.model_validate({**job_spec().model_dump(), "name": name}).name == name
    shown, other = view(name), view("other", "b")
    found = views_over(shown, other)
    assert await found.job(name) == await found.live_job(name) == await found.work(name) == shown
    assert fields.select([shown, other], name=name) == [shown]
    assert fields.FIELDS["JobName"](shown, 0) == name


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "\x1b[31m", "a\u202eb", "x" * 201])
def test_a_name_that_no_screen_can_show_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({**job_spec().model_dump(), "name": name})


def test_a_script_without_a_name_has_its_files_as_slurm_has_it() -> None:
    assert job().name == "train.sh"
    assert job("-J my_train").name == job("-J my_train").roles[0].template.env["SLURM_JOB_NAME"] == "my_train"


async def test_a_name_that_looks_like_a_tasks_means_the_job_that_has_it() -> None:
    found = views_over(view("my_7"), view("my", "b"))
    assert (await found.live_job("my_7")).name == "my_7"
    with pytest.raises(Failure, match="none with this id or name"):
        await found.job("his_7")
    with pytest.raises(Failure, match="has no such task"):
        await found.job("my_8")


async def test_a_name_that_is_a_tasks_too_is_not_guessed() -> None:
    array = view("sweep", "c", array=ArrayView(tasks="0-9", count=10))
    task = view("sweep", task_of="c" * 20, task=7).model_copy(update={"job_id": task_id("c" * 20, 7)})
    assert await views_over(array, task).job("sweep_7") == task
    with pytest.raises(Failure, match="the name of a job and of a task") as raised:
        await views_over(array, task, view("sweep_7")).live_job("sweep_7")
    assert raised.value.code is Exit.USAGE


async def test_a_task_that_is_not_queued_yet_can_be_waited_for_and_one_outside_of_its_array_cannot() -> None:
    found = views_over(view("sweep", "c", array=ArrayView(tasks="0-9:3", count=4)), view("his_9", "d"))
    for named in ("sweep_9", f"{'c' * 20}_9", "cccc_9"):
        assert await found.id_to_wait_for(named) == task_id("c" * 20, 9)
        with pytest.raises(Failure, match="not queued yet"):
            await found.work(named)
    assert await found.id_to_wait_for("his_9") == "d" * 20
    with pytest.raises(Failure, match="job sweep_8: sweep has no such task"):
        await found.id_to_wait_for("sweep_8")


def test_a_name_of_twenty_letters_is_no_id() -> None:
    assert is_whole_id("a2" * 10)
    assert not is_whole_id("MyTrainingRunNumber1")
