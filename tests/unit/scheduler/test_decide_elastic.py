"""Elastic runs grow while nobody waits, give way to whoever waits, and count for what they hold all the time."""

from typing import Any

import pytest

from tessera.domain.devices.resources import NOTHING
from tessera.engine.placement.gangs import FreeCapacity
from tessera.engine.queueing import scheduling_pass
from tessera.engine.queueing.timeline import KINDS_MAX
from tessera_schemas.base import job_id
from tessera_schemas.config import Flavor, Limits, Policy, Queue, Quota, Tenant
from tessera_schemas.facts import DrainRequested, PlanProposed, PodsLost, PodsMade, RunLost, RunStarted, Shrink
from tessera_schemas.ledger import Grown, LedgerMessage
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, node_seen, role, run_absent
from tests.unit.scheduler.committer_world import RUN, World, ended, kinds, made, started

K2 = job_id(SHARD, "lab", "k2")
AT_ONCE = Policy(grow_after_seconds=0)


def elastic(least: int = 2, most: int = 4, gpus: int = 2, **policy: Any) -> World:
    """A node of eight GPUs on which a job of two to four pods runs as its gang."""
    rules = Policy.model_validate({"grow_after_seconds": 0} | policy)
    world = World(body=config_body(policy=rules))
    world.queued(role(replicas=least, max_replicas=most, gpus=gpus, mixed_models=True)).place()
    world.commit(made(pods=least))
    return world


def grown(message: LedgerMessage) -> list[int]:
    return [place.rank for record in message.records if isinstance(record, Grown) for place in record.placements]


def more_made(*ranks: int) -> PodsMade:
    return PodsMade(kind="pods_made", run_id=RUN, uids=tuple(f"more-{rank}" for rank in ranks), ranks=ranks)


def give_way(*ranks: int, gpus: int = 4, devices: tuple[int, ...] = (4, 5, 6, 7)) -> PlanProposed:
    place = Placement(0, "worker", "node-a", devices[:gpus], 1000)
    return PlanProposed(
        kind="plan_proposed",
        cause="preemption",
        job_id=K2,
        basis_n=1,
        ts=1,
        engine="test",
        policy=1,
        preset="off",
        shrinks=(Shrink(run_id=RUN, ranks=ranks),),
        placements=(place,),
    )


def test_an_elastic_job_starts_as_its_gang_and_grows_once_it_runs() -> None:
    world = elastic()
    assert len(world.run.placements) == 2
    assert grown(world.commit(started())) == [2, 3]
    assert world.state.held_by_queue("research").gpu_milli == 8000


def test_it_grows_no_further_than_there_is_room_or_quota() -> None:
    assert grown(elastic(most=9, gpus=3, least=1).commit(started())) == [1]
    quotas = (Quota(resource="gpu_milli", nominal=6000),)
    body = config_body(Queue(name="research", quotas=quotas), policy=AT_ONCE)
    world = World(body=body).queued(role(replicas=2, max_replicas=4, gpus=2))
    world.place()
    world.commit(made(pods=2))
    assert grown(world.commit(started())) == [2]


def test_it_does_not_grow_while_somebody_waits() -> None:
    world = elastic()
    world.commit(admitted("k2", job_spec(role(gpus=8))))
    assert kinds(world.commit(started())) == ["bound", "started"]


@pytest.mark.parametrize(
    ("model", "drained", "on"),
    [("h100", False, {"node-b"}), ("b200", True, {"node-a"}), ("", False, set())],
    ids=["its own model", "a drained model", "any model"],
)
def test_it_grows_although_somebody_waits_for_what_it_does_not_take(model: str, drained: bool, on: set[str]) -> None:
    world = elastic()
    world.commit(node_seen("node-b", 4, gpu_model="b200"))
    if drained:
        world.commit(DrainRequested(kind="drain_requested", node="node-b"))
    models = {"gpu_models": (model,)} if model else {}
    waits = admitted("waits", job_spec(role(gpus=4 if drained else 8, **models)))
    world.commit(waits)
    world.place()
    records = [record for record in world.commit(started()).records if isinstance(record, Grown)]
    assert {place.node for record in records for place in record.placements} == on


def test_it_grows_beside_any_number_of_kinds_that_no_node_could_hold() -> None:
    world = elastic()
    kinds = [job_spec(role(gpus=16, cpu_milli=1000 + at)) for at in range(KINDS_MAX + 1)]
    world.commit(*(admitted(f"waits-{at}", kind) for at, kind in enumerate(kinds)))
    world.place()
    assert grown(world.commit(started()))


