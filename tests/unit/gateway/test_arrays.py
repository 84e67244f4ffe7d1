"""Arrays over HTTP: one row in a list, and their tasks by index."""

from tessera_schemas.facts import PodsMade, RunAbsent, RunEnded, RunStarted
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.arrays import JobArray, task_id
from tests.builders import admitted, job_spec, role
from tests.unit.gateway.gateway_world import World

SWEEP = admitted("k1", job_spec(role(gpus=1), name="sweep", array=JobArray(tasks="3-8"), retry={"max_attempts": 1}))
OTHER = admitted("k2", job_spec(role(gpus=1), name="other"))


async def run(world: World) -> None:
    """Starts three tasks of which the second fails."""
    await world.commit(SWEEP, OTHER)
    for _ in range(2):  # tasks are queued, then placed
        await world.commit(orders=(world.committed.line(),))
    for index in (3, 4, 5):
        run = f"{task_id(SWEEP.job_id, index)}-1"
        await world.commit(PodsMade(kind="pods_made", run_id=run, uids=(f"uid-{index}",)))
        await world.commit(RunStarted(kind="run_started", run_id=run))
    run, why = f"{task_id(SWEEP.job_id, 4)}-1", Reason(code=Code.POD_FAILED)
    await world.commit(RunEnded(kind="run_ended", run_id=run, reason=why, own=True, exit_code=3))
    await world.commit(RunAbsent(kind="run_absent", run_id=run))


async def test_a_list_without_tasks_has_the_array_alone_also_as_running(world: World) -> None:
    await run(world)
    token = world.token("lab")
    async with world.gateway():
        rows = (await world.ask("GET", "/v1/jobs?tasks=false", token)).body["items"]
        running = (await world.ask("GET", "/v1/jobs?tasks=false&phase=running", token)).body["items"]
        every = (await world.ask("GET", "/v1/jobs", token)).body["items"]
    assert sorted(row["name"] for row in rows) == ["other", "sweep"]
    assert "sweep" in [row["name"] for row in running]
    assert len(every) == 8


async def test_the_tasks_of_an_array_come_by_index_in_pages_and_by_phase(world: World) -> None:
    await run(world)
    token, stranger = world.token("lab"), world.token("other")
    path, found, cursor = f"/v1/jobs?array={SWEEP.job_id}&limit=2", list[int](), ""
    async with world.gateway():
        for _ in range(4):
            page = (await world.ask("GET", f"{path}&cursor={cursor}", token)).body
            found += [row["task"] for row in page["items"]]
            cursor = page.get("next") or ""
            if not cursor:
                break
        failed = (await world.ask("GET", f"{path}&phase=failed", token)).body["items"]
        assert (await world.ask("GET", path, stranger)).status == 404
    assert found == [3, 4, 5, 6, 7, 8]
    assert [(row["task"], row["task_of"]) for row in failed] == [(4, SWEEP.job_id)]
