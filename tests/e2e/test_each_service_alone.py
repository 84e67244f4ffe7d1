"""
Each service is stopped alone, in an orderly way or by kill -9: exactly its function stops, and comes back with it.

What does not happen is shown against something that does: a service further on has handled what came later.
"""

import signal

import pytest

from tessera.client.outcomes import Submitted
from tessera.domain.state import State
from tessera_schemas import subjects
from tessera_schemas.reasons import Code
from tessera_schemas.shard.services import SERVICES
from tests.e2e.deaths import DEATHS
from tests.e2e.lasting import finish, lasting
from tests.e2e.live import GPUS, Live, eventually, job, kind
from tests.e2e.platform_checks import assert_all_is_well, stored_events

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOW = pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
WELL = {"succeeded"}


def waits_for_quota(state: State, done: Submitted) -> bool:
    known = state.jobs.get(done.job_id)
    return known is not None and known.reason is not None and known.reason.code is Code.WAITING_FOR_QUOTA


async def test_the_table_has_a_row_for_each_service() -> None:
    assert set(DEATHS) == set(SERVICES)


async def pods_in(live: Live, phase: str, done: Submitted) -> bool:
    """Whether the cluster has shown this job's pod in a phase."""
    return any(
        change.object["status"].get("phase") == phase and done.job_id in change.object["metadata"]["name"]
        for change in live.pods
    )


async def running(live: Live, name: str = "long", **more: int) -> Submitted:
    done = await live.submit(lasting(name, **more))
    await live.until_phase(done.job_id, "running")
    return done


async def cancelled(live: Live, *jobs: Submitted) -> None:
    for done in jobs:
        await live.clients["lab"].cancel(done.job_id)


@HOW
async def test_without_admission_submits_are_stored_and_not_answered_and_what_runs_ends(live: Live, how: int) -> None:
    before = await running(live)
    async with live.down("admission", how):
        waiting = await live.submit(job("waits"), answer_seconds=0.2)
        assert not waiting.admitted
        await finish(live, before.job_id)
        await live.until_ended(before.job_id)
        await live.until(lambda state: not len(state.runs), "its GPU is free again")
        assert (live.phase(before.job_id), live.phase(waiting.job_id)) == ("succeeded", "unknown")
    await live.until_ended(waiting.job_id)
    await assert_all_is_well(live)


@HOW
async def test_without_queueing_jobs_are_admitted_and_only_what_is_in_line_starts(live: Live, how: int) -> None:
    block = await running(live, "block", gpus=8, replicas=4)
    in_line = await live.submit(job("in-line"))
    await live.until(lambda state: in_line.job_id in state.lines.get("default").jobs, "it is in line")  # type: ignore[union-attr]
    async with live.down("queueing", how):
        late = await live.submit(job("late"))
        assert late.admitted
        await cancelled(live, block)
        await live.until_ended(block.job_id, in_line.job_id)
        await live.until(lambda state: not len(state.runs), "all GPUs are free")
        assert live.phase(in_line.job_id) == "succeeded"
        assert live.phase(late.job_id) == "queued"
    await live.until_ended(late.job_id)
    await assert_all_is_well(live)


@HOW
async def test_without_the_scheduler_nothing_is_decided_and_pods_run_to_their_end(live: Live, how: int) -> None:
    before = await running(live)
    async with live.down("scheduler", how):
        n = await live.ledger_end()
        late = await live.submit(job("late"))
        assert late.admitted  # by admission, whose answer needs no decision
        await finish(live, before.job_id)
        await eventually(lambda: pods_in(live, "Succeeded", before), "the pod has run to its end")
        await eventually(lambda: said_to_have_ended(live, before), "the binder has said that it ended")
        assert await live.ledger_end() == n
        assert live.phase(before.job_id) == "running"
    await live.until_ended(before.job_id, late.job_id)
    assert {live.phase(done.job_id) for done in (before, late)} == WELL
    await assert_all_is_well(live)


async def said_to_have_ended(live: Live, done: Submitted) -> bool:
    shard = live.platform.shard
    fact = await live.bus.last(subjects.stream("FACTS", shard), subjects.fact(shard, "binder", "run-ended"))
    return fact is not None and done.job_id.encode() in fact.data


@HOW
async def test_a_standby_scheduler_takes_over_and_nobody_notices(live: Live, how: int) -> None:
    before = await running(live)
    epoch = live.state.epoch
    async with live.another("scheduler") as standby:
        await standby.until_ready()
        async with live.down("scheduler", how):
            after = await live.submit(job("after"))
            await finish(live, before.job_id)
            await live.until_ended(before.job_id, after.job_id)
            assert live.state.epoch == epoch + 1
        # The platform's own one is the standby now, and takes over in its turn.
    last = await live.submit(job("last"))
    await live.until_ended(last.job_id)
    assert live.state.epoch == epoch + 2
    assert {live.phase(done.job_id) for done in (before, after, last)} == WELL
    await assert_all_is_well(live)


@HOW
async def test_without_the_binder_jobs_are_allocated_and_get_no_pods(live: Live, how: int) -> None:
    before = await running(live)
    async with live.down("binder", how):
        late = await live.submit(job("late"))
        await live.until_phase(late.job_id, "allocated")
        await finish(live, before.job_id)
        await eventually(lambda: pods_in(live, "Succeeded", before), "the pod has run to its end")
        assert live.phase(before.job_id) == "running"  # nobody has seen its end
        assert not [change for change in live.pods if late.job_id in change.object["metadata"]["name"]]
    await live.until_ended(before.job_id, late.job_id)
    assert {live.phase(done.job_id) for done in (before, late)} == WELL
    await assert_all_is_well(live)


@HOW
async def test_without_reclamation_ended_jobs_keep_their_devices_and_others_run_on_the_rest(
    live: Live, how: int
) -> None:
    before = await running(live)
    async with live.down("reclamation", how):
        after = [await live.submit(job(f"after-{number}")) for number in range(3)]
        jobs = [before, *after]
        await finish(live, before.job_id)
        await live.until_ended(*(done.job_id for done in jobs))
        assert len(live.state.runs) == len(jobs)
        assert sum(node.gpu_free.count(1000) for node in live.state.nodes.values()) == GPUS - len(jobs)
        whole = await live.submit(job("whole", gpus=8, replicas=4))
        await live.until(lambda state: waits_for_quota(state, whole), "what needs the whole cluster waits")
    await live.until_ended(whole.job_id)
    await assert_all_is_well(live)


@HOW
async def test_without_projection_views_and_events_stand_still_and_scheduling_goes_on(live: Live, how: int) -> None:
    await live.submit(job("seen"))
    await assert_all_is_well(live)
    async with live.store() as store, live.listening() as heard:
        async with live.down("projection", how):
            stands_at, events = await store.cursor(), len(await stored_events(live))
            done = await live.submit(job("unseen"))
            await live.until_phase(done.job_id, "succeeded")
            await live.until_idle()
            assert live.state.n > stands_at
            assert await store.cursor() == stands_at
            assert len(await stored_events(live)) == events
            said = await live.command("ls", "-o", "json")
            assert said.json["as_of"] == stands_at
            assert done.job_id not in said.out
            assert done.job_id not in {event.data.get("job_id") for event in heard.events}
        story = ["admitted", "allocated", "binding", "bound", "running", "succeeded", "released"]
        assert [kind(event) for event in await heard.of(done.job_id, "released")] == story
    await assert_all_is_well(live)
