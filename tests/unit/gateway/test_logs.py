"""Logs over HTTP: a tenant's own, of the pod that was asked for, and a reason where there is none."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tessera.gateway.entrance.tokens import drop_token
from tessera.kernel.ports import ApiError
from tessera_schemas.base import job_id
from tessera_schemas.facts import PodsMade
from tessera_schemas.work.adopted import Adopted
from tests.builders import SHARD, admitted, job_spec
from tests.unit.gateway.gateway_world import SECONDS, World

JOB = job_id(SHARD, "lab", "k1")
PATH = f"/v1/jobs/{JOB}/logs"


@dataclass
class Kubelet:
    """The log reading of a cluster: `error` instead of a log, or `pieces` and then, while `follow`, a wait."""

    error: Exception | None = None
    pieces: list[bytes] = field(default_factory=lambda: [b"one\n", b"two\n"])
    asked: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_log(self, namespace: str, name: str, **how: Any) -> AsyncIterator[bytes]:
        self.asked.append((namespace, name, how))
        if self.error is not None:
            raise self.error
        yield b""
        try:
            for piece in self.pieces:
                yield piece
            if how["follow"]:
                await asyncio.Event().wait()
        finally:
            self.closed.set()


@pytest.fixture
def kubelet(world: World) -> Kubelet:
    world.cluster = Kubelet()
    return world.cluster


async def text(world: World, path: str, token: str) -> str:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS)) as http,
        http.get(f"{world.url}{path}", headers={"Authorization": f"Bearer {token}"}) as answer,
    ):
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/plain"
        return await answer.text()


async def running(world: World, adopted: Adopted | None = None) -> str:
    """A job of the tenant lab that runs; returns the tenant's token."""
    await world.commit(admitted("k1", job_spec()).model_copy(update={"adopted": adopted}))
    await world.commit(orders=(world.committed.line(),))
    return world.token("lab")


async def test_a_tenant_reads_the_log_of_the_pod_that_it_names(world: World, kubelet: Kubelet) -> None:
    token = await running(world)
    async with world.gateway():
        assert await text(world, PATH, token) == "one\ntwo\n"
        await text(world, f"{PATH}?rank=0&attempt=1&tail=5&since_seconds=60", token)
    assert kubelet.asked[0] == ("lab", f"{JOB}-1-0", {"follow": False, "tail_lines": 0, "since_seconds": 0})
    assert kubelet.asked[1] == ("lab", f"{JOB}-1-0", {"follow": False, "tail_lines": 5, "since_seconds": 60})


@pytest.mark.parametrize(("kind", "asked"), [("Pod", ["own"]), ("Job", [])])
async def test_a_users_own_pod_has_the_log_of_its_name_and_other_objects_pods_are_read_with_kubectl(
    world: World, kubelet: Kubelet, kind: str, asked: list[str]
) -> None:
    owner = Adopted(owner_kind=kind, owner_name="own", owner_uid="u", uids=("uid-0",), group="g")
    token = await running(world, owner)
    async with world.gateway():
        if kind == "Pod":
            assert await text(world, PATH, token) == "one\ntwo\n"
        else:
            said = await world.ask("GET", PATH, token)
            assert (said.status, said.code, "kubectl logs" in str(said.body)) == (409, "NoLogs", True)
    assert [name for _, name, _ in kubelet.asked] == asked


async def test_another_tenants_job_has_no_log_because_it_does_not_exist(world: World, kubelet: Kubelet) -> None:
    await running(world)
    other = world.token("ops")
    async with world.gateway():
        said = await world.ask("GET", PATH, other)
    assert (said.status, said.code) == (404, "NoSuchJob")
    assert not kubelet.asked


