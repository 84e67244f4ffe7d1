"""Gangs that say nothing of their place, where the policy prefers few domains of the configuration's levels."""

from collections import Counter
from itertools import pairwise

from tessera.engine.explain.explanation import explain
from tessera_schemas.config import Level
from tessera_schemas.work.adopted import Adopted
from tests.builders import admitted, config_proposed, job_spec, node_seen, role
from tests.rounds import Rounds, share

ZONE, RACK = "topology.kubernetes.io/zone", "example.org/rack"
LEVELS = Level(name="zone", label=ZONE), Level(name="rack", label=RACK)


def park(policy: str = "preferred") -> Rounds:
    """Two zones of two racks of two nodes; names go through the racks in turns, so that order alone helps nobody."""
    nodes = [
        node_seen(f"node-{at}-{rack}", 4, labels={ZONE: f"z{rack // 2}", RACK: f"r{rack}"})
        for at in range(2)
        for rack in range(4)
    ]
    world = Rounds(share("research", 64, None), nodes=nodes, gang_topology=policy)
    body = world.state.config.body.model_copy(update={"topology": LEVELS})
    world.commit(config_proposed(body, world.state.config.version))
    return world


def racks(world: Rounds, key: str) -> list[str]:
    """The rack of each pod of the job, in the order of the ranks."""
    places = sorted(world.run(key).all_placements, key=lambda place: place.rank)
    return [world.state.nodes.get(place.node).label(RACK) for place in places]


def test_a_gang_of_two_nodes_is_in_one_rack_and_one_of_four_in_one_zone() -> None:
    world = park()
    world.submit("pair", gpus=4, pods=2)
    world.settle()
    assert len(set(racks(world, "pair"))) == 1
    world.finish("pair")
    world.submit("four", gpus=4, pods=4)
    world.settle()
    assert {rack in ("r0", "r1") for rack in racks(world, "four")} in ({True}, {False})


def test_neighbours_in_rank_are_neighbours_in_the_topology() -> None:
    world = park()
    world.submit("all", gpus=2, pods=16)
    world.settle()
    nodes = [place.node for place in sorted(world.run("all").all_placements, key=lambda place: place.rank)]
    assert sum(one != other for one, other in pairwise(nodes)) == 7
    found = racks(world, "all")
    assert sum(one != other for one, other in pairwise(found)) == 3
    assert [len({rack in ("r0", "r1") for rack in half}) for half in (found[:8], found[8:])] == [1, 1]


def test_users_own_pods_of_a_gang_are_neighbours_as_their_ranks_are() -> None:
    world = park()
    owner = Adopted(owner_kind="Job", owner_name="train", uids=tuple(f"uid-{rank}" for rank in range(8)))
    mine = admitted("mine", job_spec(role(replicas=8, gpus=4), name="mine", queue="research"))
    world.commit(mine.model_copy(update={"adopted": owner}))
    world.settle()
    found = racks(world, "mine")
    assert sum(one != other for one, other in pairwise(found)) == 3


def test_all_roles_of_a_gang_share_the_domain() -> None:
    world = park()
    leader, worker = role(replicas=1, gpus=4, name="leader"), role(replicas=1, gpus=4)
    world.commit(admitted("gang", job_spec(leader, worker, name="gang", queue="research")))
    world.settle()
    assert len(set(racks(world, "gang"))) == 1


def test_a_gang_that_no_rack_holds_starts_and_none_waits_for_nearness() -> None:
    world = park()
    for at in range(4):
        world.submit(f"single-{at}", gpus=4, pods=1)
        world.settle()
    world.submit("gang", gpus=4, pods=4)
    world.settle()
    assert len(racks(world, "gang")) == 4


def test_without_the_policy_a_gang_goes_wherever_its_pods_fit_best() -> None:
    world = park("unconstrained")
    world.submit("four", gpus=4, pods=4)
    world.settle()
    assert Counter(racks(world, "four")) == {"r0": 1, "r1": 1, "r2": 1, "r3": 1}


def test_a_gang_that_waits_keeps_what_was_meant_when_it_came() -> None:
    world = park()
    world.submit("all", gpus=4, pods=8)
    world.settle()
    world.submit("pair", gpus=4, pods=2)
    world.configure(gang_topology="unconstrained")
    world.finish("all")
    world.settle()
    assert len(set(racks(world, "pair"))) == 1


def test_of_domains_that_cost_a_gang_the_same_it_takes_the_tightest() -> None:
    nodes = [node_seen(f"node-{at}", 4, labels={RACK: "tight" if at > 2 else "roomy"}) for at in range(5)]
    world = Rounds(share("research", 64, None), nodes=nodes, gang_topology="preferred")
    body = world.state.config.body.model_copy(update={"topology": LEVELS[1:]})
    world.commit(config_proposed(body, world.state.config.version))
    world.submit("pair", gpus=4, pods=2)
    world.settle()
    assert set(racks(world, "pair")) == {"tight"}


def test_explain_says_how_many_domains_of_each_level_a_run_on_several_nodes_is_in() -> None:
    for policy, told in (("preferred", "1 of zone, 2 of rack"), ("unconstrained", "2 of zone, 4 of rack")):
        world = park(policy)
        world.submit("four", gpus=4, pods=4)
        world.settle()
        answer = explain(world.state, world.job("four").job_id, world.state.ts)
        assert answer is not None
        assert answer.sentences[1] == f"Domains of its nodes: {told}."
    world.submit("one", gpus=4, pods=1)
    world.settle()
    answer = explain(world.state, world.job("one").job_id, world.state.ts)
    assert answer is not None
    assert not any("Domains" in each for each in answer.sentences)
