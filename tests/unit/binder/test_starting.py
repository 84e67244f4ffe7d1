"""Bound pods that do not start: what the kubelet says of them, when it is believed, and what becomes of their run."""

from typing import Any

import pytest

from tessera.binder.decide.starting import PodMemory, delay_of, is_worked_on, read_start
from tessera_schemas.base import Json
from tessera_schemas.config import Policy
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import Delayed, Revoked
from tessera_schemas.reasons import Code
from tests.builders import admitted
from tests.unit.binder.cluster_world import World, train

IMAGE = "registry.example/train:2"
NOT_FOUND = f'rpc error: code = NotFound desc = failed to pull and unpack image "{IMAGE}": {IMAGE}: not found'
AWAY = f'failed to resolve reference "{IMAGE}": unexpected status code: 503 Service Unavailable'
UNANSWERED = f'failed to do request: Head "https://{IMAGE}": dial tcp 10.0.0.1:443: i/o timeout'
NEVER_MS = 10**9
READY = [{"type": "PodReadyToStartContainers", "status": "True"}]


def waiting(reason: str = "ContainerCreating", message: str = "", init: list[Any] | None = None, **more: Any) -> Json:
    said = {"reason": reason} | ({"message": message} if message else {})
    container = {"name": "main", "image": IMAGE, "state": {"waiting": said}}
    return {"phase": "Pending", "containerStatuses": [container], "initContainerStatuses": init or [], **more}


def looks(*statuses: tuple[float, Json]) -> list[tuple[Code, bool] | None]:
    """The code and whether it is believed, of one pod seen at these seconds."""
    memory, found = PodMemory(0.0), []
    for at, status in statuses:
        delay = delay_of(0, "p", "node-a", read_start({"status": status}), memory, at, stuck=30.0)
        found.append(None if delay is None else (delay.reason.code, delay.believed))
    return found


BACK_OFF = waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')
STORIES: list[tuple[str, list[tuple[float, Json]], list[tuple[Code, bool] | None]]] = [
    ("a pod that is created", [(0, waiting()), (29, waiting())], [None, None]),
    ("a pod of which nothing is seen for long", [(0, waiting()), (30, waiting())], [None, (Code.START_TIMEOUT, False)]),
    (
        "an image that does not exist",
        [(1, waiting("ErrImagePull", NOT_FOUND)), (2, BACK_OFF), (13, waiting("ErrImagePull", NOT_FOUND))],
        [(Code.IMAGE_NOT_FOUND, False), (Code.IMAGE_NOT_FOUND, False), (Code.IMAGE_NOT_FOUND, True)],
    ),
    (
        "one whose second refusal was not seen",
        [(1, waiting("ErrImagePull", NOT_FOUND)), (16, BACK_OFF)],
        [(Code.IMAGE_NOT_FOUND, False), (Code.IMAGE_NOT_FOUND, True)],
    ),
    ("an image with no name", [(1, waiting("InvalidImageName", "cannot parse"))], [(Code.IMAGE_NOT_FOUND, True)]),
    (
        "a registry that hiccups",
        [(1, waiting("ErrImagePull", AWAY)), (2, BACK_OFF), (12, waiting())],
        [(Code.IMAGE_NOT_PULLED, False), (Code.IMAGE_NOT_PULLED, False), None],
    ),
    (
        "a registry that is away",
        [(1, waiting("ErrImagePull", UNANSWERED)), (2, BACK_OFF), (13, waiting("ErrImagePull", AWAY))],
        [(Code.IMAGE_NOT_PULLED, False), (Code.IMAGE_NOT_PULLED, False), (Code.IMAGE_NOT_PULLED, True)],
    ),
    (
        "a back-off during which it is pulled, for all that is known",
        [(1, BACK_OFF), (59, BACK_OFF), (61, BACK_OFF)],
        [(Code.IMAGE_NOT_PULLED, False), (Code.IMAGE_NOT_PULLED, False), (Code.IMAGE_NOT_PULLED, True)],
    ),
    (
        "a secret that is missing",
        [(1, waiting("CreateContainerConfigError", 'secret "token" not found')), (30, waiting())],
        [(Code.BIND_REFUSED, False), (Code.START_TIMEOUT, False)],
    ),
    ("a runtime that fails", [(1, waiting("CreateContainerError", "no runtime"))], [(Code.START_TIMEOUT, False)]),
]


@pytest.mark.parametrize(("seen", "told"), [s[1:] for s in STORIES], ids=[s[0] for s in STORIES])
def test_the_kubelets_word_is_told_at_once_and_believed_after_its_second_try(
    seen: list[tuple[float, Json]], told: list[tuple[Code, bool] | None]
) -> None:
    assert looks(*seen) == told


