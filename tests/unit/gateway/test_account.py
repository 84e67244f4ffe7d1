"""The account as the API has it: it sums to the capacity, whoever asks, and operators alone see names of others."""

from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tessera.client.connect.api import Api
from tessera.client.connect.contexts import ApiLogin
from tessera.client.ledger.accounts.accounting import account_report, served_report
from tessera.client.ledger.reading import LedgerFile
from tessera.client.outcomes import Failure
from tessera.engine.accounts.account import Account
from tessera.engine.accounts.naming import idle_by, name_by
from tessera.engine.accounts.owners import USE, Resource
from tessera.engine.accounts.periods import DAYS, HOURS, STEP_MS
from tessera.kernel.clock import SystemClock
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.projection.account import AccountKeeper
from tests.account_oracle import messages
from tests.account_periods import AllPeriods
from tests.builders import SHARD
from tests.random_ledger import random_ledger
from tests.unit.gateway.gateway_world import World


class LedgerClock(SystemClock):
    """It is always the same moment of ledger time."""

    def __init__(self, ts: int) -> None:
        self.ts = ts

    def now_ms(self) -> int:
        return self.ts


LEDGER = random_ledger(7, 300, ts=20_400 * DAYS.ms - 150_000)
TENANTS = {"lab", "other"}


async def stored_account(world: World) -> None:
    """The account of the ledger, as projection stores it."""
    shard = Shard()
    keeper = AccountKeeper(world.ports(), SHARD, shard.state, None)
    for at, data in enumerate(LEDGER.stored, start=1):
        entry = decode_entry(Message("", at, data))
        shard.fold(entry)
        keeper.follow(entry.message, ())
    await keeper.store()


@pytest.fixture
async def world(tmp_path: Path) -> World:
    made = World(tmp_path, committed=LEDGER)
    await made.publish_what_is_committed()
    await stored_account(made)
    return made


def whole() -> Counter[tuple[str, str]]:
    """Amounts by tenant and cause of the whole ledger, and of what of it was measured and worked."""
    periods, found = AllPeriods(), Counter[tuple[str, str]]()
    account = Account(periods, step_ms=STEP_MS, note_use=periods.note_use)
    for message, shard in messages(LEDGER.stored):
        account.take(message, shard.state)
    account.settle()
    for rows in periods.hours.values():
        for owner, amount in rows.items():
            found[owner.tenant, str(owner.cause)] += amount
    return +found


def amounts(body: dict[str, Any]) -> Counter[str]:
    found = Counter[str]()
    for item in body["items"]:
        assert sum(item["causes"].values()) == item["sum"]
        found[item["name"]] += item["sum"]
    return found


async def test_an_operator_sees_all_of_the_ledger_by_tenant_and_it_is_the_capacity(world: World) -> None:
    token, expected = world.token(None), whole()
    async with world.gateway():
        body = (await world.ask("GET", "/v1/account", token)).body
    assert body["sum"] == body["capacity"] == expected["", "capacity"]
    for tenant in TENANTS:
        of = {cause: amount for (name, cause), amount in expected.items() if name == tenant}
        use = {cause: of.pop(cause, 0) for cause in USE}
        (item,) = (item for item in body["items"] if item["name"] == tenant)
        assert (item["causes"], {cause: item[cause] for cause in USE}) == (of, use)
        assert 0 < use["worked"] < use["measured"] < of["used"]


async def test_a_tenant_sees_its_own_by_name_and_what_all_others_had_together(world: World) -> None:
    token, operator = world.token("lab"), world.token(None)
    has = {owner: amount for owner, amount in whole().items() if owner[1] not in USE}
    of_others = sum(amount for (tenant, _), amount in has.items() if tenant not in ("", "lab"))
    async with world.gateway():
        for by in ("tenant", "queue", "user", "job"):
            said = await world.ask("GET", f"/v1/account?by={by}", token)
            seen, all_of_it = said.body, (await world.ask("GET", f"/v1/account?by={by}", operator)).body
            assert by != "tenant" or {name for name in amounts(seen) if name[0] != "("} == {"lab"}
            assert seen["sum"] == seen["capacity"] == all_of_it["capacity"]
            hidden = amounts(all_of_it).keys() - amounts(seen).keys()
            assert amounts(seen)["(other tenants)"] == of_others > 0
            assert not any(f"'{name}'" in str(seen["items"]) for name in hidden)
        for by in ("flavor", "cause"):
            paths = [world.ask("GET", f"/v1/account?by={by}", each) for each in (token, operator)]
            assert amounts((await paths[0]).body) == amounts((await paths[1]).body)


