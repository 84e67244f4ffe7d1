"""Batch scripts of the greatest length go through all services to their pods, a hundred at once, too."""

import base64
from random import Random

from tessera.client.slurm.scripts.pods import SCRIPT_BYTES_MAX, command_of
from tessera.kernel.ledger.stream import read_plain
from tessera.testkit.sim.loop import VirtualLoop
from tessera.testkit.sim.services import SHARD
from tessera_schemas.job import JobSpec
from tessera_schemas.subjects import MESSAGE_BYTES_MAX, SUBMIT_BYTES_MAX
from tests.simulation.still_world import World, configure, spec

JOBS = 100
FIRST = "#!/bin/bash\n"


def longest(seed: int) -> JobSpec:
    """A job of a script of the greatest length, which does not compress much."""
    drawn = base64.b64encode(Random(seed).randbytes(SCRIPT_BYTES_MAX)).decode()
    lines = "\n".join(drawn[at : at + 76] for at in range(0, len(drawn), 76))
    command = command_of(FIRST + lines[: SCRIPT_BYTES_MAX - len(FIRST)], "train.sh").words
    job = spec(5)
    (worker,) = job.roles
    template = worker.template.model_copy(update={"command": tuple(command)})
    return job.model_copy(update={"roles": (worker.model_copy(update={"template": template}),)})


def test_a_hundred_scripts_of_the_greatest_length_all_reach_their_pods(loop: VirtualLoop) -> None:
    loop.run_until_complete(hundred(World(loop)))


async def hundred(world: World) -> None:
    await configure(world)
    jobs = [longest(seed) for seed in range(JOBS)]
    assert SCRIPT_BYTES_MAX < max(len(job.to_bytes()) for job in jobs) < SUBMIT_BYTES_MAX
    ids = [await world.submit(f"k{number}", job) for number, job in enumerate(jobs)]
    made: dict[str, list[str]] = {}
    for _ in range(200):
        await world.sleep(1)
        for pod in world.services.cluster.list("pods")[0]:
            made[pod.meta["name"].rsplit("-", 2)[0]] = pod.object["spec"]["containers"][0]["command"]
    assert [made[job] for job in ids] == [[*job.roles[0].template.command] for job in jobs]
    ended = {record.job_id: record.phase for record in world.records() if record.kind == "finished"}
    assert ended == dict.fromkeys(ids, "succeeded")
    stored = list(world.services.broker.stream(f"LEDGER_{SHARD}").messages.values())
    assert max(len(each.data) for each in stored) <= MESSAGE_BYTES_MAX
    assert max(len(read_plain(each).data) for each in stored) <= MESSAGE_BYTES_MAX
    assert sum(len(each.data) for each in stored) < 210_000 * JOBS
    await world.close()
