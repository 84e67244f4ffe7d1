"""Each operation of the HTTP API with cases made from its description, against a gateway in this process."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from tessera.gateway.operations.routes import ROUTES, Route
from tests.bad_input.corpora import NAUGHTY
from tests.bad_input.generated import drawn, flipped, mutated
from tests.bad_input.trials import Tally, good_command
from tests.unit.gateway.gateway_world import World

NO_LIMIT = {"requests_per_second": 100_000, "requests_burst": 100_000, "streams_per_token": 10_000}
NO_LIMIT |= {"connections_per_address": 4096, "answer_seconds": 0.05}
ENDLESS = ("wait_for_job", "events", "job_logs")
"""Their good cases take as long as the client likes."""
TURN_SECONDS = 0.05
ANSWER_TURNS = 400
BEGUN_TURNS = 4  # a stream that began well has no end, and whoever waits for a job that runs gets no answer
EXPECTED = frozenset({400, 401, 403, 404, 405, 409, 410, 411, 413, 414, 415, 422, 429, 431})
TYPED = frozenset({503})
"""Unavailable is an answer as well, where it names a code."""


@asynccontextmanager
async def answered(turns: int) -> AsyncIterator[None]:
    """
    Raises TimeoutError in what is done within after so many turns of the event loop, of TURN_SECONDS each or longer.

    Gateway and client share this loop, and each turn lets both go on. So a machine that does not serve this process
    for seconds costs one turn, and only an answer for which nothing happens runs out of them.
    """
    async with asyncio.timeout(None) as until:

        async def count() -> None:
            for _ in range(turns):
                await asyncio.sleep(TURN_SECONDS)
            until.reschedule(0)

        counting = asyncio.create_task(count())
        try:
            yield
        finally:
            counting.cancel()


def bodies(route: Route, job: str) -> list[dict[str, Any]]:
    """Good bodies of an operation, for chance to spoil."""
    if route.name == "submit":
        spec = good_command("submit_job")["spec"]
        return [{"key": "k", "spec": spec}, {"key": "k", "template": "tune", "parameters": {"seconds": 1}}]
    return [{"why": "done"}, {"priority_class": "high"}, {"path": "/a", "attempt": 1}, {"job_id": job, "now": True}]


async def try_operation(world: World, route: Route, cases: int, random: Random, token: str, job: str) -> Tally:
    """
    So many cases of one operation. Nothing but a success, a described refusal with a code, or a typed 503 may come.
    """
    tally = Tally()
    turns = BEGUN_TURNS if route.name in ENDLESS else ANSWER_TURNS
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout()) as http:
        for _ in range(cases):
            url, headers, data = _case(route, random, token, job)
            tally.cases += 1
            began = time.process_time()
            try:
                target = URL(f"{world.url}{url}", encoded=True)
                async with (
                    answered(turns),
                    http.request(route.method, target, headers=headers, data=data) as answer,
                ):
                    text = b"" if answer.status == 200 and route.name in ("events", "job_logs") else await answer.read()
                    wrong = answer_fault(answer.status, text)
                    tally.codes[str(answer.status)] += 1
                    tally.good += answer.status < 300
            except TimeoutError:
                wrong = "" if route.name in ENDLESS else "no answer"
            except (aiohttp.ClientError, ValueError) as error:
                wrong = "" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"  # not sent at all
            tally.slowest = max(tally.slowest, time.process_time() - began)
            if wrong:
                tally.wrong.append(f"{route.method} {url[:200]} {headers} {(data or b'')[:200]!r}: {wrong}")
    return tally


def answer_fault(status: int, text: bytes) -> str:
    """What of an answer may not be, of whatever operation; "" for nothing."""
    if status < 400:
        return ""
    if status not in EXPECTED | TYPED:
        return f"status {status}: {text[:200]!r}"
    if status in (404, 405) and not text:
        return ""
    try:
        reasons = json.loads(text)["reasons"]
        return "" if reasons and all(reason["code"] for reason in reasons) else f"no code: {text[:200]!r}"
    except (ValueError, KeyError, TypeError):
        return f"status {status} without a typed body: {text[:200]!r}"


def _case(route: Route, random: Random, token: str, job: str) -> tuple[str, dict[str, str], bytes | None]:
    path = route.path
    for name in route.parameters:
        value = random.choice((job, job, "a" * 20, random.choice(NAUGHTY)))
        path = path.replace(f"{{{name}}}", quote(value.encode("utf-8", "surrogatepass")[:2_000], safe=""))
    names = [*route.query.model_fields, "unknown"]
    pairs = [(random.choice(names), drawn(random)) for _ in range(random.choice((0, 0, 1, 2)))]
    query = "&".join(f"{name}={quote(str(value)[:500].encode('utf-8', 'surrogatepass'))}" for name, value in pairs)
    headers = {"Authorization": f"Bearer {token}"}
    data = None
    if route.body is not None:
        data = mutated(random, random.choice(bodies(route, job)))
        headers["Content-Type"] = random.choice(("application/json",) * 8 + ("text/plain", "", "application/xml"))
        if random.random() < 0.1:
            data = flipped(random, data)
    if random.random() < 0.2:
        headers["Idempotency-Key"] = _header(random)
    if random.random() < 0.1:
        headers[random.choice(("Last-Event-ID", "Accept", "traceparent", "Origin"))] = _header(random)
    return (f"{path}?{query}" if query else path), headers, data


def _header(random: Random) -> str:
    """A naughty string as far as a header can hold it."""
    text = random.choice(NAUGHTY)[:500]
    return "".join(c for c in text if c.isprintable() and ord(c) < 256) or "x"


async def try_all(world: World, cases: int, random: Random, job: str) -> dict[str, Tally]:
    """Every operation of the description; others are served meanwhile, and must be answered within a second of CPU."""
    token, found = world.token("lab"), dict[str, Tally]()
    async with world.gateway(**NO_LIMIT):
        for route in ROUTES:
            found[f"{route.method} {route.path}"] = await try_operation(world, route, cases, random, token, job)
            await asyncio.sleep(0)
        good = await world.ask("GET", "/v1/jobs", token)
        assert good.status == 200
    return found