async def test_steps_and_causes_are_parts_of_the_same_sums(world: World) -> None:
    token = world.token(None)
    async with world.gateway():
        one = (await world.ask("GET", "/v1/account", token)).body
        for step in (HOURS, DAYS):
            many = (await world.ask("GET", f"/v1/account?step={step.name}", token)).body
            assert amounts(many) == amounts(one)
            assert all(item["start_ts"] % step.ms == 0 for item in many["items"])
        assert len({item["start_ts"] for item in many["items"]}) == 2, "the ledger crosses midnight"
        used = (await world.ask("GET", "/v1/account?cause=used&cause=unused", token)).body
        assert used["sum"] == sum(item["causes"].get(c, 0) for item in one["items"] for c in ("used", "unused"))
        assert used["capacity"] == one["capacity"]


async def test_a_part_of_the_time_is_that_of_its_full_hours(world: World) -> None:
    token, midnight = world.token(None), 20_400 * DAYS.ms
    async with world.gateway():
        after = (await world.ask("GET", f"/v1/account?since={midnight + 5}", token)).body
        before = (await world.ask("GET", f"/v1/account?until={midnight}", token)).body
        both = (await world.ask("GET", "/v1/account", token)).body
    assert (before["until_ts"], after["since_ts"]) == (midnight, midnight)
    assert before["capacity"] + after["capacity"] == both["capacity"] > 0
    assert amounts(before) + amounts(after) == amounts(both)


async def test_csv_has_one_line_for_each_amount_and_the_capacity(world: World) -> None:
    token = world.token(None)
    async with world.gateway():
        body = (await world.ask("GET", "/v1/account?by=cause", token)).body
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{world.url}/v1/account?by=cause&format=csv", headers=headers) as answer,
        ):
            assert answer.content_type == "text/csv"
            head, *lines, last = (await answer.text()).splitlines()
    assert head == "start_ts,cause,cause,gpu_milli_ms"
    assert sum(int(line.rsplit(",", 1)[1]) for line in lines) == body["sum"]
    assert last == f"0,(capacity),,{body['capacity']}"


@pytest.mark.parametrize("resource", Resource)
async def test_each_resource_says_its_unit_and_sums_to_what_there_is_of_it(world: World, resource: Resource) -> None:
    units = {"gpu": "gpu_milli_ms", "cpu": "cpu_milli_ms", "memory": "memory_byte_ms"}
    operator, lab = world.token(None), world.token("lab")
    async with world.gateway():
        body = (await world.ask("GET", f"/v1/account?resource={resource}", operator)).body
        mine = (await world.ask("GET", f"/v1/account?resource={resource}", lab)).body
    assert body["unit"] == units[resource]
    assert body["sum"] == body["capacity"] == mine["sum"] > 0
    assert amounts(body)["lab"] == amounts(mine)["lab"] > 0


@pytest.mark.parametrize("query", ["since=5&until=5", "by=colour", "cause=luck", "step=weeks", "resource=disk"])
async def test_what_cannot_be_answered_is_refused_by_field(world: World, query: str) -> None:
    token = world.token(None)
    async with world.gateway():
        said = await world.ask("GET", f"/v1/account?{query}", token)
    assert said.status == 422
    assert said.body["reasons"][0]["field"].split(".")[0] in query


async def test_where_nothing_is_stored_the_answer_is_empty(tmp_path: Path) -> None:
    made = World(tmp_path, committed=LEDGER)
    await made.publish_what_is_committed()
    token = made.token(None)
    async with made.gateway():
        body = (await made.ask("GET", "/v1/account", token)).body
        assert (body["items"], body["capacity"]) == ([], 0)
        assert (await made.ask("GET", "/v1/usage?hours=6", token)).status == 200


