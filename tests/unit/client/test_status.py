"""`tessera status`: the gateway's word, else an operator's own look; exit code 0 when all is well, 1 when not."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tessera.client.cli import app
from tessera.client.commands.shard import status as command
from tessera.client.commands.shard.status import lines_of
from tessera.client.connect import shard_status as looking
from tessera.client.connect.where import Where
from tessera.kernel.errors import Transient
from tessera_schemas.shard.status import ServiceStatus, ShardStatus, ShardTrouble

WELL = ShardStatus(
    ts=60_000,
    well=True,
    led=True,
    leader="scheduler-1",
    ledger_n=41,
    ledger_ts=57_000,
    views_n=41,
    services=(ServiceStatus(service="binder"), ServiceStatus(service="binder", ready=False)),
)
ILL = ShardStatus(
    ts=60_000,
    well=False,
    led=False,
    standstill="no scheduler leads: nothing starts",
    waiting_since_ts=20_000,
    redis="connection refused",
    troubles=(ShardTrouble(what="no scheduler leads: nothing starts", way_out="start one"),),
)


def run(monkeypatch: pytest.MonkeyPatch, found: ShardStatus, *words: str) -> Result:
    async def answer(_where: Where) -> ShardStatus:
        return found

    monkeypatch.setenv("TESSERA_API", "http://127.0.0.1:1")
    monkeypatch.setenv("TESSERA_TOKEN", "tessera_a_b")
    monkeypatch.setattr(command, "shard_status", answer)
    return CliRunner().invoke(app, ["status", *words])


def test_a_shard_that_is_well_is_exit_code_0(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, WELL)
    assert result.exit_code == 0
    assert result.output.startswith("shard main: well\n")


@pytest.mark.parametrize("words", [(), ("-o", "json")])
def test_any_trouble_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    result = run(monkeypatch, ILL, *words)
    assert result.exit_code == 1
    if words:
        assert json.loads(result.output)["troubles"] == [{"what": ILL.standstill, "way_out": "start one"}]


def test_what_a_person_reads() -> None:
    assert list(lines_of(WELL, "main"))[1:5] == [
        "  leads               scheduler-1",
        "  newest record       41, 3s ago",
        "  oldest unanswered   none",
        "  lists hold up to    record 41",
    ]
    assert list(lines_of(WELL, "main"))[5].startswith("  ready               admission 0/0, queueing 0/0")
    assert any("binder 1/2" in line for line in lines_of(WELL, "main"))
    said = list(lines_of(ILL, "main"))
    assert said[0] == "shard main: no scheduler leads: nothing starts"
    assert said[3] == "  oldest unanswered   40s"
    assert said[-2:] == ["  Redis               connection refused", "no scheduler leads: nothing starts; start one"]


async def test_an_operator_looks_alone_where_the_gateway_is_away_and_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Away:
        async def get(self, _path: str) -> Any:
            raise Transient("HTTP API: away")

    async def look(_where: Where) -> ShardStatus:
        return WELL

    monkeypatch.setattr(looking, "api_of", lambda _: Away())
    monkeypatch.setattr(looking, "_looked_at", look)
    monkeypatch.setattr(Where, "can_be", lambda self, name: self.credentials is not None)
    assert await looking.shard_status(Where("main", credentials=Path("x"))) == WELL
    with pytest.raises(Transient):
        await looking.shard_status(Where("main"))
