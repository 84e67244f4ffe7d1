"""A cluster on which free GPUs lie scattered, and a gang that finds no room in one piece until others move."""

from typing import Any

from tessera_schemas.config import Queue
from tests.builders import node_seen
from tests.rounds import Rounds

HOUR_MS = 3_600_000


def scattered(*queues: Queue, queue: str = "research", **policy: Any) -> Rounds:
    """
    Two nodes of eight GPUs on which eight of sixteen GPUs are free, but no eight on one node: `a` and `b`, of one GPU
    each and hours old, lie on a node with six free, and node-b has two free beside `c` of six.
    """
    rounds = Rounds(*queues, nodes={"node-a": 8}, **{"preset": "off", "defragment": True} | policy)
    for key in ("a", "b"):
        rounds.submit(key, gpus=1, queue=queue)
    rounds.submit("meanwhile", gpus=6)
    rounds.settle()
    rounds.commit(node_seen("node-b", 8))
    rounds.submit("c", gpus=6)
    rounds.settle()
    rounds.finish("meanwhile")
    rounds.commit(ms=HOUR_MS)
    return rounds


def stuck(rounds: Rounds, gpus: int = 8, hours: int = 1, **more: Any) -> Rounds:
    """`gang` is told that there is no room, and waits so long."""
    rounds.submit("gang", gpus=gpus, **more)
    rounds.round(plans=False)
    rounds.commit(ms=hours * HOUR_MS)
    return rounds