async def test_usage_over_time_counts_up_to_now_what_the_state_says(world: World) -> None:
    token, now = world.token("lab"), LEDGER.ts + 10 * 60_000
    world.clock = LedgerClock(now)
    async with world.gateway():
        body = (await world.ask("GET", "/v1/usage?hours=24", token)).body
    assert max(item["start_ts"] for item in body["items"]) >= now - 10 * 60_000
    assert {name for item in body["items"] for name, _ in item["held"]} <= {"lab", ""}
    capacity = sum(amount for (_, cause), amount in whole().items() if cause == "capacity") // 1_000_000
    counted = sum(sum(dict(item["held"]).values()) + sum(dict(item["idle"]).values()) for item in body["items"])
    assert counted >= capacity - 100 * len(body["items"])


@pytest.mark.parametrize("resource", Resource)
@pytest.mark.parametrize("by", ["tenant", "project"])
async def test_usage_of_each_resource_sums_to_what_there_is_of_it(world: World, resource: Resource, by: str) -> None:
    world.clock = LedgerClock(LEDGER.ts)
    one = 1000 << 30 if resource is Resource.MEMORY else 1_000_000
    operator, lab = world.token(None), world.token("lab")
    async with world.gateway():
        path = f"/v1/usage?hours=48&resource={resource}&by={by}"
        found, mine = [(await world.ask("GET", path, token)).body for token in (operator, lab)]
        account = (await world.ask("GET", f"/v1/account?resource={resource}", operator)).body
    held = Counter[str]()
    for item in found["items"]:
        held.update(dict(item["held"]))
    counted = held.total() + sum(sum(dict(item["idle"]).values()) for item in found["items"])
    assert account["capacity"] // one - 100 * len(found["items"]) <= counted <= account["capacity"] // one
    assert found["unit"] == {"gpu": "gpu_seconds", "cpu": "cpu_seconds", "memory": "gib_seconds"}[resource]
    names = {"lab", "other"} if by == "tenant" else {"lab/-", "other/-"}
    assert held.keys() == names
    assert {name for item in mine["items"] for name, _ in item["held"]} == {min(names), ""}


async def test_the_command_says_the_same_of_the_gateway_and_of_the_ledger(world: World, tmp_path: Path) -> None:
    export = tmp_path / "export.jsonl"
    export.write_bytes(b"".join(data + b"\n" for data in LEDGER.stored))
    operator, lab = world.token(None), world.token("lab")
    async with world.gateway():
        for by in ("tenant", "queue", "user", "job", "flavor"):
            read = await account_report(LedgerFile(export), 0, 0, name_by(by), with_use=True)
            said = await served_report(Api(ApiLogin(world.url, operator)), 0, 0, by)
            assert (said.rows, said.capacity, said.until_ts) == (read.rows, read.capacity, read.until_ts)
            assert any(row.use for row in said.rows)
        for by in ("cause", "queue", "flavor"):
            read = await account_report(LedgerFile(export), 0, 0, idle_by(by))
            said = await served_report(Api(ApiLogin(world.url, operator)), 0, 0, by, used_apart=True)
            assert said.rows == read.rows
        for resource in Resource:
            read = await account_report(LedgerFile(export), 0, 0, name_by("queue"), resource=resource, with_use=True)
            said = await served_report(Api(ApiLogin(world.url, operator)), 0, 0, "queue", resource=resource)
            assert (said.rows, said.capacity) == (read.rows, read.capacity)
            assert said.sum == said.capacity > 0
        mine = await served_report(Api(ApiLogin(world.url, lab)), 0, 0, "tenant")
        assert {row.name for row in mine.rows} >= {"lab", "(other tenants)"}
        with pytest.raises(Failure, match="nothing of that time"):
            await served_report(Api(ApiLogin(world.url, lab)), 1, 2, "tenant")


async def test_devices_of_a_class_have_no_capacity_and_another_word_is_refused(world: World) -> None:
    token = world.token(None)
    async with world.gateway():
        body = (await world.ask("GET", "/v1/account?resource=class:dra.net", token)).body
        assert (body["unit"], body["items"], body["sum"], body["capacity"]) == ("device_ms", [], 0, 0)
        assert (await world.ask("GET", "/v1/account?resource=dra.net", token)).status == 422
