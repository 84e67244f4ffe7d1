"""Work of which its disruption budget lets no pod go does not borrow, and is judged again when the budget changes."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.binder.adoption.owners.budgets import find_forbidding_budget
from tessera.engine.explain.explanation import explain
from tessera_schemas.config import Policy, Queue
from tessera_schemas.reasons import Code
from tests.builders import config_body, config_proposed
from tests.rounds import share
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld

LENT: dict[str, Any] = {"labels": {"app": "lent"}}
JUDGED_SECONDS = 40.0
"""Budgets are at most 15 s old, and waiting groups are looked at every ten."""


TWICE = "budgets a and b select the same pod, so that nobody may evict it"


def budget(name: str = "keep", expected: int = 0, failed: bool = False, **spec: Any) -> dict[str, Any]:
    conditions = [{"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed"}] if failed else []
    return {
        "metadata": {"name": name, "namespace": NS},
        "spec": {"selector": {"matchLabels": LENT["labels"]}, **spec},
        "status": {"disruptionsAllowed": 0, "expectedPods": expected, "conditions": conditions},
    }


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        body = config_body(Queue(name="all"), share("research", 4), share("other", 4), policy=Policy(preset="fair"))
        await world.commit(config_proposed(body, world.state.config.version))
        yield world


async def test_it_waits_for_its_own_quota_and_its_pods_name_the_budget(world: AdoptionWorld) -> None:
    world.core.create("poddisruptionbudgets", NS, budget(maxUnavailable=0))
    world.make_job(pods=4, gpus=2, **LENT)
    await world.run(20)
    job = world.only()
    assert (job.phase, job.reason is not None and job.reason.code) == ("queued", Code.WAITING_FOR_QUOTA)
    said = explain(world.state, job.job_id, world.state.ts)
    assert said is not None
    assert said.reason is not None
    assert "budget keep (maxUnavailable 0)" in said.reason.detail
    assert all("budget keep (maxUnavailable 0)" in world.condition(pod)["message"] for pod in world.owned())


async def test_within_its_own_quota_it_starts(world: AdoptionWorld) -> None:
    world.core.create("poddisruptionbudgets", NS, budget(maxUnavailable=0))
    world.make_job(pods=2, gpus=2, seconds=6000, **LENT)
    await world.run(10)
    assert world.only().phase == "running"
    # Its run counts as one that nobody may evict: a second one of the kind finds none of the four GPUs left.
    world.make_job("second", pods=1, gpus=2, **LENT)
    await world.run(20)
    assert world.only("second").phase == "queued"


async def test_it_starts_once_its_budget_lets_a_pod_go_and_the_ledger_says_why(world: AdoptionWorld) -> None:
    world.core.create("poddisruptionbudgets", NS, budget(minAvailable=4))
    world.make_job(pods=4, gpus=2, seconds=6000, **LENT)
    await world.run(20)
    world.core.patch("poddisruptionbudgets", NS, "keep", {"spec": {"minAvailable": 3}})
    await world.run(JUDGED_SECONDS)
    assert world.only().phase == "running"
    (back,) = [record for record in world.records if record.kind == "back_in_line"]
    assert back.budget == ""


async def test_a_budget_that_comes_while_it_waits_is_a_fact_once(world: AdoptionWorld) -> None:
    world.make_job("first", pods=4, gpus=2, seconds=6000)
    await world.run(10)
    world.make_job("second", pods=4, gpus=2, seconds=6000, **LENT)
    await world.run(10)
    world.core.create("poddisruptionbudgets", NS, budget(minAvailable=4))
    await world.run(JUDGED_SECONDS)
    assert [record.budget for record in world.records if record.kind == "back_in_line"] == [
        "budget keep (minAvailable 4)"
    ]
    world.core.delete("jobs", NS, "first")
    await world.run(JUDGED_SECONDS)
    assert world.only("second").phase == "queued"
    assert world.kinds().count("back_in_line") == 1


async def test_a_suspended_job_is_judged_by_the_labels_of_its_template(world: AdoptionWorld) -> None:
    world.core.create("poddisruptionbudgets", NS, budget(maxUnavailable=0))
    world.make_job(pods=4, gpus=2, suspend=True, **LENT)
    await world.run(20)
    assert world.only().phase == "queued"
    assert world.job_object()["spec"]["suspend"] is True


async def test_a_budget_that_is_made_a_moment_before_its_pods_is_not_missed(world: AdoptionWorld) -> None:
    world.make_job("other", pods=1, gpus=1, seconds=1)
    await world.run(5)  # budgets were listed for it
    world.core.create("poddisruptionbudgets", NS, budget(maxUnavailable=0))
    world.make_job(pods=4, gpus=2, **LENT)
    await world.run(20)
    assert world.only().phase == "queued"


async def test_where_budgets_may_not_be_read_all_is_as_without_them(world: AdoptionWorld) -> None:
    world.core.create("poddisruptionbudgets", NS, budget(maxUnavailable=0))
    world.core.faults.answer("list", 403, count=1000)
    world.make_job(pods=4, gpus=2, seconds=6000, **LENT)
    await world.run(10)
    assert world.only().phase == "running"


UNKNOWN = ", for which Kubernetes does not know how many pods there are to be)"


@pytest.mark.parametrize(
    ("owner", "budgets", "word"),
    [
        ("Set", [budget(maxUnavailable=0)], "budget keep (maxUnavailable 0)"),
        ("Set", [budget(maxUnavailable="0%")], "budget keep (maxUnavailable 0%)"),
        ("Set", [budget(maxUnavailable=1)], ""),
        ("Set", [budget(maxUnavailable="1%")], ""),
        ("Job", [budget(minAvailable=4)], "budget keep (minAvailable 4)"),
        ("Job", [budget(minAvailable=9)], "budget keep (minAvailable 9)"),
        ("Job", [budget(minAvailable=3)], ""),
        ("", [budget(minAvailable=3)], ""),
        ("Set", [budget(minAvailable="100%")], "budget keep (minAvailable 100%)"),
        ("Set", [budget(minAvailable="76%")], "budget keep (minAvailable 76%)"),
        ("Set", [budget(minAvailable="75%")], ""),
        ("Job", [budget(minAvailable=4, expected=5)], ""),
        ("Set", [budget(failed=True, maxUnavailable=1)], f"budget keep (maxUnavailable 1{UNKNOWN}"),
        ("Job", [budget(maxUnavailable=1)], f"budget keep (maxUnavailable 1{UNKNOWN}"),
        ("Job", [budget(minAvailable="10%")], f"budget keep (minAvailable 10%{UNKNOWN}"),
        ("", [budget(maxUnavailable=1)], f"budget keep (maxUnavailable 1{UNKNOWN}"),
        ("Set", [budget("b", maxUnavailable=1), budget("a", maxUnavailable=1)], TWICE),
        ("Set", [budget(maxUnavailable=0) | {"metadata": {"name": "keep", "namespace": "elsewhere"}}], ""),
        ("Set", [budget(maxUnavailable=0, selector={"matchLabels": {"app": "other"}})], ""),
    ],
    ids=lambda value: (value or "none") if isinstance(value, str) else "",
)
def test_a_budget_is_judged_by_what_it_allows_while_all_of_its_pods_are_well(
    owner: str, budgets: list[Any], word: str
) -> None:
    references = [{"kind": owner, "name": "of", "uid": "u", "controller": True}] if owner else []
    pods = [{"namespace": NS, "labels": LENT["labels"], "ownerReferences": references}] * 4
    assert find_forbidding_budget(budgets, pods) == word
