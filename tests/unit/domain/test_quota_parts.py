"""Quotas that are parts of their pool: they follow its nodes, not what is out for a moment, and the same replayed."""

from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from tessera.client.ledger.replay import verify
from tessera.domain.devices.resources import NOTHING
from tessera.domain.quota.parts import OUT_MS
from tessera.domain.storing.snapshot import dump, load
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera_schemas.cluster.labels import GPU_RESOURCE
from tessera_schemas.config import Flavor, Queue, Quota
from tessera_schemas.facts import DrainRequested, NodeSeen
from tessera_schemas.reasons import Code, Reason
from tests.builders import config_body, config_proposed, node_seen
from tests.ledgers import Committed

ALL, HALF = 100, 50


def part(percent: int, resource: str = "gpu_milli", flavor: str = "") -> Quota:
    return Quota.model_validate({"resource": resource, "nominal": 0, "part_percent": percent, "flavor": flavor})


def shard(*queues: Queue, nodes: dict[str, int] | None = None, **more: Any) -> Committed:
    made = Committed()
    made.commit(holder="scheduler-1")
    body = config_body(*(queues or (Queue(name="research", quotas=(part(ALL),)),)), **more)
    made.commit(config_proposed(body))
    made.commit(*(node_seen(name, gpus) for name, gpus in (nodes or {"node-a": 8, "node-b": 8}).items()))
    return made


def gpus(made: Committed, queue: str = "research") -> int:
    """The queue's nominal GPUs, which are the same in the state as folded anew and as restored."""
    state = made.state
    again = Shard()
    for seq, data in enumerate(made.stored, start=1):
        again.fold(decode_entry(Message("", seq, data)))
    for other in (again.state, load(iter(list(dump(state))))):
        assert other.tree.quotas == state.tree.quotas
    [nominal] = {quota.nominal for quota in state.tree.queues[queue].quotas}
    return int(nominal) // 1000


def later(made: Committed, *facts: NodeSeen, ms: int = 1000) -> int:
    made.commit(*facts, ms=ms)
    return gpus(made)


def test_all_of_a_pool_follows_its_nodes() -> None:
    made = shard()
    assert gpus(made) == 16
    assert later(made, node_seen("node-c"), node_seen("node-d")) == 32
    assert later(made, node_seen("node-e", pool="other")) == 32


@pytest.mark.parametrize(
    "out",
    [
        {"gone": True},
        {"ready": False},
        {"ready": False, "cordoned": True},
        {"gpus": 0},
        {"gpus": 0, "capacity": {GPU_RESOURCE: 8}},
        {"ready": False, "trouble": Reason(code=Code.NO_FIT)},
    ],
)
def test_what_is_out_counts_for_an_hour(out: dict[str, Any]) -> None:
    made = shard()
    assert later(made, node_seen("node-b", **out)) == 16
    assert later(made, ms=OUT_MS - 1) == 16
    assert later(made, ms=1) == 8
    assert later(made, node_seen("node-b")) == 16


def test_a_restart_changes_nothing() -> None:
    made = shard()
    tree = made.state.tree
    for out in ({"ready": False}, {"gpus": 0, "gpu_model": ""}, {"gone": True}, {}):
        made.commit(node_seen("node-b", **out))
        assert made.state.tree is tree


@pytest.mark.parametrize("seed", range(4))
def test_the_count_follows_from_the_tables_and_the_time_whatever_happens(seed: int) -> None:
    chance = Random(seed)
    half = Queue(name="other", pool="other", quotas=(part(HALF),))
    flavors = (Flavor(name="fast", gpu_models=("h100",)),)
    parts = (part(ALL), part(HALF, flavor="fast"), part(HALF, "memory_bytes"))
    made = shard(Queue(name="research", quotas=parts), half, flavors=flavors)
    for _ in range(120):
        name = chance.choice(("node-a", "node-b", "node-c"))
        said: dict[str, Any] = {
            "gpus": chance.choice((0, 7, 8)),
            "pool": chance.choice(("default", "default", "other")),
            "gpu_model": chance.choice(("h100", "a100", "")),
            "capacity": chance.choice(({}, {GPU_RESOURCE: 8})),
            **chance.choice(({}, {"ready": False}, {"gone": True}, {"ready": False, "cordoned": True})),
        }
        undo = chance.random() < 0.7
        fact = DrainRequested(kind="drain_requested", node=name, undo=undo)
        made.commit(
            fact if chance.random() < 0.3 else node_seen(name, **said), ms=chance.choice((1, 1000, OUT_MS // 3))
        )
        again = load(iter(list(dump(made.state))))
        assert again.tree.quotas == made.state.tree.quotas
        assert all(again.sizes.get(at, NOTHING) == size for at, size in made.state.sizes.items())
    assert verify(made.stored).ok


def test_halves_are_rounded_down_to_whole_gpus() -> None:
    made = shard(
        Queue(name="all"),
        *(Queue(name=name, parent="all", quotas=(part(HALF),)) for name in ("a", "b")),
        nodes={"node-a": 8, "node-b": 7},
    )
    assert (gpus(made, "a"), gpus(made, "b")) == (7, 7)
    assert made.state.quota_book().total("all", ("", "gpu_milli")) == 14_000


def test_cpu_and_memory_can_be_parts() -> None:
    made = shard(Queue(name="research", quotas=(part(25, "cpu_milli"), part(50, "memory_bytes"))))
    assert [quota.nominal for quota in made.state.tree.queues["research"].quotas] == [32_000, 512 * 2**30]


def test_a_part_of_a_flavor_is_of_its_nodes() -> None:
    flavors = (Flavor(name="fast", gpu_models=("h100",)), Flavor(name="slow", gpu_models=("a100",)))
    made = shard(Queue(name="research", quotas=(part(HALF, flavor="fast"),)), flavors=flavors)
    assert gpus(made) == 8
    assert later(made, node_seen("node-c", gpu_model="a100")) == 8
    assert later(made, node_seen("node-d", gpu_model="h100")) == 12


def test_an_amount_and_a_part_are_not_both_said() -> None:
    for wrong in (
        {"nominal": 1, "part_percent": 50},
        {"nominal": 0, "part_percent": 0},
        {"nominal": 0, "part_percent": 101},
    ):
        with pytest.raises(ValidationError):
            Quota.model_validate({"resource": "gpu_milli", **wrong})


def test_a_configuration_without_parts_counts_nothing() -> None:
    made = shard(Queue(name="research", quotas=(Quota(resource="gpu_milli", nominal=4000),)))
    assert not made.state.sizes
    assert made.state.tree is made.state.configured
