"""The gateway on real servers, beside real services: what a client with a token and nothing else can rely on."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest
import pytest_asyncio

from tests.e2e.live import Live, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
SECONDS = 120.0


class Client:
    """Speaks HTTP as a tenant or the operator; what is stored is noted, so that the checker knows of it."""

    def __init__(self, live: Live, token: str, tenant: str = "") -> None:
        self._live, self._tenant = live, tenant
        self._headers = {"Authorization": f"Bearer {token}"}

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Json]:
        given = {"data": orjson.dumps(body)} if body is not None else {}
        headers = {**self._headers, **headers, **({"Content-Type": "application/json"} if body is not None else {})}
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        url = f"{self._live.platform.gateway_url}{path}"
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.request(method, url, headers=headers, **given) as answer,
        ):
            return answer.status, await answer.json()

    async def text(self, path: str) -> str:
        """Body of an answer that is text; "" for a refusal."""
        url = f"{self._live.platform.gateway_url}{path}"
        async with aiohttp.ClientSession() as http, http.get(url, headers=self._headers) as answer:
            return await answer.text() if answer.status == 200 else ""

    async def submit(self, key: str, term_ms: int = 0, **more: Any) -> tuple[int, Json]:
        spec = job(**more).model_dump(mode="json", exclude_defaults=True)
        if term_ms:
            spec["roles"][0]["template"]["annotations"]["tessera.io/simulate-term-ms"] = str(term_ms)
        status, body = await self.ask("POST", "/v1/jobs", {"key": key, "spec": spec})
        if status in (200, 201, 202):
            self._live.acknowledged.append((self._tenant, key))
        return status, body

    @asynccontextmanager
    async def events(self, query: str = "", **headers: str) -> AsyncIterator["Events"]:
        url = f"{self._live.platform.gateway_url}/v1/events{query}"
        headers = {**self._headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            yield Events(answer)


class Events:
    """(id, kind) of what comes on a stream."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.seen: list[tuple[int, str]] = []

    async def until(self, kind: str) -> list[tuple[int, str]]:
        """All up to the next event of a kind, such as `job.succeeded.v1`, or the end of the stream."""
        place = 0
        async with asyncio.timeout(SECONDS):
            async for line in self._answer.content:
                if line.startswith(b"id: "):
                    place = int(line[4:])
                elif line.startswith(b"data: ") and "type" in (event := json.loads(line[6:])):
                    self.seen.append((place, event["type"].removeprefix("io.tessera.")))
                    if self.seen[-1][1] == kind:
                        break
        return self.seen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with Live.at(tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


async def client(live: Live, tenant: str = "") -> Client:
    """With a token that the command made, once the gateway takes it."""
    said = await live.command("token", "new", *([tenant] if tenant else ["--operator"]))
    assert said.code == 0, said.err
    made = Client(live, said.out.strip(), tenant)

    async def taken() -> bool:
        return (await made.ask("GET", "/openapi.json"))[0] == 200

    await eventually(taken, "the gateway takes the new token")
    return made


async def answers(client: Client, wanted: int) -> bool:
    """Whether a list gets this status; one that was read just now is given again for a moment."""
    return (await client.ask("GET", "/v1/jobs"))[0] == wanted


async def test_a_job_is_submitted_watched_explained_and_listed_by_token_alone(live: Live) -> None:
    lab = await client(live, "lab")
    async with lab.events() as events:
        status, body = await lab.submit("http-1", name="by-http", seconds=0.2)
        assert (status, body["state"]) == (201, "queued")
        story = [kind for _, kind in await events.until("job.released.v1")]
    expected = ["admitted", "allocated", "binding", "bound", "running", "succeeded", "released"]
    assert story == [f"job.{kind}.v1" for kind in expected]
    status, said = await lab.ask("GET", f"/v1/jobs/{body['job_id']}")
    assert (status, said["job"]["phase"]) == (200, "succeeded")
    assert said["as_of"] > body["as_of"]
    status, explained = await lab.ask("GET", f"/v1/jobs/{body['job_id']}/explain")
    assert (status, explained["phase"]) == (200, "succeeded")
    _, listed = await lab.ask("GET", "/v1/jobs?name=by-http")
    assert [item["job_id"] for item in listed["items"]] == [body["job_id"]]
    assert (await lab.submit("http-1", name="by-http", seconds=0.2))[1]["state"] == "existing"
    assert (await lab.submit("http-1", name="changed"))[0] == 409
    await assert_all_is_well(live)


async def test_refusals_are_those_of_admission_with_all_reasons(live: Live) -> None:
    lab = await client(live, "lab")
    spec = job("wrong", queue="nowhere", gpus=1).model_dump(mode="json", exclude_defaults=True)
    spec["roles"][0]["template"]["hostNetwork"] = True
    status, body = await lab.ask("POST", "/v1/jobs", {"key": "http-wrong", "spec": spec})
    assert status == 422
    assert {"ForbiddenField", "NoSuchQueue"} <= {reason["code"] for reason in body["reasons"]}


async def test_tenants_are_apart_and_an_operator_cancels_for_them(live: Live) -> None:
    lab, ops, operator = await client(live, "lab"), await client(live, "ops"), await client(live)
    _, body = await lab.submit("http-long", name="long", seconds=600)
    path = f"/v1/jobs/{body['job_id']}"
    await live.until_phase(body["job_id"], "running")
    for method, tail in (("GET", ""), ("GET", "/explain"), ("POST", "/cancel"), ("POST", "/hold")):
        assert (await ops.ask(method, path + tail))[0] == 404
    async with ops.events("?after=0") as others:
        assert (await operator.ask("POST", f"{path}/cancel", {"why": "maintenance"}))[0] == 202
        await live.until_ended(body["job_id"])
        await ops.submit("http-ops", name="mine")
        kinds = await others.until("job.released.v1")
    assert kinds[0][1] == "job.admitted.v1"  # nothing of the other's came before
    status, _ = await lab.ask("POST", f"{path}/cancel")
    assert status == 409
    assert (await operator.ask("GET", path))[1]["job"]["phase"] == "cancelled"
    await assert_all_is_well(live)


async def test_logs_outlive_their_pods_and_hold_what_a_stopped_program_wrote_last(live: Live) -> None:
    lab, ops = await client(live, "lab"), await client(live, "ops")
    _, ended = await lab.submit("http-log", name="logged", seconds=0.5, replicas=2, ttl_seconds_after_finished=20)
    _, stopped = await lab.submit("http-stopped", name="stopped", seconds=600, term_ms=500)
    await live.until_ended(ended["job_id"])
    await live.until_phase(stopped["job_id"], "running")
    await lab.ask("POST", f"/v1/jobs/{stopped['job_id']}/cancel", {})
    await live.until_ended(stopped["job_id"])
    await assert_all_is_well(live)  # no pod is left
    for job_id, rank, last in ((ended["job_id"], 1, "exit code 0"), (stopped["job_id"], 0, "exit code 143")):
        path = f"/v1/jobs/{job_id}/logs?rank={rank}"

        async def stored(path: str = path, last: str = last) -> bool:
            return (await lab.text(path)).endswith(f"{last}\n")

        await eventually(stored, f"{path} is served from the store")
        assert (await lab.text(path)).count("simulated program") == 1
        assert (await ops.ask("GET", path))[0] == 404
    assert "SIGTERM received" in await lab.text(f"/v1/jobs/{stopped['job_id']}/logs")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_a_stream_goes_on_after_the_gateway_was_away_with_each_event_once(live: Live, how: int) -> None:
    lab = await client(live, "lab")
    async with lab.events() as events:
        await lab.submit(f"http-first-{how}", name="first")
        seen = list(await events.until("job.allocated.v1"))
        async with live.down("gateway", how):
            away = await live.submit(job("away"))
            await live.until_ended(away.job_id)
    last = seen[-1][0]
    async with lab.events(Last_Event_ID=str(last)) as events:
        await lab.submit(f"http-last-{how}", name="last")
        while sum(kind == "job.released.v1" for _, kind in events.seen) < 3:
            await events.until("job.released.v1")
        seen += events.seen
    ids = [place for place, _ in seen]
    assert ids == sorted(set(ids))
    async with lab.events(f"?after={ids[0] - 1}") as whole:
        while (whole.seen or [(0, "")])[-1][0] < ids[-1]:
            await whole.until("job.released.v1")
    assert whole.seen == seen
    await assert_all_is_well(live)


async def test_without_redis_reads_are_503_and_submits_go_on(live: Live) -> None:
    lab = await client(live, "lab")
    assert (await lab.ask("GET", "/v1/jobs"))[0] == 200
    for how in ("stopped", "frozen"):
        if how == "stopped":
            await live.platform.stop("redis")
        else:
            live.platform.pause("redis")
        try:
            await eventually(lambda: answers(lab, 503), f"lists are refused while Redis is {how}")
            for path in ("/v1/jobs", "/v1/nodes", "/v1/queues"):
                status, body = await lab.ask("GET", path)
                assert (status, body["code"], body["field"]) == (503, "Unavailable", "redis"), how
            status, body = await lab.submit(f"http-redis-{how}", name=f"redis-{how}")
            assert status == 201
            await live.until_ended(body["job_id"])
            assert (await lab.ask("GET", f"/v1/jobs/{body['job_id']}/explain"))[0] == 200
        finally:
            if how == "stopped":
                await live.platform.start("redis")
            else:
                live.platform.resume("redis")
        await eventually(lambda: answers(lab, 200), f"reads are back after Redis was {how}")
    await assert_all_is_well(live)


async def test_without_nats_a_submit_is_never_a_success_and_with_its_key_it_is_one_job_later(live: Live) -> None:
    lab = await client(live, "lab")
    live.platform.pause("nats")
    try:
        status, body = await lab.submit("http-again", name="again")
        assert (status, body["code"]) == (503, "Unavailable")
    finally:
        live.platform.resume("nats")

    async def submitted() -> bool:
        return (await lab.submit("http-again", name="again"))[0] in (200, 201)

    await eventually(submitted, "the same submit is taken once NATS is back")
    await assert_all_is_well(live)


async def test_without_the_gateway_clients_on_nats_and_all_jobs_go_on(live: Live) -> None:
    lab = await client(live, "lab")
    async with live.down("gateway", signal.SIGKILL):
        done = await live.submit(job("on-nats"))
        assert done.admitted
        await live.until_ended(done.job_id)
        with pytest.raises(aiohttp.ClientConnectionError):
            await lab.ask("GET", "/v1/jobs")
    assert (await lab.ask("GET", f"/v1/jobs/{done.job_id}"))[0] == 200
    await assert_all_is_well(live)


async def test_no_log_holds_a_token(live: Live) -> None:
    lab = await client(live, "lab")
    secret = lab._headers["Authorization"].rpartition("_")[2]
    logs = [path.read_text(errors="replace") for path in (live.home / "logs").iterdir()]
    assert any("job_submitted" in log for log in logs)
    assert not any(secret in log for log in logs)
    said = await live.command("token", "list", "-o", "json")
    assert secret not in said.out
