"""Pods that have a node to themselves: which nodes take them, and what is left beside them."""

import re
from pathlib import Path

import pytest
import yaml

from tessera.client.input import files
from tessera.domain.devices.resources import Need, role_need
from tessera.domain.work.evidence import FitFailure
from tessera.engine.placement.fits import count_bundles, fits, kind_of, placed_on
from tessera.engine.placement.gangs import FreeCapacity, place_gang
from tessera_schemas.cluster.resource_kinds import WHOLE_NODE
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.reasons import Reason
from tests.builders import job_spec, node_seen, role
from tests.rounds import Rounds
from tests.unit.engine.engine_builders import cluster, need, node, roles

ALONE = ((WHOLE_NODE, 1),)
OTHERS = {"cpu_milli": 2000, "memory_bytes": 1, "pods": 3}


def whole(gpus: int = 8, **more: object) -> Need:
    return need(gpus=gpus, devices=ALONE, **more)


@pytest.mark.parametrize(
    ("wanted", "others"),
    [(whole(), {}), (whole(), OTHERS), (whole(0), OTHERS)],
    ids=["an empty node", "a node of daemons", "a node without GPUs"],
)
def test_whoever_has_a_node_leaves_nothing_there_and_gives_all_back(wanted: Need, others: dict[str, int]) -> None:
    empty = node(gpus=wanted.gpus, others=others)
    assert fits(wanted, empty) is None
    assert count_bundles(kind_of((wanted,)), empty) == 1
    place = placed_on(empty, wanted, 0, "worker")
    taken = empty.taking(wanted, place, 1)
    assert fits(need(cpu_milli=1, memory_bytes=1), taken) is FitFailure.PODS
    assert fits(wanted, taken) is not None
    assert not taken.overfull
    assert taken.is_held
    assert taken.taking(wanted, place, -1) == empty


def test_a_node_with_anything_of_ours_is_not_given_away_whole() -> None:
    small = need(cpu_milli=1, memory_bytes=1)
    there = node(gpus=0).taking(small, placed_on(node(gpus=0), small, 0, "worker"), 1)
    assert fits(whole(0), there) is FitFailure.DEVICES


@pytest.mark.parametrize(("gpus", "there"), [(4, 8), (0, 8), (8, 0)])
def test_a_whole_node_has_exactly_the_gpus_that_the_pod_asks_for(gpus: int, there: int) -> None:
    assert fits(whole(gpus), node(gpus=there)) is not None
    table = FreeCapacity([node("a", there), node("b", gpus)])
    placed = table.find(roles((1, whole(gpus))))
    assert not isinstance(placed, Reason)
    assert [place.node for place in placed] == ["b"]


def test_each_pod_of_a_gang_has_a_node_and_a_refusal_says_why() -> None:
    nodes = cluster(node("a"), node("b"), node("c"))
    placed = place_gang(roles((2, whole()), (1, need())), nodes)
    assert not isinstance(placed, Reason)
    assert len({place.node for place in placed}) == 3
    small = placed_on(nodes["c"], need(), 0, "worker")
    nodes["c"] = nodes["c"].taking(need(), small, 1)
    refused = place_gang(roles((3, whole())), nodes)
    assert isinstance(refused, Reason)
    assert refused.numbers["nodes_short_of_devices"] == 1
    assert refused.detail.startswith("exclusive: ")


def alone(gpus: int = 8, **more: object) -> Role:
    return role(gpus=gpus, exclusive=True, **more)


def test_nothing_starts_beside_a_run_that_has_its_node_until_that_has_ended() -> None:
    rounds = Rounds(nodes={"node-a": 8})
    rounds.submit("alone", gpus=8, exclusive=True)
    rounds.submit("small", gpus=0)
    rounds.settle()
    assert rounds.state.runs.get(rounds.job("alone").run_id) is not None
    assert rounds.state.runs.get(rounds.job("small").run_id) is None
    # A node that is seen anew, with another size and other pods of others, is still the run's.
    rounds.commit(node_seen("node-a", 8, pods=200, others=OTHERS))
    rounds.settle()
    assert rounds.state.runs.get(rounds.job("small").run_id) is None
    rounds.finish("alone")
    rounds.settle()
    assert rounds.state.runs.get(rounds.job("small").run_id) is not None
    node_now = rounds.state.nodes.get("node-a")
    assert node_now is not None
    assert node_now.pods_free == 200 - 3 - 1


def test_the_example_of_the_page_has_a_node_for_each_pod() -> None:
    page = (Path(__file__).parents[3] / "docs" / "placement.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page.partition("## Whole nodes")[2].partition("\n## ")[0], re.DOTALL)
    asked = JobSpec.model_validate(files.job_spec({"name": "train", "queue": "research"} | yaml.safe_load(block), ""))
    needs = tuple(role_need(each) for each in asked.roles)
    placed = place_gang(needs, cluster(node("a"), node("b"), node("c", gpus=16)))
    assert not isinstance(placed, Reason)
    assert sorted(place.node for place in placed) == ["a", "b"]


def test_all_on_a_node_make_way_for_whoever_has_it_alone() -> None:
    rounds = Rounds(nodes={"node-a": 8})
    rounds.submit("one", gpus=0, priority="low")
    rounds.submit("two", gpus=2, priority="low")
    rounds.settle()
    rounds.submit("alone", gpus=8, priority="high", exclusive=True)
    rounds.settle()
    assert rounds.evicted() == [["one", "two"]]
    assert rounds.state.runs.get(rounds.job("alone").run_id) is not None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"gpus": 0, "gpu_milli": 500}, "all GPUs of a node"),
        ({"gpus": 0, "mig_profile": "1g.10gb"}, "all GPUs of a node"),
        ({"same_node_as": "other"}, "beside no other"),
    ],
)
def test_a_part_of_a_gpu_and_a_companion_are_refused_by_name(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=f"exclusive: .*{said}"):
        job_spec(role("other"), alone(**wrong))


def test_no_role_goes_beside_one_that_has_its_nodes() -> None:
    with pytest.raises(ValueError, match="have a node to themselves"):
        job_spec(alone(name="first"), role("second", same_node_as="first"))
