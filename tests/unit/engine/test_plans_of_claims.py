"""Plans that drain parts of GPUs which drivers publish, so that a job which waits for a whole GPU gets one."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from tessera.engine.defragmentation.search import defragmentation
from tessera.engine.preemption.plans import Plan, plan_bytes
from tessera_schemas.reasons import Reason
from tessera_schemas.work.placement import DrawnDevice, Placement
from tests.builders import admitted, job_spec
from tests.published_devices import claim, claiming, layout_seen, mig_gpus, offering, profile_facts
from tests.rounds import Rounds, share

HOUR_MS = 3_600_000


def park(nodes: int, gpus: int, **policy: Any) -> Rounds:
    layout = mig_gpus(gpus)
    named = [offering(f"node-{number}", layout, gpus) for number in range(nodes)]
    known = [layout_seen(layout), *profile_facts(layout, gpus), *named]
    return Rounds(share("research", 64, None), nodes=known, **{"preset": "off", "defragment": True} | policy)


def claims(world: Rounds, key: str, profile: str, count: int = 1, **spec: Any) -> None:
    asked = claiming(claim(device_class=profile, count=count))
    world.commit(admitted(key, job_spec(asked, name=key, **spec)))
    world.settle()


def drawn(world: Rounds, key: str) -> list[str]:
    run = world.run(key)
    return [] if run is None else [f"{p.node}/{d.device}" for p in run.all_placements for d in p.drawn]


def scattered(nodes: int, gpus: int, **policy: Any) -> Rounds:
    """Two GPUs, one of which a half is on, and the other an eighth; both are hours old."""
    world = park(nodes, gpus, **policy)
    for key, profile in (("half", "3g.40gb"), ("meanwhile", "3g.40gb"), ("eighth", "1g.10gb")):
        claims(world, key, profile)
    world.finish("meanwhile")
    world.commit(ms=HOUR_MS)
    return world


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 1), (1, 2)])
def test_an_instance_moves_beside_another_so_that_its_gpu_is_whole_again(nodes: int, gpus: int) -> None:
    world = scattered(nodes, gpus)
    (before,) = drawn(world, "eighth")
    (half,) = drawn(world, "half")
    claims(world, "whole", "whole")
    assert drawn(world, "whole") == []
    world.commit(ms=HOUR_MS)
    found = defragmentation(world.state, world.job("whole"), world.ts)
    assert isinstance(found, Plan), found
    (move,) = found.moves
    assert world.name(move.run_id.rsplit("-", 1)[0]) == "eighth"
    ((target,),) = [place.drawn for place in move.placements]
    assert (move.placements[0].node, target.device[:5]) == (half.split("/")[0], half.split("/")[1][:5])
    world.settle()
    world.commit(ms=HOUR_MS)
    world.settle()
    gpu = before[: before.index("-1g")]
    assert drawn(world, "whole") == [f"{gpu}-whole-0"]
    assert drawn(world, "eighth") == [f"{move.placements[0].node}/{target.device}"]


def test_a_gpu_that_is_whole_after_no_move_gets_no_plan() -> None:
    world = scattered(2, 1)
    claims(world, "other", "3g.40gb")
    claims(world, "whole", "whole")
    world.commit(ms=HOUR_MS)
    # The half of each GPU that is free holds an eighth, and neither half can go to the other's GPU whole.
    found = defragmentation(world.state, world.job("whole"), world.ts)
    assert isinstance(found, Reason), found


@pytest.mark.parametrize(
    ("preemptible", "policy", "moves"),
    [(True, {}, True), (False, {}, False), (True, {"evictions_max": 0}, False), (True, {"defragment": False}, False)],
    ids=["preemptible", "not-preemptible", "no-budget", "off"],
)
def test_users_of_instances_move_by_the_known_budgets_alone(
    preemptible: bool, policy: dict[str, Any], moves: bool
) -> None:
    world = park(2, 1, **policy)
    for key, profile in (("half", "3g.40gb"), ("meanwhile", "3g.40gb"), ("eighth", "1g.10gb")):
        claims(world, key, profile, preemptible=preemptible)
    world.finish("meanwhile")
    world.commit(ms=HOUR_MS)
    claims(world, "whole", "whole")
    world.commit(ms=HOUR_MS)
    assert isinstance(defragmentation(world.state, world.job("whole"), world.ts), Plan) == moves


def test_a_job_of_a_higher_class_takes_the_gpu_with_the_least_on_it() -> None:
    world = park(2, 1, preset="fair", defragment=False)
    for key, profile in (("half", "3g.40gb"), ("full", "3g.40gb"), ("eighth", "1g.10gb")):
        claims(world, key, profile, priority_class="low")
    claims(world, "whole", "whole", priority_class="high")
    assert world.evicted() == [["eighth"]]


def test_the_devices_of_a_plan_count_in_what_one_message_holds() -> None:
    device = DrawnDevice("c" * 63, "r" * 63, "d" * 63, "p" * 253, "n" * 63, (("memory", 10**12), ("cores", 10**6)))
    place = Placement(99, "worker", "node-0", drawn=(device,) * 8)
    stored = TypeAdapter(Placement).dump_json(place)
    assert len(stored) <= plan_bytes((place,)) < 2 * len(stored)
