"""Templates, launchers and checkpoints on real processes: from a name and two numbers to pods that find one another."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.kernel.ports import ApiError
from tessera_schemas.job import JobSpec
from tests.e2e.live import SMALL, Live, Said, configuration, eventually
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOBODY = "a" * 20
TUNE: dict[str, Any] = {
    "name": "tune",
    "description": "Learning rates",
    "parameters": [
        {"name": "lr", "type": "string", "default": "0.1"},
        {"name": "pods", "type": "int", "default": 1, "min": 1, "max": 4},
        {"name": "seconds", "type": "int"},
    ],
    "spec": {
        "name": "tune",
        "queue": "default",
        "launcher": "torchrun",
        "ttl_seconds_after_finished": 0,
        "roles": [
            {
                "name": "worker",
                "replicas": "{pods}",
                "resources": {"cpu_milli": 500, "memory_bytes": 2**30, "gpus": 1},
                "template": {
                    "image": "tune:1",
                    "args": ["--lr={lr}"],
                    "annotations": {"tessera.io/simulate-seconds": "{seconds}"},
                },
            }
        ],
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with Live.at(tmp_path_factory.mktemp("templates"), configuration(templates=(TUNE,)), layout=SMALL) as live:
        yield live


async def ok(live: Live, *words: str) -> Said:
    said = await live.command(*words, environment={"COLUMNS": "80"})
    assert said.code == 0, said
    return said


async def services(live: Live) -> list[str]:
    cluster = live.cluster()
    try:
        found, _ = await cluster.list("services")
    finally:
        await cluster.close()
    return sorted(service["metadata"]["name"] for service in found)


async def no_services(live: Live) -> bool:
    return await services(live) == []


async def test_the_templates_are_listed_with_what_their_parameters_may_be(live: Live) -> None:
    listed = (await ok(live, "templates")).out
    assert "lr=0.1 pods=1 seconds" in " ".join(listed.split())
    assert all(len(line) <= 80 for line in listed.splitlines())
    shown = [line.split() for line in (await ok(live, "templates", "tune")).out.splitlines()]
    assert ["pods", "int", "1", "1..4"] in shown
    assert (await live.command("templates", "nothing")).code == 3


async def test_a_template_is_submitted_held_released_runs_saves_its_work_and_ends(live: Live) -> None:
    words = ("submit", "--template", "tune", "-p", "pods=2", "-p", "seconds=600", "--as", "lab", "--key", "tune-1")
    job = (await ok(live, *words, "--name", "mine", "--hold", "-o", "json")).json["job_id"]
    live.acknowledged.append(("lab", "tune-1"))
    await live.until(lambda state: bool((j := state.jobs.get(job)) and j.held), "it is held")
    again = (await ok(live, *words, "--name", "mine", "-o", "json")).json["job_id"]
    assert again == job
    await live.until_shown()
    early = await live.command("checkpoint", job, "/data/0", "--as", "lab")
    assert (early.code, "NotRunning" in early.err) == (6, True), early
    await ok(live, "release", job)
    await live.until_phase(job, "running")
    assert await services(live) == [f"run-{job}-1"]
    await ok(live, "checkpoint", job, "/data/step-7", "--as", "lab")
    await live.until(lambda state: state.jobs.get(job).saved_path == "/data/step-7", "the checkpoint is known")
    assert (await ok(live, "cancel", job)).code == 0
    await live.until_ended(job)
    await eventually(lambda: no_services(live), "the services are gone")
    await assert_all_is_well(live)


async def test_what_a_template_does_not_take_is_refused_by_name(live: Live) -> None:
    for words, told in (
        (("--template", "tune", "-p", "pods=9", "-p", "seconds=1"), "parameters.pods"),
        (("--template", "tune"), "parameters.seconds"),
        (("--template", "none"), "NoSuchTemplate"),
        (("--template", "tune", "-p", "seconds=1", "--queue", "night"), "queue"),
    ):
        said = await live.command("submit", *words, "--as", "lab")
        assert (said.code, told in said.err) == (6, True), said
    both = await live.command("submit", "--template", "tune", "--gpus", "2", "--as", "lab")
    assert both.code == 2


@pytest.mark.parametrize("who", ["lab", "operator"])
async def test_a_job_that_is_nowhere_cannot_be_cancelled(live: Live, who: str) -> None:
    said = await live.command("cancel", NOBODY, "--as", who)
    assert (said.code, "there is none" in said.err) == (3, True), said


async def test_a_job_with_steps_runs_here_as_others_do_and_leaves_no_key(live: Live) -> None:
    template = {"image": "train:1", "command": ["train"], "annotations": {"tessera.io/simulate-seconds": "0.1"}}
    resources = {"cpu_milli": 500, "memory_bytes": 2**30, "gpus": 1}
    worker = {"name": "worker", "replicas": 2, "resources": resources, "template": template}
    spec = {
        "name": "steps",
        "queue": "default",
        "launcher": "steps",
        "roles": [worker],
        "ttl_seconds_after_finished": 0,
    }
    done = await live.submit(JobSpec.model_validate(spec))
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "succeeded"
    await eventually(lambda: no_services(live), "the service is gone")
    cluster = live.cluster()
    try:
        with pytest.raises(ApiError, match="404"):
            await cluster.get_object("v1", "Secret", "lab", f"run-{done.job_id}-1")
    finally:
        await cluster.close()


async def test_a_job_that_its_own_script_cancels_shows_its_steps_and_by_whom(live: Live) -> None:
    who, steps = "scancel by the script, in p0", '"steps": 1, "from": 1, "head": [["eval", 2, 0, 5, 9]]'
    word = f'tessera-steps/1 {{"ask": "cancel", "who": "{who}", {steps}}}'
    said = {"simulate-seconds": "0.1", "simulate-exit-code": "75", "simulate-message": word}
    notes = {f"tessera.io/{name}": value for name, value in said.items()}
    worker = {
        "name": "worker",
        "replicas": 1,
        "resources": {"cpu_milli": 500, "memory_bytes": 2**30, "gpus": 1},
        "template": {"image": "train:1", "command": ["train"], "annotations": notes},
    }
    spec = {"name": "asks", "queue": "default", "launcher": "steps", "roles": [worker]}
    done = await live.submit(JobSpec.model_validate(spec))
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "cancelled"
    columns = ("-n", "-P", "-o", "JobName,State,ExitCode,NTasks")
    shown = await live.command("sacct", "-j", done.job_id, *columns, "--as", "lab")
    assert shown.out.splitlines()[1:] == ["batch|CANCELLED|0:15|1", "eval|FAILED|9:0|2"], shown
    story = await live.command("explain", done.job_id, "--as", "lab")
    assert who in story.out, story
