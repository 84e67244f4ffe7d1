"""What a script says to its own job, from its pod's last word on a simulated node to what becomes of the job."""

import json
from typing import Any

import pytest

from tessera.domain.work.phases import Phase
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code
from tests.unit.binder.cluster_world import World, train

WORK = {"steps": 2, "from": 1_764_331_200, "head": [["python", 2, 0, 3, 0], ["eval", 1, 4, 1, 9]]}


def script(said: str, exit_code: int = 75, replicas: int = 1, **more: Any) -> JobSpec:
    """A job with steps whose first pod ends after five seconds and leaves that message."""
    spec: JobSpec = train(replicas=replicas, seconds=5, launcher="steps", **more)
    worker = spec.roles[0]
    notes = {"tessera.io/simulate-exit-code": str(exit_code), "tessera.io/simulate-message": said}
    left = {"command": ("train",), "annotations": worker.template.annotations | notes}
    template = worker.template.model_copy(update=left)
    return spec.model_copy(update={"roles": (worker.model_copy(update={"template": template}),)})


def word(**said: Any) -> str:
    return f"out of memory in layer 7\ntessera-steps/1 {json.dumps(said)}\n"


async def test_a_job_that_its_script_puts_back_in_line_begins_anew_and_spends_no_attempt() -> None:
    async with World(steps_image="steps:1") as world:
        job = await world.submit(spec=script(word(ask="requeue", who="scontrol requeue by the script, in a-0", **WORK)))
        await world.run(12)
        first = world.said("run_ended")[0]
        assert first.reason.code is Code.REQUEUED_BY_SCRIPT
        assert (first.steps.count, first.steps.steps[1].exit_code) == (2, 9)
        await world.run(30)
        assert world.job(job).attempt >= 3
        assert world.job(job).strikes == 0


async def test_a_job_that_its_script_cancels_is_cancelled() -> None:
    async with World(steps_image="steps:1") as world:
        job = await world.submit(spec=script(word(ask="cancel", who="scancel by the script, in a-0"), replicas=2))
        await world.run(12)
        assert world.state.ended.get(job).phase is Phase.CANCELLED
        assert world.state.ended.get(job).reason.code is Code.CANCELLED_BY_SCRIPT


@pytest.mark.parametrize("said", ["tessera-steps/1 {", "tessera-steps/9 {}", "tessera-steps/1 " + "9" * 5000])
async def test_a_word_that_is_not_in_form_is_told_with_the_end_and_changes_nothing_else(said: str) -> None:
    async with World(steps_image="steps:1") as world:
        job = await world.submit(spec=script(said, exit_code=0))
        await world.run(12)
        assert world.state.ended.get(job).phase is Phase.SUCCEEDED
        (fact,) = world.said("run_ended")
        assert fact.steps.unread


async def test_a_pod_without_a_runner_has_no_word() -> None:
    async with World(steps_image="steps:1") as world:
        plain = script(word(ask="cancel"), exit_code=0).model_copy(update={"launcher": "plain"})
        job = await world.submit(spec=plain)
        await world.run(12)
        assert world.state.ended.get(job).phase is Phase.SUCCEEDED
        assert world.said("run_ended")[0].steps is None
