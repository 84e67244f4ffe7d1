"""An adopted job ends as its owner says: complete, failed with its program's exit code, out of time, or gone."""

from typing import Any

import pytest

from tessera.domain.entities import EndedJob
from tessera_schemas.base import Json
from tessera_schemas.ledger import Finished, OwnerEndNoted, Requeued, Started
from tessera_schemas.reasons import Code
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, user_pod

LONG = 600
EXIT_3 = {"tessera.io/simulate-exit-code": "3"}
LATE = {"reason": "DeadlineExceeded", "message": "Job was active longer than specified deadline"}


def say(there: AdoptionWorld, kind: str, name: str = "train", **more: Any) -> None:
    """What the Job's controller says of it; its own look would write over it, so that it is stopped before."""
    conditions = [{"type": kind, "status": "True", **more}]
    there.core.patch("jobs", NS, name, {"status": {"conditions": conditions}}, "status")


def one_end(there: AdoptionWorld, name: str = "train") -> EndedJob:
    (ended,) = there.ended(name)
    assert not there.adopted(name)
    assert sum(isinstance(record, Finished) and record.job_id == ended.job_id for record in there.records) == 1
    return ended


def take_pods_away(there: AdoptionWorld, name: str = "train") -> None:
    for pod in there.owned(name):
        there.core.delete("pods", NS, pod["metadata"]["name"])


async def test_a_job_whose_program_fails_is_failed_with_its_exit_code_and_keeps_its_time() -> None:
    async with AdoptionWorld() as there:
        there.make_job(seconds=4, backoffLimit=0, notes=EXIT_3)
        await there.run(30)
        ended = one_end(there)
        assert (ended.phase, ended.exit_code) == ("failed", 3)
        assert ended.reason is not None
        assert (ended.reason.code, ended.reason.numbers["exit_code"]) == (Code.OWNER_FAILED, 3)
        assert "Job/train: BackoffLimitExceeded" in ended.reason.detail
        assert 2_000 < ended.ended_ts - ended.started_ts < 6_000
        assert (ended.nodes, ended.earlier_ms, ended.gpu_milli_ms > 2_000_000) == (("node-a",), 0, True)


async def test_all_attempts_of_a_job_count_and_the_end_is_told_once_it_gives_up() -> None:
    async with AdoptionWorld() as there:
        there.make_job(seconds=2, backoffLimit=2, notes=EXIT_3)
        await there.run(120)
        ended = one_end(there)
        assert (ended.phase, ended.exit_code, ended.attempt) == ("failed", 3, 3)
        assert ended.gpu_milli_ms > 4_000_000
        assert ended.earlier_ms > 2_000 > 0 < ended.ended_ts - ended.started_ts


@pytest.mark.parametrize("first", ["pods", "condition"])
@pytest.mark.parametrize(
    ("said", "more", "phase", "code"),
    [
        ("FailureTarget", LATE, "failed", Code.TIME_LIMIT),
        ("FailureTarget", {"reason": "PodFailurePolicy", "message": "exit code 42"}, "failed", Code.OWNER_FAILED),
        ("SuccessCriteriaMet", {"reason": "SuccessPolicy"}, "succeeded", None),
    ],
)
async def test_an_owner_that_takes_its_pods_away_says_how_the_job_ended_whichever_is_seen_first(
    first: str, said: str, more: Json, phase: str, code: Code | None
) -> None:
    async with AdoptionWorld() as there:
        there.make_job(pods=2, seconds=LONG)
        await there.run(10)
        await there.stop("jobs")
        if first == "condition":
            say(there, said, **more)
            await there.run(3)
        take_pods_away(there)
        await there.run(0.5)
        say(there, said, **more)
        await there.run(30)
        ended = one_end(there)
        assert (ended.phase, ended.reason and ended.reason.code) == (phase, code)
        assert (ended.attempt, sum(isinstance(record, Started) for record in there.records)) == (1, 1)
        assert 5_000 < ended.ended_ts - ended.started_ts < 20_000
        assert ended.gpu_milli_ms > 10_000_000


async def test_a_job_that_is_deleted_is_cancelled_and_keeps_its_time() -> None:
    async with AdoptionWorld() as there:
        there.make_job(seconds=LONG)
        await there.run(10)
        there.core.delete("jobs", NS, "train")
        await there.run(60)
        ended = one_end(there)
        assert (ended.phase, ended.reason and ended.reason.detail) == ("cancelled", "Job/train is gone")
        assert 5_000 < ended.ended_ts - ended.started_ts < 20_000
        assert ended.gpu_milli_ms > 5_000_000


