"""Jobs that name data sets go to nodes that have read them, where that costs less than what else speaks against it."""

from typing import Any

import pytest

from tessera.domain.storing.snapshot import dump, load
from tessera_schemas.cluster.pools import DataCaches
from tessera_schemas.config import Level
from tessera_schemas.job import DatasetHint
from tessera_schemas.reasons import Code
from tests.builders import config_proposed, node_seen
from tests.ledgers import Committed
from tests.rounds import Rounds, share

GB = 10**9
HOUR = 3_600_000
CORPUS = DatasetHint(name="corpus", size_bytes=500 * GB)
OTHER = DatasetHint(name="other", size_bytes=700 * GB)
NODES = [node_seen(f"node-{name}", 8) for name in "abcd"]


def park(**caches: int) -> Rounds:
    return Rounds(share("research", 64, None), nodes=NODES, data_caches=DataCaches(**caches))


def start(world: Rounds, key: str, *datasets: DatasetHint, gpus: int = 8) -> Any:
    """The run of a job that reads these data sets."""
    world.submit(key, gpus=gpus, datasets=datasets)
    world.settle()
    return world.run(key)


def test_a_job_goes_where_its_data_was_read_before() -> None:
    world = park()
    start(world, "a")
    first = start(world, "b", CORPUS).placements[0].node
    world.finish("b")
    world.finish("a")
    again = start(world, "c", CORPUS)
    assert (first, again.placements[0].node) == ("node-b", "node-b")
    assert (again.near_bytes, again.far_bytes) == (500 * GB, 0)


def test_a_job_without_data_goes_where_it_always_went() -> None:
    world = park()
    start(world, "a")
    start(world, "b", CORPUS)
    world.finish("b")
    world.finish("a")
    assert start(world, "c").placements[0].node == "node-a"


def test_data_of_another_tenant_is_other_data() -> None:
    world = park()
    start(world, "a", CORPUS)
    assert [key for key, _, _ in world.state.nodes.get("node-a").kept_data] == ["lab/corpus"]


def test_a_busy_node_is_not_waited_for_where_the_policy_says_so() -> None:
    world = park(wait_percent=0)
    start(world, "a", CORPUS)
    run = start(world, "b", CORPUS)
    assert run.placements[0].node != "node-a"
    assert (run.near_bytes, run.far_bytes) == (0, 500 * GB)


def waiting(world: Rounds, key: str = "b") -> Any:
    """A job that waits for the node on which another one reads the same data; 500 GB take 500 s to read."""
    start(world, "a", CORPUS)
    start(world, key, CORPUS)
    return world.job(key).reason


def test_a_job_waits_for_a_node_that_has_its_data_and_goes_there_once_that_is_free() -> None:
    world = park()
    told = waiting(world)
    assert (told.code, told.numbers["seconds"], told.numbers["saved_bytes"]) == (Code.WAITING_FOR_DATA, 250, 500 * GB)
    world.commit(ms=200_000)
    world.finish("a")
    world.settle()
    assert (world.run("b").placements[0].node, world.run("b").near_bytes) == ("node-a", 500 * GB)
    assert world.job("b").data_until == 0


def test_a_job_waits_for_a_part_of_the_reading_and_no_longer_whatever_happens_meanwhile() -> None:
    world = park()
    until = waiting(world).numbers["until_ts"]
    for key in "xyz":
        start(world, key)
    world.settle()
    assert world.job("b").reason.code is Code.NO_FIT
    world.finish("x")
    world.settle()
    assert world.job("b").reason.numbers["until_ts"] == world.job("b").data_until == until
    world.commit(ms=until - world.ts - 1)
    assert world.run("b") is None
    world.commit(ms=1)
    assert world.run("b").far_bytes == 500 * GB


def test_nobody_waits_for_data_that_no_node_has_or_that_no_node_could_give() -> None:
    world = park()
    start(world, "a", CORPUS)
    assert start(world, "b", OTHER) is not None
    world.submit("gang", gpus=8, pods=2, datasets=(CORPUS,))
    world.settle()
    assert world.run("gang") is not None
    world = Rounds(
        share("research", 64, None),
        nodes=[node_seen("node-a", 8, gpu_model="H100"), node_seen("node-b", 8, gpu_model="A100")],
    )
    start(world, "a", CORPUS)
    world.submit("other-model", gpus=8, gpu_models=("A100",), datasets=(CORPUS,))
    world.settle()
    assert world.run("other-model").placements[0].node == "node-b"


def test_a_job_that_holds_up_its_strict_queue_waits_for_no_data() -> None:
    strict = share("research", 64, None, queueing_strategy="strict_fifo")
    world = Rounds(strict, nodes=NODES)
    start(world, "a", CORPUS)
    assert start(world, "b", CORPUS).far_bytes == 500 * GB


def test_others_start_beside_a_job_that_waits_for_data() -> None:
    world = park()
    waiting(world)
    assert [start(world, key).placements[0].node for key in "xyz"] == ["node-b", "node-c", "node-d"]
    assert not world.job("z").passed


