"""The operator of a local platform has a token, and orders by it count as an operator's."""

import asyncio
from pathlib import Path

from tessera.gateway.entrance.tokens import add_token, keep_operator_token, read_entries
from tessera_schemas.facts import HoldRequested
from tests.builders import SHARD, admitted
from tests.unit.gateway.gateway_world import World


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


def test_a_token_for_health_is_kept_as_no_operators(tmp_path: Path) -> None:
    tokens, kept = tmp_path / "gateway-tokens.toml", tmp_path / "operator.token"
    kept.write_text(narrow := add_token(tokens, None, only="health"))
    keep_operator_token(tokens, kept)
    assert kept.read_text() != narrow


async def test_an_operators_order_is_sent_as_one_and_its_hold_is_not_let_go_by_the_tenant(world: World) -> None:
    fact, lab, operator = admitted("k1"), world.token("lab"), world.token(None)
    other, path = world.token("other"), f"/v1/jobs/{fact.job_id}"
    await world.commit(fact)
    async with world.gateway():
        held = await world.ask("POST", f"{path}/hold", operator, {})
        assert (held.status, world.subjects) == (202, [f"submit.{SHARD}.lab.operator"])
        await world.commit(HoldRequested(kind="hold_requested", job_id=fact.job_id))
        async with asyncio.timeout(60):
            while (refused := await world.ask("POST", f"{path}/release", lab, {})).status == 202:
                await asyncio.sleep(0.02)
        stranger = await world.ask("POST", f"{path}/release", other, {})
        await world.ask("POST", f"{path}/cancel", lab, {})
        await world.ask("POST", f"{path}/release", operator, {})
    assert (refused.status, refused.code) == (422, "HeldByOperator")
    assert stranger.status == 404
    assert world.subjects[-2:] == [f"submit.{SHARD}.lab", f"submit.{SHARD}.lab.operator"]
