"""
Place a whole gang or none of it.

Each pod in turn goes to the node that the pool's placement policy scores highest (`taste`), of equals to the one whose
name comes first. Which nodes a role may use at all, when its pods have to lie together or apart, is chosen before
(`topology`).
"""

from collections.abc import Mapping

from tessera.domain.gang import Gang, gang_of
from tessera.domain.resources import Node, RoleNeed
from tessera.engine.placement.attempt import Attempt
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.node_order import Ranks
from tessera.engine.placement.placement_groups import Part, Unit, units
from tessera.engine.placement.refusals import no_domain, no_fit, not_even
from tessera.engine.placement.topology import place_unit
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code, Reason


def place_gang(
    roles: tuple[RoleNeed, ...],
    nodes: Mapping[str, Node],
    places: FeasibleNodes | None = None,
    ranks: Ranks | None = None,
) -> tuple[Placement, ...] | Reason:
    """
    Choose node and devices for every pod, or say why not; `nodes` is not changed.

    `places` is what earlier gangs of the same pass have found out about the same nodes, and the taste by which one is
    chosen; `ranks` is how they ranked them.
    """
    done = try_to_place(gang_of(roles), nodes, places or FeasibleNodes(nodes), ranks)
    return done if isinstance(done, Reason) else done.placements


def try_to_place(
    gang: Gang, nodes: Mapping[str, Node], places: FeasibleNodes, ranks: Ranks | None = None
) -> Attempt | Reason:
    """The try that placed the whole gang, or why there is none."""
    if not any(node.ready for node in nodes.values()):
        return Reason(code=Code.NO_NODES)
    attempt = Attempt(gang, nodes, places, ranks)
    for unit in units(gang):
        failed = place_unit(unit, attempt)
        if failed is not None:
            return _why(failed, unit, attempt, gang.pods)
    return attempt


def _why(part: Part, unit: Unit, attempt: Attempt, pods: int) -> Reason:
    if unit.bound:
        return no_domain(part, unit, attempt, pods)
    if part.role.spread:
        return not_even(part, attempt, pods)
    return no_fit(part, attempt, pods)
