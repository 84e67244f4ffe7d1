"""From a job that says how its pods lie to a ledger that holds it: committer, replay and checker agree."""

from collections import Counter

from tessera.client.ledger.replay import verify
from tessera.testkit.checker import check
from tessera_schemas.ledger import Allocated, Waiting
from tests.builders import admitted, job_spec, node_seen, role
from tests.ledgers import Committed

GANG = job_spec(
    role("ps", 2, gpus=0, topology={"level": "rack", "group": "g"}, devices={"rdma/hca": 1}),
    role("worker", 4, gpus=2, topology={"level": "rack", "group": "g"}, gpu_memory_bytes=40),
    role("loader", 4, gpus=0, same_node_as="worker"),
    role("server", 4, gpus=0, spread="zone", affinity=({"key": "zone", "operator": "NotIn", "values": ("c",)},)),
)


def ledger(racks: str = "aabb") -> Committed:
    """Nodes n0, n1, … of 4 GPUs, one in each of `racks`; rack a is in zone a, and so on."""
    size = {"gpus": 4, "gpu_memory_bytes": 80, "devices": {"rdma/hca": 1}}
    return Committed().begin(
        *(node_seen(f"n{at}", labels={"rack": rack, "zone": rack}, **size) for at, rack in enumerate(racks))
    )


def test_a_gang_of_all_relations_is_allocated_and_replay_and_checker_find_nothing_wrong() -> None:
    made = ledger("aabbc")
    made.commit(admitted(spec=GANG))
    message = made.commit(orders=(made.line(),), checkpoint=True)
    (allocated,) = [record for record in message.records if isinstance(record, Allocated)]
    at = {role.name: [p.node for p in allocated.placements if p.role == role.name] for role in GANG.roles}
    assert len({node in ("n0", "n1") for node in (*at["ps"], *at["worker"])}) == 1
    assert at["loader"] == at["worker"]
    assert Counter(node in ("n0", "n1") for node in at["server"]) == {True: 2, False: 2}
    assert "n4" not in at["server"]
    assert verify(made.stored).findings == []
    assert check(made.stored).violations == []


def test_a_gang_without_a_domain_waits_and_the_ledger_says_by_how_much_it_misses() -> None:
    made = ledger("ab")
    made.commit(admitted(spec=job_spec(role(replicas=8, topology={"level": "rack"}))))
    message = made.commit(orders=(made.line(),))
    (waiting,) = [record for record in message.records if isinstance(record, Waiting)]
    assert waiting.reason.field == "roles.worker.topology"
    assert waiting.reason.numbers["most_pods_that_fit_one_domain"] == 4
    message = made.commit(node_seen("n2", gpus=4, labels={"rack": "a"}))
    assert [record.kind for record in message.records] == ["node_changed", "allocated"]
