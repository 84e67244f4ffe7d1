"""The room that is kept ahead for a blocked job: when, where and since when; or why none is; and spare nodes. Pure."""

from collections.abc import Iterator

from tessera.domain.entities import Job
from tessera.domain.health.spares import find_spares
from tessera.engine.explain.blockers import Viewer, name_some
from tessera.engine.explain.what_if import WhatIf
from tessera.engine.placement.capacity import nodes_for
from tessera.engine.placement.gangs import place_gang
from tessera.engine.queueing.expected_starts import NOT_KNOWN, NoRoom, look_ahead
from tessera.engine.queueing.timeline import BLOCKED, KINDS_MAX
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.units import format_age


def describe_kept_room(what_if: WhatIf, job: Job, pool: str, viewer: Viewer) -> Iterator[str]:
    """Sentences on it; none where the job fits, has an earmark, or waits for other things than ends of runs."""
    state, code = what_if.state, None if job.reason is None else job.reason.code
    if job.held or state.tree.stopped(job.queue) is not None:
        yield "No room is kept for it as long as it is held or its queue is stopped."
        return
    if not what_if.position or state.earmarks.get(job.job_id) is not None or code not in (*BLOCKED, Code.RESERVED):
        return
    # With the whole line, as in the pass: others before it may have taken the depth.
    found = look_ahead(state, pool, state.jobs.found(what_if.order)).get(job.job_id)
    if found is None or isinstance(found, NoRoom):
        yield f"No room is kept for it: {_why_none(what_if, job, found, viewer)}."
        return
    room = f"room is kept on {name_some(found.nodes)}"
    if found.is_guess:
        yield f"Its start is {NOT_KNOWN}; {room} from when the runs there end."
    else:
        yield f"If runs end as expected it starts {found.words(state.ts)}; {room}."
    # `told_ts` is of the reason that stands, which is told anew only when its code changes.
    if code is Code.RESERVED:
        yield f"Room has been kept for it for {format_age(state.ts - job.told_ts)}."
    else:
        yield "Nobody could take that room from it yet; it is Reserved as soon as a later job could."


def describe_spares(what_if: WhatIf, job: Job, pool: str) -> Iterator[str]:
    """Nodes that are kept as spares of the pool, and whether the job would find room with them."""
    state, spares = what_if.state, find_spares(what_if.state, pool)
    if not spares:
        return
    flavors = [f for f in state.tree.flavors_for(job.queue, job.amount) if what_if.book.lacks(job, f) is None]
    there = ({node.name: node for node in nodes_for(state, pool, flavor, (), True)} for flavor in flavors)
    fits = any(not isinstance(place_gang(job.roles, nodes), Reason) for nodes in there)
    kept = f"{name_some(sorted(spares))}, kept as {'a spare' if len(spares) == 1 else 'spares'} of pool {pool}"
    if job.displaced:
        yield f"It may start on {kept}: a node of its last run was lost or sick."
    else:
        found = "It would find room with" if fits else "No room for it is on"
        yield f"{found} {kept}: only jobs whose run ended for a lost or sick node start there (pools.spare_nodes)."


def _why_none(what_if: WhatIf, job: Job, found: NoRoom | None, viewer: Viewer) -> str:
    policy = what_if.state.tree.policy
    if found is None:
        if policy.backfill != "reserve":
            return f"whoever fits may start (policy.backfill is {policy.backfill})"
        return f"it has to wait for {policy.backfill_patience_seconds} s first (policy.backfill_patience_seconds)"
    if found.why == "never":
        return "no end of a run makes any"
    if found.why == "kinds":
        return f"{KINDS_MAX} kinds of jobs before it are looked at"
    shown = [f"{other.name} ({other.job_id})" for other in found.others if viewer.may_see(other.tenant)]
    others = name_some(shown) if shown else "another tenant's job"
    most = f"{policy.backfill_depth} at a time (policy.backfill_depth)"
    return f"on nodes that it could use it is kept for {most}, now for {others}"
