"""Gangs of groups within each other: the example of docs/placement.md at its word, and which level is told to fail."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.engine.explain.changed_spec import changed_spec
from tessera.engine.explain.explanation import explain
from tessera.engine.placement.gangs import place_gang
from tessera_schemas.config import Level
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, config_proposed, node_seen
from tests.rounds import Rounds, share
from tests.unit.engine.engine_builders import cluster, lying, need, node

PAGE = (Path(__file__).parents[3] / "docs" / "placement.md").read_text()
EXAMPLE = re.search(r"### Groups within each other.*?```yaml\n(.*?)```", PAGE, re.DOTALL)
HOST = "kubernetes.io/hostname"


def spec(**more: Any) -> JobSpec:
    assert EXAMPLE is not None
    said = {"name": "serve", "queue": "research", **yaml.safe_load(EXAMPLE[1]), **more}
    for role in said["roles"]:
        role["resources"] |= {"cpu_milli": 1000, "memory_bytes": 2**30}
    return JobSpec.model_validate_json(json.dumps(said))


def park(*racks: str, nodes: int = 3) -> Rounds:
    """Racks of nodes of eight GPUs; the first letter of a rack is its zone."""
    seen = [
        node_seen(f"{rack}-{n}", 8, labels={"example.org/rack": rack, "zone": rack[0], HOST: f"{rack}-{n}"})
        for rack in racks
        for n in range(nodes)
    ]
    world = Rounds(share("research", 400, None), nodes=seen, preset="off")
    levels = (Level(name="zone", label="zone"), Level(name="rack", label="example.org/rack"))
    body = world.state.config.body.model_copy(update={"topology": levels})
    world.commit(config_proposed(body, world.state.config.version))
    return world


def test_the_example_of_the_page_is_placed_as_each_level_says() -> None:
    world = park("ya", "za", "zb")
    world.commit(admitted("serve", spec()))
    world.settle()
    at = defaultdict(list)
    for place in world.run("serve").all_placements:
        at[place.role].append(place.node)
    assert {name[0] for names in at.values() for name in names} == {"z"}
    replicas = [at["prefill"][:2] + at["decode"][:4], at["prefill"][2:] + at["decode"][4:]]
    assert sorted({name[:2] for name in each} for each in replicas) == [{"za"}, {"zb"}]
    assert all(len(set(at["decode"][first : first + 2])) == 1 for first in range(0, 8, 2))


LEVELS_THAT_FAIL = {
    "no zone for all": (("ya", "za"), 3, "groups.all.topology", "zone: no domain is left for a copy of group all"),
    "no rack for a replica": (("za", "zb", "zc"), 2, "groups.replica.topology", "rack: no domain is left for a copy"),
}


@pytest.mark.parametrize(("racks", "nodes", "field", "words"), LEVELS_THAT_FAIL.values(), ids=LEVELS_THAT_FAIL)
def test_what_waits_is_told_the_level_that_did_not_fit(
    racks: tuple[str, ...], nodes: int, field: str, words: str
) -> None:
    world = park(*racks, nodes=nodes)
    world.commit(admitted("serve", spec()))
    world.settle()
    reason = world.job("serve").reason
    assert reason is not None
    assert (reason.code, reason.field) == (Code.NO_FIT, field)
    assert reason.detail.startswith(words)


def test_explain_offers_the_job_without_the_topology_of_its_groups() -> None:
    world = park("za", "zb", "zc", nodes=2)
    world.commit(admitted("serve", spec()))
    world.settle()
    found = explain(world.state, world.job("serve").job_id, world.ts)
    assert found is not None
    changes = {each.kind: each for each in found.changes}
    assert changes["groups"].text == "no topology of its groups"
    changed = changed_spec(spec(), "groups", "", "")
    assert [(each.name, each.topology) for each in changed.groups] == [(e.name, None) for e in spec().groups]


def test_the_second_copy_that_finds_no_rack_is_told_beside_the_pods_of_the_first() -> None:
    nodes = cluster(*(node(name, 8, labels={"rack": name[0]}) for name in ("a0", "a1", "b0", "c0")))
    verdict = place_gang((lying(4, need(gpus=8), groups=(("team", 2, ("rack",), True),)),), nodes)
    assert isinstance(verdict, Reason)
    assert verdict.field == "groups.team.topology"
    assert verdict.detail == "rack: no domain is left for a copy of group team beside 2 placed pods"
    assert (verdict.numbers["pods_placed"], verdict.numbers["pods"]) == (2, 4)


def test_a_copy_gives_up_its_tightest_domain_where_the_next_needs_it() -> None:
    sizes = {"a0": 4, "a1": 4, "b0": 8}
    nodes = cluster(*(node(name, gpus, labels={"rack": name[0], HOST: name}) for name, gpus in sizes.items()))
    small = lying(1, need(gpus=4), "small", groups=(("one", 1, ("rack",), True),))
    large = lying(2, need(gpus=4), "large", groups=(("two", 2, (HOST,), True),))
    for gang in ((small, large), (large, small)):
        verdict = place_gang(gang, nodes)
        assert not isinstance(verdict, Reason)
        assert {place.role: place.node for place in verdict}["large"] == "b0"


def test_a_preference_of_a_group_keeps_nothing_waiting() -> None:
    nodes = cluster(node("a0", 4, labels={"rack": "a"}), node("b0", 4, labels={"rack": "b"}))
    asked = lying(2, need(gpus=4), groups=(("team", 2, ("rack",), False),))
    assert not isinstance(place_gang((asked,), nodes), Reason)


def test_groups_that_say_nothing_of_places_change_nothing() -> None:
    nodes = cluster(*(node(f"n{number}", 3 + number) for number in range(4)))
    plain = lying(6, need(gpus=2))
    named = lying(6, need(gpus=2), groups=(("all", 0, (), False), ("pair", 2, (), False)))
    assert place_gang((named,), nodes) == place_gang((plain,), nodes)