async def test_a_job_that_never_started_has_no_log_and_an_attempt_must_have_been(
    world: World, kubelet: Kubelet
) -> None:
    await world.commit(admitted("k1", job_spec()))
    token = world.token("lab")
    async with world.gateway():
        said = await world.ask("GET", PATH, token)
        assert (said.status, said.code) == (409, "NotRunning")
        await world.commit(orders=(world.committed.line(),))
        async with asyncio.timeout(SECONDS):
            while (said := await world.ask("GET", f"{PATH}?attempt=2", token)).body.get("field") == "job_id":
                await asyncio.sleep(0.02)
    assert (said.status, said.code) == (409, "NotRunning")
    assert not kubelet.asked


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ApiError(400, "BadRequest", 'container "main" is waiting to start: trying and failing to pull image'), True),
        (ApiError(404, "NotFound", "pods not found"), False),
        (ApiError(500, "InternalError", "dial tcp 10.0.0.7"), False),
        (None, False),
    ],
)
async def test_a_job_that_binds_is_explained_with_what_its_node_says_of_a_pod(
    world: World, kubelet: Kubelet, error: ApiError | None, expected: bool
) -> None:
    token = await running(world)
    kubelet.error = error
    async with world.gateway():
        before = await world.ask("GET", f"/v1/jobs/{JOB}/explain", token)
        assert (before.body["phase"], kubelet.asked) == ("allocated", [])
        await world.commit(PodsMade(kind="pods_made", run_id=f"{JOB}-1", uids=("uid-0",)))
        async with asyncio.timeout(SECONDS):
            while (said := await world.ask("GET", f"/v1/jobs/{JOB}/explain", token)).body["phase"] == "allocated":
                await asyncio.sleep(0.02)
    told = [note for note in said.body["notes"] if note.startswith("Its node says of pod")]
    assert said.body["phase"] == "binding"
    assert [JOB in note and "failing to pull image" in note for note in told] == [True] * expected
    assert kubelet.asked[0][:2] == ("lab", f"{JOB}-1-0")


REFUSALS = {
    "the pod is gone": (ApiError(404, "NotFound", "pods not found"), 409, "NoLogs"),
    "the container has not started": (ApiError(400, "BadRequest", "ContainerCreating"), 409, "NotRunning"),
    "the gateway may not": (ApiError(403, "Forbidden", "User system:secret cannot"), 503, "Unavailable"),
    "the node is away": (ApiError(500, "InternalError", "dial tcp 10.0.0.7"), 503, "Unavailable"),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_why_there_is_no_log_is_said_without_names_of_the_cluster(
    world: World, kubelet: Kubelet, case: str
) -> None:
    kubelet.error, status, code = REFUSALS[case]
    token = await running(world)
    async with world.gateway():
        said = await world.ask("GET", PATH, token)
    assert (said.status, said.code) == (status, code)
    assert "system:secret" not in str(said.body)
    assert "10.0.0.7" not in str(said.body)


async def test_of_an_ended_job_without_a_pod_of_ours_it_says_where_a_users_own_pods_are_read(
    world: World, kubelet: Kubelet
) -> None:
    kubelet.error, _, _ = REFUSALS["the pod is gone"]
    token = await running(world)
    async with world.gateway():
        said = await world.ask("GET", PATH, token)
    assert "or it is a user's own: `kubectl get pods -n lab`" in said.body["sentence"]


async def test_a_reader_that_leaves_ends_the_reading_at_the_kubelet(world: World, kubelet: Kubelet) -> None:
    token = await running(world)
    async with world.gateway():
        async with aiohttp.ClientSession() as http:
            answer = await http.get(f"{world.url}{PATH}?follow=true", headers={"Authorization": f"Bearer {token}"})
            assert await answer.content.readline() == b"one\n"
            answer.close()
        await asyncio.wait_for(kubelet.closed.wait(), SECONDS)
        assert world.measured("tessera_gateway_event_streams") == 0


async def test_a_log_ends_soon_after_its_readers_token_was_taken_back(world: World, kubelet: Kubelet) -> None:
    token = await running(world)
    more = asyncio.Event()

    async def read_log(*_: Any, **__: Any) -> AsyncIterator[bytes]:
        yield b""
        yield b"one\n"
        await more.wait()
        yield b"secret\n"

    kubelet.read_log = read_log  # type: ignore[method-assign]
    async with world.gateway(), aiohttp.ClientSession() as http:
        answer = await http.get(f"{world.url}{PATH}?follow=true", headers={"Authorization": f"Bearer {token}"})
        assert await answer.content.readline() == b"one\n"
        drop_token(world.tokens_file, token.split("_")[1])
        async with asyncio.timeout(SECONDS):
            while (await world.ask("GET", f"/v1/jobs/{JOB}", token)).status != 401:
                await asyncio.sleep(0.1)
        more.set()
        with pytest.raises(aiohttp.ClientError):
            assert b"secret" not in await answer.content.read()


async def test_no_more_logs_than_streams_are_open_at_once_for_one_token(world: World, kubelet: Kubelet) -> None:
    token = await running(world)
    async with world.gateway(streams_per_token=1), aiohttp.ClientSession() as http:
        answer = await http.get(f"{world.url}{PATH}?follow=true", headers={"Authorization": f"Bearer {token}"})
        assert await answer.content.readline() == b"one\n"
        said = await world.ask("GET", PATH, token)
        answer.close()
    assert (said.status, said.code) == (429, "RateLimited")
