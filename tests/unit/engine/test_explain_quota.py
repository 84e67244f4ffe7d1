"""Explain names who holds a queue's own quota and why it stays there, and why others stand before a job."""

from typing import Any

import pytest

from tessera.engine.explain.explanation import explain
from tessera_schemas.config import Queue
from tests.builders import admitted, job_spec, role
from tests.rounds import Rounds, share


def told(rounds: Rounds, key: str, viewer: str | None = None) -> str:
    found = explain(rounds.state, rounds.job(key).job_id, rounds.ts, viewer)
    assert found is not None
    return "\n".join((found.sentence(), *found.sentences))


def borrowed(owner: Any = None, **more: Any) -> Rounds:
    policy = more.pop("policy", {})
    queues = owner or share("owner", 8), share("borrower", 8)
    rounds = Rounds(Queue(name="all"), *queues, nodes={"node-a": 16}, preset="off", **policy)
    rounds.submit("soft", gpus=16, queue="borrower", **more)
    rounds.round(plans=False)
    rounds.round(plans=False)
    rounds.submit("promised", gpus=8, queue="owner")
    rounds.round(plans=False)
    return rounds


@pytest.mark.parametrize(
    ("rounds", "why"),
    [
        (borrowed(), "taken back as soon as a plan fits"),
        (borrowed(policy={"min_runtime_seconds": 60}), "before it has run for 60 s (policy.min_runtime_seconds)"),
        (borrowed(share("owner", 8, reclaim="never")), "because queues.owner.reclaim is never"),
        (borrowed(share("owner", 8, reclaim="lower_priority")), "reclaim is lower_priority, and its class is no lower"),
    ],
    ids=["taken back", "too young", "never", "no lower class"],
)
def test_an_owner_is_told_which_queue_borrows_its_quota_and_why_it_keeps_it(rounds: Rounds, why: str) -> None:
    said = told(rounds, "promised")
    assert "others borrow what is its own" in said
    assert f"Lent to queue borrower, 8 GPUs of the 16 GPUs in 1 run ({rounds.run('soft').run_id}): " in said
    assert why in said


def test_who_waits_for_what_is_its_teams_own_is_told_who_has_it() -> None:
    team = share("team", 8), share("owner", 0, parent="team", reclaim="never"), share("sibling", 0, parent="team")
    rounds = Rounds(Queue(name="all"), *team, share("borrower", 8), nodes={"node-a": 16}, preset="off")
    rounds.submit("soft", gpus=16, queue="borrower")
    rounds.settle()
    rounds.submit("promised", gpus=8, queue="owner")
    rounds.settle()
    said = told(rounds, "promised")
    assert "Lent of what is queue team's own to queue borrower, 8 GPUs of the 16 GPUs in 1 run" in said
    assert "because queues.owner.reclaim is never" in said


def test_a_run_that_got_its_loan_by_other_means_and_is_not_preemptible_is_named() -> None:
    rounds = Rounds(Queue(name="all"), share("owner", 4), share("borrower", 12), nodes={"node-a": 16})
    rounds.submit("firm", gpus=12, queue="borrower", preemptible=False)
    rounds.settle()
    rounds.shares(share("owner", 12), share("borrower", 4))
    rounds.submit("promised", gpus=8, queue="owner")
    rounds.settle()
    assert "Lent to queue borrower, 8 GPUs of the 12 GPUs in 1 run" in told(rounds, "promised")
    assert "not reclaimable because it is not preemptible" in told(rounds, "promised")
    assert rounds.run("firm").run_id not in told(rounds, "promised", viewer="other")


def test_what_its_queue_may_hold_by_itself_is_not_said_to_be_lent() -> None:
    queues = share("owner", 16), share("borrower", 16)
    rounds = Rounds(Queue(name="all"), *queues, nodes={"node-a": 32}, min_runtime_seconds=3600)
    rounds.submit("soft", gpus=6, pods=2, queue="borrower")
    rounds.submit("firm", gpus=8, queue="borrower", preemptible=False)
    rounds.submit("own", gpus=8, queue="owner")
    rounds.settle()
    rounds.submit("asked", gpus=7, queue="owner")
    rounds.settle()
    said = told(rounds, "asked")
    assert f"Lent to queue borrower, 4 GPUs of the 12 GPUs in 1 run ({rounds.run('soft').run_id}): " in said
    assert "not preemptible" not in said


def test_a_job_is_told_why_others_stand_before_it() -> None:
    rounds = Rounds(nodes={"node-a": 1})
    for key, tenant, priority in (
        ("runs", "lab", "normal"),
        ("high", "lab", "high"),
        ("theirs", "other", "normal"),
        ("first", "lab", "normal"),
        ("asked", "lab", "normal"),
    ):
        spec = job_spec(role(gpus=1), name=key, priority_class=priority)
        rounds.commit(admitted(key, spec, tenant))
        rounds.round(plans=False)
    said = told(rounds, "asked")
    assert (
        "Before it in line: 1 of a higher priority class, 1 of tenants that hold less for their weight, 1 older."
        in said
    )
    assert "Its tenant holds 1 GPU in queue research, with weight 1." in said
    assert "on average" not in said


def test_with_a_half_life_the_story_says_what_the_tenant_has_held() -> None:
    rounds = Rounds(Queue(name="research"), nodes={"node-a": 2}, fair_share={"half_life_seconds": 3600})
    rounds.commit(admitted("runs", job_spec(role(gpus=2)), "lab"))
    rounds.round(plans=False)
    rounds.commit(ms=300_000)
    for key, tenant in (("asked", "lab"), ("theirs", "other")):
        rounds.commit(admitted(key, job_spec(role(gpus=1)), tenant))
        rounds.round(plans=False)
    said = told(rounds, "asked")
    assert "1 of tenants that hold less for their weight" in said
    assert "Its tenant has held 0.114 GPUs on average, which counts besides; half of it after 1h." in said


@pytest.mark.parametrize(
    ("policy", "more", "why"),
    [
        ({"preset": "priority"}, {"preemptible": False}, "because it is not preemptible"),
        ({"preset": "off"}, {}, "because policy.preset is off"),
        ({"preset": "priority", "min_runtime_seconds": 600}, {}, "before it has run for 600 s"),
    ],
    ids=["firm", "no preemption", "too young"],
)
def test_a_job_is_told_why_a_lower_class_of_its_queue_is_not_preempted(policy: Any, more: Any, why: str) -> None:
    rounds = Rounds(nodes={"node-a": 8}, **policy)
    rounds.submit("low", gpus=8, **more)
    rounds.settle()
    rounds.submit("urgent", gpus=8, priority="high")
    rounds.round(plans=False)
    assert f"A lower class in its queue is not preempted {why}" in told(rounds, "urgent")


def test_both_jobs_are_told_for_how_long_a_disruption_budget_keeps_lent_quota_and_that_the_run_is_called_in() -> None:
    rounds = borrowed(policy={"lent_kept_seconds": 300})
    rounds.budgets.add("soft")
    rounds.round()
    rounds.round()
    for key in ("soft", "promised"):
        assert "its disruption budget keeps lent quota for " in told(rounds, key), told(rounds, key)
    rounds.commit(ms=300_000)
    rounds.held_back.add(rounds.run("soft").run_id)
    rounds.round()
    for key in ("soft", "promised"):
        assert "called in, since its disruption budget has kept lent quota" in told(rounds, key), told(rounds, key)
