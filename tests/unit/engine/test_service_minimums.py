"""Replicas of a service beyond its guaranteed minimum may be stopped for others; those within it are kept."""

from dataclasses import replace
from typing import Any

import pytest

from tessera.domain.folding.services import count_below_minimum
from tessera.engine.defragmentation.relocations import may_move
from tessera.engine.explain.blockers import Viewer
from tessera.engine.explain.lent_quota import describe_lower_classes
from tessera.engine.preemption.rules import may_evict
from tessera_schemas.facts import CancelRequested, PodsBack
from tessera_schemas.reasons import Code
from tessera_schemas.work.adopted import Adopted, Service
from tessera_schemas.work.arrays import SERVICE_TASKS, JobArray, ServiceSize
from tests.builders import admitted, job_spec, role
from tests.rounds import Rounds, share

CHAT = Service(kind="Deployment", name="chat", uid="chat-uid", min_replicas=2)


def scale(rounds: Rounds, *keys: str, service: Service | None = CHAT, queue: str = "research", **more: Any) -> None:
    """A pod for each key, all of one service, of a priority below that of any job with a class."""
    for key in keys:
        adopted = Adopted(owner_kind="Pod", owner_name=key, uids=(f"uid-{key}",), priority=-1, service=service)
        spec = job_spec(role(gpus=1), name=key, queue=queue, **more)
        rounds.commit(admitted(key, spec).model_copy(update={"adopted": adopted}))
        rounds.settle()


def kept(rounds: Rounds) -> list[str]:
    return sorted(job.name for job in rounds.state.jobs.values() if job.in_minimum)


def full(replicas: int = 4) -> Rounds:
    """A node of four GPUs full of replicas, of which two are guaranteed."""
    rounds = Rounds(nodes={"node-a": replicas})
    scale(rounds, *(f"chat-{number}" for number in range(replicas)))
    return rounds


def test_the_replicas_that_have_run_longest_are_kept_and_the_others_make_room() -> None:
    rounds = full()
    assert kept(rounds) == ["chat-0", "chat-1"]
    rounds.submit("train", gpus=2, priority="high")
    rounds.settle()
    assert rounds.evicted() == [["chat-2", "chat-3"]]
    assert rounds.running("train", "chat-0", "chat-1")


def test_no_plan_takes_more_than_what_is_beyond_the_minimum() -> None:
    rounds = full()
    rounds.submit("train", gpus=3, priority="high")
    rounds.settle()
    assert rounds.plans == []
    assert rounds.running("chat-0", "chat-1", "chat-2", "chat-3")
    rounds.submit("small", gpus=1, priority="high")
    rounds.submit("again", gpus=1, priority="high")
    rounds.submit("third", gpus=1, priority="high")
    rounds.settle()
    assert sorted(name for plan in rounds.evicted() for name in plan) == ["chat-2", "chat-3"]
    assert rounds.running("small", "again", "chat-0", "chat-1")


def test_of_several_replicas_that_end_by_themselves_the_next_ones_are_kept() -> None:
    rounds = full()
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=rounds.job("chat-0").job_id, tenant="lab"))
    rounds.settle()
    assert kept(rounds) == ["chat-1", "chat-2"]


def test_the_highest_number_of_live_replicas_counts() -> None:
    rounds = full(3)
    scale(rounds, "chat-3", service=CHAT.model_copy(update={"min_replicas": 3}))
    assert kept(rounds) == ["chat-0", "chat-1", "chat-2"]


def test_without_a_number_and_of_another_service_nothing_is_kept() -> None:
    rounds = Rounds(nodes={"node-a": 4})
    scale(rounds, "other-0", service=CHAT.model_copy(update={"uid": "other", "min_replicas": 1}))
    scale(rounds, "none-0", service=None)
    scale(rounds, "zero-0", service=CHAT.model_copy(update={"uid": "zero", "min_replicas": 0}))
    assert kept(rounds) == ["other-0"]


def test_a_number_that_changes_while_a_replica_waits_is_a_record_once() -> None:
    rounds = full(2)
    scale(rounds, "chat-2")
    job, more = rounds.job("chat-2"), CHAT.model_copy(update={"min_replicas": 3})
    back = PodsBack(kind="pods_back", job_id=job.job_id, preemptible=True, uids=("uid-chat-2",), service=more)
    assert [record.kind for record in rounds.commit(back).records] == ["back_in_line"]
    assert kept(rounds) == ["chat-0", "chat-1", "chat-2"]
    assert rounds.commit(back).records == ()
    gone = back.model_copy(update={"service": None})
    assert [record.kind for record in rounds.commit(gone).records] == ["back_in_line"]
    assert rounds.job("chat-2").adopted.service.min_replicas == 0  # type: ignore[union-attr]
    assert kept(rounds) == ["chat-0", "chat-1"]
    assert rounds.commit(gone).records == ()