def test_image_and_last_word_of_the_registry_are_named() -> None:
    memory = PodMemory(0.0)
    for at, status in ((1.0, waiting("ErrImagePull", NOT_FOUND)), (2.0, BACK_OFF)):
        delay = delay_of(3, "p", "node-a", read_start({"status": status}), memory, at, stuck=30.0)
    assert delay is not None
    assert delay.reason.detail == f"p on node-a: image {IMAGE}: ImagePullBackOff: {NOT_FOUND}"
    assert delay.reason.numbers == {"rank": 3}


RUNS = [{"name": "stage", "state": {"running": {"startedAt": None}}}]
DONE = [{"name": "stage", "state": {"terminated": {"exitCode": 0, "finishedAt": None}}}]
WORKS: list[tuple[str, Json, float, bool]] = [
    ("nothing is said", {"phase": "Pending"}, 0, False),
    ("no network yet", waiting(), 0, False),
    ("its images are pulled", waiting(conditions=READY), 1700, True),
    ("nothing is heard of the pull for too long", waiting(conditions=READY), 1900, False),
    ("an init container stages data", waiting("PodInitializing", init=RUNS), 86_000, True),
    ("an init container is done", waiting("PodInitializing", init=DONE), 60, True),
    ("the image cannot be pulled", waiting("ErrImagePull", AWAY, conditions=READY), 0, False),
]


@pytest.mark.parametrize(("status", "at", "works"), [w[1:] for w in WORKS], ids=[w[0] for w in WORKS])
def test_a_node_works_on_a_pod_when(status: Json, at: float, works: bool) -> None:
    assert is_worked_on(read_start({"status": status}), PodMemory(0.0), at) is works


# -- through binder and committer


def world(nodes: tuple[str, ...] = ("node-a", "node-b"), seconds: int = 60) -> World:
    policy = Policy(node_lost_seconds=30, start_timeout_seconds=seconds)
    return World(nodes, policy, start_ms=NEVER_MS)


async def bound(there: World, spec: JobSpec, key: str = "k1") -> str:
    fact = admitted(key, spec)
    await there.commit(fact)
    await there.run(3)
    assert there.current(fact.job_id).bound
    return fact.job_id


def say(there: World, job: str, status: Json, ranks: tuple[int, ...] = (0,)) -> None:
    """What the kubelet says of pods of the job's current run."""
    run = there.current(job)
    for pod in there.pods(run.run_id):
        name = pod["metadata"]["name"]
        if int(name.rpartition("-")[2]) in ranks:
            there.core.patch("pods", "lab", name, {"status": status}, "status")


def revokes(there: World) -> list[Revoked]:
    return [record for record in there.records if isinstance(record, Revoked)]


async def test_a_gangs_gpus_are_not_held_for_an_image_that_does_not_exist() -> None:
    async with world() as there:
        job = await bound(there, train(replicas=2, gpus=8))
        say(there, job, waiting("ErrImagePull", NOT_FOUND), ranks=(1,))
        await there.run(2)
        told = there.job(job).reason
        assert told is not None
        assert told.code is Code.IMAGE_NOT_FOUND
        assert IMAGE in told.detail
        assert not revokes(there)
        say(there, job, BACK_OFF, ranks=(1,))
        await there.run(18)
        (revoke,) = revokes(there)
        assert (revoke.reason.code, revoke.then, revoke.avoid) == (Code.IMAGE_NOT_FOUND, "requeue", ())
        assert IMAGE in revoke.reason.detail
        assert there.job(job).strikes == 0


async def test_a_registry_that_hiccups_for_seconds_revokes_nothing() -> None:
    async with world() as there:
        job = await bound(there, train())
        say(there, job, waiting("ErrImagePull", AWAY))
        await there.run(2)
        say(there, job, BACK_OFF)
        await there.run(8)
        say(there, job, {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]})
        await there.run(30)
        assert there.job(job).phase == "running"
        assert there.job(job).reason is None
        assert not revokes(there)


async def test_a_registry_that_is_away_puts_no_job_on_hold() -> None:
    async with world() as there:
        fact = admitted("k1", train())
        await there.commit(fact)
        for _ in range(600):
            await there.run(1)
            if there.job(fact.job_id).phase == "binding" and there.current(fact.job_id).bound:
                say(there, fact.job_id, waiting("ErrImagePull", AWAY))
                await there.run(2)
                say(there, fact.job_id, BACK_OFF)
                await there.run(2)
                say(there, fact.job_id, waiting("ErrImagePull", AWAY))
            if there.job(fact.job_id).attempt > 13:
                break
        job = there.job(fact.job_id)
        assert job.attempt > 13
        assert (job.held, job.strikes) == (False, 0)
        assert {revoke.reason.code for revoke in revokes(there)} == {Code.IMAGE_NOT_PULLED}


