"""`quote`, `quotes`, `squeue --start`, `get` and `explain` by a token: what people are told of starts."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tessera.client.commands.context import ShardOptions
from tessera.client.commands.jobs import quotes as command
from tessera.client.commands.jobs.quotes import quote_beside, with_promise
from tessera.client.commands.jobs.submit import show_submitted
from tessera.client.commands.shard import views as shard_views
from tessera.client.commands.slurm_words.squeue import start_columns
from tessera.client.connect.api import Api
from tessera.client.connect.contexts import ApiLogin
from tessera.client.connect.shard_views import ShardViews
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure, Submitted
from tessera.client.slurm.listing.fields import time_of
from tessera.client.views.explain import explanation_lines
from tessera.client.views.rendering import Output, table
from tessera.kernel.clock import SystemClock
from tests.builders import SHARD, job_spec, role
from tests.unit.gateway.gateway_world import World
from tests.unit.gateway.quoted import job_of, waiting

NOWHERE: Any = {"home": None, "shard": None, "context": None, "identity": None}


@pytest.fixture
def told(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """What a command prints, called with a token of `lab`."""
    token = world.token("lab")  # before the gateway reads which there are

    async def run(called: Any, **options: Any) -> str:
        where = Where(SHARD, login=ApiLogin(world.url, token))
        monkeypatch.setattr(ShardOptions, "find", lambda _: where)
        capsys.readouterr()
        await asyncio.to_thread(partial(called, **NOWHERE), **options)
        return "\n".join(line for line in capsys.readouterr().out.splitlines() if "[info" not in line)

    return run


async def test_quotes_are_listed_the_soonest_first_and_programs_get_the_whole_of_them(
    world: World, told: Callable[..., Any]
) -> None:
    await waiting(world, k1=6, k2=2)
    async with world.gateway():
        shown = await told(command.quotes)
        rows = json.loads(await told(command.quotes, output=Output.JSON))["items"]
    titles, first, second, *rest = shown.splitlines()
    assert titles.split()[-7:] == ["50", "%", "80", "%", "95", "%", "EVICTED"]
    assert first.split() == [job_of("k2"), "train", "research", "8", "2d", "4d", "6d", "0%"]
    assert second.split()[0] == job_of("k1")
    assert rest == ["as of 7, 2 jobs wait with a quote"]
    assert [row["job_id"] for row in rows] == [job_of("k2"), job_of("k1")]


async def test_scores_say_how_often_quotes_held_beside_naive_errors(world: World, told: Callable[..., Any]) -> None:
    await waiting(world, k1=6)
    async with world.gateway():
        shown = await told(command.quotes, score=True)
    titles, row, *_ = shown.splitlines()
    assert titles.split()[:2] == ["POOL", "QUOTES"]
    assert row.split() == ["default", "40", "51%", "80%", "95%", "79%", "94%", "1m", "4m", "3m", "2m30s"]


async def test_a_job_file_is_quoted_with_changes_and_refused_as_its_submit_would_be(
    world: World, told: Callable[..., Any], tmp_path: Path
) -> None:
    file, shell = tmp_path / "job.yaml", tmp_path / "shell.yaml"
    spec = job_spec(role(gpus=8, replicas=3)).model_dump(mode="json", exclude_defaults=True)
    file.write_text(yaml.safe_dump(spec))
    shell.write_text(yaml.safe_dump(job_spec(role(gpus=0)).model_dump(mode="json", exclude_defaults=True)))
    async with world.gateway():
        shown = await told(command.quote, file=file)
        with pytest.raises(typer.Exit) as refused:
            await told(command.quote, file=shell)
    assert refused.value.exit_code == Exit.REFUSED
    assert shown.startswith("starts     ")
    assert "  - 2 instead of 3 pods: " in shown
    assert shown.splitlines()[-1].startswith("as of ")


async def test_get_says_the_quote_of_a_job_that_waits(world: World, told: Callable[..., Any]) -> None:
    await waiting(world, k1=6)
    async with world.gateway():
        shown = await told(shard_views.get, job=job_of("k1"))
    assert "quote      in 6d (50 %), by 12d (80 %), by 18d (95 %)" in shown


async def test_squeue_has_a_column_for_each_bound_and_explain_a_sentence(world: World) -> None:
    token = await waiting(world, k1=6, k2=2)
    async with world.gateway():
        views = ShardViews(Api(ApiLogin(world.url, token)))
        jobs, quotes = await views.jobs(("queued",)), await views.quotes()
        explained = (await world.ask("GET", f"/v1/jobs/{job_of('k1')}/explain", token)).body
    titles, *rows = table(start_columns({}, quotes, SystemClock().now_ms()), jobs, wide=True)
    assert [title for title in titles.split() if title.startswith("BY_")] == ["BY_50%", "BY_80%", "BY_95%"]
    at = time_of(quotes[job_of("k1")].by_80_ts)
    assert [at in row for row in rows].count(True) == 1
    assert explained["quote"]["words"].startswith("in 6d (50 %)")
    lines = explanation_lines(explained | {"story": []}, SystemClock().now_ms())
    assert any(line.startswith("It starts in 6d (50 %)") for line in lines)


async def test_a_submit_says_the_quote_beside_the_id_and_goes_on_without_one(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"kind": "submit_job", "spec": job_spec(role(gpus=8)).model_dump(mode="json", exclude_defaults=True)}
    where = Where(SHARD, login=ApiLogin("http://127.0.0.1:1", "t" * 40))
    assert await quote_beside(where, None, asked) is None
    assert "note: no quote: " in capsys.readouterr().err
    with pytest.raises(Failure, match="not of a template"):
        await quote_beside(where, None, {"kind": "submit_template", "template": "train"})
    token = world.token("lab")
    async with world.gateway():
        quote = await quote_beside(Where(SHARD, login=ApiLogin(world.url, token)), None, asked)
    assert quote is not None
    capsys.readouterr()
    done = Submitted(job_of("k1"), True, "k1", state="queued")
    show_submitted(done, Output.TABLE, quote)
    assert capsys.readouterr().out.splitlines()[:2] == [f"job {job_of('k1')} admitted", "starts     now"]
    show_submitted(done, Output.JSON, quote)
    assert json.loads(capsys.readouterr().out)["quote"]["quote"]["words"] == "now"


async def test_a_promise_is_by_the_quote_of_a_chance_or_by_a_time_and_never_within_the_next_minute(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"kind": "submit_job", "spec": job_spec(role(gpus=8)).model_dump(mode="json", exclude_defaults=True)}
    token = world.token("lab")
    async with world.gateway():
        where, now_ms = Where(SHARD, login=ApiLogin(world.url, token)), SystemClock().now_ms()
        by_chance = await with_promise(where, None, asked, "80")
        by_time = await with_promise(where, None, asked, "now+2hours")
        with pytest.raises(Failure):
            await with_promise(where, None, asked, "77")
        with pytest.raises(Failure, match="not of a template"):
            await with_promise(where, None, {"kind": "submit_template"}, "80")
    starts = [found["spec"]["start_by_ts"] for found in (by_chance, by_time)]
    assert all(start % 60_000 == 0 for start in starts)
    assert now_ms + 60_000 <= starts[0] <= now_ms + 180_000
    assert now_ms + 7_200_000 <= starts[1] <= now_ms + 7_320_000
    assert "start_by_ts" not in asked["spec"]
    assert "promised: its start by " in capsys.readouterr().err
