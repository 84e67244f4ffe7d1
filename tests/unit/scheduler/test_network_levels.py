"""NVLink domains and rails as levels of topology: the example of docs/placement.md, taken at its word."""

import re
from collections import Counter
from pathlib import Path

import yaml

from tessera_schemas.config import Level
from tests.builders import config_proposed, node_seen
from tests.rounds import Rounds, share

PAGE = (Path(__file__).parents[3] / "docs" / "placement.md").read_text()
SECTION = PAGE.partition("### NVLink domains and rails")[2].partition("\n## ")[0]
LEVELS, ROLE = (yaml.safe_load(block)["topology"] for block in re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL))
RAIL, CLIQUE = (level["label"] for level in LEVELS)


def park() -> Rounds:
    """Two rail groups of two NVLink domains of four nodes each."""
    nodes = [
        node_seen(f"node-{rail}-{clique}-{at}", 4, labels={RAIL: f"r{rail}", CLIQUE: f"r{rail}.{clique}"})
        for rail in range(2)
        for clique in range(2)
        for at in range(4)
    ]
    world = Rounds(share("research", 64, None), nodes=nodes)
    levels = tuple(Level.model_validate(level) for level in LEVELS)
    body = world.state.config.body.model_copy(update={"topology": levels})
    world.commit(config_proposed(body, world.state.config.version))
    return world


def domains(world: Rounds, key: str) -> tuple[Counter[str], Counter[str]]:
    """Number of the job's pods in each rail group and in each NVLink domain."""
    nodes = [world.state.nodes.get(place.node) for place in world.run(key).all_placements]
    return Counter(node.label(RAIL) for node in nodes), Counter(node.label(CLIQUE) for node in nodes)


def submit(world: Rounds, key: str, pods: int) -> None:
    labels = {level["name"]: level["label"] for level in LEVELS}
    topology = {"level": labels[ROLE["level"]], "wider": [labels[name] for name in ROLE["wider"]]}
    world.submit(key, gpus=4, pods=pods, topology=topology)
    world.settle()


def test_a_role_that_fits_one_nvlink_domain_is_in_one() -> None:
    world = park()
    submit(world, "small", 4)
    assert [len(each) for each in domains(world, "small")] == [1, 1]


def test_a_larger_one_stays_on_its_rails_in_as_few_nvlink_domains_as_can_be() -> None:
    world = park()
    submit(world, "first", 1)
    submit(world, "large", 6)
    rails, cliques = domains(world, "large")
    assert [*rails.values()] == [6]
    assert sorted(cliques.values()) == [2, 4]


def test_one_that_no_rail_group_holds_waits_and_says_so() -> None:
    world = park()
    submit(world, "huge", 9)
    assert world.run("huge") is None
    numbers = world.job("huge").reason.numbers
    assert (numbers["pods_wanted_in_one_domain"], numbers["most_pods_that_fit_one_domain"]) == (9, 8)
