"""Quotas that are parts of their pool: what is refused for good rests on what the pool has had, or waits for nodes."""

from typing import Any

import orjson
import pytest

from tessera.kernel.ports import Outgoing
from tessera_schemas.cluster.health import HealthPolicy, HealthTest, ReputationPolicy
from tessera_schemas.cluster.pools import Pool
from tessera_schemas.config import ConfigBody, Queue, Quota
from tessera_schemas.facts import ConfigProposed, JobAdmitted, JobRefused
from tessera_schemas.job import Template
from tessera_schemas.ledger import FORMAT
from tessera_schemas.shard.ledger_form import POOL_PARTS_FROM
from tessera_schemas.work.money import Money
from tests.builders import SHARD, config_body
from tests.unit.admission.admission_world import World, changed, node

HALF = config_body(Queue(name="research", quotas=(Quota(resource="gpu_milli", nominal=0, part_percent=50),)))
FOUR: dict[str, Any] = changed("spec.roles.0.resources.gpus", 4)
"""Two pods of four GPUs."""


@pytest.mark.parametrize(
    ("gpus", "remembered", "admitted"), [((8, 8), (), True), ((8, 7), (), False), ((8, 7), (8,), True), ((), (), True)]
)
async def test_a_job_is_held_to_the_part_of_the_most_that_the_pool_has_had(
    gpus: tuple[int, ...], remembered: tuple[int, ...], admitted: bool
) -> None:
    nodes = [node(f"n{at}", size) for at, size in enumerate(gpus)]
    world = await World.with_policy(HALF, nodes)
    await world.views(HALF, nodes, [node("n1", size, lost_ts=1) for size in remembered])
    await world.policy.look_again()
    world.clock.now += 1
    await world.policy.look_again()
    await world.submits(FOUR)
    (fact,) = world.facts
    assert isinstance(fact, JobAdmitted if admitted else JobRefused)
    if isinstance(fact, JobRefused):
        assert [(r.code.value, r.numbers["most"]) for r in fact.reasons] == [("ExceedsMaxQuota", 7000)]


NAMES = config_body(Queue(name="research")).model_copy(update={"queue_names": {"root.sandbox": "research"}})


PRICES = config_body(Queue(name="research")).model_copy(update={"money": Money(currency="EUR")})
SPARES = config_body(Queue(name="research"), pools=(Pool(name="default", spare_nodes=1),))

TESTS = config_body(
    Queue(name="research"),
    health=HealthPolicy(
        reputation=ReputationPolicy(),
        test=HealthTest(tenant="lab", queue="research", template=Template(image="test:1")),
    ),
)


@pytest.mark.parametrize(
    "body",
    [HALF, NAMES, PRICES, SPARES, TESTS],
    ids=["parts of pools", "names of queues", "prices", "spares", "tests of nodes"],
)
@pytest.mark.parametrize(("known", "taken"), [(POOL_PARTS_FROM - 1, False), (FORMAT, True), (None, True)])
async def test_a_committer_of_an_earlier_version_is_sent_nothing_that_it_cannot_read(
    known: int | None, taken: bool, body: ConfigBody
) -> None:
    world = World()
    for name, said in ("leader", {"holder": "scheduler-1"}), ("probe.scheduler-1", {"format": known}):
        if known is not None:
            await world.ports.bus.publish(Outgoing(f"lease.{SHARD}.scheduler.{name}", orjson.dumps(said)))
    command = {"kind": "apply_config", "v": 1, "expected_version": 0, "body": body.model_dump(mode="json")}
    await world.controls(command)
    fact = world.facts[-1]
    assert isinstance(fact, ConfigProposed if taken else JobRefused)
    if isinstance(fact, JobRefused):
        assert "a scheduler of an earlier version leads" in fact.reasons[0].sentence()
