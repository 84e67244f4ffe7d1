"""Idle GPUs by node as the API has them: causes, for whom devices are kept, and what a tenant may see of it."""

from tessera.domain.devices.free_slots import Stranded
from tessera.engine.defragmentation.search import defragmentation
from tessera.engine.preemption.plans import Plan, proposal
from tessera.gateway.entrance.tokens import Caller
from tessera.gateway.operations.slot_models import NodeIdle
from tessera.gateway.reading.capacity import CapacityReader, capacity_of
from tessera.kernel.clock import SystemClock
from tests.builders import admitted
from tests.rounds import Rounds
from tests.unit.scheduler.reserving_world import shard, submit

OPERATOR = Caller(tenant=None, token_id="t0")
POOLS = {"default"}


def kept_for_a_gang() -> Rounds:
    """Node b is full of what is kept for `gang`, whose tenant is lab, while what ran there is being stopped."""
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="off", defragment=True)
    for key, gpus in (("a", 1), ("meanwhile", 6), ("c", 6)):
        rounds.submit(key, gpus=gpus)
        rounds.settle()
    rounds.finish("meanwhile")
    rounds.commit(ms=3_600_000)
    rounds.submit("gang", gpus=8)
    rounds.round(plans=False)
    rounds.commit(ms=3_600_000)
    made = defragmentation(rounds.state, rounds.job("gang"), rounds.ts)
    assert isinstance(made, Plan)
    rounds.commit(proposal(rounds.state, made, rounds.ts), ms=0)
    return rounds


def kept(found: tuple[NodeIdle, ...]) -> set[tuple[str, str, tuple[int, ...], str]]:
    return {(node.node, mark.name, mark.devices, mark.cause) for node in found for mark in node.reserved}


def test_the_causes_of_the_nodes_sum_to_those_of_the_pool() -> None:
    found = capacity_of(kept_for_a_gang().state)
    (pool,) = found.slots(POOLS, OPERATOR, set())
    sums = dict.fromkeys(map(str, Stranded), 0)
    for node in found.idle(POOLS, OPERATOR):
        for cause, milli in node.stranded:
            sums[cause] += milli
    assert sums == dict(pool.stranded)
    assert sums["reserved"] == 8000


def test_an_operator_and_the_owner_see_for_whom_devices_are_kept_and_others_only_that_they_are() -> None:
    rounds = kept_for_a_gang()
    found, owner = capacity_of(rounds.state), rounds.job("gang")
    for caller in (OPERATOR, Caller(tenant=owner.tenant, token_id="t1")):
        assert {(name, cause) for _, name, _, cause in kept(found.idle(POOLS, caller))} >= {("gang", "defragment")}
    stranger = found.idle(POOLS, Caller(tenant="somebody", token_id="t2"))
    assert 8 in {len(devices) for _, _, devices, _ in kept(stranger)}
    assert not any(text in repr(stranger) for text in ("gang", owner.job_id))


def test_nodes_of_pools_that_the_caller_does_not_see_are_left_out() -> None:
    found = capacity_of(kept_for_a_gang().state)
    assert found.idle(set(), OPERATOR) == found.slots(set(), OPERATOR, set()) == ()


def test_the_count_is_made_again_only_when_the_ledger_has_moved() -> None:
    rounds = Rounds(nodes={"node-a": 8})
    reader = CapacityReader(rounds.state, SystemClock())
    first = reader.read()
    assert reader.read() is first


def test_the_rules_that_hold_free_gpus_back_name_to_a_tenant_only_its_own_jobs_and_queues() -> None:
    ledger = shard()
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("long", 1, 9))
    found, head = capacity_of(ledger.state), admitted("head").job_id
    for caller in (OPERATOR, Caller(tenant="lab", token_id="t1")):
        (pool,) = found.slots(POOLS, caller, {"research"})
        kept = pool.held_back[0]
        assert (kept.rule, kept.gpu_milli, kept.queue, kept.job_id) == ("kept", 1000, "research", head)
        assert kept.text.startswith(f"kept ahead for train ({head})")
        assert sum(each.gpu_milli for each in pool.held_back) == dict(pool.stranded)["none"]
    (pool,) = found.slots(POOLS, Caller(tenant="other", token_id="t2"), set())
    assert not any(text in repr(pool) for text in ("train", head, "research"))
