"""Ways to divide a node for an account: by its flavor, or by its model, its rack or what took it out. Pure."""

from collections.abc import Callable, Sequence

from tessera.domain.devices.resources import Node
from tessera.domain.state import State
from tessera.engine.accounts.owners import Division, GpuCause, HeldPod, divided
from tessera_schemas.config import Level

RACK = "rack"
NodeDivider = Callable[[State, Node, Sequence[HeldPod], GpuCause | None], Division]
"""Divides a node by who holds what of it; the last one says why it takes nothing new, however well it is."""


def by_flavor(state: State, node: Node, held: Sequence[HeldPod], shut: GpuCause | None) -> Division:
    """Owners of what the node has."""
    return divided(node, state.tree.flavor_of(node), held, shut)


def rack_level(levels: Sequence[Level]) -> Level | None:
    """The topology level `rack`, else the narrowest one; None where none is configured."""
    return next((level for level in levels if level.name == RACK), levels[-1] if levels else None)


def by_rack(state: State, node: Node, held: Sequence[HeldPod], shut: GpuCause | None) -> Division:
    """Owners of what the node has, whose flavor is the name of its rack, "" where the node has none."""
    # The name takes the place of the flavor, so that rows are named and kept as those of flavors are.
    level = rack_level(state.tree.topology)
    return divided(node, ("" if level is None else node.label(level.label)) or "", held, shut)


def by_model(state: State, node: Node, held: Sequence[HeldPod], shut: GpuCause | None) -> Division:
    """Owners of what the node has, whose flavor is the name of its GPU model, "" where it is not known."""
    return divided(node, node.gpu_model, held, shut)


def by_decision(state: State, node: Node, held: Sequence[HeldPod], shut: GpuCause | None) -> Division:
    """Owners of what the node has; of a node that is out the flavor says which one, and who or what took it out."""
    drain, backoff, why = state.drains.get(node.name), state.backoffs.get(node.name), ""
    if drain is not None:
        who = "sick" if drain.by else "drained"
        why = f"{who}: {drain.why}" if drain.why else who
    elif node.cordoned:
        why = "cordoned"
    elif not node.ready:
        why = "not ready" if node.trouble is None else str(node.trouble.code)
    elif shut is GpuCause.OUT and backoff is not None:
        why = f"backed off: {backoff.reason.code}"
    return divided(node, f"out: {node.name} {why}" if why else "", held, shut)
