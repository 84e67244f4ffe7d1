"""
Each operation of the HTTP API with cases that its description makes by itself, fitting ones and others.

What answers must be as described, too: a status that the operation names, with a body of the schema that it names.
"""

import json
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import aiohttp
import hypothesis
import jsonschema
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import Case, GenerationMode
from schemathesis.core import NotSet
from yarl import URL

from docs.make_openapi import document
from tests.bad_input.over_http import ANSWER_TURNS, BEGUN_TURNS, ENDLESS, NO_LIMIT, answer_fault, answered
from tests.bad_input.trials import Tally
from tests.unit.gateway.gateway_world import World

ANYWHERE = frozenset({400, 404, 405})
"""What the way to an operation may answer before it: a path with an empty or a broken part is another one."""

Validators = dict[tuple[str, str, int], Any]


def validators() -> Validators:
    """What checks the bodies of each operation's answers, by method, path and status."""
    described, found = document(), Validators()
    for path, item in described["paths"].items():
        for method, operation in item.items():
            for status, answer in operation["responses"].items():
                content = answer["content"].get("application/json")
                if content:
                    schema = {**content["schema"], "components": described["components"]}
                    found[method.upper(), path, int(status)] = jsonschema.Draft202012Validator(schema)
    return found


def made_cases(operation: Any, cases: int, seed: int) -> Iterator[Case[Any]]:
    """Half of them as the description wants them, half as it does not."""
    for mode in GenerationMode:
        found: list[Case[Any]] = []

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=cases // 2,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def collect(add: Callable[[Case[Any]], None], case: Case[Any]) -> None:
            add(case)

        try:
            collect(found.append)
        except hypothesis.errors.Unsatisfiable:  # nothing can be wrong where nothing is asked for
            continue
        yield from found


def request_of(case: Case[Any], random: Random, token: str, job: str) -> tuple[URL, dict[str, str], bytes | None]:
    """The case as it is sent: by somebody who is let in, and often about a job that is there."""
    if "job_id" in (case.path_parameters or {}) and random.random() < 0.7:
        case.path_parameters["job_id"] = job
    query = [(name, str(value)) for name, value in (case.query or {}).items() if not isinstance(value, list | dict)]
    query += [(n, str(v)) for n, values in (case.query or {}).items() if isinstance(values, list) for v in values]
    headers = {name: str(value) for name, value in (case.headers or {}).items()}
    headers["Authorization"] = f"Bearer {token}"
    data = None
    if not isinstance(case.body, NotSet):
        data = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
        headers.setdefault("Content-Type", case.media_type or "application/json")
    return URL(case.formatted_path, encoded=False).with_query(query), headers, data


async def try_described(world: World, cases: int, seed: int, job: str) -> dict[str, Tally]:
    """So many cases of every operation; `good` counts the ones that were served."""
    token, checks, found, random = world.token("lab"), validators(), dict[str, Tally](), Random(seed)
    schema = schemathesis.openapi.from_dict(document())
    timeout = aiohttp.ClientTimeout()
    async with world.gateway(**NO_LIMIT), aiohttp.ClientSession(world.url, timeout=timeout) as http:
        for result in schema.get_all_operations():
            operation = result.ok()
            tally = found[f"{operation.method.upper()} {operation.path}"] = Tally()
            for case in made_cases(operation, cases, seed):
                await try_case(http, case, request_of(case, random, token, job), checks, tally)
    return found


async def try_case(
    http: aiohttp.ClientSession, case: Case[Any], request: Any, checks: Validators, tally: Tally
) -> None:
    """One case: served, or refused, and either as described."""
    url, headers, data = request
    method, path = case.method.upper(), case.operation.path
    is_endless = case.operation.definition.raw["operationId"] in ENDLESS
    turns = BEGUN_TURNS if is_endless else ANSWER_TURNS
    tally.cases += 1
    began = time.process_time()
    try:
        async with answered(turns), http.request(method, url, headers=headers, data=data) as answer:
            text = b"" if is_endless and answer.status == 200 else await answer.read()
    except TimeoutError:
        wrong = "" if is_endless else "no answer"
    except ValueError:  # no client sends it
        return
    except aiohttp.ClientError as error:
        wrong = f"{type(error).__name__}: {error}"
    else:
        tally.codes[str(answer.status)] += 1
        tally.good += answer.status < 300
        wrong = answer_fault(answer.status, text) or body_fault(checks, (method, path, answer.status), text)
    tally.slowest = max(tally.slowest, time.process_time() - began)
    if wrong:
        tally.wrong.append(f"{method} {str(url)[:200]} {headers} {(data or b'')[:300]!r}: {wrong}")


def body_fault(checks: Validators, of: tuple[str, str, int], text: bytes) -> str:
    """What of an answer is not as described; "" for nothing."""
    check = checks.get(of)
    if check is None or not text:
        return "" if of[2] < 300 or of[2] in ANYWHERE else f"status {of[2]} is not described"
    fault = next(check.iter_errors(json.loads(text)), None)
    return "" if fault is None else f"status {of[2]}: {fault.json_path}: {fault.message[:200]}"
