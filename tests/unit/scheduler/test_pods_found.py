"""Pods that a restored ledger had lost go on as the next run of their job, whatever else is told with them."""

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.work.phases import Phase
from tessera_schemas.facts import AnyFact, DrainRequested, NodeSeen, Others, PodsFound
from tests.builders import admitted, job_spec, node_seen, role
from tests.unit.scheduler.committer_world import K1, World, kinds

FOUND = PodsFound(kind="pods_found", job_id=K1, nodes=("node-a",), uids=("uid-0",))
TAKEN_OVER = ["pods_taken_over", "allocated", "permitted"]


def world(*nodes: NodeSeen) -> World:
    """Jobs `k1` and `k2`, of all GPUs of a node each, wait; pods that the ledger does not know use `node-a`."""
    there = World(node_seen(others=Others(cpu_milli=1000, memory_bytes=1 << 30, pods=1, gpus=8)), *nodes)
    there.commit(*(admitted(key, job_spec(role(gpus=8))) for key in ("k1", "k2")))
    return there


def test_pods_that_were_lost_are_the_next_run_of_their_job() -> None:
    there = world()
    assert there.say(FOUND) == TAKEN_OVER
    assert there.job.phase is Phase.BINDING
    assert there.run.uids == ("uid-0",)


@pytest.mark.parametrize(
    "told",
    [[FOUND, node_seen(cpu_milli=65_000)], [node_seen("node-b", gpus=4), FOUND, node_seen(cpu_milli=65_000)]],
    ids=["its node changes", "others change, too"],
)
def test_what_was_taken_over_is_given_to_nobody_else_in_the_same_message(told: list[AnyFact]) -> None:
    there = world()
    message = there.commit(*told, orders=(there.line(),))
    assert kinds(message).count("allocated") == 1
    node = there.state.nodes.get("node-a")
    assert node is not None
    assert not node.overfull
    assert not any(node.gpu_free)
    assert verify(there.stored).findings == []


def test_a_drain_that_evicts_finds_what_was_taken_over_in_the_same_message() -> None:
    there = world()
    drain = DrainRequested(kind="drain_requested", node="node-a", evict=True)
    assert there.say(FOUND, drain) == [*TAKEN_OVER, "node_drained", "revoked"]
