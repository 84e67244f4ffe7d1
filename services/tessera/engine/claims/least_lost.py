"""
Choice among nodes for pods with claims: where the usual claims lose least, then best fit.

Loss comes before fullness, since a hole that no usual claim fills stays idle on a full node as well. Of draws that lose
equally the fullest node keeps others whole.
"""

from functools import lru_cache

from tessera.domain.devices.claims import ClaimNeed
from tessera.domain.devices.resources import WHOLE_GPU, Need, Node
from tessera.engine.claims.drawing import FreeOffer, draw, free_devices
from tessera.engine.claims.extended import claims_on
from tessera.engine.claims.islands import after, islands_of
from tessera.engine.claims.pieces import lost_of, usual_devices
from tessera.engine.claims.shortages import Shortage
from tessera.engine.scoring.protocol import BEST_FIT, TightDevice

# A cost has 16 bits below its score (`ScoringPolicy.words`), so that best fit keeps its words and loss has its own.
BEST_FIT_BITS = 62 * BEST_FIT.words - 16


class LeastLost(TightDevice):
    """The least loss of usual pieces of GPUs, then the least GPU, CPU and memory free."""

    words = BEST_FIT.words + 1
    whole_gpu = WHOLE_GPU << BEST_FIT_BITS

    def score(self, need: Need, node: Node) -> int:
        """Score that is higher the less the usual claims lose by the pod, then the fuller the node is."""
        loss = lost_on(free_devices(node), claims_on(need, node)) if node.pieces else 0
        return BEST_FIT.score(need, node) - (loss << BEST_FIT_BITS)


LEAST_LOST = LeastLost()


@lru_cache(maxsize=8_192)
def lost_on(devices: FreeOffer, claims: tuple[ClaimNeed, ...]) -> int:
    """Thousandths of GPUs that the draw for these claims loses (`pieces.lost`); 0 where there is no draw."""
    drawn, usual = draw(devices, claims), usual_devices(devices.offer, *devices.pieces[:1])
    if isinstance(drawn, Shortage) or not usual:
        return 0
    of_node, loss = devices.offer.devices, 0
    taken = {each.index for each in drawn if not each.admin and not of_node[each.index].is_shared}
    had = {index for index, _ in devices.taken}
    for island in islands_of(devices.offer, ())[0]:
        # Islands that the draw leaves alone lose nothing, and most of a node's are.
        mine = [local for local, index in enumerate(island.devices) if index in taken]
        if not mine:
            continue
        # As in the draw, what others have counts before anything else; no order of draws leaves another island.
        before = island.make.untouched
        for local, index in enumerate(island.devices):
            if index in had:
                before = after(island.make, before, local, None)
        now = before
        for local in mine:
            now = after(island.make, now, local, None)
        loss += lost_of(island, before, now, usual, sum(of_node[island.devices[at]].gpu_milli for at in mine))
    return loss
