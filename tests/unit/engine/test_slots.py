"""Slots and stranded GPUs: said apart by brute force, and each cause in its smallest setting."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.devices.free_slots import Slots, Stranded, Unclaimed
from tessera.domain.devices.resources import WHOLE_GPU, Need
from tessera.engine.defragmentation.search import defragmentation
from tessera.engine.placement.capacity import nodes_for
from tessera.engine.placement.fits import fits, placed_on
from tessera.engine.placement.free_slots import asked, slots, slots_by_node
from tessera.engine.preemption.plans import Plan, proposal
from tessera_schemas.facts import DrainRequested, Others
from tessera_schemas.job import Topology
from tests.builders import GIB, admitted, config_body, config_proposed, job_spec, node_seen, role
from tests.property.move_worlds import planned, world
from tests.rounds import Rounds, share

RACK = "rack"


def left(rounds: Rounds) -> Slots:
    return slots(rounds.state, "default")


def causes(rounds: Rounds) -> dict[str, int]:
    return {cause.value: milli for cause, milli in left(rounds).stranded if milli}


def free(rounds: Rounds) -> dict[int, int]:
    return {size.gpus: size.slots for size in left(rounds).sizes}


def holding(*needs: dict[str, Any], nodes: Any = None) -> Rounds:
    """A shard in which a job of each kind runs."""
    rounds = Rounds(nodes=nodes or {"node-a": 8}, preset="off", defragment=True)
    for number, need in enumerate(needs):
        rounds.commit(admitted(f"j{number}", job_spec(role(**need), name=f"j{number}")))
    return rounds.settle()


def test_an_empty_pool_has_all_its_slots_and_nothing_is_stranded() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 4})
    assert free(rounds) == {1: 12, 2: 6, 4: 3, 8: 1}
    assert causes(rounds) == {"none": 12_000}


def test_gpus_that_are_free_here_and_there_are_few_large_slots() -> None:
    rounds = holding(*[{"gpus": 5}] * 2, nodes={"node-a": 8, "node-b": 8})
    assert free(rounds) == {1: 6, 2: 2, 4: 0, 8: 0}


def test_the_largest_gang_is_said_for_each_level_that_jobs_name() -> None:
    nodes = [node_seen(f"node-{n}", 8, labels={RACK: f"r{n // 2}"}) for n in range(3)]
    rounds = Rounds(nodes=nodes)
    rounds.submit("gang", gpus=8, pods=2, topology=Topology(level=RACK, required=True))
    assert left(rounds).sizes[-1].largest == (("node", 1), (RACK, 2))
    rounds.settle()
    assert left(rounds).sizes[-1].largest == (("node", 1), (RACK, 1))


@pytest.mark.parametrize(
    ("need", "stranded"),
    [
        pytest.param({"gpus": 4, "cpu_milli": 60_000}, {"cpu": 4000}, id="no CPU is left"),
        pytest.param({"gpus": 4, "cpu_milli": 36_000}, {"cpu": 1000, "none": 3000}, id="CPU is left for three of four"),
        pytest.param({"gpus": 4, "memory_bytes": 500 * GIB}, {"memory": 4000}, id="no memory is left"),
    ],
)
def test_what_lies_beside_a_pod_is_stranded_by_what_is_short(need: dict[str, Any], stranded: dict[str, int]) -> None:
    assert causes(holding(need)) == stranded


def test_a_node_full_of_pods_strands_its_gpus() -> None:
    rounds = holding({"gpus": 1}, {"gpus": 1}, nodes=[node_seen("node-a", 8, pods=2)])
    assert causes(rounds) == {"pods": 6000}


def test_the_rest_of_a_shared_gpu_is_stranded_unless_somebody_asks_for_so_little() -> None:
    nodes = [node_seen("node-a", 1, device_profile="plugin")]
    assert causes(holding({"gpus": 0, "gpu_milli": 700}, nodes=nodes)) == {"shape": 300}
    small = holding({"gpus": 0, "gpu_milli": 600}, {"gpus": 0, "gpu_milli": 300}, nodes=nodes)
    assert causes(small) == {"shape": 100}
    small.finish("j0")
    assert causes(small) == {"none": 700}


def test_of_instances_that_were_made_those_that_somebody_asks_for_can_be_had() -> None:
    made = {"mig_geometry": "40gb", "mig_instances": {"1g.5gb": 7, "3g.20gb": 2}}
    theirs = Others(devices={"nvidia.com/mig-1g.5gb": 2})
    nodes = [node_seen("node-a", 2, device_profile="mig", others=theirs, **made)]
    rounds = holding({"gpus": 0, "mig_profile": "3g.20gb"}, nodes=nodes)
    assert causes(rounds) == {"none": 500, "others": 250, "shape": 750}
    assert free(rounds) == {1: 0, 2: 0}


def test_a_model_that_no_job_may_use_is_nobodys() -> None:
    nodes = [node_seen("node-a", 8), node_seen("node-b", 4, gpu_model="a100")]
    rounds = holding({"gpus": 8, "gpu_models": ("h100",)}, nodes=nodes)
    assert causes(rounds) == {"nobody": 4000}
    assert free(rounds)[1] == 0


def test_a_drained_node_and_one_that_is_not_ready_are_faults() -> None:
    rounds = holding({"gpus": 2}, nodes=[node_seen("node-a", 8), node_seen("node-b", 4, ready=False)])
    rounds.commit(DrainRequested(kind="drain_requested", node="node-a"))
    assert causes(rounds) == {"fault": 10_000}
    assert free(rounds) == {1: 0, 2: 0, 4: 0, 8: 0}


def test_a_gpu_that_pods_of_others_hold_is_theirs_and_no_slot() -> None:
    nodes = [node_seen("node-a", 8, others=Others(pods=1, gpus=3, cpu_milli=1000)), node_seen("node-b", 2, ready=False)]
    rounds = holding({"gpus": 2}, nodes=nodes)
    assert causes(rounds) == {"others": 3000, "fault": 2000, "none": 3000}
    assert free(rounds) == {1: 3, 2: 1, 4: 0, 8: 0}


def test_what_others_left_no_cpu_beside_is_short_of_cpu() -> None:
    rounds = holding({"gpus": 1, "cpu_milli": 4000}, nodes=[node_seen("node-a", 8, others=Others(cpu_milli=50_000))])
    assert causes(rounds) == {"cpu": 5000, "none": 2000}


def test_configured_levels_are_shown_by_name_whether_or_not_jobs_ask_for_them() -> None:
    nodes = [node_seen(f"node-{n}", 8, labels={"example.org/rack": f"r{n // 2}", "row": "a"}) for n in range(3)]
    rounds = Rounds(nodes=nodes)
    levels = [{"name": "hall", "label": "example.org/hall"}, {"name": "rack", "label": "example.org/rack"}]
    rounds.commit(config_proposed(config_body(topology=levels), rounds.state.config.version))
    assert left(rounds).sizes[-1].largest == (("node", 1), ("rack", 2), ("hall", 0))
    rounds.submit("gang", topology=Topology(level="example.org/row", wider=("example.org/rack",)))
    assert left(rounds).sizes[-1].largest == (("node", 1), ("rack", 2), ("hall", 0), ("example.org/row", 0))


def test_what_is_kept_for_a_job_is_reserved_and_not_what_stopping_runs_still_hold() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="off", defragment=True)
    for key, gpus in (("a", 1), ("meanwhile", 6), ("c", 6)):
        rounds.submit(key, gpus=gpus)
        rounds.settle()
    rounds.finish("meanwhile")
    rounds.commit(ms=3_600_000)
    rounds.submit("gang", gpus=8)
    rounds.round(plans=False)
    rounds.commit(ms=3_600_000)
    assert causes(rounds) == {"none": 9000}
    made = defragmentation(rounds.state, rounds.job("gang"), rounds.ts)
    assert isinstance(made, Plan)
    rounds.commit(proposal(rounds.state, made, rounds.ts), ms=0)
    assert causes(rounds) == {"reserved": 8000, "none": 1000}


def test_free_gpus_are_unclaimed_since_nothing_waits_for_quota_or_for_jobs_that_need_more() -> None:
    rounds = Rounds(share("research", 6, parent=None), nodes={"node-a": 8})
    assert left(rounds).unclaimed is Unclaimed.NOTHING_WAITS
    for key in ("runs", "waits"):
        rounds.submit(key, gpus=4)
    rounds.settle()
    assert (causes(rounds), left(rounds).unclaimed) == ({"none": 4000}, Unclaimed.QUOTA)
    crowded = Rounds(nodes={"node-a": 8})
    for key in ("runs", "waits"):
        crowded.submit(key, gpus=6)
    crowded.settle()
    assert (causes(crowded), left(crowded).unclaimed) == ({"none": 2000}, Unclaimed.JOBS_WAIT)


def test_free_gpus_are_abandoned_while_all_that_waits_has_lost_its_queue() -> None:
    rounds = Rounds(share("research", 6, parent=None), share("vision", 2, parent=None), nodes={"node-a": 8})
    rounds.commit(admitted("left", job_spec(role(gpus=8), queue="vision", name="left")))
    without = config_body(share("research", 6, parent=None))
    rounds.commit(config_proposed(without, rounds.state.config.version, abandon=True))
    assert left(rounds).unclaimed is Unclaimed.ABANDONED


def test_slots_of_whole_gpus_are_counted_where_only_shares_are_asked_for() -> None:
    shared = node_seen("node-a", 8, device_profile="plugin")
    other = node_seen("node-b", 4, device_profile="plugin", gpu_model="a100")
    rounds = holding({"gpus": 0, "gpu_milli": 500, "gpu_models": ("h100",)}, nodes=[shared, other])
    assert free(rounds) == {1: 7, 2: 3, 4: 1, 8: 0}
    assert causes(rounds) == {"none": 7500, "nobody": 4000}


# -- by brute force


def idle_milli(rounds: Rounds) -> int:
    """Of all nodes, less what runs hold, device by device."""
    state = rounds.state
    held = Counter({(p.node, device): 0 for run in state.runs.values() for p in run.places for device in p.devices})
    for run in state.runs.values():
        for place in run.places:
            held.update({(place.node, device): place.gpu_milli for device in place.devices})
    return sum(WHOLE_GPU - held[node.name, device] for node in state.nodes.values() for device in range(node.gpus))


def placed_one_by_one(rounds: Rounds, need: Need) -> Counter[str]:
    """How many such pods each node takes, put there until no more fits."""
    found: Counter[str] = Counter()
    for node in nodes_for(rounds.state, "default", ""):
        while fits(need, node) is None:
            node = node.taking(need, placed_on(node, need, 0, "worker"), 1)
            found[node.name] += 1
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_causes_sum_to_what_is_idle_and_slots_are_what_can_be_placed(seed: int, carried_out: bool) -> None:
    rounds = world(seed)
    if carried_out:
        for _, made in list(planned(rounds))[:1]:
            rounds.commit(proposal(rounds.state, made, rounds.ts), ms=0)
    found = left(rounds)
    assert found.idle_gpu_milli == sum(milli for _, milli in found.stranded) == idle_milli(rounds)
    by_node: Counter[Stranded] = Counter()
    for each in slots_by_node(rounds.state, "default")[1]:
        by_node.update(dict(each.stranded))
    assert by_node == Counter({cause: milli for cause, milli in found.stranded if milli})
    wanted = asked(rounds.state, "default")
    for size in found.sizes:
        placed = placed_one_by_one(rounds, wanted.slot(size.gpus).whole)
        assert size.slots == placed.total()
        assert dict(size.largest)["node"] == max(placed.values(), default=0)
    whole = sum(milli for cause, milli in found.stranded if cause is Stranded.NONE)
    assert whole == found.sizes[0].slots * WHOLE_GPU
