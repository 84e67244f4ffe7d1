"""Room that one configuration gave is not used, and not grown into, under another that would not give it."""

import pytest

from tessera.testkit.sim.planner import plan_for
from tessera_schemas.config import ConfigBody, Flavor, Policy, Queue, Quota
from tessera_schemas.facts import AnyFact, PodsMade, RunStarted
from tests.builders import admitted, config_body, config_proposed, first_run, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

PREEMPTS = Policy(preset="priority", min_runtime_seconds=0)
FLAVORS = (Flavor(name="fast", gpu_models=("h100",)), Flavor(name="slow", gpu_models=("a100",)))


def body(*flavors: str) -> ConfigBody:
    quotas = tuple(Quota(resource="gpu_milli", nominal=8000, flavor=flavor) for flavor in flavors)
    return config_body(Queue(name="research", quotas=quotas), policy=PREEMPTS, flavors=FLAVORS)


def kept(configured: ConfigBody) -> Committed:
    """k2 has room on the only node; k1's run there is being stopped."""
    ledger = Committed().begin(node_seen("node-a", gpus=1), body=configured)
    ledger.commit(admitted("k1", job_spec(priority_class="low")))
    ledger.commit(orders=(ledger.line(),))
    made = PodsMade(kind="pods_made", run_id=first_run(), uids=("uid-0",))
    ledger.commit(made, RunStarted(kind="run_started", run_id=first_run()))
    ledger.commit(admitted("k2", job_spec(priority_class="high")))
    state = ledger.state
    ledger.commit(plan_for(state, state.jobs.get(admitted("k2").job_id), [state.runs.get(first_run())]))
    assert len(ledger.state.earmarks) == 1
    return ledger


@pytest.mark.parametrize(
    ("before", "fact"),
    [
        pytest.param(body(), config_proposed(body("fast", "slow"), 1), id="quotas tell flavors apart now"),
        pytest.param(body("fast"), config_proposed(body("slow"), 1), id="the queue has no quota of the flavor now"),
        pytest.param(body("fast"), config_proposed(body(), 1), id="quotas tell no flavors apart any more"),
        pytest.param(
            body("fast"), node_seen("node-a", gpus=1, gpu_model="a100"), id="the node is of another flavor now"
        ),
        pytest.param(body(), node_seen("node-a", gpus=1, pool="blue"), id="the node is in another pool now"),
    ],
)
def test_room_that_could_not_be_had_any_more_is_common_again(before: ConfigBody, fact: AnyFact) -> None:
    ledger = kept(before)
    ended = ledger.commit(fact)
    assert [record.why for record in ended.records if record.kind == "earmark_ended"] == ["node_lost"]
    assert len(ledger.state.earmarks) == 0


def test_room_that_can_still_be_had_is_kept_under_a_new_configuration() -> None:
    ledger = kept(body("fast"))
    ledger.commit(config_proposed(body("fast", "slow"), 1), node_seen("node-a", gpus=1, labels={"new": "yes"}))
    gone = ledger.commit(run_absent(first_run()))
    assert [r.kind for r in gone.records][:4] == ["released", "requeued", "earmark_ended", "allocated"]


def test_room_is_kept_up_to_its_deadline_and_no_longer() -> None:
    """It is shorter here than the patience with a victim that does not stop."""
    ledger = kept(body().model_copy(update={"policy": PREEMPTS.model_copy(update={"earmark_seconds": 10})}))
    (mark,) = ledger.state.earmarks.values()
    ledger.commit(ms=mark.deadline - ledger.ts - 1)
    assert len(ledger.state.earmarks) == 1
    ended = ledger.commit(ms=1)
    assert [record.why for record in ended.records if record.kind == "earmark_ended"] == ["deadline"]


def test_a_run_grows_as_the_quota_of_its_nodes_flavor_allows_from_when_there_is_one() -> None:
    """Each pod that it grew by counts there, as those that it had before."""
    ledger = Committed().begin(node_seen("node-a", gpus=4), body=body())
    ledger.commit(admitted("k1", job_spec(role(max_replicas=4))))
    ledger.commit(orders=(ledger.line(),))
    made = PodsMade(kind="pods_made", run_id=first_run(), uids=("uid-0",))
    ledger.commit(made, RunStarted(kind="run_started", run_id=first_run()))
    small = Queue(name="research", quotas=(Quota(resource="gpu_milli", nominal=3000, flavor="fast"),))
    ledger.commit(config_proposed(body().model_copy(update={"queues": (small,)}), 1))
    assert [record.kind for record in ledger.commit(ms=600_000).records] == ["grown"]
    assert ledger.state.held_by_queue("research/fast").gpu_milli == 3000
    ledger.commit(PodsMade(kind="pods_made", run_id=first_run(), uids=("uid-1", "uid-2"), ranks=(1, 2)))
    assert [record.kind for record in ledger.commit(ms=600_000).records] == []
