"""Each row of the bench, tiny: that it runs and what its report looks like, never how fast it is."""

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tessera.client.connect.connecting import open_store
from tessera_lab.bench import __main__ as bench
from tessera_lab.bench.alone.fold import fold
from tessera_lab.bench.alone.growth import growth
from tessera_lab.bench.alone.reservations import reservations
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.client import client, start
from tessera_lab.bench.together.latency import latency
from tessera_lab.bench.together.platform import start_platform
from tessera_lab.bench.together.restart import restart
from tessera_lab.bench.together.throughput import throughput
from tessera_lab.bench.together.two_shards import two_shards
from tessera_schemas.subjects import OPERATOR

ROWS = [
    pytest.param(lambda: latency(2, 1, 1, sync=False), 2, id="latency"),
    pytest.param(lambda: throughput(12, 1, 1, sync=True), 1, id="throughput, synced, with more jobs than GPUs"),
    pytest.param(lambda: two_shards(12, 1, 1), 1, id="two shards"),
    pytest.param(lambda: restart(12, 1, 1), 1, id="restart"),
    pytest.param(lambda: client(1), 3, id="client"),
    pytest.param(lambda: start(1, "single"), 1, id="start"),
    pytest.param(lambda: fold(10, 2), 1, id="fold"),
    pytest.param(lambda: growth(32, 2, 4), 2, id="growth"),
    pytest.param(lambda: reservations(2, 4, (1, 2)), 4, id="reservations"),
]


@pytest.mark.nightly("a minute and a half of processors for the form of a report")
@pytest.mark.parametrize(("measure", "rows"), ROWS)
async def test_each_row_has_its_rounds_its_floor_and_the_ratio(
    measure: Callable[[], Awaitable[list[ReportRow]]], rows: int
) -> None:
    found = await measure()
    assert len(found) == rows
    for row in found:
        assert len(row.rounds) == len(row.floors) == len(row.ratios) > 0
        # A latency is none where the event was read before the submit's ack.
        assert min(row.rounds) > 0 or (row.unit == "ms" and min(row.rounds) == 0)
        assert min(row.floors) > 0
        report: dict[str, Any] = json.loads(json.dumps(row.as_json()))
        assert set(report) == {"what", "unit", "reach", "value", "floor", "ratio", "notes"}
        for part in ("value", "floor", "ratio"):
            assert report[part]["min"] <= report[part]["median"] <= report[part]["max"]
        assert row.lines()[0].startswith(row.what)


async def test_a_platform_to_load_knows_all_its_nodes_before_the_first_submit() -> None:
    """A gang that asks for more nodes than are known yet is refused, and the row would wait for it in vain."""
    async with start_platform(10_000, False) as on, open_store(on.place, on.place.identity(OPERATOR)) as store:
        _, (rows,) = await store.rows_as_of("nodes")
        assert len(rows) == 10_000


def test_the_command_prints_one_report_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "fold", "--jobs", "5", "--rounds", "2", "-o", "json"])
    bench.main()
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["unit"] == "records/s"
    assert row["value"]["rounds"] == 2
