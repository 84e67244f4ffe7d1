"""What the simulator draws could run in an empty world, so that a job that waits for ever is a fault."""

from random import Random

from tessera.testkit.sim.loop import VirtualLoop
from tessera.testkit.sim.workload import job_spec
from tessera.testkit.sim.world import World
from tessera_schemas.cluster.labels import GPU_RESOURCE


def test_every_gang_fits_on_the_empty_nodes_of_the_world() -> None:
    loop = VirtualLoop()
    nodes = [row for row in World(1, loop).make_nodes() if not row.mig]
    loop.close()
    random, largest = Random(1), 0
    for _ in range(5_000):
        (role,) = job_spec(random, gang=True).roles
        gpus, models = role.resources.gpus or 0, role.gpu_models
        usable = [row for row in nodes if (not models or row.gpu_model in models)]
        borne = {GPU_RESOURCE} if gpus else set()
        usable = [row for row in usable if role.tolerations or {taint.key for taint in row.taints} <= borne]
        if gpus:
            assert sum(row.gpus // gpus for row in usable) >= role.replicas, role
        largest = max(largest, gpus * role.replicas)
    assert largest == 24
