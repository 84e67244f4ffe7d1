"""An operator is told by the gateway why a job waits, where that has the whole ledger; else the command folds it."""

import asyncio
from pathlib import Path

import pytest

from tessera.client.connect.contexts import ApiLogin
from tessera.client.connect.where import Where
from tessera.client.sending.explaining import answer_of_gateway
from tessera.gateway.entrance.tokens import add_token, keep_operator_token, read_entries
from tessera_schemas.facts import HoldRequested
from tests.builders import SHARD, admitted
from tests.unit.gateway.gateway_world import World


async def test_the_gateway_answers_where_it_has_folded_what_is_asked_for(world: World) -> None:
    fact, token = admitted("k1"), world.token(None)
    await world.commit(fact)
    async with world.gateway():
        head = world.committed.state.n
        where = Where(SHARD, gateway=ApiLogin(world.url, token))
        answer = await answer_of_gateway(where, fact.job_id, head)
    assert answer is not None
    assert (answer["as_of"], answer["job_id"], answer["taken_n"]) == (head, fact.job_id, head)


@pytest.mark.parametrize("case", ["behind", "no such job", "no such token", "a tenant's token", "away", "none at hand"])
async def test_otherwise_there_is_no_answer(world: World, case: str) -> None:
    fact, token = admitted("k1"), world.token("lab" if case == "a tenant's token" else None)
    await world.commit(fact)
    async with world.gateway():
        login = ApiLogin(world.url, token + ("x" if case == "no such token" else ""))
        if case == "away":
            login = ApiLogin("http://127.0.0.1:1", login.token)
        head = world.committed.state.n + (1 if case == "behind" else 0)
        where = Where(SHARD, gateway=None if case == "none at hand" else login)
        job = "a" * 20 if case == "no such job" else fact.job_id
        assert await answer_of_gateway(where, job, head) is None


def test_a_local_platform_keeps_one_token_of_the_operator_and_makes_it_anew_once_it_is_revoked(tmp_path: Path) -> None:
    tokens, kept = tmp_path / "gateway-tokens.toml", tmp_path / "operator.token"
    add_token(tokens, "lab")
    keep_operator_token(tokens, kept)
    first = kept.read_text()
    keep_operator_token(tokens, kept)
    assert kept.read_text() == first
    assert sorted(entry.kind for entry in read_entries(tokens).values()) == ["operator", "tenant"]
    assert kept.stat().st_mode & 0o077 == 0
    tokens.unlink()
    keep_operator_token(tokens, kept)
    assert kept.read_text() != first


async def test_an_operators_order_is_sent_as_one_and_its_hold_is_not_let_go_by_the_tenant(world: World) -> None:
    fact, lab, operator = admitted("k1"), world.token("lab"), world.token(None)
    other, path = world.token("other"), f"/v1/jobs/{fact.job_id}"
    await world.commit(fact)
    async with world.gateway():
        held = await world.ask("POST", f"{path}/hold", operator, {})
        assert (held.status, world.subjects) == (202, [f"submit.{SHARD}.lab.operator"])
        await world.commit(HoldRequested(kind="hold_requested", job_id=fact.job_id))
        async with asyncio.timeout(5):
            while (refused := await world.ask("POST", f"{path}/release", lab, {})).status == 202:
                await asyncio.sleep(0.02)
        stranger = await world.ask("POST", f"{path}/release", other, {})
        await world.ask("POST", f"{path}/cancel", lab, {})
        await world.ask("POST", f"{path}/release", operator, {})
    assert (refused.status, refused.code) == (422, "HeldByOperator")
    assert stranger.status == 404
    assert world.subjects[-2:] == [f"submit.{SHARD}.lab", f"submit.{SHARD}.lab.operator"]
