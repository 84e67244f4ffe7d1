"""Views that are followed without a terminal are printed when they change, and only then; orders are checked first."""

import asyncio

import pytest

from tessera.client.commands.jobs.orders import check_class, check_order
from tessera.client.connect.shard_views import ShardViews
from tessera.client.outcomes import Refused
from tessera.client.views.live import watch
from tessera.kernel.errors import Transient
from tessera_schemas.config import Config
from tessera_schemas.views import JobView
from tests.builders import config_body


async def followed(*answers: list[str] | Transient) -> None:
    """Each look finds the next answer, and a few more the last one; then it is Ctrl-C."""
    left = [*answers, answers[-1], answers[-1]]

    async def read() -> list[str]:
        if not left:
            raise asyncio.CancelledError
        answer = left.pop(0)
        if isinstance(answer, Transient):
            raise answer
        return answer

    await watch(read, every_seconds=0.001)


async def test_a_view_is_printed_again_only_when_it_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    await followed(["one"], ["one"], ["two", "lines"], ["two", "lines"])
    assert capsys.readouterr().out == "one\n\ntwo\nlines\n"


async def test_views_that_are_away_are_said_to_be_once_and_looked_for_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await followed(Transient("no redis"), Transient("no redis"), ["back"])
    said = capsys.readouterr()
    assert said.out == "back\n"
    assert said.err == "the views are away (no redis); trying again\n"


class Views(ShardViews):
    def __init__(self) -> None: ...

    async def config(self) -> Config:
        return Config(version=1, body=config_body())


async def test_a_priority_class_that_does_not_exist_is_refused_with_those_that_do() -> None:
    views = Views()
    await check_class(views, "high")
    with pytest.raises(Refused, match="royal; there are low, normal, high, urgent"):
        await check_class(views, "royal")


class OfJob(Views):
    """`train` was submitted, every other job was adopted."""

    async def job(self, named: str) -> JobView:
        shape = {"tenant": "lab", "queue": "q", "key": "k", "phase": "queued", "attempt": 0, "pods": 1, "gpu_milli": 0}
        owner = "" if named == "train" else f"Job/{named}"
        return JobView(job_id="a" * 20, name=named, priority=0, submitted_ts=0, owner=owner, **shape)


async def test_adopted_work_keeps_the_priority_that_kubernetes_gave_it() -> None:
    views = OfJob()
    await check_order(views, "train", "high")
    with pytest.raises(Refused, match="Job/users has the priority of its PriorityClass in Kubernetes"):
        await check_order(views, "users", "high")
