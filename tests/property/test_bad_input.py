"""A share of `make bad-input`: whatever is sent is good, or is refused with a code, and nothing else comes of it."""

import asyncio
import time
from pathlib import Path
from random import Random

import pytest

from tessera.gateway.operations.routes import ROUTES
from tessera_schemas.facts import JobRefused
from tests.bad_input import over_http
from tests.bad_input.corpora import JSON_TEXTS, broken_tokens, hostile_templates
from tests.bad_input.described import try_described
from tests.bad_input.over_http import ENDLESS, NO_LIMIT, try_operation
from tests.bad_input.trials import (
    READERS,
    Tally,
    good_policy,
    naughty_commands,
    try_command,
    try_commands,
    try_decoders,
)
from tests.builders import admitted, config_body
from tests.unit.admission.admission_world import World as Admission
from tests.unit.admission.admission_world import changed, node
from tests.unit.gateway.gateway_world import a_world


async def admission() -> Admission:
    return await Admission.with_policy(config_body(), [node("node-a"), node("node-b")])


@pytest.mark.parametrize("kind", READERS)
async def test_spoilt_commands_are_refused_with_a_code_or_are_good(kind: str) -> None:
    policy, tally = await good_policy(), Tally()
    try_commands(kind, 300, Random(1), policy, tally)
    assert tally.good > 1, "beside the unspoilt one"
    for data in (*list(naughty_commands(kind))[::17], *JSON_TEXTS):
        try_command(kind, data, policy, tally)
    assert tally.wrong == []
    assert tally.codes.total() > 300


def test_a_changed_byte_of_any_stored_type_is_read_or_refused() -> None:
    tally = Tally()
    try_decoders(0.03, Random(1), tally)
    assert tally.wrong == []
    assert tally.codes["refused"] > 300


async def test_no_hostile_pod_template_is_admitted() -> None:
    here, templates = await admission(), hostile_templates()
    assert len(templates) >= 200
    taken = []
    for template in templates:
        here.clock.now += 1  # more refusals a second are counted and not recorded
        await here.submits(changed("spec.roles.0.template", template))
        fact = here.facts[-1]
        if isinstance(fact, JobRefused):
            assert fact.reasons, template
        else:
            taken.append(template)
    assert taken == []


async def test_no_broken_token_lets_anybody_in(tmp_path: Path) -> None:
    world = await a_world(tmp_path)
    good = world.token("lab")
    values = broken_tokens(good)
    assert len(values) >= 40
    async with world.gateway(**NO_LIMIT):
        for value in values:
            said = await world.ask("GET", "/v1/jobs", headers={"Authorization": value})
            assert (said.status, said.code) in ((401, "Unauthorized"), (429, "RateLimited")), value
        assert (await world.ask("GET", "/v1/jobs", good)).status == 200


async def test_every_operation_answers_spoilt_requests_with_a_code(tmp_path: Path) -> None:
    world = await a_world(tmp_path)
    await world.commit(admitted("k1"))
    wrong: list[str] = []
    async with world.gateway(**NO_LIMIT):
        token = world.token("lab")
        for route in ROUTES:
            if route.name not in ENDLESS:
                tally = await try_operation(world, route, 15, Random(1), token, admitted("k1").job_id)
                wrong += tally.wrong
    assert wrong == []


async def _server(is_hanging: bool) -> asyncio.Server:
    """Answers 200 after the whole process stood still for ten turns, or never."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if not is_hanging:
            time.sleep(10 * over_http.TURN_SECONDS)
            await asyncio.sleep(0)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.parametrize("is_hanging", [True, False], ids=["a gateway that hangs", "a machine that is busy"])
async def test_no_answer_is_said_of_a_gateway_that_hangs_and_not_of_a_busy_machine(
    is_hanging: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_http, "ANSWER_TURNS", 5)
    world = await a_world(tmp_path)
    async with await _server(is_hanging) as server:
        world.port = server.sockets[0].getsockname()[1]
        (route,) = (route for route in ROUTES if route.name == "list_jobs")
        tally = await try_operation(world, route, 1, Random(1), "token", "a" * 20)
    assert [said.rpartition(": ")[2] for said in tally.wrong] == (["no answer"] if is_hanging else [])
    assert tally.good == (not is_hanging)


async def test_cases_made_from_the_description_are_served_or_refused_as_it_says(tmp_path: Path) -> None:
    world = await a_world(tmp_path)
    await world.commit(admitted("k1"))
    found = await try_described(world, 12, 1, admitted("k1").job_id)
    assert len(found) == len(ROUTES)
    assert [sentence for tally in found.values() for sentence in tally.wrong] == []
    assert sum(tally.good for tally in found.values()) > len(ROUTES)
