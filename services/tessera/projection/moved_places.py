"""Places, jobs and nodes that a ledger record touches, as far as the state before it says."""

from tessera.domain.devices.networks import pools_drawn, reached
from tessera.domain.state import State
from tessera_schemas.cluster.device_facts import DevicesSelected, LayoutSeen
from tessera_schemas.facts import AnyFact, NodeSeen
from tessera_schemas.ledger import Allocated, EarmarkEnded, EarmarkSet, Grown, Released
from tessera_schemas.shard.records import ResizeBegun, ResizeEnded
from tessera_schemas.work.placement import Placement


def nodes_moved(state: State, record: object) -> dict[str, None]:
    """Nodes on which the record takes or gives back capacity, or devices of a network that reaches them."""
    placements = placements_of(state, record)
    found = {placement.node: None for placement in placements}
    if pools := pools_drawn(placements):
        found |= {node.name: None for node in reached(state.nodes.values(), pools)}
    return found


def placements_of(state: State, record: object) -> tuple[Placement, ...]:
    """Placements at which the record takes or gives back capacity."""
    if isinstance(record, Allocated | Grown | EarmarkSet):
        return record.placements
    if isinstance(record, Released | ResizeBegun | ResizeEnded):
        run = state.runs.get(record.run_id)
        return () if run is None else run.places
    if isinstance(record, EarmarkEnded):
        mark = state.earmarks.get(record.owner)
        return () if mark is None else mark.placements
    return ()


def seen_anew(state: State, fact: AnyFact) -> tuple[dict[str, None], dict[str, None]]:
    """Jobs and nodes of which a fact about a node, or about devices that drivers publish, may change what is shown."""
    if isinstance(fact, NodeSeen):
        there = state.runs.found(state.index.runs_on.get(fact.name, ()))
        held_back = [run for run in there if run.held_back is not None]
        # A node may be of another flavor now, and so of another price.
        jobs = {run.job_id: None for run in (there if state.tree.money else held_back)}
        return jobs, {fact.name: None, **{place.node: None for run in held_back for place in run.places}}
    layout = fact.layout.digest() if isinstance(fact, LayoutSeen) else ""
    layout = fact.layout if isinstance(fact, DevicesSelected) else layout
    offers = ((name, node.offer) for name, node in state.nodes.items())
    shown = {name: None for name, offer in offers if offer is not None and layout in ("", offer.digest)}
    # Jobs in line count against quotas of GPUs as the devices that are known for their claims by now.
    return {job.job_id: None for job in state.claiming_jobs()}, shown