def test_many_runs_that_grow_look_at_the_nodes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(*(node_seen(f"n{at}") for at in range(20)), body=config_body(policy=AT_ONCE))
    world.say(*(admitted(f"k{at}", job_spec(role(gpus=2, max_replicas=3))) for at in range(20)))
    world.place()
    runs = sorted(name for name, _ in world.state.runs.items())
    world.commit(*(PodsMade(kind="pods_made", run_id=name, uids=(f"{name}-0",)) for name in runs))
    made_anew: list[object] = []

    class Counted(FreeCapacity):
        def __init__(self, *nodes: Any, **how: Any) -> None:
            made_anew.append(nodes)
            super().__init__(*nodes, **how)

    monkeypatch.setattr(scheduling_pass, "FreeCapacity", Counted)
    message = world.commit(*(RunStarted(kind="run_started", run_id=name) for name in runs))
    assert len(grown(message)) == 2 * 20
    assert len(made_anew) <= 1
    assert sum(node.gpu_free.count(1000) for node in world.state.nodes.values()) == 20 * (8 - 6)


def test_it_keeps_its_size_for_a_while() -> None:
    world = elastic(grow_after_seconds=30)
    assert grown(world.commit(started())) == []
    assert grown(world.commit(ms=30_000)) == [2, 3]


def test_what_it_grew_by_is_permitted_pod_by_pod() -> None:
    world = elastic()
    world.commit(started())
    permitted = world.commit(more_made(3)).records
    assert [r.kind for r in permitted] == ["permitted"]
    assert world.say(more_made(3)) == []
    assert [extra.uid for extra in world.run.extra] == ["", "more-3"]


def test_pods_that_nobody_makes_are_given_up() -> None:
    world = elastic()
    world.commit(started())
    world.commit(more_made(2))
    late = world.commit(ms=601_000)
    assert [(r.kind, r.ranks) for r in late.records if r.kind == "shrunk"] == [("shrunk", (3,))]


def test_it_gives_way_to_a_job_that_waits_whatever_the_preset() -> None:
    world = elastic()
    world.commit(started())
    world.commit(more_made(2, 3))
    world.commit(admitted("k2", job_spec(role(gpus=4))))
    world.place()
    assert world.say(give_way(2, 3)) == ["shrunk", "earmark_set", "waiting"]
    absent = run_absent(RUN).model_copy(update={"ranks": (2, 3)})
    assert world.say(absent) == ["released", "earmark_ended", "allocated"]
    assert (world.job.phase.value, world.run.extra, world.run.amount.gpu_milli) == ("running", (), 4000)


def test_ranks_are_never_used_twice() -> None:
    world = elastic()
    world.commit(started())
    world.commit(more_made(2, 3))
    world.commit(admitted("k2", job_spec(role(gpus=4))))
    world.place()
    world.commit(give_way(2, 3))
    world.commit(run_absent(RUN).model_copy(update={"ranks": (2, 3)}))
    cancelled = world.state.jobs.get(K2)
    assert cancelled is not None
    world.commit(made(f"{K2}-1"))
    world.commit(started(f"{K2}-1"))
    world.commit(ended(f"{K2}-1", reason=None))
    assert grown(world.commit(run_absent(f"{K2}-1"))) == [4, 5]


def test_nobody_of_a_lower_class_takes_the_room_it_grew_into() -> None:
    world = elastic()
    world.commit(started())
    world.commit(more_made(2, 3))
    world.commit(admitted("k2", job_spec(role(gpus=4), priority_class="low")))
    world.place()
    (refused,) = world.commit(give_way(2, 3)).records
    assert refused.reason.code is Code.NOT_ALLOWED_BY_PRESET  # type: ignore[union-attr]


def test_its_gang_cannot_be_shrunk() -> None:
    world = elastic()
    world.commit(started())
    world.commit(admitted("k2", job_spec(role(gpus=4))))
    world.place()
    (refused,) = world.commit(give_way(1, 3)).records
    assert refused.reason.code is Code.VICTIM_GONE  # type: ignore[union-attr]


def test_the_release_of_the_run_gives_everything_back() -> None:
    world = elastic()
    world.commit(started())
    world.commit(ended(reason=None))
    world.commit(run_absent(RUN))
    node = world.state.nodes.get("node-a")
    assert node.gpu_free == (1000,) * 8
    assert world.state.held_by_queue("research").gpu_milli == 0


def lose(*ranks: int) -> PodsLost:
    return PodsLost(kind="pods_lost", run_id=RUN, ranks=ranks, reason=Reason(code=Code.POD_FAILED))