async def test_an_image_that_never_exists_puts_its_job_on_hold() -> None:
    async with world() as there:
        fact = admitted("k1", train())
        await there.commit(fact)
        for _ in range(900):
            await there.run(1)
            if there.job(fact.job_id).phase == "binding" and there.current(fact.job_id).bound:
                say(there, fact.job_id, waiting("InvalidImageName", "cannot parse"))
            if there.job(fact.job_id).held:
                break
        job = there.job(fact.job_id)
        assert (job.held, job.phase, job.strikes) == (True, "queued", 0)
        assert job.reason is not None
        assert job.reason.code is Code.HELD_AFTER_REQUEUES
        assert IMAGE in job.reason.detail


async def test_the_next_attempt_avoids_a_node_that_starts_nothing() -> None:
    async with world(seconds=15) as there:
        job = await bound(there, train(gpus=8))
        (slow,) = there.nodes_of(job)
        say(there, job, BACK_OFF)
        await there.run(20)
        assert there.job(job).attempt == 2
        assert there.nodes_of(job) == {"node-a", "node-b"} - {slow}
        (revoke,) = revokes(there)
        assert revoke.avoid == (slow,)
        assert f"on {slow}: image {IMAGE}" in revoke.reason.detail


async def test_a_node_without_a_word_is_named_and_avoided() -> None:
    async with world(seconds=15) as there:
        job = await bound(there, train(gpus=8))
        (slow,) = there.nodes_of(job)
        await there.run(20)
        (revoke,) = revokes(there)
        assert (revoke.reason.code, revoke.avoid) == (Code.START_TIMEOUT, (slow,))
        assert slow in revoke.reason.detail
        assert there.nodes_of(job) == {"node-a", "node-b"} - {slow}


async def test_what_hits_several_nodes_at_once_is_no_nodes_doing() -> None:
    async with world(seconds=15) as there:
        await bound(there, train(gpus=8))
        await bound(there, train(gpus=8), "k2")
        await there.run(14)
        first = revokes(there)[0]
        assert (first.reason.code, first.avoid) == (Code.STARTS_STALL, ())
        assert first.reason.numbers["nodes"] == 2


async def test_the_clock_stands_still_while_a_node_works_on_the_pod() -> None:
    async with world(seconds=20) as there:
        job = await bound(there, train())
        say(there, job, waiting("PodInitializing", init=RUNS))
        await there.run(200)
        assert not revokes(there)
        moved = [record for record in there.records if isinstance(record, Delayed)]
        assert 200 // 20 <= len(moved) <= 200 // 4
        say(there, job, waiting(init=[]))
        await there.run(25)
        assert [revoke.reason.code for revoke in revokes(there)] == [Code.START_TIMEOUT]


async def test_a_silent_nodes_last_word_is_no_work() -> None:
    async with world(seconds=20) as there:
        job = await bound(there, train())
        (node,) = there.nodes_of(job)
        say(there, job, waiting("PodInitializing", init=RUNS))
        there.core.set_reachable(node, False)
        await there.run(22)
        assert [revoke.reason.code for revoke in revokes(there)] == [Code.START_TIMEOUT]


async def test_a_binder_that_starts_anew_goes_on_moving_the_deadline() -> None:
    async with world(seconds=20) as there:
        job = await bound(there, train())
        say(there, job, waiting("PodInitializing", init=RUNS))
        await there.run(18)
        await there.stop("binder")
        there.start_binder()
        await there.run(30)
        assert not revokes(there)


async def test_a_job_may_say_how_long_it_takes_to_start() -> None:
    async with world(seconds=600) as there:
        job = await bound(there, train(start_timeout_seconds=10))
        await there.run(10)
        assert [revoke.reason.numbers["seconds"] for revoke in revokes(there)] == [10]
        assert there.job(job).strikes == 0


async def test_a_missing_secret_is_named_and_gives_the_gpus_back() -> None:
    async with world(seconds=600) as there:
        job = await bound(there, train())
        say(there, job, waiting("CreateContainerConfigError", 'secret "token" not found'))
        await there.run(3)
        told = there.job(job).reason
        assert told is not None
        assert 'secret "token" not found' in told.detail
        await there.run(62)
        assert [revoke.reason.code for revoke in revokes(there)] == [Code.BIND_REFUSED]
