"""`sreport` as it reads the gateway's account: Slurm's reports and options, an operator, and a tenant by its token."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands.context import ShardOptions
from tessera.client.commands.slurm_words import reports
from tessera.client.connect.contexts import ApiLogin
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit
from tessera.engine.accounts.periods import DAYS
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.projection.account import AccountKeeper
from tessera_schemas.facts import RunAbsent, RunEnded
from tests.builders import SHARD, admitted, config_body, job_spec, node_seen, role
from tests.ledgers import Committed
from tests.unit.gateway.gateway_world import World

HOUR = 3_600_000
BEGIN = 20_400 * DAYS.ms
"""2025-11-08T00:00:00, in UTC."""
SPAN = ("start=2025-11-08", "end=2025-11-09")
Said = Callable[..., Awaitable[str]]


def lived() -> Committed:
    """
    Eight GPUs for a day: two of ann for an hour, one of bob for three, four of nobody by name for two, of two tenants.
    """
    ledger = Committed(ts=BEGIN - 3000).begin(node_seen("node-a"), body=config_body(tenants=("lab", "ops")))
    jobs = (("k1", "lab", "ann", 2, 1), ("k2", "ops", "bob", 1, 3), ("k3", "ops", "", 4, 2))
    for key, tenant, user, gpus, hours in jobs:
        job = admitted(key, job_spec(role(gpus=gpus), user=user), tenant=tenant)
        ledger.commit(job)
        run = ledger.start(job.job_id, key)
        ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=hours * HOUR)
        ledger.commit(RunAbsent(kind="run_absent", run_id=run))
    ledger.commit(ms=BEGIN + DAYS.ms - ledger.state.ts + 1000)
    return ledger


@asynccontextmanager
async def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tenant: str | None = None) -> AsyncIterator[Said]:
    """What `sreport` prints for whoever has the token, or where it fails its complaint."""
    world = World(tmp_path, committed=lived())
    await world.publish_what_is_committed()
    shard = Shard()
    keeper = AccountKeeper(world.ports(), SHARD, shard.state, None)
    for at, data in enumerate(world.committed.stored, start=1):
        entry = decode_entry(Message("", at, data))
        shard.fold(entry)
        keeper.follow(entry.message, ())
    await keeper.store()
    token = world.token(tenant)

    async def said(*words: str, code: Exit = Exit.OK) -> str:
        environment = {"TZ": "UTC", "COLUMNS": "200"}
        result = await asyncio.to_thread(CliRunner().invoke, app, ["sreport", *words], env=environment)
        assert result.exit_code == code, result.output
        return result.stderr if code else result.stdout

    async with world.gateway():
        monkeypatch.setattr(ShardOptions, "find", lambda _: Where(SHARD, login=ApiLogin(world.url, token)))
        yield said


async def test_accounts_have_a_sum_and_their_users_as_slurm_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked(tmp_path, monkeypatch) as said:
        whole = (await said("cluster", "AccountUtilizationByUser", *SPAN)).splitlines()
        bare = await said("clu", "acc", *SPAN, "-nP", "-t", "hours")
        tree = await said("cluster", "AccountUtilizationByUser", "tree", *SPAN, "-n", "format=acc%3,used%6")
        chosen = await said("cluster", "AccountUtilizationByUser", *SPAN, "-n", "-p", "-t", "sec", "Users=ann,bob")
        account = await said("cluster", "AccountUtilizationByUser", *SPAN, "-nP", "ACCOUNTS=ops", "-T", "gres/gpu")
    assert whole[:4] == [
        "-" * 80,
        "Cluster/Account/User Utilization 2025-11-08T00:00:00 - 2025-11-08T23:59:59 (86400 secs)",
        "Usage reported in GPU Minutes",
        "-" * 80,
    ]
    assert whole[4].split() == ["Cluster", "Account", "Login", "Proper", "Name", "Used"]
    assert whole[6].split() == [SHARD, "root", "780"]
    assert bare.splitlines() == [
        f"{SHARD}|root|||13",
        f"{SHARD}|lab|||2",
        f"{SHARD}|lab|ann||2",
        f"{SHARD}|ops|||11",
        f"{SHARD}|ops|-||8",
        f"{SHARD}|ops|bob||3",
    ]
    assert [" ".join(line.split()) for line in tree.splitlines()[:3]] == ["roo 780", "lab 120", "lab 120"]
    assert [line.split("|")[1:3] for line in chosen.splitlines()] == [["lab", "ann"], ["ops", "bob"]]
    assert all(
        line.endswith("|") and abs(int(line.split("|")[4]) - want) < 10
        for line, want in zip(chosen.splitlines(), (7200, 10_800), strict=True)
    )
    assert [line.split("|")[1:] for line in account.splitlines()] == [
        ["ops", "", "", "gres/gpu", "660"],
        ["ops", "-", "", "gres/gpu", "480"],
        ["ops", "bob", "", "gres/gpu", "180"],
    ]


async def test_what_the_cluster_had_is_divided_without_a_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asked(tmp_path, monkeypatch) as said:
        titles, row = (await said("cluster", "utilization", *SPAN, "-P", "-t", "Seconds")).splitlines()[4:]
        percent = (await said("cluster", "u", *SPAN, "-nP", "--time=percent", "-T", "gres/gpu")).split("|")
    assert titles == "Cluster|Allocated|Down|PLND Down|Idle|Planned|Reported"
    allocated, down, planned_down, idle, planned, reported = map(int, row.split("|")[1:])
    assert reported == 8 * 86_400
    assert allocated + down + planned_down + idle + planned == reported
    assert 0 <= allocated - 13 * 3600 < 100
    assert percent[:3] == [SHARD, "gres/gpu", "6.77%"]


async def test_top_users_are_as_many_as_one_asks_for_and_the_first_used_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked(tmp_path, monkeypatch) as said:
        whole = (await said("user", "TopUsage", *SPAN, "-P")).splitlines()
        two = (await said("user", "top", *SPAN, "topcount=2", "-nP")).splitlines()
    assert whole[1].startswith("Top 10 Users 2025-11-08T00:00:00 - ")
    assert whole[4] == "Cluster|Login|Proper Name|Account|Used"
    assert [line.split("|")[1:] for line in whole[5:]] == [
        ["-", "", "ops", "480"],
        ["bob", "", "ops", "180"],
        ["ann", "", "lab", "120"],
    ]
    assert two == whole[5:7]


async def test_a_tenant_sees_its_own_users_and_all_others_as_one_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked(tmp_path, monkeypatch, "lab") as said:
        rows = (await said("cluster", "AccountUtilizationByUser", *SPAN, "-nP")).splitlines()
    assert [line.split("|")[1:] for line in rows] == [
        ["root", "", "", "780"],
        ["(other tenants)", "", "", "660"],
        ["lab", "", "", "120"],
        ["lab", "ann", "", "120"],
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "write cluster AccountUtilizationByUser, cluster Utilization, cluster UserUtilizationByAccount, user Top"),
        ("job SizesByAccount", "tessera report --by job"),
        ("cluster WCKeyUtilizationByUser", "tessera report --by project"),
        ("reservation utilization", "tessera idle"),
        ("user TopUsage -t HourPer", "write Seconds, Minutes, Hours, Percent"),
        ("user TopUsage -T cpu", "it reports gres/gpu alone"),
        ("user TopUsage group", "two tenants may have users of the same name"),
        ("user TopUsage topcount=0", "write a number of users"),
        ("user TopUsage clusters=other", "say --shard"),
        ("user TopUsage ann", "this report takes Users=, Accounts="),
        ("cluster Utilization users=ann", "this report takes Start=, End="),
        ("cluster Utilization format=Login", "there is no such field; there are Cluster, TresName, Allocated"),
        ("user TopUsage start=2025-11-09 end=2025-11-08", "is not before end="),
        ("user TopUsage start=soon", "start=soon: write 2h"),
        ("user TopUsage start=2001-01-01 end=2001-01-02", "nothing of that time"),
    ],
)
async def test_what_is_not_there_is_refused_by_name(
    words: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked(tmp_path, monkeypatch) as said:
        complaint = await said(*words.split(), code=Exit.NOT_FOUND if "2001" in words else Exit.USAGE)
    assert why in " ".join(complaint.split())


async def test_without_a_heading_a_part_of_the_time_that_was_asked_for_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked(tmp_path, monkeypatch):
        words = ["sreport", "user", "TopUsage", "-n", "start=2025-11-01", "end=2025-11-09"]
        result = await asyncio.to_thread(CliRunner().invoke, app, words, env={"TZ": "UTC"})
    assert "sreport: the account has 2025-11-07T23:59:58 - 2025-11-08T23:59:59" in result.stderr


def test_a_shard_without_gpus_has_no_part_of_any() -> None:
    assert reports._shown(0, "Percent", 0) == "0.00%"