def test_it_goes_on_without_a_pod_that_failed_and_its_gang_is_not_touched() -> None:
    world = elastic()
    world.commit(started())
    world.commit(more_made(2, 3))
    (shrunk,) = world.commit(lose(0, 3)).records
    assert (shrunk.kind, shrunk.ranks, shrunk.by) == ("shrunk", (3,), "binder")  # type: ignore[union-attr]
    assert world.say(lose(3)) == []
    assert (world.job.phase.value, world.job.strikes) == ("running", 0)


def test_the_loss_of_a_node_of_what_it_grew_by_is_no_attempt() -> None:
    world = elastic()
    world.commit(started())
    lost = RunLost(kind="run_lost", run_id=RUN, reason=Reason(code=Code.NODE_LOST), nodes=("node-a",), ranks=(2,))
    assert world.say(lost) == ["shrunk"]
    assert (world.job.attempt, world.job.avoid, world.run.failures) == (1, (), 0)


def test_after_a_failure_it_grows_later_and_later() -> None:
    world = elastic(most=3)
    world.commit(started())
    for failures in (1, 2, 3):
        (rank,) = (extra.placement.rank for extra in world.run.extra)
        world.commit(lose(rank))
        assert grown(world.commit(run_absent(RUN).model_copy(update={"ranks": (rank,)}), ms=0)) == []
        assert grown(world.commit(ms=2**failures * 1000 - 1)) == []
        assert grown(world.commit(ms=1)) == [rank + 1]


def test_it_grows_again_on_another_node_than_those_that_failed_its_pods_while_there_is_room_elsewhere() -> None:
    nodes = [node_seen(f"node-{letter}", 2) for letter in "abcd"]
    world = World(*nodes, body=config_body(policy=AT_ONCE))
    world.queued(role(max_replicas=2, gpus=2)).place()
    world.commit(made())
    world.commit(started())
    tried = []
    for failures in (1, 2, 3, 4):
        (extra,) = world.run.extra
        tried.append(extra.placement.node)
        world.commit(lose(extra.placement.rank))
        world.commit(run_absent(RUN).model_copy(update={"ranks": (extra.placement.rank,)}), ms=0)
        world.commit(ms=2**failures * 1000)
    assert set(tried[:3]) == {"node-a", "node-b", "node-c", "node-d"} - {world.run.placements[0].node}
    assert tried[3] in tried[:3], "an avoided node is better than none"
    assert set(world.job.avoid) == set(tried)


def test_surplus_pods_are_permitted_but_for_those_given_up_while_they_were_made() -> None:
    world = elastic()
    world.commit(started())
    world.commit(lose(2))
    (permitted,) = world.commit(more_made(2, 3)).records
    assert (permitted.ranks, permitted.uids) == ((3,), ("more-3",))  # type: ignore[union-attr]


def test_a_drained_node_of_what_it_grew_by_does_not_evict_its_gang() -> None:
    rules = config_body(policy=AT_ONCE)
    world = World(node_seen("node-a", 2), node_seen("node-b", 2), body=rules)
    world.queued(role(max_replicas=2, gpus=2)).place()
    world.commit(made())
    world.commit(started())
    (extra,) = world.run.extra
    drain = DrainRequested(kind="drain_requested", node=extra.placement.node, evict=True)
    assert world.say(drain) == ["node_drained", "shrunk"]
    assert world.say(DrainRequested(kind="drain_requested", node=world.run.placements[0].node, evict=True)) == [
        "node_drained",
        "revoked",
    ]


def test_it_grows_no_further_than_its_tenants_limit() -> None:
    tenants = (Tenant(name="lab", limits=Limits(gpus=6)),)
    world = World(body=config_body(policy=AT_ONCE).model_copy(update={"tenants": tenants}))
    world.queued(role(replicas=2, max_replicas=4, gpus=2)).place()
    world.commit(made(pods=2))
    assert grown(world.commit(started())) == [2]


def test_what_grows_first_is_the_higher_class_then_the_older() -> None:
    world = World(node_seen("node-a", 4), body=config_body(policy=AT_ONCE))
    world.queued(role(max_replicas=4, gpus=1))
    world.commit(admitted("k2", job_spec(role(max_replicas=4, gpus=1), priority_class="high")))
    world.place()
    world.commit(made(), made(f"{K2}-1"))
    records = world.commit(started(), started(f"{K2}-1")).records
    assert [(r.run_id, len(r.placements)) for r in records if isinstance(r, Grown)] == [(f"{K2}-1", 2)]


