"""What an order would do, said before it is given: computed on a fork, and the state stays as it was."""

from typing import Any

from tessera.engine.explain.blockers import Viewer
from tessera.engine.explain.consequences import Consequences, TriedOrder, consequences
from tessera_schemas.commands import ApplyConfig, CancelJob, DrainNode, SetPriority
from tessera_schemas.config import Queue, Quota
from tessera_schemas.facts import DrainRequested, PriorityRequested
from tests.builders import config_proposed
from tests.rounds import Rounds, share

HOUR_MS = 3_600_000


def told(rounds: Rounds, order: TriedOrder) -> Consequences:
    before = rounds.state.to_bytes() if hasattr(rounds.state, "to_bytes") else None
    waiting = {name: list(places) for name, places in rounds.state.index.waiting.items()}
    found = consequences(rounds.state, order, rounds.ts)
    assert {name: list(places) for name, places in rounds.state.index.waiting.items()} == waiting
    assert before is None or rounds.state.to_bytes() == before
    return found


def names(found: Consequences) -> list[str]:
    return sorted(each.name for each in found.stopped)


def words(rounds: Rounds, found: Consequences, tenant: str | None = None) -> str:
    return "\n".join(found.words(Viewer(rounds.state.tree, tenant)))


def prio(rounds: Rounds, key: str, name: str) -> SetPriority:
    return SetPriority(kind="set_priority", v=1, job_id=rounds.job(key).job_id, priority_class=name)


def with_quotas(rounds: Rounds, *queues: Queue, **more: Any) -> ApplyConfig:
    body = rounds.state.config.body
    root = tuple(queue for queue in body.queues if queue.parent is None)
    changed = body.model_copy(update={"queues": (*root, *queues), **more})
    return ApplyConfig(kind="apply_config", v=1, expected_version=rounds.state.config.version, body=changed)


def busy(**policy: Any) -> Rounds:
    """A full node for an hour, and a job of the same class that waits."""
    rounds = Rounds(nodes={"node-a": 8}, preset="priority", **policy)
    rounds.submit("runs", gpus=8, priority="low")
    rounds.settle()
    rounds.commit(ms=HOUR_MS)
    rounds.submit("waits", gpus=8, priority="low")
    rounds.settle()
    return rounds


def test_a_higher_class_names_whom_it_evicts_and_what_is_lost_and_that_comes_true() -> None:
    rounds = busy()
    found = told(rounds, prio(rounds, "waits", "urgent"))
    assert names(found) == ["runs"]
    assert found.stopped[0].lost_gpu_ms // HOUR_MS == 8
    assert "1 job of 1 tenant on 8 GPUs; 8 GPU-hours since they last saved or started are lost" in words(rounds, found)
    rounds.commit(
        PriorityRequested(kind="priority_requested", job_id=rounds.job("waits").job_id, priority_class="urgent")
    )
    rounds.settle()
    assert rounds.evicted() == [["runs"]]


def test_a_run_that_only_its_age_protects_is_named_and_a_job_that_fits_evicts_nobody() -> None:
    rounds = busy(min_runtime_seconds=7200)
    assert names(told(rounds, prio(rounds, "waits", "urgent"))) == ["runs"]
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="priority")
    rounds.submit("runs", gpus=8, priority="low")
    rounds.settle()
    rounds.submit("fits", gpus=8, priority="low")
    assert told(rounds, prio(rounds, "fits", "urgent")) == Consequences()


def test_a_run_that_is_lowered_may_be_evicted_for_who_waits() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="priority")
    rounds.submit("runs", gpus=8, priority="urgent")
    rounds.settle()
    rounds.submit("waits", gpus=8, priority="normal")
    rounds.settle()
    assert names(told(rounds, prio(rounds, "runs", "low"))) == ["runs"]
    assert names(told(rounds, prio(rounds, "runs", "normal"))) == []


