"""Small traces with lifetimes, for the tests here."""

from random import Random

from tessera_lab.churn.lifetimes import Timed
from tessera_lab.traces.alibaba import Trace, TraceNode, TracePod

NODE = TraceNode(32_000, 1_000_000, 4, "A")


def timed(pods: list[tuple[TracePod, int]], nodes: tuple[TraceNode, ...] = (NODE,) * 8) -> Timed:
    """Pods with their seconds."""
    return Timed(Trace("made", nodes, tuple(pod for pod, _ in pods)), tuple(life for _, life in pods), 0, 0)


def mixed(seed: int = 1, pods: int = 60) -> Timed:
    """Shares, whole GPUs and whole nodes, most short and a few very long."""
    random = Random(seed)
    kinds = (1, 300), (1, 500), (1, 1000), (1, 1000), (2, 1000), (4, 1000), (0, 0)
    made = []
    for _ in range(pods):
        gpus, milli = random.choice(kinds)
        pod = TracePod(random.randrange(1, 6) * 1000 * max(1, gpus), 1000, gpus, milli)
        made.append((pod, random.choice((60, 600, 600, 6000, 100_000))))
    return timed(made)
