"""`ls` says when a waiting job is expected to start, where `explain`, the page and `squeue --start` do."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.client.commands.shard import views
from tessera.client.connect.shard_views import ShardViews
from tessera.client.views.rendering import Output
from tessera_schemas.views import JobView

WAITS = JobView.model_validate(
    {"job_id": "a" * 20, "tenant": "lab", "queue": "research", "name": "train", "key": "k", "phase": "queued"}
    | {"attempt": 0, "pods": 1, "gpu_milli": 8000, "submitted_ts": 1, "priority": 0}
)
BEHIND = WAITS.model_copy(update={"job_id": "b" * 20, "name": "behind"})
RUNS = WAITS.model_copy(update={"job_id": "c" * 20, "name": "runs", "phase": "running"})
START = {"at_ts": 4_920_000, "rests_on": ["time_limits"], "words": "in 1h22m, by the time limits of runs"}
LINE = {"pool": "default", "queue": "research", "gpu_milli": 8000, "submitted_ts": 1}


class Gateway:
    """Answers with the line, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = list[str]()

    async def get(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        first = LINE | {"position": 1, "job_id": WAITS.job_id, "expected_start": START}
        return {"as_of": 9, "ts": 1, "items": [first, LINE | {"position": 2, "job_id": BEHIND.job_id}]}


async def ls(monkeypatch: pytest.MonkeyPatch, output: Output, *jobs: JobView) -> list[str]:
    """List these; the paths that the gateway was asked for beside the list."""
    gateway = Gateway()

    async def answer(found: Any) -> Any:
        return found

    shown = SimpleNamespace(
        list_work=lambda *_, **__: answer((list(jobs), len(jobs))),
        all_work=lambda *_, **__: answer(list(jobs)),
        as_of=lambda: answer(9),
        expected_starts=ShardViews(gateway).expected_starts,  # type: ignore[arg-type]
    )
    monkeypatch.setattr(views, "views_of", lambda *_: shown)
    at = SimpleNamespace(find=object, identity=None)
    await views.ls.__wrapped__(at, output=output)  # type: ignore[attr-defined]
    return gateway.asked


async def test_the_expected_start_is_a_column_where_one_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await ls(monkeypatch, Output.TABLE, WAITS, BEHIND, RUNS) == ["/v1/line"]
    titles, *rows = capsys.readouterr().out.splitlines()
    at = titles.index("START") + len("START")
    assert [row[:at].split()[-1] for row in rows[:3]] == ["1h22m", "-", "-"]
    assert rows[0][:at].endswith("  in 1h22m")
    assert max(map(len, (titles, *rows))) <= 80


async def test_programs_get_the_whole_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await ls(monkeypatch, Output.JSON, WAITS, BEHIND)
    first, second = json.loads(capsys.readouterr().out)["items"]
    assert first["expected_start"] == START | {"nodes": []}
    assert "expected_start" not in second


async def test_nobody_is_asked_where_nothing_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await ls(monkeypatch, Output.TABLE, RUNS) == []
    assert "START" not in capsys.readouterr().out
