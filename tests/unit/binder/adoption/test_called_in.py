"""Lent quota that a disruption budget keeps comes back after a bound: through their owner, or without."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.engine.preemption.plans import Plan, proposal
from tessera.reclamation.reclaim.decide import reclaim_plan
from tessera_schemas.config import Policy, Queue
from tessera_schemas.reasons import Reason
from tests.builders import admitted, config_body, config_proposed
from tests.rounds import share
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld
from tests.unit.binder.cluster_world import train

BOUND = 300
LENT: dict[str, Any] = {"labels": {"app": "lent"}}


def budget(name: str = "keep", app: str = "lent") -> dict[str, Any]:
    spec = {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": 0}
    return {"metadata": {"name": name}, "spec": spec, "status": {"disruptionsAllowed": 0}}


async def configure(world: AdoptionWorld, lent_kept_seconds: int) -> None:
    """A tree in which `research` has nothing of its own and `promised` all of the node."""
    policy = Policy(preset="fair", min_runtime_seconds=0, earmark_seconds=60, lent_kept_seconds=lent_kept_seconds)
    body = config_body(Queue(name="all"), share("research", 0), share("promised", 8), policy=policy)
    await world.commit(config_proposed(body, world.state.config.version))


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        await configure(world, BOUND)
        yield world


async def forbid(world: AdoptionWorld, *budgets: dict[str, Any]) -> None:
    """Budgets come once everybody has begun to borrow: with one there already nobody would."""
    await world.run(10)
    for each in budgets or (budget(),):
        world.core.create("poddisruptionbudgets", NS, each)


async def wait_for_what_is_lent(world: AdoptionWorld) -> str:
    """The id of a job within its queue's nominal quota, all of which is lent."""
    fact = admitted("owner", train(gpus=8, queue="promised", name="owner"))
    await world.commit(fact)
    return fact.job_id


def find(world: AdoptionWorld, job_id: str) -> Plan | Reason:
    return reclaim_plan(world.state, world.job(job_id), world.state.ts)


async def reclaim(world: AdoptionWorld, job_id: str) -> None:
    """Carry out the plan for the owner's job, as far as the budget lets it."""
    found = find(world, job_id)
    assert isinstance(found, Plan), found
    await world.commit(proposal(world.state, found, world.state.ts))
    await world.run(10)


def is_called_in(world: AdoptionWorld) -> list[bool]:
    return [record.called_in for record in world.records if record.kind == "revoked"]


async def test_a_job_is_suspended_through_its_owner_once_its_budget_kept_the_loan_for_the_bound(
    world: AdoptionWorld,
) -> None:
    world.make_job(pods=4, gpus=2, seconds=6000, **LENT)
    await forbid(world)
    before = {pod["metadata"]["uid"] for pod in world.owned()}
    owner = await wait_for_what_is_lent(world)
    await reclaim(world, owner)
    run = world.state.runs.get(world.only().run_id)
    since = run.kept_lent_ts
    assert (world.only().phase, run.called_in) == ("running", False)
    assert since
    await world.run(BOUND - 60)
    assert isinstance(find(world, owner), Reason), "its budget keeps it, as long as that is within the bound"
    await world.run(60)
    await reclaim(world, owner)
    assert is_called_in(world) == [False, True]
    assert world.job_object()["spec"]["suspend"] is True
    await world.run(60)
    assert not before & {pod["metadata"]["uid"] for pod in world.owned()}
    assert (world.job(owner).phase, world.only().phase) == ("running", "queued")
    told = {event["reason"] for event in world.events() if event["involvedObject"]["uid"] in before}
    assert "DisruptionBudgetOverridden" not in told, "suspension asks no budget"


async def test_pods_whose_owner_cannot_be_suspended_are_deleted_and_told_why(world: AdoptionWorld) -> None:
    world.make_pod("train", gpus=8, seconds=6000, notes={"tessera.io/preemptible": "true"}, **LENT)
    await forbid(world)
    owner = await wait_for_what_is_lent(world)
    await reclaim(world, owner)
    await world.run(BOUND)
    await reclaim(world, owner)
    await world.run(60)
    assert world.job(owner).phase == "running"
    said = [event["message"] for event in world.events() if event["reason"] == "DisruptionBudgetOverridden"]
    assert len(said) == 1
    assert "policy.lent_kept_seconds" in said[0]


async def test_every_run_that_a_budget_keeps_from_one_plan_is_called_in_at_one_time(world: AdoptionWorld) -> None:
    """Else the bounds of several budgets would add up, and the owner would wait for each in turn."""
    world.make_job("first", pods=1, gpus=4, seconds=6000, **LENT)
    world.make_job("second", pods=1, gpus=4, seconds=6000, labels={"app": "other"})
    await forbid(world, budget(), budget("more", app="other"))
    owner = await wait_for_what_is_lent(world)
    await reclaim(world, owner)
    kept = [world.state.runs.get(world.only(name).run_id).kept_lent_ts for name in ("first", "second")]
    assert all(kept), kept
    await world.run(BOUND)
    await reclaim(world, owner)
    await world.run(60)
    assert world.job(owner).phase == "running"


async def test_what_no_budget_keeps_is_not_stopped_for_a_run_that_is(world: AdoptionWorld) -> None:
    """A run that is called in waits for the others of its plan: half of a plan makes no room."""
    world.make_job("first", pods=1, gpus=4, seconds=6000, **LENT)
    world.make_job("second", pods=1, gpus=4, seconds=6000, labels={"app": "other"})
    await forbid(world)
    owner = await wait_for_what_is_lent(world)
    await reclaim(world, owner)
    await world.run(BOUND)
    world.core.create("poddisruptionbudgets", NS, budget("more", app="other"))
    await reclaim(world, owner)
    assert {world.only("first").phase, world.only("second").phase} == {"running"}
    first = world.state.runs.get(world.only("first").run_id)
    assert (first.called_in, first.kept_lent_ts > 0) == (False, True)


async def test_without_the_operators_word_a_budget_keeps_the_loan_for_as_long_as_it_says(world: AdoptionWorld) -> None:
    await configure(world, 0)
    world.make_job(pods=4, gpus=2, seconds=6000, **LENT)
    await forbid(world)
    owner = await wait_for_what_is_lent(world)
    for _ in range(3):
        await reclaim(world, owner)
        await world.run(BOUND)
    assert is_called_in(world) == [False] * 3
    assert world.only().phase == "running"
