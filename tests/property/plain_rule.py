"""Every scoring policy, settled on one mix, and the plain rule by which pods are placed."""

from hypothesis import strategies as st

from tessera.domain.mix import Mix, MixKind
from tessera.domain.resources import Node, RoleNeed
from tessera.engine.placement.fits import fits, placed_on
from tessera.engine.placement.node_order import policy_for
from tessera.engine.placement.placement_groups import placement_groups
from tessera.engine.scoring.named.dotprod import DotProduct
from tessera.engine.scoring.named.fgd import FragmentationGradient
from tessera.engine.scoring.named.gpu_packing import GpuPacking
from tessera.engine.scoring.named.random import Random
from tessera.engine.scoring.price_aware import PriceAware
from tessera.engine.scoring.protocol import BEST_FIT, ScoringPolicy
from tessera_schemas.placement import Placement

MIX = Mix(
    "default",
    known=(
        (MixKind(1000, 0, 0), 20),
        (MixKind(1000, 500, 1), 30),
        (MixKind(2000, 1000, 1), 40),
        (MixKind(2000, 1000, 2, ("h100",)), 20),
        (MixKind(4000, 1000, 4), 5),
    ),
    largest_cpu_milli=8000,
)
TASTES: dict[str, ScoringPolicy] = {
    "tessera": PriceAware(MIX),
    "fgd": FragmentationGradient(MIX),
    "bestfit": BEST_FIT,
    "dotprod": DotProduct(),
    "gpu-packing": GpuPacking(),
    "random": Random(),
}
policies = st.sampled_from(sorted(TASTES))


def by_the_rule(gang: tuple[RoleNeed, ...], nodes: dict[str, Node], scoring: ScoringPolicy) -> list[Placement]:
    """Role by role: the best node by score, then name, until it is full, then the next best."""
    left, placed = dict(nodes), list[Placement]()
    for role in gang:
        (bundles,) = (bundles for group in placement_groups((role,)) for bundles in group.bundle_sets)
        judged, here = policy_for(bundles.kind, scoring), None
        for _ in range(role.replicas):
            if here is None or fits(role.need, left[here]) is not None:
                able = [node for node in left.values() if fits(role.need, node) is None]
                if not able:
                    return placed
                here = min(able, key=lambda node: (-judged.score(role.need, node), node.name)).name
            device = judged.device(role.need, left[here])
            placement = placed_on(left[here], role.need, len(placed), role.name, device)
            left[here] = left[here].taking(role.need, placement, 1)
            placed.append(placement)
    return placed
