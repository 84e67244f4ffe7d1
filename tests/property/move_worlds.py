"""Clusters drawn by a seed in which moving runs may make room, and the plans that follow."""

from collections.abc import Iterator
from random import Random

from tessera.domain.entities import Job
from tessera.engine.defragmentation.search import defragmentation
from tessera.engine.preemption.plans import Plan
from tessera.engine.queueing.ordering import stuck_heads
from tessera_schemas.config import Queue
from tessera_schemas.facts import CheckpointSaved
from tests.builders import node_seen
from tests.rounds import Rounds

CLASSES = ("low", "normal", "high")


def world(seed: int) -> Rounds:
    """A shard that was full and in which some ended: what is free lies in pieces, and larger jobs wait."""
    chance = Random(seed)
    nodes = [node_seen(f"node-{n}", 8, labels={"rack": f"r{n % 2}"}) for n in range(chance.randrange(2, 5))]
    rules = {"preset": "off", "defragment": True, "defragment_moves_max": chance.choice((2, 8))}
    queues = [Queue(name=name) for name in "ab"]
    rounds = Rounds(*queues, nodes=nodes, **rules)
    left, number = 8 * len(nodes), 0
    while left > 3:
        gpus, pods = chance.choice((1, 1, 2, 2, 3)), chance.choice((1, 1, 1, 2))
        preemptible, priority = chance.random() < 0.9, chance.choice(CLASSES)
        rounds.submit(f"j{number}", gpus, pods, chance.choice("ab"), priority=priority, preemptible=preemptible)
        left, number = left - gpus * pods, number + 1
        rounds.round(plans=False)
    for _ in range(3):
        rounds.round(plans=False)
    for key in [job.key for job in rounds.state.jobs.values() if rounds.running(job.key)]:
        fate = chance.random()
        if fate < 0.5:
            rounds.finish(key)
        elif fate < 0.9:
            rounds.commit(CheckpointSaved(kind="checkpoint_saved", run_id=rounds.run(key).run_id), ms=60_000)
    for number in range(2):
        rounds.submit(f"wide{number}", chance.choice((6, 7, 8)), chance.choice((1, 1, 1, 2)), "a", priority="normal")
    for _ in range(3):
        rounds.round(plans=False)
    rounds.commit(ms=chance.choice((900_000, 3_600_000)))
    return rounds


def planned(rounds: Rounds) -> Iterator[tuple[Job, Plan]]:
    for job in stuck_heads(rounds.state, rounds.ts, 64):
        found = defragmentation(rounds.state, job, rounds.ts)
        if isinstance(found, Plan):
            yield job, found