@pytest.mark.parametrize("stays", [True, False], ids=["the Job stays", "the Job is deleted meanwhile"])
async def test_what_a_binder_that_was_away_can_still_see_is_told(stays: bool) -> None:
    async with AdoptionWorld() as there:
        there.make_job(seconds=8, backoffLimit=0, notes=EXIT_3)
        await there.run(5)
        await there.stop("binder")
        await there.run(10)
        if not stays:
            there.core.delete("jobs", NS, "train")
            await there.run(5)
        there.start_binder()
        await there.run(60)
        ended = one_end(there)
        assert (ended.phase, ended.exit_code) == (("failed", 3) if stays else ("cancelled", None))
        assert ended.gpu_milli_ms > 5_000_000


async def test_a_job_that_is_removed_as_soon_as_it_has_failed_has_failed() -> None:
    """As `ttlSecondsAfterFinished: 0` does."""
    async with AdoptionWorld() as there:
        there.make_job(pods=2, seconds=LONG)
        await there.run(10)
        await there.stop("jobs")
        take_pods_away(there)
        say(there, "Failed", reason="BackoffLimitExceeded")
        there.core.delete("jobs", NS, "train")
        await there.run(60)
        assert one_end(there).phase == "failed"


async def test_an_end_that_was_said_while_the_run_stops_outlives_the_job_and_the_binder() -> None:
    async with AdoptionWorld() as there:
        there.make_job(pods=2, seconds=LONG)
        await there.run(10)
        await there.stop("jobs")
        say(there, "Failed", reason="BackoffLimitExceeded", message="Job has reached the specified backoff limit")
        await there.run(3)
        assert sum(isinstance(record, OwnerEndNoted) for record in there.records) == 1
        assert there.only().phase == "running", "its pods are its owner's to stop"
        await there.stop("binder")
        there.core.delete("jobs", NS, "train")
        take_pods_away(there)
        await there.run(5)
        there.start_binder()
        await there.run(60)
        assert one_end(there).phase == "failed"
        assert not any(isinstance(record, Requeued) for record in there.records)


async def test_pods_of_a_job_in_waves_end_one_by_one_as_each_of_them_has() -> None:
    async with AdoptionWorld() as there:
        there.make_job(pods=1, completions=2, seconds=2, backoffLimit=0, notes=EXIT_3)
        await there.run(60)
        ended = one_end(there)
        assert (ended.phase, ended.exit_code) == ("failed", 3)


async def make_indexed(there: AdoptionWorld, **more: Any) -> None:
    """A Job of three indexes whose second one fails five seconds after its start."""
    there.make_job(pods=3, seconds=40, completionMode="Indexed", **more)
    while not all(pod["spec"].get("nodeName") for pod in there.owned()) or not there.owned():
        await there.run(0.25)
    (second,) = there.owned("train-1-")
    notes = {**EXIT_3, "tessera.io/simulate-seconds": "5"}
    there.core.patch("pods", NS, second["metadata"]["name"], {"metadata": {"annotations": notes}})


async def test_a_failed_index_gives_its_gpus_back_and_the_job_ends_as_its_owner_does() -> None:
    async with AdoptionWorld(start_ms=2000) as there:
        await make_indexed(there, backoffLimitPerIndex=0, maxFailedIndexes=3)
        await there.stop("jobs")
        await there.run(9)
        there.core.patch("jobs", NS, "train", {"status": {"failedIndexes": "1"}}, "status")
        await there.run(15)
        job = there.only()
        assert (job.phase, there.state.runs.found([job.run_id])[0].amount.gpu_milli) == ("running", 2000)
        await there.run(25)
        say(there, "Failed", reason="FailedIndexes", message="Job has failed indexes")
        await there.run(30)
        ended = one_end(there)
        assert (ended.phase, ended.exit_code, ended.attempt) == ("failed", 3, 1)


async def test_an_index_that_its_job_tries_again_begins_the_gang_anew() -> None:
    async with AdoptionWorld(start_ms=2000) as there:
        await make_indexed(there, backoffLimitPerIndex=2)
        await there.run(40)
        assert (there.only().phase, there.only().attempt) == ("running", 2)


async def test_pods_of_an_owner_that_we_may_not_read_give_their_gpus_back_and_are_waited_for() -> None:
    owner = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "name": "train",
        "uid": "1",
        "controller": True,
    }
    async with AdoptionWorld() as there:
        for number in range(2):
            pod = user_pod(f"train-{number}", LONG, labels={"tessera.io/gang": "train"})
            pod["metadata"]["annotations"]["tessera.io/gang-size"] = "2"
            pod["metadata"]["ownerReferences"] = [owner]
            there.core.create("pods", NS, pod)
        await there.run(10)
        assert there.only().phase == "running"
        there.core.faults.answer("get", 403, count=10_000)
        take_pods_away(there)
        await there.run(30)
        assert not len(there.state.runs), "its GPUs are free"
        assert there.only().phase == "queued", "somebody may make its pods again"
        await there.run(900)
        assert one_end(there).phase == "cancelled", "nobody did"
