"""Every scoring policy, settled on one mix, and the plain rule by which pods are placed."""

from dataclasses import replace

from hypothesis import strategies as st

from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera.domain.mix import Mix, MixKind
from tessera.engine.placement.fits import fits, placed_on
from tessera.engine.placement.placement_groups import placement_groups
from tessera.engine.placement.rows.table import policy_for
from tessera.engine.scoring.fgd import FragmentationGradient
from tessera.engine.scoring.price_aware import PriceAware
from tessera.engine.scoring.protocol import BEST_FIT, ScoringPolicy
from tessera.engine.scoring.published import DotProduct, GpuPacking, Random
from tessera_schemas.work.placement import Placement

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
    """
    Role by role: the best node by what its pods prefer, score, what is spared there, then name, until it is full, then
    the next best.
    """
    left, placed = dict(nodes), list[Placement]()
    for role in gang:
        asked = replace(role, need=replace(role.need, affinity_preferred=()))
        (bundles,) = (bundles for group in placement_groups((asked,)) for bundles in group.bundle_sets)
        judged, here = policy_for(bundles.kind, scoring), None
        for _ in range(role.replicas):
            if here is None or fits(role.need, left[here]) is not None:
                able = [node for node in left.values() if fits(role.need, node) is None]
                if not able:
                    return placed
                ranked = {
                    (-gained(role.need, n), -judged.score(role.need, n), *spared(role.need, n), n.name) for n in able
                }
                here = min(ranked)[-1]
            device = judged.device(role.need, left[here])
            placement = placed_on(left[here], role.need, len(placed), role.name, device)
            left[here] = left[here].taking(role.need, placement, 1)
            placed.append(placement)
    return placed


def gained(need: Need, node: Node) -> int:
    """Sum of the weights of what the pod prefers, as far as the node has it."""
    there = dict(node.labels)
    holds = {"Exists": lambda key, _: key in there, "In": lambda key, values: there.get(key) in values}
    return sum(
        weight
        for weight, terms in need.affinity_preferred
        if all(holds[operator](key, values) for key, operator, values in terms)
    )


def spared(need: Need, node: Node) -> tuple[int, int]:
    """Kinds of devices on the node that the pod does not ask for, and soft taints that it does not tolerate."""
    kinds = {name for name, _ in node.devices} - {name for name, _ in need.devices}
    asks_for_gpu = bool(need.gpus or need.gpu_milli or need.mig_profile)
    borne = {key for key, _, _ in need.tolerations} | {name for name, _ in need.devices}
    borne |= {"nvidia.com/gpu"} if asks_for_gpu else set()
    soft = [key for key, _, effect in node.taints if effect == "PreferNoSchedule"]
    return len(kinds) + bool((node.gpus or node.gpu_model) and not asks_for_gpu), sum(key not in borne for key in soft)