def test_an_apply_names_who_loses_lent_quota_and_what_the_pool_does_not_have() -> None:
    rounds = Rounds(Queue(name="all"), share("one", 16), share("two", 0), nodes={"node-a": 8, "node-b": 8})
    for number in range(2):
        rounds.submit(f"two-{number}", gpus=8, queue="two")
    rounds.settle()
    rounds.shares(share("one", 0), share("two", 16))
    rounds.commit(ms=HOUR_MS)
    for number in range(2):
        rounds.submit(f"one-{number}", gpus=8, queue="one")
    rounds.settle()
    assert rounds.evicted() == []
    order = with_quotas(rounds, share("one", 8), share("two", 8))
    found = told(rounds, order)
    assert (len(found.stopped), found.promises) == (1, ())
    over = told(rounds, with_quotas(rounds, share("one", 16), share("two", 16)))
    (promise,) = over.promises
    assert (promise.promised, promise.capacity, promise.queues) == (32_000, 16_000, ("one", "two"))
    assert "promises 32 GPUs in pool default, which has 16 (queues one, two)" in words(rounds, over)
    assert told(rounds, with_quotas(rounds, share("one", 0), share("two", 16))) == Consequences()
    rounds.commit(config_proposed(order.body, order.expected_version))
    rounds.settle()
    assert rounds.evicted() == [names(found)]


def test_a_promise_is_held_against_the_nodes_of_its_flavor_and_only_told_when_it_grows() -> None:
    rounds = Rounds(Queue(name="all"), share("one", 16), nodes={"node-a": 8})
    assert told(rounds, with_quotas(rounds, share("one", 12))) == Consequences(), "less than is promised now"
    assert [p.promised for p in told(rounds, with_quotas(rounds, share("one", 17))).promises] == [17_000]
    memory = Queue(name="one", parent="all", quotas=(Quota(resource="memory_bytes", nominal=2**50),))
    assert "promises 1Pi of memory in pool default" in words(rounds, told(rounds, with_quotas(rounds, memory)))


def test_a_drained_queue_names_its_runs_and_a_held_one_says_that_they_go_on() -> None:
    rounds = busy()
    body = rounds.state.config.body

    def stopping(policy: str) -> ApplyConfig:
        queues = tuple(queue.model_copy(update={"stop_policy": policy}) for queue in body.queues)
        changed = body.model_copy(update={"queues": queues})
        return ApplyConfig(kind="apply_config", v=1, expected_version=rounds.state.config.version, body=changed)

    held, drained = told(rounds, stopping("hold")), told(rounds, stopping("hold_and_drain"))
    assert (names(held), names(drained)) == ([], ["runs"])
    assert "1 job there wait" in words(rounds, held)
    assert "1 run there go on" in words(rounds, held)
    assert "go on" not in words(rounds, drained)


def test_a_drain_says_who_goes_and_who_stays() -> None:
    rounds = busy()
    stays = told(rounds, DrainNode(kind="drain_node", v=1, node="node-a"))
    assert (names(stays), words(rounds, stays)) == ([], "1 run on node-a (8 GPUs) go on to their end")
    order = DrainNode(kind="drain_node", v=1, node="node-a", evict=True)
    assert names(told(rounds, order)) == ["runs"]
    rounds.commit(DrainRequested(kind="drain_requested", node="node-a", evict=True))
    assert rounds.run("runs").stopping
    assert told(rounds, order) == Consequences(), "it stops already"


def test_a_cancel_names_what_is_lost_and_a_tenant_reads_no_name_of_another() -> None:
    rounds = busy()
    found = told(rounds, CancelJob(kind="cancel_job", v=1, job_id=rounds.job("runs").job_id))
    assert names(found) == ["runs"]
    assert "runs" in words(rounds, found, "lab")
    assert "a job of another tenant: 8 GPUs, 8 GPU-hours lost" in words(rounds, found, "other")
    assert rounds.job("runs").job_id not in words(rounds, found, "other")
