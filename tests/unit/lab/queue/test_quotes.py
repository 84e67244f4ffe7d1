"""Quotes of the starts of a trace's jobs, told on a few of them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tessera.client.commands.lab import lab
from tessera.engine.quoting import LEVELS
from tessera.kernel.errors import StartupError
from tessera_lab.queue.quoted import QuotedJob, scores
from tessera_lab.queue.quotes import QuotesFound, QuotesRequest, quotes_of
from tessera_lab.queue.run import ReplayRequest
from tessera_lab.traces.philly import TraceJob

DAY_S = 86_400


def jobs(count: int = 60) -> list[TraceJob]:
    """Jobs of ten minutes on a whole node of one, one in nine minutes: each waits a little longer than the last."""
    return [TraceJob(2 + at, at * 540, 600, 8, "vc") for at in range(count)]


def found(every: int = 1, seed: int = 1, policy: str = "expected", most: int | None = None) -> QuotesFound:
    replayed = ReplayRequest(gpus=8, policies=(policy,), first_day=0, most=most)
    return quotes_of(jobs(), QuotesRequest(replayed, every, seed))


def told(waits: list[int], wait_ms: int) -> QuotedJob:
    return QuotedJob(2, 0, 8, tuple(waits), tuple(waits), (0, 0, 0), wait_ms)


def test_each_job_that_waits_is_quoted_at_its_submit_and_scored_at_its_start() -> None:
    quoted = found()
    assert (quoted.jobs, quoted.waited, len(quoted.quoted)) == (60, 59, 59)
    assert [one.wait_ms for one in quoted.quoted] == [60_000 * at for at in range(1, 60)]
    assert all(list(one.told) == sorted(one.told) for one in quoted.quoted)


def test_quotes_know_nothing_of_what_comes_after_them() -> None:
    whole, begun = found(), found(most=30)
    assert [(one.drawn, one.told, one.naive) for one in whole.quoted[:29]] == [
        (one.drawn, one.told, one.naive) for one in begun.quoted
    ]


def test_a_share_of_the_jobs_is_quoted_as_it_is_among_all_before_they_are_corrected() -> None:
    all_of_them, some = found(), found(every=3)
    by_line = {one.line: one.drawn for one in all_of_them.quoted}
    assert 8 < len(some.quoted) < 35
    assert {one.line: one.drawn for one in some.quoted}.items() <= by_line.items()


def test_scores_say_how_often_bounds_and_intervals_held() -> None:
    levels = [level * 1000 for level in LEVELS]
    quotes, *_, last = scores([told(levels, wait) for wait in (10_000, 300_000, 850_000, 980_000)])
    assert quotes.held == {"by 50 %": 0.5, "by 80 %": 0.5, "by 95 %": 0.75, "in 80 %": 0.5, "in 95 %": 0.5}
    assert quotes.median_error_s == 415
    assert last.median_error_s == 575


@pytest.mark.parametrize("policy", ["skip", "sjf-oracle"])
def test_quotes_are_given_under_policies_whose_order_is_played(policy: str) -> None:
    with pytest.raises(StartupError, match="quotes are given under one of"):
        found(policy=policy)


def test_the_command_prints_a_table_json_and_a_picture(tmp_path: Path) -> None:
    trace, picture = tmp_path / "mine.csv", tmp_path / "quotes.png"
    rows = [f"{job.submit_s},{job.duration_s},{job.gpus},{job.vc}" for job in jobs(20)]
    trace.write_text("\n".join(["submit_s,duration_s,num_gpus,vc", *rows]))
    asked = ["quotes", str(trace), "--gpus", "8", "--plot", str(picture)]
    table = CliRunner().invoke(lab, asked)
    assert "19 of these were quoted and scored" in table.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = json.loads(CliRunner().invoke(lab, [*asked, "-o", "json"]).stdout)
    assert printed["levels"] == list(LEVELS)
    assert [line["predictor"] for line in printed["scores"]][:2] == ["quotes", "as drawn"]
