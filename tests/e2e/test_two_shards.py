"""
Two shards on one NATS, one Redis and one cluster: each decides for its own nodes, and the death of one is its own.

What does not happen to a shard is shown against what meanwhile happens to the other.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import nats
import pytest
import pytest_asyncio
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from tessera.client.outcomes import Submitted
from tessera.client.sending.sdk import Tessera
from tessera.gateway.entrance.tokens import add_token
from tessera_local.platform import Platform
from tessera_schemas import subjects
from tessera_schemas.cluster.labels import SHARD_LABEL
from tessera_schemas.shard import keys
from tessera_schemas.shard.services import SERVICES
from tests.e2e.lasting import finish, lasting
from tests.e2e.live import SECONDS, TENANTS, Live, configuration, eventually, job, tessera
from tests.e2e.platform_checks import assert_all_is_well, stored_events

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER = "b"
MAIN_NODES = {f"gpu-{number}" for number in range(4)}
OTHER_NODES = {f"gpu-{OTHER}-{number}" for number in range(4)}


@dataclass(frozen=True)
class Two:
    """Both shards, each with a client, a fold and an eye of its own."""

    platform: Platform
    main: Live
    other: Live

    @property
    def parts_of_other(self) -> list[str]:
        return [part for part, (_, shard) in self.platform.parts.items() if shard == OTHER]

    @asynccontextmanager
    async def other_down(self, how: int) -> AsyncIterator[None]:
        """Every service of the other shard, its committer among them."""
        await asyncio.gather(*(self.platform.stop(part, how) for part in self.parts_of_other))
        try:
            yield
        finally:
            await asyncio.gather(*(self.platform.start(part) for part in self.parts_of_other))

    async def all_is_well(self) -> None:
        """Checker, rules, events, views and `replay --verify` on both ledgers."""
        await assert_all_is_well(self.main)
        await assert_all_is_well(self.other)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Two]:
    async with AsyncExitStack() as stack:
        shards = (subjects.MAIN_SHARD, OTHER)
        home = tmp_path_factory.mktemp("platform")
        platform = await stack.enter_async_context(Platform(home, tenants=TENANTS, shards=shards))
        lives = [await stack.enter_async_context(Live.on(platform, configuration(), shard)) for shard in shards]
        yield Two(platform, *lives)


def nodes_used(live: Live) -> set[str]:
    return {node for change in live.pods if (node := change.object["spec"].get("nodeName"))}


async def submit_all(live: Live, count: int, **more: float) -> list[Submitted]:
    return [await live.submit(job(f"train-{number}", gpus=4, **more)) for number in range(count)]


async def until_succeeded(live: Live, jobs: list[Submitted]) -> None:
    await live.until_ended(*(done.job_id for done in jobs))
    assert {live.phase(done.job_id) for done in jobs} == {"succeeded"}


async def test_both_shards_take_jobs_and_place_them_on_their_own_nodes_alone(two: Two) -> None:
    assert {node.name for node in two.main.state.nodes.values()} == MAIN_NODES
    assert {node.name for node in two.other.state.nodes.values()} == OTHER_NODES
    jobs = await asyncio.gather(*(submit_all(live, 12) for live in (two.main, two.other)))
    await asyncio.gather(*(until_succeeded(live, done) for live, done in zip((two.main, two.other), jobs, strict=True)))
    assert nodes_used(two.main) <= MAIN_NODES
    assert nodes_used(two.other) <= OTHER_NODES
    assert nodes_used(two.main)
    assert nodes_used(two.other)
    await two.all_is_well()


async def test_one_key_is_a_job_of_each_shard_and_neither_tenant_hears_of_the_other_one(two: Two) -> None:
    async with two.main.listening() as heard, two.other.listening() as heard_there:
        here = await two.main.submit(job("nightly"), key="nightly")
        there = await two.other.submit(job("nightly"), key="nightly")
        assert here.job_id != there.job_id
        await heard.of(here.job_id, "released")
        await heard_there.of(there.job_id, "released")
        assert there.job_id not in {event.data.get("job_id") for event in heard.events}
        assert here.job_id not in {event.data.get("job_id") for event in heard_there.events}
    await two.all_is_well()
    stored, stored_there = [{subject for subject, _, _ in await stored_events(live)} for live in (two.main, two.other)]
    assert {subject.split(".")[1] for subject in stored} == {subjects.MAIN_SHARD}
    assert {subject.split(".")[1] for subject in stored_there} == {OTHER}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_while_one_shard_is_down_the_other_goes_on_and_afterwards_it_does_too(two: Two, how: int) -> None:
    before = await two.other.submit(lasting("before"))
    await two.other.until_phase(before.job_id, "running")
    async with two.other_down(how):
        n, late = await two.other.ledger_end(), await two.other.submit(job("late"), answer_seconds=0.2)
        assert not late.admitted
        async with two.main.listening() as heard:
            jobs = await submit_all(two.main, 16)
            await until_succeeded(two.main, jobs)
            await heard.of(jobs[-1].job_id, "released")
        await assert_all_is_well(two.main)  # the other's pods are still there, and nobody has touched them
        assert await two.other.ledger_end() == n
        changes = [change.type for change in two.other.pods if before.job_id in change.object["metadata"]["name"]]
        assert "DELETED" not in changes
        await finish(two.other, before.job_id)
    await until_succeeded(two.other, [before, late])
    assert two.other.state.ended.get(before.job_id).attempt == 1  # type: ignore[union-attr]
    await two.all_is_well()


async def test_a_node_changes_hands_when_what_runs_there_has_ended(two: Two) -> None:
    node = f"gpu-{OTHER}-3"
    jobs = [await two.other.submit(lasting(f"whole-{number}", gpus=8)) for number in range(4)]
    for done in jobs:
        await two.other.until_phase(done.job_id, "running")
    await label(two.platform, node, subjects.MAIN_SHARD)
    await two.other.until(lambda state: not state.nodes.get(node).ready, "nothing new is placed there")
    assert two.main.state.nodes.get(node) is None
    await finish(two.other, *(done.job_id for done in jobs))
    await two.other.until(lambda state: state.nodes.get(node) is None, "the old shard has let go of it")
    await two.main.until(lambda state: state.nodes.get(node) is not None, "the new shard has it")
    await until_succeeded(two.other, jobs)
    gang = await two.main.submit(job("gang", gpus=8, replicas=4))
    await until_succeeded(two.main, [gang])
    await label(two.platform, node, OTHER)
    await two.main.until(lambda state: state.nodes.get(node) is None, "it is given back")
    await two.other.until(lambda state: state.nodes.get(node) is not None, "and taken")
    await two.all_is_well()


async def label(platform: Platform, node: str, shard: str) -> None:
    token = platform.credentials.read(subjects.OPERATOR).cluster_token
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
    patch = json.dumps({"metadata": {"labels": {SHARD_LABEL: shard}}})
    url = f"{platform.cluster_url}/api/v1/nodes/{node}"
    async with aiohttp.ClientSession(headers=headers) as http, http.patch(url, data=patch) as answer:
        assert answer.status == 200, await answer.text()


# -- who may do what where


async def refused(call: Callable[[], Awaitable[object]], *errors: type[Exception]) -> bool:
    try:
        await asyncio.wait_for(call(), SECONDS)
    except errors:
        return True
    return False


@pytest.mark.parametrize("service", ["scheduler", "operator", "binder", "lab"])
async def test_no_identity_of_one_shard_writes_a_stream_of_the_other_or_knows_of_it(two: Two, service: str) -> None:
    login = two.platform.credentials_of(OTHER).read(service).nats
    n = two.main.state.n
    client = await nats.connect(
        two.platform.nats.url,
        user=login.user,
        password=login.password,
        inbox_prefix=subjects.inbox(service),
        allow_reconnect=False,
        error_cb=_quiet,
    )
    try:
        jetstream = client.jetstream(timeout=1)
        for subject in (subjects.ledger("main"), subjects.fact("main", "binder", "x"), subjects.submit("main", "lab")):
            assert await refused(partial(jetstream.publish, subject, b"{}"), NatsError, TimeoutError)
        info = client.jsm(timeout=SECONDS).stream_info
        assert await refused(
            partial(client.jsm(timeout=1).stream_info, "LEDGER_main"), NotFoundError, NatsError, TimeoutError
        )
        if service != "lab":
            assert (await info(f"LEDGER_{OTHER}")).config.name == f"LEDGER_{OTHER}"
    finally:
        await client.close()
    done = await two.main.submit(job("after"))
    await until_succeeded(two.main, [done])
    assert two.main.state.n > n
    await assert_all_is_well(two.main)


async def _quiet(_error: Exception) -> None:
    """The refusals that are counted are those of the calls."""


async def test_a_projection_of_one_shard_cannot_touch_the_views_of_the_other(two: Two) -> None:
    login = two.platform.credentials_of(OTHER).read("projection").redis
    assert login is not None
    client = Redis.from_url(two.platform.redis.url, username=login.user, password=login.password)
    try:
        assert await client.get(keys.current(OTHER)) is not None
        assert await refused(partial(client.get, keys.current("main")), NoPermissionError)
        assert await refused(partial(client.set, keys.current("main"), "x"), NoPermissionError)
    finally:
        await client.aclose()


async def test_a_service_does_not_start_for_a_shard_that_its_credentials_are_not_of(two: Two) -> None:
    environment = two.platform.environment("scheduler", OTHER)
    said = await tessera("run", "scheduler", "--shard", "main", environment=environment)
    assert said.code == 5
    assert "scheduler@b is an identity of shard b, not of main" in said.err


async def test_a_token_of_one_shards_gateway_is_none_at_the_others(two: Two) -> None:
    token = add_token(two.platform.credentials_of(OTHER).path / two.platform.tokens_file.name, "lab")
    headers = {"Authorization": f"Bearer {token}"}

    async def status(shard: str) -> int:
        url = f"{two.platform.gateway_url_of(shard)}/v1/jobs"
        async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as answer:
            return answer.status

    async def let_in() -> bool:
        return await status(OTHER) == 200

    await eventually(let_in, "the gateway has read the token")
    assert await status("main") == 401


async def test_every_service_of_each_shard_is_ready_on_a_port_of_its_own(two: Two) -> None:
    state = json.loads((two.platform.directory / "platform.json").read_text())
    assert set(state["http"]) == {*SERVICES, *(f"{service}@{OTHER}" for service in SERVICES)}
    assert len({*state["http"].values(), *state["gateway_urls"].values()}) == 2 * len(SERVICES) + 2
    for part in state["http"]:
        assert set((await two.platform.ready(part)).values()) == {"ok"}, part


# -- clients


async def test_clients_say_which_shard_they_mean(two: Two, tmp_path: Path) -> None:
    async with Tessera.connect("lab", home=two.main.home, shard=OTHER) as client:
        done = await client.submit(job("by-sdk"), "by-sdk")
        two.other.acknowledged.append(("lab", "by-sdk"))
    await until_succeeded(two.other, [done])
    two.other.acknowledged.append(("lab", "by-hand"))
    file = tmp_path / "job.json"
    file.write_text(job("by-hand").model_dump_json(exclude_defaults=True))
    words = ("-f", str(file), "--key", "by-hand", "--as", "lab", "--wait", "--shard", OTHER)
    submitted = await two.main.command("submit", *words)
    assert submitted.code == 0, submitted.err
    nodes, nodes_there, nowhere, replay = await asyncio.gather(
        two.main.command("nodes", "-o", "json"),
        two.main.command("nodes", "-o", "json", "--shard", OTHER),
        two.main.command("ls", "--shard", "nowhere"),
        two.main.command("replay", "--verify", "-o", "json", "--shard", OTHER),
    )
    assert {node["name"] for node in nodes.json["items"]} == MAIN_NODES
    assert {node["name"] for node in nodes_there.json["items"]} == OTHER_NODES
    assert (nowhere.code, "has main, b" in nowhere.err) == (2, True)
    assert (replay.code, replay.json["ok"], replay.json["not_recomputed"]) == (0, True, 0)
    await two.all_is_well()
