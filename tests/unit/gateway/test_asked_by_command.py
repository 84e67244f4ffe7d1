"""What the command reads of a gateway: specs of ended jobs, jobs that lists have dropped, explanations."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import typer
import yaml

from tessera.client.commands.context import ShardOptions
from tessera.client.commands.shard import views as command
from tessera.client.connect.connecting import views_of
from tessera.client.connect.contexts import ApiLogin
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.sending.explaining import explain_job
from tessera.client.sending.rerunning import find_spec
from tessera.client.views.rendering import Output
from tests.builders import SHARD
from tests.unit.gateway.gateway_world import World

get = partial(command.get, home=None, shard=None, context=None, identity=None)


@asynccontextmanager
async def asked_by_operator(world: World) -> AsyncIterator[Where]:
    """The shard as an operator with a token reaches it, with all that is committed."""
    token = world.token(None)
    await world.publish_what_is_committed()
    async with world.gateway():
        yield Where(SHARD, login=ApiLogin(world.url, token))


async def test_the_spec_of_the_newest_job_of_a_name_is_found(world: World) -> None:
    for key, gpus in (("k1", 1), ("k2", 2)):
        world.committed.run_to_its_end(key, gpus=gpus)
    async with asked_by_operator(world) as where:
        spec, tenant = await find_spec(where, None, "train")
    assert (spec["roles"][0]["resources"]["gpus"], tenant) == (2, "lab")


async def test_the_spec_stands_in_what_programs_read(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.committed.run_to_its_end("k1")
    async with asked_by_operator(world) as where:
        monkeypatch.setattr(ShardOptions, "find", lambda _: where)
        await asyncio.to_thread(get, job="train", output=Output.YAML)
    shown = yaml.safe_load(capsys.readouterr().out.partition("\n")[2])  # behind a line of the gateway's log
    assert shown["spec"]["roles"][0]["template"]["image"]
    assert shown["ran_on"] == ["node-a"]


async def test_a_job_that_lists_show_no_longer_is_told_from_one_that_never_was(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.ended_max = 0
    job = world.committed.run_to_its_end("k1")
    async with asked_by_operator(world) as where:
        monkeypatch.setattr(ShardOptions, "find", lambda _: where)
        with pytest.raises(typer.Exit) as ends:
            await asyncio.to_thread(get, job=job, output=Output.TABLE)
        said = capsys.readouterr().err
        assert ends.value.exit_code == Exit.REFUSED
        assert said.startswith("refused: NoLongerShown: job_id: ")
        assert "succeeded; its records are in the ledger" in said
        for named in ("k1", "a" * 20):
            with pytest.raises(Failure) as unknown:
                await views_of(where).work(named)
            assert unknown.value.code is Exit.NOT_FOUND


async def test_an_operator_is_told_why_a_job_waits_and_its_story(world: World) -> None:
    job = world.committed.run_to_its_end("k1")
    async with asked_by_operator(world) as where:
        found = await explain_job(where, "train")
        with pytest.raises((Failure, Refused)):
            await explain_job(where, "a" * 20)
    assert (found["job_id"], found["phase"]) == (job, "succeeded")
    events = [each["event"] for each in found["story"]]
    assert (events[0], "job.succeeded" in events) == ("job.admitted", True)
