"""Who is next: priority, then fair share down the queue tree, then age; back-off left out, at most 512."""

from typing import Any

import pytest

from tessera.domain.devices.resources import NOTHING, Amount
from tessera.engine.queueing.ordering import dominant_share, weighted_share
from tessera.queueing.decide import next_retry, order
from tessera_schemas.config import Queue
from tessera_schemas.facts import BindFailed, HoldRequested
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.orders import HEADS_MAX
from tests.builders import admitted, config_body, job_spec, node_seen, queue, role, run_absent
from tests.ledgers import Committed


def line_of(ledger: Committed, pool: str = "default") -> list[str]:
    names = {job.job_id: job.key for job in ledger.state.jobs.values()}
    return [names[job_id] for job_id in order(ledger.state, pool, ledger.ts)]


def test_a_higher_priority_class_goes_first_and_within_a_class_the_older_job() -> None:
    ledger = Committed().begin()
    ledger.commit(admitted("n1"), admitted("l1", job_spec(priority_class="low")), admitted("n2"))
    ledger.commit(admitted("h1", job_spec(priority_class="high")), admitted("n3"))
    assert line_of(ledger) == ["h1", "n1", "n2", "n3", "l1"]


def test_what_a_user_holds_who_waits_for_nothing_is_not_charged_to_jobs_that_name_no_user() -> None:
    ledger = Committed().begin(node_seen("node-a", gpus=8))
    for key, user, gpus in (("bobs", "bob", 6), ("anns", "ann", 1)):
        job = admitted(key, job_spec(role(gpus=gpus), user=user))
        ledger.commit(job)
        ledger.start(job.job_id, key)
    ledger.commit(admitted("ann", job_spec(role(gpus=8), user="ann")), admitted("nobody", job_spec(role(gpus=8))))
    assert line_of(ledger) == ["nobody", "ann"]


def test_jobs_of_one_message_keep_the_order_of_their_facts() -> None:
    ledger = Committed().begin()
    ledger.commit(*(admitted(f"k{number}") for number in (3, 1, 2)))
    assert line_of(ledger) == ["k3", "k1", "k2"]


def test_each_pool_has_a_line_of_its_own() -> None:
    ledger = Committed().begin(body=config_body(queue("research"), queue("batch", pool="blue")))
    ledger.commit(admitted("k1"), admitted("k2", job_spec(queue="batch")))
    assert (line_of(ledger), line_of(ledger, "blue"), line_of(ledger, "none")) == (["k1"], ["k2"], [])


def test_a_line_has_at_most_512_jobs() -> None:
    ledger = Committed().begin()
    ledger.commit(*(admitted(f"k{number}") for number in range(HEADS_MAX + 3)))
    assert line_of(ledger) == [f"k{number}" for number in range(HEADS_MAX)]


def in_back_off() -> Committed:
    """k1 was refused by the cluster and waits a second; k2 and k3 wait for room."""
    ledger = Committed().begin(node_seen(gpus=1))
    ledger.commit(admitted("k1"))
    ledger.commit(orders=(ledger.line(),))
    run = f"{admitted('k1').job_id}-1"
    ledger.commit(BindFailed(kind="bind_failed", run_id=run, rank=0, reason=Reason(code=Code.BIND_REFUSED)))
    ledger.commit(run_absent(run), admitted("k2"), admitted("k3"))
    return ledger


def test_a_job_in_back_off_is_left_out_until_its_time_and_then_has_its_old_place() -> None:
    ledger = in_back_off()
    assert line_of(ledger) == ["k2", "k3"]
    ledger.ts += 999
    assert line_of(ledger) == ["k2", "k3"]
    ledger.ts += 1
    assert line_of(ledger) == ["k1", "k2", "k3"]


def test_the_next_retry_is_the_end_of_the_nearest_back_off() -> None:
    ledger = in_back_off()
    assert next_retry(ledger.state, ledger.ts) == ledger.ts + 1_000
    assert next_retry(ledger.state, ledger.ts + 1_000) is None
    assert next_retry(Committed().begin().state, 0) is None


# -- fair share -----------------------------------------------------------------------------------------------------


def sharing(*queues: Queue, gpus: int = 12) -> Committed:
    return Committed().begin(node_seen(gpus=gpus), body=config_body(*queues))


def below(parent: str, *names: str, **more: Any) -> list[Queue]:
    """`a3` is queue a with weight 3."""
    return [Queue(name=name[0], parent=parent, weight=int(name[1:] or 1), **more) for name in names]


def submitted(ledger: Committed, *queues: str, gpus: int = 1, **more: Any) -> None:
    """One job for each letter, named by its queue and a number that counts up."""
    count = len(ledger.state.jobs)
    asked = role(gpus=gpus, cpu_milli=1, memory_bytes=1)
    ledger.commit(
        *(admitted(f"{name}{count + i}", job_spec(asked, queue=name, **more)) for i, name in enumerate(queues))
    )


def letters(ledger: Committed) -> str:
    """The queues of the line, one letter each."""
    return "".join(name[0] for name in line_of(ledger))


