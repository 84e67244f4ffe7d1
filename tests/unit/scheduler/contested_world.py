"""A shard in which one job runs and another wants its place."""

from typing import Any

from tessera_schemas.base import job_id
from tessera_schemas.config import Policy
from tessera_schemas.facts import (
    AnyFact,
    DrainRequested,
    PlanProposed,
)
from tessera_schemas.ledger import LedgerMessage
from tessera_schemas.reasons import Code
from tessera_schemas.work.placement import Placement
from tests.builders import SHARD, admitted, config_body, job_spec, role
from tests.unit.scheduler.committer_world import RUN, World, made, reasons, started

K2 = job_id(SHARD, "lab", "k2")


def drain(node: str = "node-a", **more: Any) -> DrainRequested:
    return DrainRequested(kind="drain_requested", node=node, **more)


def plan(victims: tuple[str, ...] = (RUN,), job: str = K2, gpus: int = 8, **more: Any) -> PlanProposed:
    place = Placement(0, "worker", "node-a", tuple(range(gpus)), 1000)
    fields = {"cause": "preemption", "basis_n": 1, "ts": 1, "engine": "test", "policy": 1, "preset": "priority"}
    fields |= {"placements": (place,)}
    return PlanProposed(kind="plan_proposed", job_id=job, victims=victims, **(fields | more))  # type: ignore[arg-type]


def contested(preset: str = "priority", **policy: Any) -> World:
    """One node full with one running job, and an urgent job of the same queue waiting."""
    rules = Policy.model_validate({"preset": preset, "min_runtime_seconds": 0} | policy)
    world = World(body=config_body(policy=rules)).queued(role(gpus=8))
    world.place()
    world.commit(made())
    world.commit(started())
    urgent: AnyFact = admitted("k2", job_spec(role(gpus=8), priority_class="urgent"))
    world.commit(urgent)
    assert reasons(world.place()) == [Code.NO_FIT]
    return world


def refusal(message: LedgerMessage) -> Code:
    (refused,) = message.records
    assert refused.kind == "plan_refused"
    return refused.reason.code
