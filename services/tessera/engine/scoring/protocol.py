"""The protocol of scoring policies, and best fit, which also serves where no policy is asked."""

from typing import Protocol

from tessera.domain.devices.resources import Need, Node


class ScoringPolicy(Protocol):
    by_name: bool
    """Whether nodes that are equal but for their names may get different scores."""
    words: int
    """Number of words of 62 bits that a score and 16 bits more take."""

    def score(self, need: Need, node: Node) -> int:
        """
        Score of the node for a pod that fits it; higher is better, and of equals the first by name wins.

        Of two pods that ask for equal GPUs, the one that asks for more CPU gets no higher score. What else they ask
        for, as memory and labels, changes no score.
        """

    def device(self, need: Need, node: Node) -> int | None:
        """The device that a share takes there; None: the one with the least left, then the lowest."""


class TightDevice:
    """A share goes to the device with the least left, then the lowest."""

    by_name = False
    words = 1

    def device(self, need: Need, node: Node) -> int | None:
        """Returns None: a share takes the device with the least left, then the lowest."""
        return None


class BestFit(TightDevice):
    """
    Best fit: least GPU free, then least CPU, then least memory.

    It also serves where no policy is asked, since only whether a gang has room counts, and for MIG instances, which
    no mix prices.
    """

    words = 3

    def score(self, need: Need, node: Node) -> int:
        """Score that is higher the less GPU is free, then the less CPU, then the less memory."""
        return -((sum(node.gpu_free) << 128) + (node.cpu_free << 64) + node.memory_free)


BEST_FIT = BestFit()
