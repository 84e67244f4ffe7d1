"""
Facts about nodes: how they are now, and which take nothing new for a while.

Nodes on which pods do not start or last take no others for a while, whosever they are.

A stuck device plugin, a full disk or a dead image store refuses each pod that comes: without a pause a whole array is
sent there, task by task, past nodes that are well. The pause doubles from seconds to minutes and ends with the first
run that starts, so that one pod at a time finds out. Programs that fail within seconds of their start count for the
node only if they are of several jobs, and keep no more than a part of a pool from use: a broken program fails anywhere.

A change of MIG geometry ends by what is seen of its node: the mig-manager's word, and after a success the instances
themselves. It never ends by time, since a mig-manager that comes back late cuts the GPUs under whatever runs there. One
that failed is taken back first, with the node still closed; then the node is left alone for longer each time.
"""

from operator import attrgetter

from tessera.domain.devices.datasets import told_nodes
from tessera.domain.devices.mig.changes import FAILED, SUCCESS, changes_by_pool, instances_of
from tessera.domain.devices.offers import DeviceClass, KnownSelection, selection_key
from tessera.domain.devices.resources import Need
from tessera.domain.devices.slots import is_as_seen, while_held
from tessera.domain.entities import MigChange, Run
from tessera.domain.health.known import Fence, describe
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.domain.work.stops import against_fence, against_fence_of_sick, ailment_to_fence
from tessera.engine.defragmentation.mig_changes import against_change
from tessera.scheduler.decide.draft import Draft, judges
from tessera.scheduler.decide.restarts import keep_rest
from tessera_schemas.base import job_id
from tessera_schemas.cluster.device_facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.cluster.fencing import FenceAnswered, FenceDue
from tessera_schemas.cluster.health import HealthCause
from tessera_schemas.cluster.labels import MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL
from tessera_schemas.cluster.mig_changes import MigChangeProposed
from tessera_schemas.cluster.pools import MigChanges
from tessera_schemas.facts import NodeSeen
from tessera_schemas.ledger import (
    DevicesNoted,
    EarmarkEnded,
    FenceAsked,
    FenceEnded,
    MigChangeBegun,
    MigChangeEnded,
    NodeBackedOff,
    NodeChanged,
    PlanRefused,
    Waiting,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import NODE_EVENTS_FROM, TOLD_DATA_FROM
from tessera_schemas.shard.records import DatasetNoted, DatasetTold
from tessera_schemas.work.run_ends import end_of

FIRST_MS, LONGEST_MS = 5_000, 300_000
FIRST_RETRY_MS, LONGEST_RETRY_MS = 300_000, 86_400_000
"""How long a node is left alone after a change of its MIG geometry failed, from the first to the longest."""
QUICK_MS = 30_000
"""A program that fails later than so long after its start says nothing of its node here."""
JOBS_MIN = 3
"""Programs of so many jobs and arrays in a row make a node suspect."""
SUSPECTS_PART = 10
"""One in so many of a pool's nodes, and one at least, is kept from use for failed programs."""
LAYOUTS_MAX, CLASSES_MAX, SELECTIONS_MAX = 1_024, 1_024, 8_192
"""What the state keeps of each; beyond, nothing more is taken in, and nodes of further layouts have no such devices."""


@judges(NodeSeen)
def on_node_seen(draft: Draft, index: int, fact: NodeSeen) -> None:
    """Records how a node is now if anything changed, and ends earmarks on devices that it no longer has."""
    note_answer(draft, fact)
    end_fence_of(draft, fact)
    before = draft.state.nodes.get(fact.name)
    seen = while_held(fact, before)
    if is_as_seen(before, seen):
        return
    draft.add(NodeChanged(kind="node_changed", fact=index))
    usable = seen.ready and not seen.gone and seen.trouble is None
    end_earmarks_on(draft, seen.name, devices_from=seen.gpus if usable else None)


def end_earmarks_on(draft: Draft, node: str, devices_from: int | None = None) -> None:
    """End earmarks on a node that is no longer available, or only on its devices from number `devices_from` on."""
    for mark in sorted(draft.state.earmarks.values(), key=lambda mark: mark.owner):
        there = [p for p in mark.placements if p.node == node]
        lost = [p for p in there if devices_from is None or any(d >= devices_from for d in p.devices)]
        if lost:
            draft.add(EarmarkEnded(kind="earmark_ended", owner=mark.owner, why="node_lost"))
            keep_rest(draft, mark, lost)


@judges(DatasetTold)
def on_dataset_told(draft: Draft, index: int, fact: DatasetTold) -> None:
    """Records what is news of a node that the tenant may use."""
    if draft.state.format >= TOLD_DATA_FROM and told_nodes(draft.state, fact.tenant, fact.dataset, fact.places):
        draft.add(DatasetNoted(kind="dataset_noted", fact=index))


@judges(LayoutSeen)
def on_layout_seen(draft: Draft, index: int, fact: LayoutSeen) -> None:
    """Records a layout that is not known."""
    state = draft.state
    # Each binder tells of a layout that it does not find in the ledger yet, so that several may at once.
    if state.layouts.get(fact.layout.digest()) is None and len(state.layouts) < LAYOUTS_MAX:
        draft.add(DevicesNoted(kind="devices_noted", fact=index))


@judges(ClassSeen)
def on_class_seen(draft: Draft, index: int, fact: ClassSeen) -> None:
    """Records a class that is new, another one than before, or gone."""
    known = draft.state.device_classes.get(fact.name)
    # Two binders may tell of one class while partitions move: the second says nothing new, and no offer is made anew.
    now = None if fact.gone else DeviceClass(fact.name, fact.selectors, fact.extended_resource)
    if known != now and (known is not None or len(draft.state.device_classes) < CLASSES_MAX):
        draft.add(DevicesNoted(kind="devices_noted", fact=index))


@judges(DevicesSelected)
def on_devices_selected(draft: Draft, index: int, fact: DevicesSelected) -> None:
    """Records what expressions take of a layout that is known."""
    state, key = draft.state, selection_key(fact.layout, fact.selectors)
    # Of a layout that nobody names any more the answer comes too late, and would be kept for ever.
    known = state.selections.get(key)
    if state.layouts.get(fact.layout) is None or known == KnownSelection(key, fact.devices, fact.error):
        return
    if known is not None or len(state.selections) < SELECTIONS_MAX:
        draft.add(DevicesNoted(kind="devices_noted", fact=index))
        if fact.error:
            _tell_owners(draft, fact)


def _tell_owners(draft: Draft, fact: DevicesSelected) -> None:
    """Tells jobs in line whose expression ends in an error: of one that found no room before nothing else is news."""
    state, failed = draft.state, {*fact.selectors}
    for job in sorted(state.claiming_jobs(), key=attrgetter("job_id")):
        role = next((role for role in job.roles if failed in _selectors(state, role.need)), None)
        told = "" if job.reason is None else job.reason.detail
        if role is not None and job.phase is Phase.QUEUED and fact.error not in told:
            reason = Reason(code=Code.NO_FIT, field=f"roles.{role.name}", detail=fact.error)
            draft.add(Waiting(kind="waiting", job_id=job.job_id, reason=reason))


def _selectors(state: State, need: Need) -> list[set[str]]:
    """Expressions that each choice of the pod's claims has together with its class."""
    choices = [choice for claim in need.claims for request in claim.requests for choice in request.choices]
    known = [(state.device_classes.get(choice.device_class), choice) for choice in choices]
    return [{*found.selectors, *choice.selectors} for found, choice in known if found is not None]


@judges(FenceDue)
def on_fence_due(draft: Draft, index: int, fact: FenceDue) -> None:
    """Ask the webhook to turn the node off, unless something is against it by now."""
    state = draft.state
    if fact.sick:
        ailment = ailment_to_fence(state, fact.node)
        if ailment is not None and not against_fence_of_sick(state, fact.node, state.ts):
            why = f"{describe(ailment)}; out for it for {fact.seconds} s"
            _ask_fence(draft, fact.node, why, cause=ailment.ailment.cause)
    elif not against_fence(state, fact.node):
        _ask_fence(draft, fact.node, f"silent for {fact.seconds} s, and stopped runs hold something there")


def pool_told(state: State, node: str) -> str:
    """Pool under which operators are told of the node; "" where they are not, or the node is no more."""
    known = state.nodes.get(node) if state.format >= NODE_EVENTS_FROM else None
    return "" if known is None else known.pool


def _ask_fence(draft: Draft, node: str, why: str, cause: HealthCause | None = None) -> None:
    state = draft.state
    # The ledger's identity is in the key: a webhook may remember the requests of a ledger that is no more.
    request, pool = job_id(state.ledger_id, node, str(state.n)), pool_told(state, node)
    draft.add(FenceAsked(kind="fence_asked", node=node, request=request, why=why, pool=pool, cause=cause))


@judges(FenceAnswered)
def on_fence_answered(draft: Draft, index: int, fact: FenceAnswered) -> None:
    """End the request that is open; an answer to any other comes too late, and that a node is off while it answers."""
    # An answer to a request before this one may have waited for the whole time of that loss.
    fence, node = draft.state.fences.get(fact.node), draft.state.nodes.get(fact.node)
    if fence is None or fence.request != fact.request or fence.outcome:
        return
    if fact.outcome != "off" or (node is not None and node.silent):
        end_fence(draft, fence, fact.outcome, fact.detail)


def end_fence_of(draft: Draft, seen: NodeSeen) -> None:
    """Ends the open request for a node that is gone, or is seen to answer where it was asked for its silence."""
    fence = draft.state.fences.get(seen.name)
    answers = (seen.ready or seen.cordoned) and fence is not None and not fence.cause
    if fence is not None and not fence.outcome and (answers or seen.gone):
        end_fence(draft, fence, "gone" if seen.gone else "back")


def end_fence(draft: Draft, fence: Fence, outcome: str, detail: str = "") -> None:
    """Ends a request."""
    ended = {"kind": "fence_ended", "node": fence.node, "request": fence.request}
    ended["pool"] = pool_told(draft.state, fence.node)
    draft.add(FenceEnded.model_validate({**ended, "outcome": outcome, "detail": detail}))


def back_off(draft: Draft, node: str, reason: Reason) -> None:
    """Let a node that kept pods from starting or lasting take no others for a while, longer each time."""
    state = draft.state
    before, known = state.backoffs.get(node), state.nodes.get(node)
    if known is None or known.gone or (before is not None and before.until_ts > state.ts):
        return  # who was sent before says the same once more
    times = 1 if before is None else before.times + 1
    until = state.ts + min(FIRST_MS << min(times - 1, 16), LONGEST_MS)
    failed = () if before is None else before.failed
    draft.add(
        NodeBackedOff(kind="node_backed_off", node=node, until_ts=until, reason=reason, times=times, failed=failed)
    )


def note_end(draft: Draft, run: Run, node: str, reason: Reason) -> None:
    """Draw from the end of a run's pod on a node what it means for others that might be sent there."""
    if end_of(reason.code).backs_off:
        back_off(draft, node, reason)
    elif reason.code is Code.POD_FAILED:
        _note_failure(draft, run, node, reason)


def failed_quickly(run: Run) -> bool:
    """Whether the run's program failed within seconds of its start."""
    failed = run.revoked is not None and run.revoked.code is Code.POD_FAILED
    return failed and run.started and run.stopped_ts - run.started_ts <= QUICK_MS


def _note_failure(draft: Draft, run: Run, node: str, reason: Reason) -> None:
    state = draft.state
    job, before = state.jobs.get(run.job_id), state.backoffs.get(node)
    if job is None or not run.started or state.ts - run.started_ts > QUICK_MS or state.nodes.get(node) is None:
        return
    whose = job.task_of or job.job_id
    failed = () if before is None else before.failed
    if whose in failed:
        return
    failed = (*failed, whose)[-JOBS_MIN:]
    until, times = (0, 0) if before is None else (before.until_ts, before.times)
    draft.add(
        NodeBackedOff(kind="node_backed_off", node=node, until_ts=until, reason=reason, times=times, failed=failed)
    )
    if len(failed) == JOBS_MIN and _may_suspect(state, node):
        back_off(draft, node, reason)


def _may_suspect(state: State, node: str) -> bool:
    """Whether few enough nodes of the pool are kept from use for failed programs: else the programs are to blame."""
    known = state.nodes.get(node)
    pool = "" if known is None else known.pool
    suspects = [
        name
        for name, backoff in state.backoffs.items()
        if backoff.failed and backoff.until_ts > state.ts and (other := state.nodes.get(name)) and other.pool == pool
    ]
    there = sum(1 for other in state.nodes.values() if other.pool == pool and not other.gone)
    return len(suspects) < max(1, there // SUSPECTS_PART)


@judges(MigChangeProposed)
def on_mig_change_proposed(draft: Draft, index: int, fact: MigChangeProposed) -> None:
    """Begin the change, if the node is idle still and the bounds of its pool allow it."""
    found = against_change(draft.state, fact)
    if isinstance(found, Reason):
        draft.add(PlanRefused(kind="plan_refused", fact=index, job_id=fact.job_id, reason=found))
        return
    before, gpus = found
    draft.add(
        MigChangeBegun(
            kind="mig_change_begun",
            job_id=fact.job_id,
            node=fact.node,
            config=fact.config,
            before=before.name,
            gpus=gpus,
        )
    )


def note_answer(draft: Draft, seen: NodeSeen) -> None:
    """Ends the change of a node, if any, by what is seen of the node now."""
    state = draft.state
    change, changes = state.mig_changes.get(seen.name), _allowed(state, seen.name)
    if change is None or change.ended_ts:
        return
    interval_ms = (0 if changes is None else changes.interval_seconds) * 1000
    if seen.gone:
        _end(draft, change, "gone", state.ts)
    elif seen.labels.get(MIG_CONFIG_LABEL) != change.config:
        return  # the binder has not asked yet
    elif seen.labels.get(MIG_CONFIG_STATE_LABEL) == FAILED:
        # Taken back once, and not again: what cannot be cut back either is for the operator to look at.
        times = change.times + 1
        until = state.ts + max(interval_ms, min(FIRST_RETRY_MS << min(times - 1, 16), LONGEST_RETRY_MS))
        ended = MigChangeEnded(
            kind="mig_change_ended",
            node=change.node,
            outcome="failed",
            until_ts=until,
            times=times,
            undo=not change.undo,
        )
        draft.add(ended)
    elif seen.labels.get(MIG_CONFIG_STATE_LABEL) == SUCCESS and changes is not None and _agrees(seen, change, changes):
        if change.undo:
            _end(draft, change, "undone", change.until_ts, change.times)
        else:
            _end(draft, change, "done", state.ts + interval_ms)


def give_up_changes(draft: Draft) -> None:
    """Ends changes that the configuration no longer has."""
    state = draft.state
    # The operator's way out where no mig-manager answers; the node opens with the next that is seen of it.
    there = [change for change in state.mig_changes.values() if not change.ended_ts]
    for change in sorted(there, key=attrgetter("node")):
        changes = _allowed(state, change.node)
        if changes is None or changes.named(change.config) is None:
            _end(draft, change, "given_up", state.ts, change.times)


def _allowed(state: State, name: str) -> MigChanges | None:
    node = state.nodes.get(name)
    return None if node is None else changes_by_pool(state.tree.pools).get(node.pool)


def _agrees(seen: NodeSeen, change: MigChange, changes: MigChanges) -> bool:
    config = changes.named(change.config)
    return config is not None and seen.mig_instances == instances_of(config, change.gpus)


def _end(draft: Draft, change: MigChange, outcome: str, until_ts: int, times: int = 0) -> None:
    ended = {"kind": "mig_change_ended", "node": change.node, "outcome": outcome, "until_ts": until_ts, "times": times}
    draft.add(MigChangeEnded.model_validate(ended))
