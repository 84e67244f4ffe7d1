"""Nominal quota is a promise: what is borrowed is revocable, whoever borrows it, and the owner gets it back."""

from typing import Any

import pytest

from tessera.domain.storing.fast import replace
from tessera_schemas.config import Queue
from tessera_schemas.reasons import Code, Reason
from tests.rounds import Rounds, share


def lent(*queues: Queue, gpus: int = 16, preset: str = "off", **policy: Any) -> Rounds:
    """An owner and a borrower of 8 GPUs each below one root, on one node; nothing of the policy is configured."""
    queues = queues or (share("owner", 8), share("borrower", 8))
    return Rounds(Queue(name="all"), *queues, nodes={"node-a": gpus}, preset=preset, **policy)


def reason(rounds: Rounds, key: str) -> Reason:
    found = rounds.job(key).reason
    assert found is not None
    return found


# -- who may borrow


def test_work_that_is_not_preemptible_waits_for_quota_of_its_own_queue_and_is_told_so() -> None:
    rounds = lent()
    rounds.submit("firm", gpus=16, queue="borrower", preemptible=False)
    rounds.submit("own", gpus=8, queue="borrower", preemptible=False)
    rounds.settle()
    assert rounds.running("own")
    assert not rounds.running("firm")
    assert reason(rounds, "firm").code is Code.WAITING_FOR_QUOTA
    assert "does not borrow" in reason(rounds, "firm").detail


def test_a_spent_eviction_budget_is_no_ban_and_what_it_borrows_goes_back() -> None:
    rounds = lent(evictions_max=0, min_runtime_seconds=0)
    rounds.submit("spent", gpus=16, queue="borrower")
    rounds.settle()
    assert rounds.running("spent")
    rounds.submit("promised", gpus=8, queue="owner")
    rounds.settle()
    assert rounds.running("promised")
    assert not rounds.running("spent")


def test_preemptible_work_of_the_same_queue_does_not_keep_the_rest_from_its_own_quota() -> None:
    """What borrows is the work that can be taken back, whichever came first."""
    rounds = lent()
    rounds.submit("soft", gpus=8, queue="borrower")
    rounds.settle()
    rounds.submit("firm", gpus=8, queue="borrower", preemptible=False)
    rounds.settle()
    assert rounds.running("soft", "firm")
    rounds.submit("promised", gpus=8, queue="owner")
    rounds.settle()
    assert rounds.running("promised", "firm")
    assert not rounds.running("soft")


def test_quota_of_the_queues_above_is_a_queues_own_too_and_a_siblings_is_not() -> None:
    team = [share("team", 4, parent="all"), share("train", 0, parent="team"), share("serve", 4, parent="team")]
    rounds = lent(share("other", 8), *team)
    rounds.submit("firm", gpus=4, queue="train", preemptible=False)
    rounds.submit("more", gpus=1, queue="train", preemptible=False)
    rounds.settle()
    assert rounds.running("firm")
    assert not rounds.running("more")


def test_a_job_that_gave_lent_quota_back_as_often_as_it_may_be_evicted_borrows_again() -> None:
    rounds = lent(evictions_max=1, min_runtime_seconds=0)
    rounds.submit("borrows", gpus=16, queue="borrower")
    rounds.settle()
    rounds.submit("promised", gpus=8, queue="owner")
    rounds.settle()
    assert rounds.running("promised")
    assert not rounds.running("borrows")
    rounds.finish("promised")
    rounds.settle()
    assert rounds.running("borrows"), "nobody else wants the GPUs"


# -- who gives back


@pytest.mark.parametrize("preset", ["off", "priority", "fair"])
@pytest.mark.parametrize("priority", ["low", "normal", "urgent"])
def test_an_owner_gets_its_nominal_quota_under_every_preset_from_every_class(preset: str, priority: str) -> None:
    rounds = lent(preset=preset)
    rounds.submit("borrows", gpus=16, queue="borrower", priority=priority)
    rounds.settle()
    rounds.submit("promised", gpus=8, queue="owner", priority="low")
    rounds.settle()
    assert rounds.running("promised")
    assert rounds.evicted() == [["borrows"]]


def test_a_higher_class_of_another_queue_does_not_outrank_room_that_was_taken_back() -> None:
    rounds = lent(share("owner", 8), share("borrower", 8), gpus=16)
    rounds.submit("borrows", gpus=16, queue="borrower", priority="urgent")
    rounds.settle()
    rounds.submit("promised", gpus=8, queue="owner", priority="low")
    rounds.settle()
    rounds.settle()
    assert rounds.running("promised")
    assert len(rounds.plans) == 1


