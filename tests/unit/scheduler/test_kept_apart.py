"""Jobs whose pods keep apart, from the ledger's view: who gets which node, and who waits or is evicted for it."""

from pathlib import Path
from typing import Any

import yaml

from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code
from tessera_schemas.work.short_form import full_job
from tests.builders import admitted, node_seen
from tests.rounds import Rounds, share

ROOT = Path(__file__).parents[3]

WEB: Any = ({"group": "web"},)


def nodes_of(world: Rounds, key: str) -> list[str]:
    return sorted(place.node for place in world.run(key).all_placements)


def two_nodes(**more: Any) -> Rounds:
    return Rounds(share("research", 16, None), nodes={"node-a": 8, "node-b": 8}, **more)


def test_pods_of_a_gang_that_keeps_apart_are_on_different_nodes_and_others_beside_them() -> None:
    world = two_nodes()
    world.submit("apart", gpus=1, pods=2, anti_affinity=({},))
    world.submit("again", gpus=1, pods=2, anti_affinity=({},))
    world.settle()
    assert nodes_of(world, "apart") == nodes_of(world, "again") == ["node-a", "node-b"]


def test_the_third_of_a_group_waits_until_one_has_left() -> None:
    world = two_nodes()
    for key in ("one", "two", "three"):
        world.submit(key, anti_affinity=WEB)
    world.settle()
    assert sorted([*nodes_of(world, "one"), *nodes_of(world, "two")]) == ["node-a", "node-b"]
    reason = world.job("three").reason
    assert (reason.code, reason.numbers["nodes_with_pods_to_keep_apart_from"]) == (Code.NO_FIT, 2)
    world.finish("one")
    world.settle()
    assert world.running("three")


def test_the_example_of_the_docs_keeps_apart_from_its_own_pods_and_from_a_group() -> None:
    page = (ROOT / "docs" / "placement.md").read_text().partition("## Pods apart")[2]
    said = yaml.safe_load(page.partition("```yaml")[2].partition("```")[0])
    spec = JobSpec.model_validate(full_job({"name": "it", "queue": "research", "gpus": 1, "image": "x", **said}))
    world = two_nodes()
    world.submit("web", anti_affinity=WEB)
    world.settle()
    world.commit(admitted("it", spec))
    world.settle()
    assert nodes_of(world, "it") != nodes_of(world, "web")


def test_a_node_that_changes_keeps_who_is_there_apart() -> None:
    world = two_nodes()
    world.submit("one", anti_affinity=WEB)
    world.settle()
    there = nodes_of(world, "one")
    for name in ("node-a", "node-b"):
        world.commit(node_seen(name, labels={"changed": "yes"}))
    for key in ("two", "three"):
        world.submit(key, anti_affinity=WEB)
    world.settle()
    assert nodes_of(world, "two") != there
    assert not world.running("three")


def test_a_job_of_a_higher_class_takes_the_place_of_one_of_its_group() -> None:
    world = two_nodes()
    for key in ("one", "two"):
        world.submit(key, anti_affinity=WEB, priority="low")
    world.settle()
    assert world.running("one", "two")
    world.submit("urgent", anti_affinity=WEB, priority="high")
    world.settle()
    assert world.running("urgent")
    assert [world.running(key) for key in ("one", "two")].count(True) == 1
