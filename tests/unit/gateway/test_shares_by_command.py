"""`tessera share`, `sshare` and `sprio` as they read the gateway: an operator, and a tenant by its token."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands.context import ShardOptions
from tessera.client.connect.contexts import ApiLogin
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit
from tessera_schemas.config import Limits, Tenant
from tessera_schemas.facts import RunEnded
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, role, run_absent
from tests.unit.gateway.gateway_world import World

HOUR_MS = 3_600_000
USUAL = "Account,User,Partition,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"
PLACES = "JOBID PARTITION PLACE USER QUOTA PRIORITY QUEUE FAIRSHARE USERSHARE AGE"


def lived(world: World) -> None:
    """`lab` has held eight GPUs for ten hours by ann, `ops` holds one; one job of each waits for what nobody has."""
    ledger = world.committed
    body = config_body(policy={"fair_share": {"half_life_seconds": 7 * 24 * 3600}})
    limits = Limits(jobs=None)
    tenants = (Tenant(name="lab", weight=3, limits=limits), Tenant(name="ops", limits=limits))
    ledger.commit(config_proposed(body.model_copy(update={"tenants": tenants}), 1))
    job = admitted("k0", job_spec(role(gpus=8), user="ann"), tenant="lab")
    ledger.commit(job)
    run = ledger.start(job.job_id, "k0")
    ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=10 * HOUR_MS)
    ledger.commit(run_absent(run))
    other = admitted("k1", job_spec(role(gpus=1)), tenant="ops")
    ledger.commit(other)
    ledger.start(other.job_id, "k1")
    for tenant, user in (("lab", "ann"), ("ops", "")):
        ledger.commit(admitted(f"w-{tenant}", job_spec(role(replicas=9, gpus=8), name="big", user=user), tenant=tenant))
    ledger.commit(orders=(ledger.line(),))


class Asking:
    """Commands of whoever has the token."""

    def __init__(self, where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ShardOptions, "find", lambda _: where)

    async def said(self, *words: str, code: Exit = Exit.OK) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, app, words, env={"TZ": "UTC", "COLUMNS": "200"})
        assert result.exit_code == code, result.output
        return result.stderr if code else result.stdout

    async def rows(self, *words: str) -> list[list[str]]:
        return [line.split("|") for line in (await self.said(*words)).splitlines()]

    async def items(self, *words: str) -> list[dict[str, Any]]:
        return json.loads(await self.said(*words, "-o", "json"))["items"]  # type: ignore[no-any-return]


@asynccontextmanager
async def asked(world: World, monkeypatch: pytest.MonkeyPatch, tenant: str | None) -> AsyncIterator[Asking]:
    lived(world)
    token = world.token(tenant)
    await world.publish_what_is_committed()
    async with world.gateway():
        yield Asking(Where(SHARD, login=ApiLogin(world.url, token)), monkeypatch)


async def test_an_operator_sees_all_names_with_what_they_hold_and_have_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked(world, monkeypatch, None) as asking:
        lines = (await asking.said("share")).splitlines()
        whole, csv = await asking.items("share"), await asking.said("share", "-o", "csv")
    assert [line.split()[0] for line in lines[1:-1]] == [
        "research",
        "research/lab",
        "research/lab/ann",
        "research/ops",
        "research/ops/",
    ]
    assert lines[0].split() == ["NAME", "WEIGHT", "SHARE", "HELD", "AVERAGE", "GPU", "TIME", "FACTOR", "PLACE"]
    lab, ops = lines[2].split(), lines[4].split()
    assert (lab[1:4], ops[1:4]) == (["3", "75.0%", "0"], ["1", "25.0%", "1"])
    assert (lab[-3:], ops[-3:]) == (["1", "of", "2"], ["2", "of", "2"])
    state = world.committed.state
    by_name = {(row["level"], row["tenant"], row["user"]): row for row in whole}
    used = state.decay.used(state.decayed.get("research/lab/ann"), state.ts)
    assert by_name["user", "lab", "ann"]["used_gpu_milli_ms"] == used > 0
    assert csv.splitlines()[0].startswith("level,pool,queue,parent,tenant,user,weight,share_ppm,held_gpu_milli")
    assert len(csv.splitlines()) == len(whole) + 1


async def test_a_tenant_sees_its_users_and_others_in_sum_and_is_told_who_lists_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked(world, monkeypatch, "ops") as asking:
        whole = await asking.items("share")
        shown = await asking.said("share")
        why = await asking.said("share", "--why", "research/ops", code=Exit.USAGE)
        slurm = await asking.said("sshare", "-a")
        waiting = await asking.items("sprio")
    assert [(row["level"], row["tenant"], row["others"]) for row in whole] == [
        ("queue", "", False),
        ("tenant", "ops", False),
        ("user", "ops", False),
        ("tenant", "", True),
    ]
    assert all("lab" not in text and "ann" not in text for text in (shown, slurm, json.dumps(waiting)))
    assert "(other tenants)" in shown
    assert "ask an operator" in why
    assert [row["tenant"] for row in waiting] == ["ops"]


async def test_sshare_has_slurms_columns_and_options(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asked(world, monkeypatch, None) as asking:
        usual = await asking.rows("sshare", "-a", "-P")
        mine = await asking.rows("sshare", "-u", "ann", "-nP")
        long = await asking.rows("sshare", "-laP")
        chosen = await asking.said("sshare", "-a", "-A", "ops", "-n", "-o", "Account%-8,User,RawUsage%20")
        ending = await asking.said("sshare", "-p")
        wrong = await asking.said("sshare", "-o", "Nice", code=Exit.USAGE)
    assert usual[0] == USUAL.split(",")
    assert usual[1][:4] == ["root", "", "research", "1"]
    state = world.committed.state
    lab = dict(zip(usual[0], usual[2], strict=True))
    assert lab["RawUsage"] == str(state.decay.used(state.decayed.get("research/lab"), state.ts) // 10**6)
    assert (lab["NormShares"], lab["FairShare"]) == ("0.750000", "1.000000")
    assert [(row[0], row[1]) for row in mine] == [("root", ""), ("lab", ""), ("lab", "ann"), ("ops", "")]
    assert long[0][-6:] == ["FairShare", "LevelFS", "GPUs", "GPUAverage", "Factor", "Place"]
    assert [line.split()[0] for line in chosen.splitlines()] == ["root", "ops", "ops"]
    assert ending.splitlines()[0].endswith("|")
    assert "there is no such field" in wrong


async def test_sprio_says_what_places_are_made_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asked(world, monkeypatch, None) as asking:
        lines = (await asking.said("sprio")).splitlines()
        long, norm = await asking.said("sprio", "--long"), await asking.said("sprio", "-n", "-h")
        letters = await asking.said("sprio", "-o", "%x %o %b %n %w", "-u", "ops")
        one = await asking.items("sprio", "-j", "big", "-p", "research")
        none = await asking.said("sprio", "-h", "-u", "nobody")
    assert " ".join(lines[0].split()) == PLACES
    assert [line.split()[2:5] for line in lines[1:]] == [["1", "ann", "nominal"], ["2", "ops", "nominal"]]
    lab, ops = (float(line.split()[7]) for line in lines[1:])
    assert 0 < lab < ops < 1
    assert {"ACCOUNT", "QOS", "HELD", "AVERAGE", "WEIGHT", "SUBMIT"} <= {*long.splitlines()[0].split()}
    assert [line.split()[7] for line in norm.splitlines()] == ["1.000000", "0.500000"]
    assert letters.splitlines() == ["PLACE ACCOUNT QUOTA QOS WEIGHT", "2 ops nominal normal 1"]
    assert [(row["place"], row["shares"]["tenant"]["weight"]) for row in one] == [(1, 3), (2, 1)]
    assert none == ""
