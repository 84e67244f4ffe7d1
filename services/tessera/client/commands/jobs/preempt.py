"""`preempt --dry-run`: what preemption and reclamation would propose for a job."""

from textwrap import wrap
from typing import Annotated, Any

import typer

from tessera.client.commands.context import AccessOptions, Format, command
from tessera.client.ledger.reading import stored_ledger
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera.client.views.completing import JobReference
from tessera.client.views.rendering import COLUMNS, Column, Output, plain, show_value, table
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.defragmentation.search import defragmentation
from tessera.engine.explain.what_if import WhatIf
from tessera.engine.preemption.plans import Plan, Victim
from tessera.kernel.clock import SystemClock
from tessera.preemption.decide import preemption_plan
from tessera.reclamation.reclaim.decide import reclaim_plan
from tessera_schemas.facts import Move
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.units import format_age, format_milli


@command
async def preempt(
    at: AccessOptions,
    job: JobReference,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be evicted; needed")] = False,
    output: Format = Output.TABLE,
) -> Exit:
    """Show the plan that would make room for a job: who would be evicted, what work is lost, where it would start."""
    if not dry_run:
        raise Failure(
            Exit.USAGE, "preempt: only services carry out plans, by policy.preset; add --dry-run to see a plan"
        )
    where = at.find()
    job_id = await ordering.find_job_id(where, job, "plan for")
    async with stored_ledger(where, at.identity) as ledger:
        state = (await ledger.folded()).state
    waiting = state.jobs.get(job_id)
    if waiting is None or waiting.phase is not Phase.QUEUED:
        raise Failure(Exit.CONFLICT, f"job {job_id}: does not wait; see `tessera explain {job_id}`")
    found = planned(state, waiting, max(state.ts, SystemClock().now_ms()))
    if output.for_programs:
        show_value(output, _plain(state, found), state.n)
    else:
        print("\n".join(plan_lines(state, waiting, found)))
        print(f"as of {state.n}; nothing was sent")
    return Exit.OK if isinstance(found, Plan) else Exit.FAILED


def planned(state: State, job: Job, ts: int) -> Plan | Reason:
    """
    The plan that the services would propose: reclaim of lent quota, else preemption in its queue, else relocation.
    """
    kept_out = next((reason for reason in WhatIf(state, job, ts).gates(job) if reason.code in NO_PLAN_LIFTS), None)
    if kept_out is not None:
        return kept_out
    lent = reclaim_plan(state, job, ts)
    found = lent if isinstance(lent, Plan) else preemption_plan(state, job, ts)
    if isinstance(found, Plan) or not state.tree.policy.defragment:
        return found
    moves = defragmentation(state, job, ts, at_any_cost=True)
    return moves if isinstance(moves, Plan) or moves.code in TOLD else found


TOLD = (Code.NO_NET_GAIN, Code.MOVE_OFFERED)
"""Reasons of relocations that say more than those of other plans."""
NO_PLAN_LIFTS = (
    Code.NO_SUCH_QUEUE,
    Code.NO_SUCH_TENANT,
    Code.ON_HOLD,
    Code.HELD_BY_OPERATOR,
    Code.BACKOFF,
    Code.GANG_INCOMPLETE,
    Code.QUEUE_STOPPED,
    Code.BUDGET_SPENT,
    Code.NAMESPACE_REFUSES,
)
"""Reasons for which nobody plans: not room is missing, but the word of somebody, or time."""


def plan_lines(state: State, job: Job, found: Plan | Reason) -> list[str]:
    """The plan for people; at most 80 columns."""
    preset = state.tree.policy.preset
    if isinstance(found, Reason):
        head = f"preset {preset}: there is no plan for {job.name} ({job.job_id})"
        return [*_wrapped(head), *_wrapped(f"  {found.sentence()}")]
    nodes = sorted({placement.node for placement in found.placements})
    where = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    gpu_milli = sum(victim.gpu_milli for victim in found.victims)
    lost = sum(victim.gpu_milli * victim.lost_seconds for victim in found.victims)
    cost = f"{format_milli(gpu_milli)} GPUs, {format_age(lost)} of GPU time lost since last saved"
    pods = "1 pod" if len(found.placements) == 1 else f"{len(found.placements)} pods"
    outranked = [f"{len(found.outranked)} jobs of lower classes lose the room kept for them"] if found.outranked else []
    return [
        *_wrapped(f"preset {preset}, {found.cause}: {job.name} ({job.job_id})"),
        *_wrapped(f"  would start with {pods} on {where}"),
        f"  once these have stopped ({cost}):",
        *table(VICTIMS, found.victims),
        *(_goes_on(move) for move in found.moves),
        *([f"net gain: {format_age(found.net_gpu_seconds * 1000)} of GPU time"] if found.moves else []),
        *outranked,
    ]


def _wrapped(text: str) -> list[str]:
    return wrap(text, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def _goes_on(move: Move) -> str:
    nodes = sorted({placement.node for placement in move.placements})
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"  {move.run_id} continues on {nodes[0]}"[: COLUMNS - len(more)] + more


VICTIMS: list[Column[Victim]] = [
    Column("RUN", lambda victim: victim.run_id),
    Column("QUEUE", lambda victim: victim.queue, shrinks=True),
    Column("CLASS", lambda victim: victim.priority_class, shrinks=True),
    Column("GPUS", lambda victim: format_milli(victim.gpu_milli), right=True),
    Column("LOST", lambda victim: format_age(victim.lost_seconds * 1000), right=True),
    Column("PODS", lambda victim: f"{len(victim.ranks)} shrunk" if victim.ranks else "all"),
    Column("NODES", lambda victim: ", ".join(victim.nodes), shrinks=True),
]


def _plain(state: State, found: Plan | Reason) -> dict[str, Any]:
    preset = state.tree.policy.preset
    if isinstance(found, Reason):
        return {"preset": preset, "plan": None, "reason": plain(found)}
    return {"preset": preset, "plan": plain(found), "reason": None}
