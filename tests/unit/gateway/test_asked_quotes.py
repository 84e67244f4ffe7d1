"""`POST /v1/quotes`: when a job would start, for what, and what refuses it."""

import asyncio
from typing import Any

from tessera.domain.runtimes import JobKind
from tessera.engine.quoting.asked import AskedQuote
from tessera.engine.quoting.record import QuoteRecord
from tessera.gateway.entrance.problems import Refusal
from tessera.gateway.quoting.asking import WAITING_MAX, AskedQuotes
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.accounts import packed
from tessera.kernel.ledger.quotes import store_quotes
from tessera.kernel.memory.bus import MemoryBus
from tessera_schemas.base import job_id
from tessera_schemas.commands import Answer
from tessera_schemas.reasons import Code, Reason
from tests.builders import SHARD, admitted, job_spec, role
from tests.unit.gateway.gateway_world import Json, World

HOUR = 3_600_000


def body(*roles: Any, changes: bool = False, **spec: Any) -> Json:
    wanted = job_spec(*(roles or (role(gpus=8),)), **spec)
    return {"spec": wanted.model_dump(mode="json", exclude_defaults=True), "changes": changes}


async def busy(world: World, runs: int = 1) -> str:
    """One of two nodes, or both, with a run of `other`; returns a token of `lab`."""
    for at in range(runs):
        key = f"runs-{at}"
        world.committed.commit(admitted(key, job_spec(role(gpus=8), name="rival"), tenant="other"))
        world.committed.start(job_id(SHARD, "other", key), key)
    await world.publish_what_is_committed()
    return world.token("lab")


async def test_a_job_that_finds_room_starts_now_and_nothing_is_submitted(world: World) -> None:
    lab = await busy(world)
    async with world.gateway():
        said = await world.ask("POST", "/v1/quotes", lab, body())
    assert said.status == 200, said.body
    assert (said.body["pool"], said.body["quote"]["words"]) == ("default", "now")
    assert [command.get("dry_run") for _, command in world.commands] == [True]
    assert len(world.committed.state.jobs) == 1


async def test_changes_are_tried_and_said_as_fields_of_the_spec_and_two_asks_get_one_answer(world: World) -> None:
    lab = await busy(world)
    async with world.gateway():
        first = await world.ask("POST", "/v1/quotes", lab, body(role(gpus=8, replicas=2), changes=True))
        again = await world.ask("POST", "/v1/quotes", lab, body(role(gpus=8, replicas=2), changes=True))
        plain = await world.ask("POST", "/v1/quotes", lab, body(role(gpus=8, replicas=2)))
    assert first.status == 200, first.body
    fewer = next(change for change in first.body["changes"] if change["kind"] == "pods")
    assert fewer["differences"] == [{"field": "roles.worker.replicas", "before": 2, "after": 1}]
    assert fewer["quote"]["by_50_ts"] < first.body["quote"]["by_50_ts"]
    assert "rival" not in str(first.body)

    def drawn(answer: Json) -> list[Any]:
        quotes = [answer["quote"], *(change["quote"] for change in answer.get("changes", ()))]
        return [quote[f"by_{chance}_ts"] for quote in quotes for chance in (10, 50, 80, 95)]

    assert drawn(again.body) == drawn(first.body)
    assert (plain.body["changes"], plain.body["tried"]) == ([], 0)


async def test_what_a_submit_is_refused_for_a_quote_is_too_and_each_reason_names_its_field(world: World) -> None:
    lab, operator = await busy(world), world.token(None)
    reasons = (Reason(code=Code.PRIORITY_NOT_ALLOWED, field="priority_class"),)
    async with world.gateway():
        no_gpus = await world.ask("POST", "/v1/quotes", lab, body(role(gpus=0)))
        by_operator = await world.ask("POST", "/v1/quotes", operator, body())
        beside = await world.ask("POST", "/v1/quotes", lab, {"name": "train", "gpus": 8})
        quantity = await world.ask("POST", "/v1/quotes", lab, {"spec": {"name": "a", "queue": "b", "memory": "much"}})
        world.judge = lambda tenant, command: Answer(accepted=False, reasons=reasons)
        refused = await world.ask("POST", "/v1/quotes", lab, body())
    assert (no_gpus.status, no_gpus.code, no_gpus.body["field"]) == (422, "InvalidField", "roles")
    assert (by_operator.status, beside.status, quantity.status) == (403, 422, 422)
    assert "stand in `spec`" in str(beside.body)
    assert (refused.status, refused.code, refused.body["field"]) == (422, "PriorityNotAllowed", "priority_class")


async def test_a_quote_rests_on_what_projection_has_learnt(world: World) -> None:
    lab, state = await busy(world, runs=2), world.committed.state
    record = QuoteRecord.begin(state)
    for at in range(40):
        record.lengths.start(str(at), JobKind("lab", "research", "train", 8), at)
        record.lengths.end(str(at), at + HOUR, evicted=at % 2 == 0, cut=at % 2 == 0)
    await store_quotes(MemoryBus(world.broker), SHARD, state.n, state.chain, packed(record.stored()), 0)
    async with world.gateway():
        said = await world.ask("POST", "/v1/quotes", lab, body())
    assert said.status == 200, said.body
    assert said.body["quote"]["evicted_permille"] > 300
    assert said.body["quote"]["words"] != "now"


async def test_as_many_wait_as_may_and_more_are_refused_for_a_moment(world: World) -> None:
    await busy(world, runs=2)
    ports = world.ports()
    asked = AskedQuotes(world.committed.state, ports.bus, ports.clock, SHARD)
    facts = [admitted(f"k{at}", job_spec(role(gpus=8))) for at in range(WAITING_MAX + 1)]
    found = await asyncio.gather(*(asked.quote(fact, False) for fact in facts), return_exceptions=True)
    assert [type(each) for each in found[:-1]] == [AskedQuote] * WAITING_MAX
    assert isinstance(found[-1], Refusal)
    assert found[-1].status == 429


async def test_without_nats_a_quote_rests_on_what_the_state_remembers(world: World) -> None:
    await busy(world, runs=2)
    world.bus_faults.go_away(Transient("away"))
    ports = world.ports()
    asked = AskedQuotes(world.committed.state, ports.bus, ports.clock, SHARD)
    assert isinstance(await asked.quote(admitted("k", job_spec(role(gpus=8))), False), AskedQuote)
