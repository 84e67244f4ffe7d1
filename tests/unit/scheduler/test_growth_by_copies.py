"""A gang that is a tree grows and shrinks by whole copies of a group, each in a domain within that of the job."""

import pytest

from tessera.client.ledger.validity import violations
from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import apply_record
from tessera.domain.storing.fast import replace
from tessera.engine.explain.consequences import consequences
from tessera.engine.preemption.candidates import find_candidates
from tessera.engine.preemption.shifts import shift_faults
from tessera_schemas.base import job_id
from tessera_schemas.cluster.gang_groups import RoleGroup
from tessera_schemas.commands import DrainNode
from tessera_schemas.config import Level, Policy
from tessera_schemas.facts import NodeSeen, PlanProposed, PodsLost, PodsMade, Shrink
from tessera_schemas.job import Topology
from tessera_schemas.ledger import Grown, LedgerMessage, Shrunk
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement
from tests.builders import SHARD, admitted, config_body, job_spec, node_seen, role, run_absent
from tests.unit.scheduler.committer_world import RUN, World, made, started

K2 = job_id(SHARD, "lab", "k2")
ALL = RoleGroup(name="all", topology=Topology(level="zone"))
TEAM = RoleGroup(name="team", within="all", pods={"head": 1, "worker": 2}, topology=Topology(level="rack"))
HEAD = role(replicas=1, max_replicas=3, gpus=2, mixed_models=True).model_copy(update={"name": "head"})
WORKER = role(replicas=2, max_replicas=6, gpus=2, mixed_models=True)


def rack(name: str, zone: str = "z") -> list[NodeSeen]:
    return [node_seen(f"{name}{number}", 4, labels={"rack": name, "zone": zone}) for number in (1, 2)]


def teams(*racks: NodeSeen) -> World:
    """A job of one team of three pods, and of three at most, on these racks of eight GPUs each."""
    topology = (Level(name="rack", label="rack"), Level(name="zone", label="zone"))
    world = World(*racks, body=config_body(policy=Policy(grow_after_seconds=0), topology=topology))
    world.commit(admitted("k1", job_spec(HEAD, WORKER, groups=(ALL, TEAM))))
    world.place()
    world.commit(made(pods=3))
    return world


def growth(message: LedgerMessage) -> list[tuple[int, str, str]]:
    grown = [record for record in message.records if isinstance(record, Grown)]
    return [(place.rank, place.role, place.node[0]) for record in grown for place in record.placements]


def settled() -> World:
    """The job with a second team, in the other one of two racks."""
    world = teams(*rack("a"), *rack("b"))
    world.commit(started())
    world.commit(PodsMade(kind="pods_made", run_id=RUN, uids=("more-3", "more-4", "more-5"), ranks=(3, 4, 5)))
    return world


def shrunk(message: LedgerMessage) -> list[tuple[int, ...]]:
    return [record.ranks for record in message.records if isinstance(record, Shrunk)]


def test_it_grows_by_a_whole_copy_with_its_rack_in_the_zone_of_all() -> None:
    world = teams(*rack("a"), *rack("b"))
    assert growth(world.commit(started())) == [(3, "head", "b"), (4, "worker", "b"), (5, "worker", "b")]
    world.commit(PodsMade(kind="pods_made", run_id=RUN, uids=("more-3", "more-4", "more-5"), ranks=(3, 4, 5)))
    assert growth(world.commit(*rack("c", zone="y"))) == []
    (less, _) = rack("d")
    assert growth(world.commit(less)) == []
    assert growth(world.commit(*rack("e"))) == [(6, "head", "e"), (7, "worker", "e"), (8, "worker", "e")]


def test_a_growth_in_part_or_beyond_its_domains_is_found_when_the_ledger_is_read() -> None:
    world = teams(*rack("a"), *rack("b"), *rack("c", zone="y"))
    assert world.run.placements[0].node[0] == "c"  # the tightest zone
    world = teams(*rack("a"), *rack("b"))
    world.commit(*rack("c", zone="y"))

    world.state.put_run(replace(world.run, started_ts=world.ts, started=True))

    def found(*places: tuple[str, str]) -> str:
        pods = enumerate(places)
        there = tuple(Placement(3 + at, name, node, (at % 2 * 2, at % 2 * 2 + 1), 1000) for at, (name, node) in pods)
        record = Grown(kind="grown", run_id=RUN, deadline=world.ts + 1000, placements=there)
        return " ".join(violations(world.state, record, "tessera-10"))

    assert "no whole copy" in found(("head", "b1"), ("worker", "b2"))
    assert "one domain of rack" in found(("head", "a2"), ("worker", "b1"), ("worker", "b2"))
    assert "beyond the domain" in found(("head", "c1"), ("worker", "c1"), ("worker", "c2"))


def test_a_copy_goes_whole_when_a_pod_of_it_fails_or_its_node_is_emptied() -> None:
    world = settled()
    lost = PodsLost(kind="pods_lost", run_id=RUN, ranks=(4,), reason=Reason(code=Code.POD_FAILED))
    assert shrunk(world.commit(lost)) == [(3, 4, 5)]
    assert [extra.leaving for extra in world.run.extra] == [True] * 3
    assert world.run.placements[0].node[0] == "a"
    world = settled()
    node = world.run.extra[1].placement.node
    order = DrainNode(kind="drain_node", v=1, node=node, evict=True)
    (stopped,) = consequences(world.state, order, world.ts).stopped
    assert (stopped.pods, stopped.gpu_milli) == (3, 6000)


def test_a_copy_is_one_piece_for_who_waits() -> None:
    world = settled()
    world.commit(admitted("k2", job_spec(role(gpus=4))))
    world.place()
    job = world.state.jobs.get(K2)
    pieces, _ = find_candidates(world.state, job, "preemption", world.state.quota_book(), "")
    assert [(piece.ranks, piece.amount.gpu_milli) for piece in pieces if piece.ranks] == [((3, 4, 5), 6000)]

    def plan(*ranks: int) -> PlanProposed:
        place = Placement(0, "worker", world.run.extra[0].placement.node, (0, 1, 2, 3), 1000)
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

    (refused,) = world.commit(plan(3, 4)).records
    assert refused.reason.code is Code.VICTIM_GONE  # type: ignore[union-attr]
    assert shrunk(world.commit(plan(3, 4, 5))) == [(3, 4, 5)]
    world.commit(run_absent(RUN).model_copy(update={"ranks": (3, 4, 5)}))
    assert len(world.run.places) == 3


def test_a_record_that_parts_a_copy_is_a_contradiction() -> None:
    world = settled()
    record = Shrunk(kind="shrunk", run_id=RUN, ranks=(3,), reason=Reason(code=Code.SHRUNK))
    with pytest.raises(Contradiction, match="no such pods"):
        apply_record(world.state, record, ())


def test_its_pods_do_not_move_between_roles_one_by_one() -> None:
    world = settled()
    (against, *_) = shift_faults(world.state, world.job, "key", {"worker": -1, "head": 1}, {})
    assert "copies of a group" in against.detail