def test_a_queue_that_reclaims_lower_classes_only_or_never_says_so_and_is_obeyed() -> None:
    for policy, class_, gets in (
        ("never", "urgent", False),
        ("lower_priority", "normal", False),
        ("lower_priority", "high", True),
    ):
        rounds = lent(share("owner", 8, reclaim=policy), share("borrower", 8))
        rounds.submit("borrows", gpus=16, queue="borrower", priority="normal")
        rounds.settle()
        rounds.submit("promised", gpus=8, queue="owner", priority=class_)
        rounds.settle()
        assert rounds.running("promised") is gets, (policy, class_)


def test_a_run_with_a_spent_eviction_budget_still_gives_lent_quota_back() -> None:
    rounds = lent()
    rounds.submit("borrows", gpus=16, queue="borrower")
    rounds.settle()
    rounds.configure(evictions_max=0)
    rounds.submit("promised", gpus=8, queue="owner")
    rounds.settle()
    assert rounds.running("promised")


def test_of_runs_that_hold_lent_quota_those_past_their_budget_go_last() -> None:
    rounds = lent(share("owner", 8), share("borrower", 4), gpus=12, evictions_max=2)
    rounds.submit("spent", gpus=4, queue="borrower", priority="low")
    rounds.submit("soft", gpus=8, queue="borrower", priority="high")
    rounds.settle()
    rounds.state.put_job(replace(rounds.job("spent"), evictions=2))
    rounds.submit("promised", gpus=4, queue="owner")
    assert rounds.victims("promised", "reclaim") == ["soft"]


def test_what_an_elastic_run_of_a_higher_class_grew_by_on_lent_quota_is_given_back() -> None:
    rounds = lent(grow_after_seconds=0)
    rounds.submit("grown", gpus=8, queue="borrower", priority="urgent", max_replicas=2, preemptible=False)
    rounds.settle()
    assert len(rounds.run("grown").extra) == 1
    rounds.submit("promised", gpus=8, queue="owner", priority="low")
    rounds.settle()
    assert rounds.running("promised", "grown")


# -- what a queue above has of its own


TEAM = (share("team", 8), share("train", 0, parent="team"), share("serve", 0, parent="team"), share("other", 8))


def test_a_leaf_gets_back_what_is_its_teams_own() -> None:
    rounds = lent(*TEAM)
    rounds.submit("borrows", gpus=16, queue="other")
    rounds.settle()
    rounds.submit("promised", gpus=8, queue="train")
    rounds.settle()
    assert rounds.running("promised")
    assert rounds.evicted() == [["borrows"]]


def test_what_a_sibling_lent_the_team_comes_back_to_the_team() -> None:
    """A team's own is all that its queues have: they have it before others do."""
    rounds = lent(
        share("team", 0), share("train", 0, parent="team"), share("serve", 8, parent="team"), share("other", 8)
    )
    rounds.submit("borrows", gpus=16, queue="other")
    rounds.settle()
    rounds.submit("promised", gpus=8, queue="train")
    rounds.settle()
    assert rounds.running("promised")


def test_queues_of_one_team_do_not_take_its_own_from_each_other() -> None:
    rounds = lent(*TEAM, gpus=8)
    rounds.submit("first", gpus=8, queue="serve")
    rounds.settle()
    rounds.submit("second", gpus=8, queue="train", priority="urgent")
    rounds.settle()
    assert rounds.running("first")
    assert rounds.plans == []


def test_a_team_that_uses_its_own_reclaims_no_more() -> None:
    rounds = lent(*TEAM, share("third", 8), gpus=24)
    rounds.submit("used", gpus=4, queue="serve")
    rounds.submit("borrows", gpus=20, queue="other")
    rounds.settle()
    rounds.submit("beyond", gpus=8, queue="train")
    rounds.settle()
    assert rounds.running("used", "borrows")
    rounds.submit("within", gpus=4, queue="train")
    rounds.settle()
    assert rounds.running("used", "within")


def test_a_plan_for_a_teams_own_takes_nothing_from_the_team() -> None:
    """`serve` holds what is the team's as well; only what left the team comes back."""
    rounds = lent(*TEAM)
    rounds.submit("ours", gpus=4, queue="serve", priority="low")
    rounds.submit("small", gpus=4, queue="other", priority="high")
    rounds.submit("large", gpus=8, queue="other", priority="high")
    rounds.settle()
    rounds.submit("promised", gpus=4, queue="train", priority="low")
    rounds.settle()
    assert rounds.running("ours", "promised", "large")
    assert rounds.evicted() == [["small"]]