def test_queues_of_equal_weight_take_turns_however_many_jobs_one_has() -> None:
    ledger = sharing(Queue(name="all"), *below("all", "a", "b"))
    submitted(ledger, *"aaaabb")
    assert letters(ledger) == "ababaa"


def test_a_weight_of_three_is_three_turns_for_one() -> None:
    ledger = sharing(Queue(name="all"), *below("all", "a1", "b3"))
    submitted(ledger, *"aaaabbbbbb")
    assert letters(ledger) == "abbbabbbaa"


def test_what_a_queue_holds_already_counts() -> None:
    ledger = sharing(Queue(name="all"), *below("all", "a", "b"))
    submitted(ledger, *"aa")
    ledger.commit(orders=(ledger.line(),))
    submitted(ledger, *"aabbb")
    assert letters(ledger) == "bbaba"


def test_the_largest_part_of_any_one_resource_counts_not_the_number_of_jobs() -> None:
    ledger = sharing(Queue(name="all"), *below("all", "a", "b"))
    submitted(ledger, *"aa", gpus=4)
    submitted(ledger, *"bbbb")
    assert letters(ledger) == "abbbba"


def test_a_queue_of_weight_0_goes_when_no_other_asks() -> None:
    ledger = sharing(Queue(name="all"), *below("all", "a0", "b1"))
    submitted(ledger, *"aabb")
    assert letters(ledger) == "bbaa"


def test_queues_of_weight_0_share_what_is_left_as_if_they_weighed_the_same() -> None:
    ledger = sharing(Queue(name="all"), *below("all", "a0", "c0", "b1"))
    submitted(ledger, *"aaccb")
    assert letters(ledger) == "bacac"


def test_the_priority_class_comes_before_every_share() -> None:
    ledger = sharing(Queue(name="all"), *below("all", "a0", "b5"))
    submitted(ledger, *"bb")
    submitted(ledger, *"aa", priority_class="high")
    assert letters(ledger) == "aabb"


def test_an_inner_queue_is_one_among_its_siblings_however_many_are_below_it() -> None:
    """b and c together have as much as a."""
    ledger = sharing(Queue(name="all"), *below("all", "a"), Queue(name="team", parent="all"), *below("team", "b", "c"))
    submitted(ledger, *"aaaabbcc")
    assert letters(ledger) == "abacabac"


def test_queues_without_a_parent_share_as_if_they_had_one() -> None:
    ledger = sharing(Queue(name="a"), Queue(name="b"))
    submitted(ledger, *"aaabb")
    assert letters(ledger) == "ababa"


@pytest.mark.parametrize("stop", ["hold", "hold_and_drain"])
def test_stopped_queues_and_those_below_them_are_left_out(stop: Any) -> None:
    team = Queue(name="team", parent="all", stop_policy=stop)
    ledger = sharing(
        Queue(name="all"), *below("all", "a"), team, *below("team", "b"), *below("all", "c", stop_policy=stop)
    )
    submitted(ledger, *"abca")
    assert letters(ledger) == "aa"


def test_a_held_job_is_left_out_and_has_its_old_place_when_it_is_let_go() -> None:
    ledger = Committed().begin()
    ledger.commit(*(admitted(f"k{number}") for number in (1, 2, 3)))
    hold = HoldRequested(kind="hold_requested", job_id=admitted("k2").job_id, tenant="lab")
    ledger.commit(hold)
    assert line_of(ledger) == ["k1", "k3"]
    ledger.commit(hold.model_copy(update={"undo": True}))
    assert line_of(ledger) == ["k1", "k2", "k3"]


def test_the_dominant_share_is_the_largest_and_leaves_out_what_nobody_has() -> None:
    size = Amount(cpu_milli=10_000, memory_bytes=0, gpu_milli=8000)
    assert dominant_share(Amount(cpu_milli=1000, memory_bytes=99, gpu_milli=4000), size) == 500_000
    assert dominant_share(Amount(cpu_milli=9000, gpu_milli=4000), size) == 900_000
    assert dominant_share(Amount(gpu_milli=4000), NOTHING) == 0
    assert weighted_share(size, size, 0) > weighted_share(size, size, 1) > weighted_share(size, size, 2)


def started(ledger: Committed) -> list[str]:
    names = {job.job_id: job.key for job in ledger.state.jobs.values()}
    made = ledger.commit(orders=(ledger.line(),))
    return [names[record.job_id] for record in made.records if record.kind == "allocated"]


@pytest.mark.parametrize(("strategy", "starts"), [("best_effort_fifo", ["b2", "a1"]), ("strict_fifo", ["b2"])])
def test_a_strict_queue_lets_nobody_pass_its_first_job_and_holds_up_no_other_queue(
    strategy: Any, starts: list[str]
) -> None:
    ledger = sharing(Queue(name="all"), *below("all", "a", queueing_strategy=strategy), *below("all", "b"), gpus=2)
    submitted(ledger, "a", gpus=3)
    submitted(ledger, *"ab")
    assert started(ledger) == starts
    behind = {job.key: job.reason.code for job in ledger.state.jobs.values() if job.phase.value == "queued"}
    assert behind == {"a0": Code.NO_FIT} | ({"a1": Code.BEHIND_QUEUE_HEAD} if strategy == "strict_fifo" else {})
