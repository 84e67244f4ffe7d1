"""`POST /v1/nodes/{node}/health`: who says what of a node, what is refused, and what is no news."""

import asyncio
import json
from typing import Any

import pytest

from tessera.gateway.operations.routes import ROUTES
from tessera.kernel.errors import Full
from tessera_schemas.cluster.health import AILMENTS_MAX, HealthAction, HealthCause, HealthPolicy
from tests.builders import SHARD, config_proposed, node_seen
from tests.unit.gateway.gateway_world import SECONDS, Said, World

PATH = "/v1/nodes/node-a/health"
LINK = {"cause": "link_errors", "evidence": "CRC errors on link 3"}
SICK, WELL = {"ailments": [LINK]}, dict[str, Any](ailments=[])


async def careful(world: World, **more: Any) -> None:
    """A configuration that asks for health."""
    config = world.committed.state.config
    body = config.body.model_copy(update={"health": HealthPolicy(**more)})  # type: ignore[union-attr]
    await world.commit(config_proposed(body, config.version))


async def followed(world: World) -> None:
    """The gateway has the ledger to its end."""
    token = world.token(None)
    async with asyncio.timeout(SECONDS):
        while (await world.ask("GET", "/v1/idle", token)).body.get("as_of") != world.committed.state.n:
            await asyncio.sleep(0.01)


def known(world: World) -> list[tuple[str, str]]:
    """Sources and causes that the ledger has of the node."""
    health = world.committed.state.health.get("node-a")
    return [] if health is None else [(each.source, str(each.ailment.cause)) for each in health.ailments]


async def test_an_operators_report_closes_a_node_and_another_opens_it(world: World) -> None:
    await careful(world)
    token = world.token(None)
    async with world.gateway():
        said = await world.ask("POST", PATH, token, SICK)
        assert (said.status, said.body["state"], said.body["source"]) == (202, "accepted", "operator"), said.body
        by = f"token {token.split('_')[1]}"
        report = {"kind": "report_health", "v": 1, "node": "node-a", "source": "operator", **SICK, "by": by}
        assert (world.subjects, world.commands) == ([f"control.{SHARD}.health"], [("operator", report)])
        await followed(world)
        assert known(world) == [("operator", "link_errors")]
        assert world.committed.state.drains.get("node-a") is not None
        well = await world.ask("POST", PATH, token, WELL)
        assert (well.status, well.body["state"]) == (202, "accepted")
        await followed(world)
    assert (known(world), world.committed.state.drains.get("node-a")) == ([], None)


async def test_a_source_takes_back_its_own_words_alone(world: World) -> None:
    await careful(world)
    token = world.token(None)
    async with world.gateway():
        for source in ("rack-agent", "fabric-agent"):
            assert (await world.ask("POST", PATH, token, {**SICK, "source": source})).status == 202
        await followed(world)
        await world.ask("POST", PATH, token, {**WELL, "source": "rack-agent"})
        await followed(world)
    assert known(world) == [("fabric-agent", "link_errors")]


async def test_what_the_ledger_has_is_not_sent_again(world: World) -> None:
    await careful(world)
    token = world.token(None)
    async with world.gateway():
        first = await world.ask("POST", PATH, token, WELL)
        assert (first.status, first.body["state"], world.commands) == (200, "known", [])
        await world.ask("POST", PATH, token, SICK)
        await followed(world)
        again = await world.ask("POST", PATH, token, SICK)
        assert (again.status, again.body["state"], len(world.commands)) == (200, "known", 1)
        more = await world.ask("POST", PATH, token, {"ailments": [{**LINK, "evidence": "and on link 4"}]})
    assert (more.status, len(world.commands)) == (202, 2)


async def test_a_report_that_is_on_its_way_is_taken_back_though_the_ledger_does_not_have_it(world: World) -> None:
    """While nothing is taken in, the state says well: the node would be out later although its agent's last word is."""
    await careful(world)
    world.answers = False
    token = world.token(None)
    async with world.gateway(answer_seconds=0.05):
        said = [await world.ask("POST", PATH, token, body) for body in (SICK, WELL, WELL)]
    assert [(each.status, each.body["state"]) for each in said] == [(202, "stored"), (202, "stored"), (200, "known")]
    assert [len(command.get("ailments", ())) for _, command in world.commands] == [1, 0]


async def test_a_cause_that_the_configuration_ignores_is_named_and_no_news(world: World) -> None:
    await careful(world, actions={HealthCause.LINK_ERRORS: HealthAction.IGNORE})
    token = world.token(None)
    async with world.gateway():
        said = await world.ask("POST", PATH, token, {"ailments": [LINK, LINK]})
    assert (said.status, said.body["state"], said.body["ignored"]) == (200, "known", ["link_errors"])
    assert world.commands == []


async def test_a_tenant_tells_of_no_nodes_health(world: World) -> None:
    await careful(world)
    token = world.token("lab")
    async with world.gateway():
        said = await world.ask("POST", PATH, token, SICK)
        unknown = await world.ask("POST", "/v1/nodes/node-x/health", token, SICK)
    assert [(each.status, each.code) for each in (said, unknown)] == [(403, "Forbidden")] * 2
    assert "operators and their agents" in said.body["sentence"]
    assert world.commands == []


