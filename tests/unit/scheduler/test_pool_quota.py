"""Quotas that are parts of their pool, decided on: a pool that grows, shrinks, is divided, and what is lent of it."""

from collections.abc import Iterator

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.quota.parts import OUT_MS
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.config import Queue, Quota
from tessera_schemas.facts import DrainRequested
from tessera_schemas.reasons import Code
from tests.builders import admitted, config_proposed, job_spec, node_seen, role
from tests.rounds import Rounds
from tests.unit.client.first_configs import node, read, written


@pytest.fixture(autouse=True)
def worlds() -> Iterator[list[Rounds]]:
    """The worlds of a test; each ledger is replayed, and judged by the rules checker, at its end."""
    made: list[Rounds] = []
    yield made
    for world in made:
        found, report = verify(world.stored), Report()
        check_rules(report, world.stored)
        assert (found.findings, report.violations) == ([], [])


def halves(worlds: list[Rounds], *gpus: int) -> Rounds:
    half = Quota(resource="gpu_milli", nominal=0, part_percent=50)
    queues = (Queue(name=name, parent="all", quotas=(half,)) for name in ("a", "b"))
    world = Rounds(Queue(name="all"), *queues, nodes={f"n{at}": size for at, size in enumerate(gpus)})
    worlds.append(world)
    return world


def test_under_the_file_of_config_init_a_pool_that_grows_is_used_whole(worlds: list[Rounds]) -> None:
    """Line 15: two nodes, `config init`, two nodes more, four jobs of 8 GPUs."""
    world = Rounds(nodes={"n0": 8, "n1": 8})
    worlds.append(world)
    world.commit(config_proposed(read(written(node("n0"), node("n1"), tenants=("lab",))), 1, abandon=True))
    for key in ("k0", "k1", "k2", "k3"):
        world.commit(admitted(key, job_spec(role(gpus=8), name=key, queue="default")))
    world.settle()
    waits = world.job("k2").reason
    assert waits is not None
    assert waits.code is Code.WAITING_FOR_QUOTA
    assert (waits.numbers["nominal_quota"], waits.numbers["percent_of_pool"]) == (16_000, 100)
    assert "nominal quota 16" in waits.sentence()
    assert "percent of pool 100" in waits.sentence()
    world.commit(node_seen("n2"), node_seen("n3"))
    world.settle()
    assert world.running("k0", "k1", "k2", "k3")


def test_a_node_that_is_drained_counts_for_an_hour(worlds: list[Rounds]) -> None:
    world = halves(worlds, 8, 8)
    world.commit(DrainRequested(kind="drain_requested", node="n1"))
    world.commit(ms=OUT_MS - 1)
    assert world.state.tree.quotas["a"]["", "gpu_milli"].nominal == 8000
    world.commit(ms=1)
    assert world.state.tree.quotas["a"]["", "gpu_milli"].nominal == 4000
    world.commit(DrainRequested(kind="drain_requested", node="n1", undo=True))
    assert world.state.tree.quotas["a"]["", "gpu_milli"].nominal == 8000


def test_what_is_lent_of_a_part_comes_back(worlds: list[Rounds]) -> None:
    world = halves(worlds, 8, 8)
    for key in ("x0", "x1", "x2", "x3"):
        world.submit(key, 4, queue="a")
    world.settle()
    assert world.running("x0", "x1", "x2", "x3")
    world.submit("own", 8, queue="b")
    world.settle()
    assert world.running("own")
    assert len(world.evicted()[0]) == 2


def test_a_node_that_restarts_takes_nothing_back(worlds: list[Rounds]) -> None:
    """While the node is away both halves stay as they are: nobody's own becomes lent."""
    world = halves(worlds, 8, 8)
    world.submit("x", 8, queue="a")
    world.settle()
    away = "n1" if world.run("x").nodes == ("n0",) else "n0"
    world.commit(node_seen(away, gone=True))
    world.submit("y", 8, queue="b")
    world.settle()
    assert world.running("x")
    assert not world.plans
    world.commit(node_seen(away))
    world.settle()
    assert world.running("x", "y")


def test_a_run_stays_when_its_queue_s_part_shrinks_and_nobody_waits(worlds: list[Rounds]) -> None:
    world = halves(worlds, 8, 8)
    world.submit("x", 8, queue="a")
    world.settle()
    away = "n1" if world.run("x").nodes == ("n0",) else "n0"
    world.commit(node_seen(away, gone=True))
    world.commit(ms=OUT_MS)
    world.settle()
    assert world.running("x")
    assert world.state.quota_book().holds_lent("a", "", world.run("x").amount)
    world.submit("y", 4, queue="b")
    world.settle()
    assert world.running("y"), "its half of 8 GPUs is 4"
