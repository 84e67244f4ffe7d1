"""
The protocol of scoring policies; best fit, which also serves where no policy is asked; and what pods bring themselves:
data that they read, and nodes that they prefer.
"""

from typing import Protocol

from tessera.domain.devices.datasets import MILLIONTHS, cost_of_reading
from tessera.domain.devices.resources import WHOLE_GPU, Need, Node, NodePreferences

WORD = 62  # bits


class ScoringPolicy(Protocol):
    by_name: bool
    """Whether nodes that are equal but for their names may get different scores."""
    words: int
    """Number of words (`WORD`) that a score and 16 bits more take."""

    whole_gpu: int
    """Fall of a score where a whole GPU is lost, about: the unit of what else speaks against a node."""

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
    whole_gpu = 100

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
    whole_gpu = WHOLE_GPU << 128

    def score(self, need: Need, node: Node) -> int:
        """Score that is higher the less GPU is free, then the less CPU, then the less memory."""
        return -((sum(node.gpu_free) << 128) + (node.cpu_free << 64) + node.memory_free)


BEST_FIT = BestFit()


class DataNear:
    """The scoring for pods that read data sets: less where they have to read one, by what their GPUs lose meanwhile."""

    def __init__(self, scoring: ScoringPolicy) -> None:
        self._scoring = scoring
        self.by_name, self.words, self.whole_gpu = scoring.by_name, scoring.words, scoring.whole_gpu

    def score(self, need: Need, node: Node) -> int:
        """Score of the other policy, less what is lost by reading."""
        # Instances are scored in another unit than whole GPUs: each policy says what a GPU is in its own.
        return self._scoring.score(need, node) - cost_of_reading(need, node) * self.whole_gpu // MILLIONTHS

    def device(self, need: Need, node: Node) -> int | None:
        """The device that the other policy takes."""
        return self._scoring.device(need, node)


class PreferredFirst:
    """
    The scoring for pods that prefer some nodes: the sum of the weights first, then the score of another policy.

    Both stand in one number, so that whatever orders nodes by scores orders them by preference without knowing of it.
    """

    def __init__(self, scoring: ScoringPolicy, preferred: NodePreferences) -> None:
        self._scoring, self._preferred = scoring, preferred
        self.by_name, self.words, self.whole_gpu = scoring.by_name, scoring.words + 1, scoring.whole_gpu

    def score(self, need: Need, node: Node) -> int:
        """The score, with the sum of the weights in a word of its own above it."""
        # A word above all words of the other score, so that no fragmentation outweighs what somebody asked for.
        return self._scoring.score(need, node) + (weight_on(self._preferred, node) << WORD * self._scoring.words)

    def device(self, need: Need, node: Node) -> int | None:
        """The device that the other policy takes."""
        return self._scoring.device(need, node)


def weight_on(preferred: NodePreferences, node: Node) -> int:
    """Sum of the weights of what is preferred, as far as the node has it."""
    return sum(weight for weight, conditions in preferred if node.meets(conditions))
