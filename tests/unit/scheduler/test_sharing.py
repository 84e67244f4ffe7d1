"""Who holds and waits for what, as the leader's metrics; and nothing of it from one who leads no more."""

from tessera.engine import ENGINE_ID
from tessera.kernel.service.metrics import Metrics
from tessera.scheduler.free_slots import measuring
from tessera_schemas.shard.orders import Order
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, queue, role
from tests.unit.scheduler.committers import Leader, World


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"tessera_{name}", labels)


async def test_the_leader_says_what_queues_and_tenants_hold_and_wait_for() -> None:
    world = World()
    async with Leader(world) as leader, measuring(leader.ports, leader.shard, 5.0):
        metrics = leader.ports.metrics
        await world.fact(config_proposed(config_body(queue(gpu_milli=16_000))))
        await world.fact(node_seen("node-a", 8))
        for key, gpus in (("k1", 6), ("k2", 4)):
            await world.fact(admitted(key, job_spec(role(gpus=gpus))))
        await world.clock.run(6)
        state = leader.shard.state
        jobs = tuple(job_id for job_id, _ in state.jobs.items())
        order = Order(v=1, pool="default", basis_n=state.n, ts=state.ts, engine=ENGINE_ID, policy=1, jobs=jobs)
        await world.order(order)
        await world.clock.run(6)
        assert len(state.runs) == 1
        held = next(iter(state.runs.values())).amount.gpu_milli / 1000
        assert value(metrics, "pool_gpus", pool="default") == 8
        assert value(metrics, "tenant_held_gpus", tenant="lab", queue="research") == held
        assert value(metrics, "tenant_asked_gpus", tenant="lab") == 10
        assert value(metrics, "tenant_jobs", tenant="lab") == 2
        assert value(metrics, "tenant_jobs", tenant="other") == 0
        assert value(metrics, "queue_nominal_gpus", queue="research") == 16
        assert value(metrics, "queue_waiting_jobs", queue="research") == 1
        assert value(metrics, "queue_head_submitted_timestamp_seconds", queue="research") is not None
        assert value(metrics, "queue_wait_seconds_count", queue="research") == 1
    assert value(metrics, "tenant_jobs", tenant="lab") is None
    assert value(metrics, "pool_gpus", pool="default") is None