def test_a_run_of_the_minimum_is_neither_evicted_nor_moved_and_the_reason_names_it() -> None:
    rounds = full()
    rounds.submit("train", gpus=3, priority="high")
    rounds.settle()
    state, owner = rounds.state, rounds.job("train")
    against = may_evict(state, owner, rounds.run("chat-1"), "preemption", state.quota_book())
    assert against is not None
    assert (against.code, against.detail) == (
        Code.KEPT_BY_MINIMUM,
        f"{rounds.run('chat-1').run_id} of Deployment/chat (2 guaranteed, 4 running)",
    )
    assert may_evict(state, owner, rounds.run("chat-2"), "preemption", state.quota_book()) is None
    rounds.configure(defragment=True)
    moved = may_move(rounds.state, owner, rounds.run("chat-1"))
    assert moved is not None
    assert moved.code is Code.KEPT_BY_MINIMUM
    sentences = list(describe_lower_classes(state, owner, Viewer(state.tree, "lab")))
    kept_by = "it is kept by the minimum of Deployment/chat (2 guaranteed, 4 running)"
    assert sentences == [f"A lower class in its queue is not preempted because {kept_by}: 2 runs."]
    hidden = list(describe_lower_classes(state, owner, Viewer(state.tree, "others")))
    assert "chat" not in hidden[0]


# -- quota ----------------------------------------------------------------------------------------------------------


def lending(nominal: int = 1) -> Rounds:
    """Queue a has so many GPUs of its own and may borrow the others of eight."""
    queues = (share("all", 0, parent=None), share("a", nominal), share("b", 8 - nominal))
    return Rounds(*queues, nodes={"node-a": 8})


def test_the_minimum_does_not_borrow_and_neither_does_a_third_replica_before_it_is_full() -> None:
    rounds = lending(nominal=1)
    scale(rounds, "chat-0", "chat-1", "chat-2", queue="a")
    assert rounds.running("chat-0")
    assert not rounds.running("chat-1")
    assert not rounds.running("chat-2")
    reason = rounds.job("chat-1").reason
    assert reason is not None
    assert "or until Deployment/chat is guaranteed fewer replicas" in reason.detail


def test_replicas_beyond_the_minimum_borrow_and_are_taken_back() -> None:
    rounds = lending(nominal=2)
    scale(rounds, *(f"chat-{number}" for number in range(6)), queue="a")
    assert all(rounds.running(f"chat-{number}") for number in range(6))
    rounds.submit("owner", gpus=6, queue="b")
    rounds.settle()
    assert rounds.evicted() == [["chat-2", "chat-3", "chat-4", "chat-5"]]
    assert rounds.running("owner", "chat-0", "chat-1")


def test_quota_comes_back_at_no_replicas() -> None:
    rounds = lending(nominal=4)
    scale(rounds, *(f"chat-{number}" for number in range(4)), queue="a")
    rounds.submit("train", gpus=8, queue="b")
    rounds.settle()
    assert not rounds.running("train")
    for number in range(4):
        rounds.commit(
            CancelRequested(kind="cancel_requested", job_id=rounds.job(f"chat-{number}").job_id, tenant="lab")
        )
    rounds.settle()
    assert rounds.running("train")
    assert len(rounds.state.services) == 0


@pytest.mark.parametrize("least", [0, 1, 2, 3])
def test_a_restart_from_a_snapshot_keeps_the_same_replicas(least: int) -> None:
    rounds = Rounds(nodes={"node-a": 4})
    scale(rounds, "chat-0", "chat-1", "chat-2", service=CHAT.model_copy(update={"min_replicas": least}))
    before = kept(rounds)
    rounds.state.rebuild_index()
    assert kept(rounds) == before
    assert not rounds.state.changed_services
    run = rounds.run("chat-0")
    rounds.state.put_run(replace(run))
    assert list(rounds.state.changed_services) == ["chat-uid"]


def test_a_service_with_fewer_replicas_than_it_is_guaranteed_is_counted_until_it_has_them() -> None:
    rounds = Rounds(nodes={"node-a": 1})
    scale(rounds, "chat-0")
    assert count_below_minimum(rounds.state) == 0, "its owner wants one"
    scale(rounds, "chat-1")
    assert count_below_minimum(rounds.state) == 1
    scale(rounds, "other-0", service=None)
    assert count_below_minimum(rounds.state) == 1
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=rounds.job("chat-1").job_id, tenant="lab"))
    rounds.settle()
    assert count_below_minimum(rounds.state) == 0


@pytest.mark.parametrize(("gpus", "below"), [(1, 1), (2, 0)])
def test_a_submitted_service_is_counted_by_what_it_wants(gpus: int, below: int) -> None:
    size = ServiceSize(min_replicas=2, max_replicas=3)
    rounds = Rounds(nodes={"node-a": gpus})
    rounds.commit(admitted("chat", job_spec(role(gpus=1), service=size, array=JobArray(tasks=SERVICE_TASKS))))
    assert count_below_minimum(rounds.state) == 1, "none of it is there"
    rounds.settle()
    assert count_below_minimum(rounds.state) == below