def test_small_data_breaks_up_no_whole_node_and_large_data_may() -> None:
    def chosen(size_bytes: int) -> str:
        world = park()
        start(world, "small", gpus=1)
        data = DatasetHint(name="corpus", size_bytes=size_bytes)
        start(world, "blocker", gpus=7)
        start(world, "reader", data, gpus=1)
        world.finish("reader")
        world.finish("blocker")
        return start(world, "again", data, gpus=1).placements[0].node

    assert chosen(GB) == "node-a"
    assert chosen(100_000 * GB // 51) == "node-b"


def test_what_was_used_longest_ago_makes_way() -> None:
    world = park(node_bytes=1000 * GB)
    for key, data in (("a", CORPUS), ("b", OTHER)):
        start(world, key, data)
        world.finish(key)
    assert [key for key, _, _ in world.state.nodes.get("node-a").kept_data] == ["lab/other"]
    assert start(world, "c", CORPUS).far_bytes == 500 * GB


def test_what_was_not_used_for_long_is_forgotten_and_a_restored_shard_forgets_it_at_the_same_time() -> None:
    world = park(kept_seconds=7200)
    start(world, "a", CORPUS)
    world.finish("a")
    world.commit(ms=HOUR // 4)
    copy = Committed(ts=world.ts)
    copy.shard.state, copy.stored, copy.facts_upto = load(dump(world.state)), list(world.stored), world.facts_upto
    had = []
    for _ in range(12):
        for each in (world, copy):
            each.commit(ms=HOUR // 4, checkpoint=True)
        assert world.stored[-1] == copy.stored[-1]
        had.append(bool(world.state.nodes.get("node-a").kept_data))
    assert had == sorted(had, reverse=True)
    assert (had[0], had[-1]) == (True, False)


def test_a_node_keeps_its_data_while_what_is_seen_of_it_changes_and_loses_it_when_it_is_gone() -> None:
    world = park()
    start(world, "a", CORPUS)
    world.finish("a")
    world.commit(node_seen("node-a", 8, labels={"x": "y"}))
    assert world.state.nodes.get("node-a").kept_data
    world.commit(node_seen("node-a", 0, gone=True))
    world.commit(node_seen("node-a", 8))
    assert not world.state.nodes.get("node-a").kept_data


def test_a_node_that_goes_and_comes_back_under_its_run_has_nothing_until_the_run_ends_there() -> None:
    world = park()
    run = start(world, "a", CORPUS)
    world.commit(node_seen("node-a", 0, gone=True, ready=False))
    assert world.state.nodes.get("node-a").is_held
    assert not world.state.nodes.get("node-a").kept_data
    world.commit(node_seen("node-a", 8))
    assert (world.run("a").run_id, world.state.nodes.get("node-a").kept_data) == (run.run_id, ())
    world.commit(node_seen("node-a", 0, gone=True, ready=False))
    world.finish("a")
    world.commit(node_seen("node-a", 8))
    assert not world.state.nodes.get("node-a").kept_data


def test_a_node_that_says_what_it_has_is_near_without_a_run_that_read_it() -> None:
    for says, chosen in (("lab/corpus", "node-c"), ("*/corpus", "node-c"), ("other/corpus", "node-a")):
        world = Rounds(
            share("research", 64, None), nodes=[*NODES[:2], node_seen("node-c", 8, datasets=(says,)), NODES[3]]
        )
        run = start(world, "a", CORPUS)
        assert (run.placements[0].node, run.far_bytes) == (chosen, 0 if chosen == "node-c" else 500 * GB)


def test_what_a_node_says_is_so_until_it_says_otherwise() -> None:
    world = Rounds(share("research", 64, None), nodes=[*NODES[:3], node_seen("node-d", 8, datasets=("lab/corpus",))])
    assert start(world, "a", CORPUS).placements[0].node == "node-d"
    world.finish("a")
    world.commit(node_seen("node-d", 8))
    assert world.state.nodes.get("node-d").told_data == ()
    assert [key for key, _, _ in world.state.nodes.get("node-d").kept_data] == ["lab/corpus"]


def racks(level: str | None) -> Rounds:
    """Nodes a and b in one rack, c and d in another; each keeps 500 GB."""
    labels = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}
    nodes = [node_seen(f"node-{name}", 8, labels={"example.com/rack": rack}) for name, rack in labels.items()]
    world = Rounds(share("research", 64, None), nodes=nodes)
    body = world.state.config.body
    caches = DataCaches(node_bytes=500 * GB, level=level)
    policy = body.policy.model_copy(update={"data_caches": caches})
    changed = body.model_copy(update={"topology": (Level(name="rack", label="example.com/rack"),), "policy": policy})
    world.commit(config_proposed(changed, world.state.config.version))
    return world


def test_nodes_of_a_level_read_from_each_others_caches_where_the_policy_says_so() -> None:
    for level, near in (("rack", 500 * GB), (None, 0)):
        world = racks(level)
        start(world, "a", CORPUS)
        world.configure(data_caches=world.state.tree.policy.data_caches.model_copy(update={"wait_percent": 0}))
        run = start(world, "b", CORPUS)
        assert (run.placements[0].node, run.near_bytes) == ("node-b", near)


def test_caches_of_a_domain_hold_as_much_as_those_of_its_nodes_together() -> None:
    for level, kept in (("rack", ["lab/corpus", "lab/more"]), (None, ["lab/more"])):
        world = racks(level)
        for key, data in (("a", CORPUS), ("b", DatasetHint(name="more", size_bytes=500 * GB))):
            assert start(world, key, data).placements[0].node == "node-a"
            world.finish(key)
        assert [key for key, _, _ in world.state.nodes.get("node-a").kept_data] == kept
        assert [key for key, _, _ in world.state.nodes.get("node-b").kept_data] == (kept if level else [])
        assert not world.state.nodes.get("node-c").kept_data


def test_a_gang_in_one_domain_reads_its_data_once() -> None:
    for level, far in (("rack", 500 * GB), (None, 1000 * GB)):
        world = racks(level)
        world.submit("gang", gpus=8, pods=2, datasets=(CORPUS,))
        world.settle()
        assert world.run("gang").far_bytes == far


def test_a_level_of_caches_has_to_be_one_of_the_configuration() -> None:
    body = racks("rack").state.config.body
    with pytest.raises(ValueError, match=r"data_caches\.level: no such level: rack"):
        type(body).model_validate(body.model_dump() | {"topology": ()})