@pytest.mark.parametrize("node", ["node-x", "%00", "%F0%9F%92%A9", "lost"])
async def test_a_node_that_is_not_there_is_refused_by_name(world: World, node: str) -> None:
    await careful(world)
    await world.commit(node_seen("lost"))
    await world.commit(node_seen("lost", gone=True))
    token = world.token(None)
    async with world.gateway():
        said = await world.ask("POST", f"/v1/nodes/{node}/health", token, SICK)
    assert (said.status, said.code, said.body["field"]) == (404, "NoSuchNode", "node"), said.body
    assert node not in ("node-x", "lost") or f"({node})" in said.body["sentence"]
    assert world.commands == []


async def test_a_token_for_health_reports_as_its_agent_and_does_nothing_else(world: World) -> None:
    await careful(world)
    token = world.token(None, only="health", source="rack-agent")
    async with world.gateway():
        said = await world.ask("POST", PATH, token, SICK)
        named = await world.ask("POST", PATH, token, {"ailments": [], "source": "rack-agent"})
        others = [
            await world.ask(route.method, route.path, token, json={} if route.method != "GET" else None)
            for route in ROUTES
            if route.name != "report_health"
        ]
        unknown = await world.ask("GET", "/v1/no-such", token)
    assert [(each.status, each.body["source"]) for each in (said, named)] == [(202, "rack-agent")] * 2
    assert {(each.status, each.code) for each in (*others, unknown)} == {(403, "Forbidden")}
    assert "this token is for health only" in others[0].body["sentence"]
    assert (len(others), len(world.commands)) == (len(ROUTES) - 1, 2)


@pytest.mark.parametrize("source", ["fabric-agent", "operator", "dcgm"])
async def test_an_agent_speaks_as_no_other_source(world: World, source: str) -> None:
    await careful(world)
    token = world.token(None, only="health", source="rack-agent")
    async with world.gateway():
        said = await world.ask("POST", PATH, token, {**WELL, "source": source})
    assert (said.status, said.code, said.body["field"]) == (403, "Forbidden", "source")
    assert "the token speaks as rack-agent" in said.body["sentence"]
    assert world.commands == []


def reasons(said: Said) -> list[tuple[str, str]]:
    return [(each["code"], each.get("field", "")) for each in said.body["reasons"]]


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "MissingField", "ailments"),
        ({"ailments": [{"cause": "haunted"}]}, "InvalidField", "ailments.0.cause"),
        ({"ailments": [{"cause": ["gpu_lost"]}]}, "InvalidField", "ailments.0.cause"),
        ({"ailments": [{}]}, "MissingField", "ailments.0.cause"),
        ({"ailments": [{**LINK, "evidence": "x" * 257}]}, "InvalidField", "ailments.0.evidence"),
        ({"ailments": [{**LINK, "evidence": "\x1b[2J"}]}, "InvalidField", "ailments"),
        ({"ailments": [{**LINK, "device": "\ud800"}]}, "InvalidField", "ailments.0.device"),
        ({"ailments": [{**LINK, "device": "x" * 129}]}, "InvalidField", "ailments.0.device"),
        ({"ailments": [LINK] * (AILMENTS_MAX + 1)}, "InvalidField", "ailments"),
        ({**SICK, "source": "reputation"}, "InvalidField", "source"),
        ({**SICK, "source": "Rack Agent"}, "InvalidField", "source"),
        ({**SICK, "node": "node-b"}, "UnknownField", "node"),
        ({**SICK, "by": "ana"}, "UnknownField", "by"),
    ],
    ids=[
        "no word at all", "an unknown cause", "a cause that is none", "no cause", "long evidence", "an escape",
        "half of a pair", "a long device", "many ailments", "the committer's name", "no name",
        "two nodes", "by another",
    ],
)  # fmt: skip
async def test_what_no_report_can_be_is_refused_by_its_field(
    world: World, body: dict[str, Any], code: str, field: str
) -> None:
    await careful(world)
    token = world.token(None)
    async with world.gateway():
        said = await world.ask("POST", PATH, token, data=json.dumps(body), headers=JSON)
    assert (said.status, reasons(said)) == (422, [(code, field)]), said.body
    assert world.commands == []


JSON = {"Content-Type": "application/json"}


async def test_an_unknown_cause_is_refused_with_the_vocabulary(world: World) -> None:
    await careful(world)
    token = world.token(None)
    async with world.gateway():
        said = await world.ask("POST", PATH, token, {"ailments": [{"cause": "haunted"}]})
    assert f"(haunted is none of {' '.join(HealthCause)})" in said.body["sentence"]


async def test_without_health_in_the_configuration_a_report_is_refused(world: World) -> None:
    """The committer takes nothing in then; an agent that is told `accepted` would be told a lie."""
    token = world.token(None)
    async with world.gateway():
        said = await world.ask("POST", PATH, token, SICK)
    assert (said.status, said.code, said.body["field"]) == (503, "NotConfigured", "health")
    assert "the configuration has no `health`" in said.body["sentence"]
    assert world.commands == []


async def test_a_full_backlog_of_reports_is_told(world: World) -> None:
    await careful(world)
    world.bus_faults.only = "control."
    world.bus_faults.go_away(Full("1,000 reports wait"))
    token = world.token(None)
    async with world.gateway():
        said = await world.ask("POST", PATH, token, SICK)
    assert (said.status, said.code) == (429, "BacklogFull")