@pytest.mark.parametrize(("model", "grown"), [("a100", 0), ("h100", 2)])
def test_it_keeps_its_size_when_a_new_configuration_tells_flavors_apart_and_it_has_none(model: str, grown: int) -> None:
    """Else what it grew by would count against no flavor's quota; on nodes of one it counts there, and grows."""
    world = elastic(grow_after_seconds=30)
    world.commit(started())
    flavors = (Flavor(name="new", gpu_models=(model,)),)
    quotas = (Quota(resource="gpu_milli", flavor="new", nominal=64_000),)
    body = config_body(Queue(name="research", quotas=quotas), flavors=flavors, policy=AT_ONCE)
    world.commit(config_proposed(body, expected_version=1))
    world.commit(ms=60_000)
    assert len(world.run.extra) == grown
    assert world.state.held_by_queue("research/new") == (world.run.amount if grown else NOTHING)


def test_a_role_without_gpus_grows_on_the_flavor_of_its_run() -> None:
    flavors = (Flavor(name="new", gpu_models=("h100",)),)
    quotas = (Quota(resource="gpu_milli", flavor="new", nominal=64_000),)
    body = config_body(Queue(name="research", quotas=quotas), flavors=flavors, policy=AT_ONCE)
    world = World(node_seen("node-a", gpu_model="h100"), body=body)
    world.queued(role("train", gpus=8), role("load", max_replicas=3, gpus=0)).place()
    world.commit(made(pods=2))
    assert grown(world.commit(started())) == [2, 3]
    assert world.run.flavor == "new"


def waits_for_quota(*queues: Queue, stop: bool = False) -> World:
    """A run that may grow, and in another queue a job that has no quota."""
    empty = Quota(resource="gpu_milli", nominal=0, **({"borrowing_limit": 0} if queues else {}))
    other = Queue(name="prod", quotas=(empty,), stop_policy="hold" if stop else "none", **_tree(queues))
    world = World(body=config_body(*(queues or (Queue(name="research"),)), other, policy=AT_ONCE))
    world.commit(admitted("k2", job_spec(role(gpus=2), queue="prod")))
    world.queued(role(replicas=2, max_replicas=4, gpus=2)).place()
    world.commit(made(pods=2))
    return world


def _tree(queues: tuple[Queue, ...]) -> dict[str, Any]:
    return {"parent": queues[0].name} if queues else {}


def test_it_grows_although_another_tree_has_no_quota_left_for_who_waits_there() -> None:
    """Nothing that it could leave free would let that job start."""
    assert grown(waits_for_quota().commit(started())) == [2, 3]


def test_it_does_not_grow_into_quota_for_which_a_queue_of_its_tree_waits() -> None:
    quota = Quota(resource="gpu_milli", nominal=8000)
    both = (Queue(name="all"), Queue(name="research", parent="all", quotas=(quota,)))
    assert grown(waits_for_quota(*both).commit(started())) == []


def test_a_queue_that_an_operator_stopped_keeps_nobody_from_growing() -> None:
    assert grown(waits_for_quota(stop=True).commit(started())) == [2, 3]


@pytest.mark.parametrize(
    ("apart", "queue", "ranks"),
    [(False, "research", []), (False, "owner", [2, 3]), (True, "research", [2, 3])],
    ids=["one quota", "one queue", "a quota of each model"],
)
def test_it_does_not_grow_on_another_model_into_quota_that_an_owner_waits_for(
    apart: bool, queue: str, ranks: list[int]
) -> None:
    models = ("h100", "b200") if apart else ()
    flavors = tuple(Flavor(name=model, gpu_models=(model,)) for model in models)
    quotas = tuple(Quota(resource="gpu_milli", nominal=8000, flavor=flavor) for flavor in models or ("",))
    queues = Queue(name="all"), Queue(name="research", parent="all"), Queue(name="owner", parent="all", quotas=quotas)
    world = World(
        node_seen("node-a", gpu_model="b200"),
        node_seen("node-b", gpu_model="h100"),
        body=config_body(*queues, policy=AT_ONCE, flavors=flavors),
    )
    world.say(
        admitted("k1", job_spec(role(gpus=1, replicas=2, max_replicas=4, gpu_models=("b200",)), queue=queue)),
        admitted("k3", job_spec(role(gpus=1, gpu_models=("h100",)), queue=queue)),
    )
    world.place()
    world.commit(made(pods=2))
    world.commit(admitted("k2", job_spec(role(gpus=8, gpu_models=("h100",)), queue="owner")))
    world.place()
    waits = world.state.jobs.get(K2)
    assert waits is not None
    assert waits.reason is not None
    assert waits.reason.code is Code.WAITING_FOR_QUOTA
    assert grown(world.commit(started())) == ranks
