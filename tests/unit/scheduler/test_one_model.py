"""
The pods of a gang are on one GPU model at a time, and under a launcher its shares on distinct GPUs.

The pool is as `config init` writes it: its queue has a quota of all GPUs, and flavors that no quota names.
"""

from typing import Any

import pytest

from tessera.engine.defragmentation.search import defragmentation
from tessera.engine.placement.free_slots import slots
from tessera.engine.preemption.plans import Plan
from tessera.engine.queueing.expected_starts import expected_starts
from tessera_schemas.facts import RunEnded
from tessera_schemas.job import Role
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.adopted import Adopted
from tests.builders import admitted, job_spec, node_seen, role
from tests.rounds import Rounds, share

JOB = Adopted(api_version="batch/v1", owner_kind="Job", owner_name="train", owner_uid="u-1", priority=0)
TORCHRUN = {"launcher": "torchrun"}


def pool(*nodes: tuple[str, str, int], **policy: Any) -> Rounds:
    """Nodes by name, model and GPUs."""
    seen = [node_seen(name, gpus, gpu_model=model, device_profile="plugin") for name, model, gpus in nodes]
    return Rounds(share("research", sum(gpus for *_, gpus in nodes), None), nodes=seen, **policy)


def one_of_each(**policy: Any) -> Rounds:
    return pool(("h-0", "H100", 8), ("a-0", "A100", 8), **policy)


def submit(world: Rounds, key: str, *roles: Role, adopted: bool = False, **spec: Any) -> None:
    fact = admitted(key, job_spec(*roles, name=key, **spec))
    world.commit(fact.model_copy(update={"adopted": JOB}) if adopted else fact)


def models(world: Rounds, key: str) -> list[str]:
    """The model under each of its pods, in rank order; nothing while it does not run."""
    run = world.run(key)
    return [] if run is None else [world.state.nodes.get(place.node).gpu_model for place in run.all_placements]


