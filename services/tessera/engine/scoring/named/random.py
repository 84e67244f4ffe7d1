"""Any node, by a hash."""

from hashlib import blake2b

from tessera.domain.devices.resources import Need, Node
from tessera.domain.mix import Mix
from tessera.engine.scoring.protocol import ScoringPolicy, TightDevice


class Random(TightDevice):
    """
    Any node: a fixed hash of its name and of what is free there, so that a replay draws the same.

    A node that took a pod is drawn anew; one that did not comes first again until somebody starts there or leaves.
    """

    by_name = True

    def score(self, need: Need, node: Node) -> int:
        """Score drawn by a hash of the node's name and free room, from 0 to 2**32 - 1."""
        drawn = blake2b(repr((node.name, node.gpu_free, node.cpu_free, node.pods_free)).encode(), digest_size=4)
        return int.from_bytes(drawn.digest(), "big")


RANDOM = Random()


def policy(mix: Mix) -> ScoringPolicy:
    """Random choice, whatever the mix."""
    return RANDOM
