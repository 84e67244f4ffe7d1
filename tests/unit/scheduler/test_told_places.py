"""Tenants tell where their data sets are: what a node has by their word, and what their word does not reach."""

from typing import Any

from tessera.domain.storing.snapshot import dump, load
from tessera_schemas.cluster.node_terms import ToldPlaces
from tessera_schemas.cluster.pools import DataCaches
from tessera_schemas.config import Level
from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import DatasetHint
from tessera_schemas.shard.records import DatasetTold
from tests.builders import config_proposed, node_seen
from tests.rounds import Rounds, share

GB = 10**9
HOUR = 3_600_000
CORPUS = DatasetHint(name="corpus", size_bytes=500 * GB)
NODES = [node_seen(f"node-{name}", 8, labels={"rack": "r1" if name in "ab" else "r2"}) for name in "abcd"]


def park(nodes: list[NodeSeen] = NODES, **caches: Any) -> Rounds:
    """Nodes in two racks of the topology."""
    world = Rounds(share("research", 64, None), nodes=nodes)
    body = world.state.config.body
    policy = body.policy.model_copy(update={"data_caches": DataCaches(**caches)})
    racks = body.model_copy(update={"topology": (Level(name="rack", label="rack"),), "policy": policy})
    world.commit(config_proposed(racks, world.state.config.version))
    return world


def told(*nodes: str, gone: tuple[str, ...] = (), size: int = 500 * GB, tenant: str = "lab") -> DatasetTold:
    places = ToldPlaces(size_bytes=size if nodes else 0, nodes=nodes, gone=gone)
    return DatasetTold(kind="dataset_told", tenant=tenant, dataset="corpus", places=places)


def noted(world: Rounds, *facts: DatasetTold, ms: int = 1) -> int:
    """Records that came of these words."""
    return sum(record.kind == "dataset_noted" for record in world.commit(*facts, ms=ms).records)


def having(world: Rounds) -> dict[str, list[str]]:
    kept = {node.name: [key for key, _, _ in node.kept_data] for node in world.state.nodes.values()}
    return {name: keys for name, keys in kept.items() if keys}


def test_a_job_goes_to_a_node_that_its_tenant_says_has_the_data() -> None:
    world = park()
    assert noted(world, told("node-c")) == 1
    world.submit("a", gpus=8, datasets=(CORPUS,))
    world.settle()
    assert (world.run("a").placements[0].node, world.run("a").near_bytes) == ("node-c", 500 * GB)


def test_a_job_goes_elsewhere_once_the_data_is_gone_from_the_node_that_read_it() -> None:
    world = park()
    world.submit("a", gpus=8, datasets=(CORPUS,))
    world.settle()
    assert having(world) == {"node-a": ["lab/corpus"]}
    assert noted(world, told(gone=("node-a",))) == 1
    assert having(world) == {}


def test_what_is_known_is_recorded_once_an_hour_and_with_its_new_size_at_once() -> None:
    world = park()
    assert [noted(world, told("node-c")) for _ in range(2)] == [1, 0]
    assert noted(world, told("node-c", size=600 * GB)) == 1
    assert noted(world, told("node-c", size=600 * GB), ms=HOUR) == 1
    assert noted(world, told(gone=("node-b",))) == 0


def test_an_unknown_node_a_gone_one_and_one_of_a_strange_pool_are_passed_over() -> None:
    world = park([*NODES, node_seen("node-x", 8, pool="strange"), node_seen("node-y", gone=True, ready=False)])
    assert noted(world, told("node-x", "node-y", "node-z")) == 0
    assert noted(world, told("node-a", "node-x")) == 1
    assert having(world) == {"node-a": ["lab/corpus"]}


def test_a_tenants_word_takes_no_room_from_the_data_of_others() -> None:
    world = park(node_bytes=1000 * GB)
    world.submit("a", gpus=8, datasets=(DatasetHint(name="mine", size_bytes=700 * GB),))
    world.settle()
    assert noted(world, told("node-a", tenant="ops"), ms=1000) == 0
    assert having(world) == {"node-a": ["lab/mine"]}
    assert noted(world, told("node-a"), ms=1000) == 1
    assert having(world) == {"node-a": ["lab/corpus"]}


def test_where_a_rack_shares_its_caches_a_word_about_a_node_is_about_all_of_its_rack() -> None:
    world = park(level="rack")
    assert noted(world, told("node-a")) == 1
    assert having(world) == {"node-a": ["lab/corpus"], "node-b": ["lab/corpus"]}
    assert noted(world, told(gone=("node-b",))) == 1
    assert having(world) == {}


def test_what_was_told_is_forgotten_as_what_was_read_is_and_is_in_a_snapshot() -> None:
    world = park(kept_seconds=7200)
    world.commit(told("node-c"))
    assert load(dump(world.state)).nodes.get("node-c").kept_data == world.state.nodes.get("node-c").kept_data != ()
    world.commit(ms=2 * HOUR)
    world.commit(ms=HOUR)
    assert having(world) == {}