KINDS = [
    pytest.param({}, id="each role by itself"),
    pytest.param(TORCHRUN, id="torchrun"),
    pytest.param({"adopted": True}, id="an Indexed Job"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", [(), ("H100", "A100"), ("A100", "H100")])
def test_a_gang_that_no_model_holds_waits_and_says_what_each_has(kind: dict[str, Any], named: tuple[str, ...]) -> None:
    world = one_of_each()
    submit(world, "gang", role(replicas=2, gpus=8, gpu_models=named), **kind)
    world.settle()
    reason = world.job("gang").reason
    assert reason is not None
    assert models(world, "gang") == []
    assert reason.code == Code.NO_FIT
    assert reason.numbers["pods_placed"] == 1
    first, second = named or ("A100", "H100")
    assert reason.detail == f"on one GPU model ({first}: 1 of 2 nodes; {second}: 1 of 2)"


@pytest.mark.parametrize("kind", KINDS)
def test_a_gang_is_on_the_model_that_holds_all_of_it(kind: dict[str, Any]) -> None:
    world = pool(("a-0", "A100", 8), ("h-0", "H100", 8), ("h-1", "H100", 8))
    submit(world, "gang", role(replicas=2, gpus=8), **kind)
    world.settle()
    assert models(world, "gang") == ["H100", "H100"]


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_mixed_where_that_is_said(kind: dict[str, Any]) -> None:
    world = one_of_each()
    submit(world, "gang", role(replicas=2, gpus=8, mixed_models=True), **kind)
    world.settle()
    assert sorted(models(world, "gang")) == ["A100", "H100"]


@pytest.mark.parametrize("named", [("H100", "A100"), ("A100", "H100")])
@pytest.mark.parametrize("pods", [1, 2])
def test_a_list_of_models_is_an_order_of_alternatives(named: tuple[str, ...], pods: int) -> None:
    world = pool(*((f"{model[0].lower()}-{n}", model, 8) for model in named for n in range(2)))
    submit(world, "first", role(replicas=pods, gpus=8, gpu_models=named))
    submit(world, "whole", role(replicas=2, gpus=8, gpu_models=named))
    world.settle()
    assert models(world, "first") == [named[0]] * pods
    assert models(world, "whole") == [named[1]] * 2  # one node of the first would be a part


def test_roles_have_a_model_each_but_under_a_launcher_and_among_pods_that_others_made() -> None:
    two = role("learner", gpus=8), role("actor", gpus=8)
    world = one_of_each()
    submit(world, "apart", *two)
    world.settle()
    assert sorted(models(world, "apart")) == ["A100", "H100"]
    for kind in (TORCHRUN, {"adopted": True}):
        world = one_of_each()
        submit(world, "together", *two, **kind)
        world.settle()
        assert models(world, "together") == []
        assert world.job("together").reason.detail == "on one GPU model (A100: 1 of 2 nodes; H100: 1 of 2)"


def test_users_pods_that_name_their_nodes_apart_are_no_one_group() -> None:
    named = ({"instance": "big"}, {"instance": "small"})
    seen = [
        node_seen(name, 8, gpu_model=model, labels=labels)
        for (name, model), labels in zip((("h-0", "H100"), ("a-0", "A100")), named, strict=True)
    ]
    world = Rounds(share("research", 16, None), nodes=seen)
    roles = [role(f"part-{n}", gpus=8, node_selector=labels) for n, labels in enumerate(named)]
    submit(world, "gang", *roles, adopted=True)
    world.settle()
    assert models(world, "gang") == ["H100", "A100"]


def test_roles_under_a_launcher_that_no_model_suits_wait_with_that_reason() -> None:
    world = one_of_each()
    submit(world, "gang", role("one", gpu_models=("H100",)), role("two", gpu_models=("A100",)), **TORCHRUN)
    world.settle()
    reason = world.job("gang").reason
    assert reason.code == Code.NO_FIT
    assert "no GPU model suits all of its roles" in reason.detail


def test_pods_without_gpus_are_on_any_node() -> None:
    world = one_of_each()
    submit(world, "gang", role("data", replicas=2, gpus=0, cpu_milli=64_000), role("train", replicas=8))
    world.settle()
    assert models(world, "gang") == []  # each takes the CPU of a node, and nothing else lacks
    submit(world, "less", role("data", replicas=2, gpus=0, cpu_milli=40_000), role("train", replicas=8), **TORCHRUN)
    world.settle()
    assert len(set(models(world, "less")[2:])) == 1
    assert sorted(models(world, "less")[:2]) == ["A100", "H100"]


# -- later in its life ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "pods"), [("H100", 16), ("A100", 8)])
def test_a_run_grows_on_its_own_model(others: str, pods: int) -> None:
    world = pool(("h-0", "H100", 8), ("x-0", others, 8), grow_after_seconds=0)
    submit(world, "elastic", role(max_replicas=16, gpu_models=("H100", "A100")))
    world.settle()
    assert models(world, "elastic") == ["H100"] * pods


def test_a_run_whose_node_is_lost_starts_again_whole_on_one_model() -> None:
    world = pool(("a-0", "A100", 8), ("a-1", "A100", 8), ("h-0", "H100", 8), ("h-1", "H100", 8))
    submit(world, "gang", role(replicas=2, gpus=8, gpu_models=("H100", "A100")), **TORCHRUN)
    world.settle()
    assert models(world, "gang") == ["H100", "H100"]
    run = world.run("gang").run_id
    world.commit(node_seen("h-1", 8, gpu_model="H100", gone=True))
    world.commit(node_seen("h-1", 8, gpu_model="H100", ready=False))
    world.commit(RunEnded(kind="run_ended", run_id=run, reason=Reason(code=Code.NODE_LOST)))
    world.ts += 60_000
    world.settle()
    assert models(world, "gang") == ["A100", "A100"]


# -- ahead ------------------------------------------------------------------------------------------------------------


def low(world: Rounds, count: int, gpus: int = 8) -> None:
    """So many runs of class low."""
    for n in range(count):
        world.submit(f"low-{n}", gpus, priority="low")
    world.settle()


def test_a_plan_takes_the_runs_of_one_model() -> None:
    world = pool(*((f"{m[0].lower()}-{n}", m, 8) for m in ("A100", "H100") for n in range(2)), preset="priority")
    low(world, 4)
    world.configure(min_runtime_seconds=0)
    submit(world, "high", role(replicas=2, gpus=8), priority_class="high", **TORCHRUN)
    world.commit(orders=[world.line()])
    found = world.plan("high")
    assert isinstance(found, Plan)
    assert len(found.victims) == 2
    world.settle()
    assert len(set(models(world, "high"))) == 1
    assert len(models(world, "high")) == 2


def test_no_run_is_taken_for_a_gang_that_no_model_holds() -> None:
    world = one_of_each(preset="priority")
    low(world, 2)
    submit(world, "high", role(replicas=2, gpus=8), priority_class="high", **TORCHRUN)
    world.settle()
    assert world.evicted() == []
    assert world.running("low-0", "low-1")
    assert isinstance(world.plan("high"), Reason)


def test_room_is_kept_on_one_model() -> None:
    """The H100 end first, and one A100 beside one H100 sooner."""
    nodes = [(f"{m[0].lower()}-{n}", m, 8) for m in ("A100", "H100") for n in range(2)]
    world = pool(*nodes, preset="off", backfill="reserve")
    for key, model, seconds in (("a", "A100", 100), ("b", "H100", 200), ("c", "H100", 300), ("d", "A100", 400)):
        submit(world, key, role(gpus=8, gpu_models=(model,)), time_limit_seconds=seconds)
    world.settle()
    submit(world, "head", role(replicas=2, gpus=8), time_limit_seconds=1000, **TORCHRUN)
    submit(world, "behind", role(gpus=8), time_limit_seconds=1000)
    world.settle()
    world.finish("a")
    world.settle()
    kept = expected_starts(world.state, "default", [world.job("head")])[world.job("head").job_id]
    assert world.job("head").reason.code == Code.RESERVED
    assert sorted(kept.nodes) == ["h-0", "h-1"]
    assert models(world, "behind") == ["A100"]  # where the head will not be


def test_runs_move_so_that_one_model_has_the_room() -> None:
    nodes = [("a-0", "A100", 8), ("h-0", "H100", 8), ("h-1", "H100", 8)]
    world = pool(*nodes, preset="off", defragment=True, defragment_min_gain_gpu_seconds=0)
    for n, model in enumerate(("H100", "H100")):
        submit(world, f"half-{n}", role(gpus=5, gpu_models=(model,)), time_limit_seconds=86_400)
    world.settle()
    submit(world, "gang", role(replicas=2, gpus=4), time_limit_seconds=600, **TORCHRUN)
    world.settle()
    assert models(world, "gang") == ["A100", "A100"]
    submit(world, "next", role(replicas=2, gpus=3), time_limit_seconds=600, **TORCHRUN)
    world.settle()
    assert models(world, "next") == ["H100", "H100"]
    world.finish("next")
    submit(world, "wide", role(gpus=8, replicas=1, gpu_models=("H100",)), time_limit_seconds=600)
    world.settle()
    assert not isinstance(defragmentation(world.state, world.job("wide"), world.ts + 10_000_000), Plan)


def test_slots_say_the_largest_gang_on_one_model() -> None:
    world = pool(("a-0", "A100", 8), ("h-0", "H100", 8), ("h-1", "H100", 8))
    sizes = {size.gpus: (size.slots, dict(size.largest)) for size in slots(world.state, "default").sizes}
    assert sizes[8] == (3, {"node": 1, "model": 2})
    assert sizes[1] == (24, {"node": 8, "model": 16})
    alone = slots(pool(("h-0", "H100", 8)).state, "default")
    assert dict(alone.sizes[0].largest) == {"node": 8}


# -- shares -----------------------------------------------------------------------------------------------------------


def devices(world: Rounds, key: str) -> set[tuple[str, int]]:
    return {(place.node, at) for place in world.run(key).all_placements for at in place.devices}


def test_shares_under_a_launcher_are_on_distinct_gpus() -> None:
    world = pool(("h-0", "H100", 2), ("h-1", "H100", 2))
    submit(world, "other", role(gpus=0, gpu_milli=500))
    submit(world, "gang", role(replicas=4, gpus=0, gpu_milli=500), **TORCHRUN)
    submit(world, "free", role(replicas=3, gpus=0, gpu_milli=500))
    world.settle()
    assert len(devices(world, "gang")) == 4
    assert len(devices(world, "free")) < 4
    assert world.running("other", "gang", "free")


def test_shares_that_have_no_gpu_each_wait() -> None:
    world = pool(("h-0", "H100", 2))
    submit(world, "gang", role("a", 2, gpus=0, gpu_milli=500), role("b", gpus=0, gpu_milli=500), **TORCHRUN)
    world.settle()
    assert world.run("gang") is None
    assert world.job("gang").reason.code == Code.NO_FIT
    submit(world, "plain", role(replicas=4, gpus=0, gpu_milli=500), launcher="plain")
    world.settle()
    assert world.running("plain")


def test_shares_grow_onto_gpus_of_their_own() -> None:
    world = pool(("h-0", "H100", 4), grow_after_seconds=0)
    submit(world, "elastic", role(gpus=0, gpu_milli=500, max_replicas=8), **TORCHRUN)
    world.settle()
    assert len(devices(world, "elastic")) == len(world.run("elastic").all_placements) == 4
