"""Times at a terminal are local, by TZ, and the zone is named; programs get RFC 3339 in UTC."""

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from tessera.client.commands.jobs.events import event_columns
from tessera.client.slurm import values
from tessera.client.slurm.listing import fields
from tessera.client.views.explain import explanation_lines
from tessera.client.views.rendering import Output, show, table, zone_name
from tessera.client.views.story import StoryLine
from tessera_schemas.events import CloudEvent
from tests.unit.client.job_views import named

NOON = 1_796_040_000_000
"""2026-11-30 12:00:00 UTC."""


def event() -> CloudEvent:
    what = {"id": "7", "source": "s", "type": "io.tessera.job.running.v1", "subject": "j", "dataschema": "d"}
    told = {"sequence": "7", "causationid": "t", "correlationid": "j", "tenant": "lab", "shard": "main"}
    return CloudEvent.model_construct(**what, **told, time="2026-11-30T12:00:00.500Z", data={"job_id": "a" * 20})


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_tables_and_stories_have_local_times_and_name_the_zone() -> None:
    assert zone_name() == "CET/CEST"
    title, line = table(event_columns(), [event()], wide=True)
    assert "TIME (CET/CEST)" in title
    assert "2026-11-30 13:00:00" in line
    assert StoryLine(1, NOON, "queued").line().startswith("11-30 13:00:00 ")
    told = {"time": "2026-11-30T12:00:00Z", "event": "job.running", "why": "", "id": "7"}
    said = explanation_lines({"phase": "unknown", "story": [told], "as_of": 7}, NOON)
    assert said[-3:] == ["What happened (times in CET/CEST):", "11-30 13:00:00  job.running", "as of 7"]


@pytest.mark.usefixtures("berlin")
def test_sacct_prints_the_times_that_it_reads() -> None:
    job = named("a", "running", submitted_ts=NOON)
    printed = fields.FIELDS["Submit"](job, NOON)
    assert printed == "2026-11-30T13:00:00"
    now = datetime.fromtimestamp(NOON / 1000 + 60).astimezone()
    assert values.since_ms(values.Said("sacct", "since", printed), now) == NOON


@pytest.mark.usefixtures("berlin")
def test_programs_get_times_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output.JSON, event_columns(), [event()], None)
    assert '"time": "2026-11-30T12:00:00.500Z"' in capsys.readouterr().out


def test_a_zone_without_summer_time_has_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert zone_name() == "UTC"
