"""Fold of records about the shard itself: format, epoch, configuration, nodes, prices, budgets. Pure."""

from collections.abc import Sequence
from typing import Any

from tessera.domain.devices.datasets import keep_told, told_nodes
from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Node
from tessera.domain.devices.slots import while_held
from tessera.domain.entities import Drain, Earmark, NodeBackoff, PublishedSlots, RefusedWork, Run
from tessera.domain.errors import Contradiction, UnknownFormat
from tessera.domain.folding.books import put_in_force
from tessera.domain.folding.device_offers import with_drawn_elsewhere, with_offer
from tessera.domain.folding.spending import BudgetUse, budget_names, charge, count_anew, counted, level_of
from tessera.domain.folding.steps import (
    applies,
    count_costs,
    count_limited,
    count_task,
    forget_node,
    is_aside,
)
from tessera.domain.health.known import Fence, may_ask_again, may_end, with_sick_slots
from tessera.domain.quota.bookings import REPLACED_MAX, Booking
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.domain.work.evidence import remember
from tessera.domain.work.gang import bearing
from tessera.domain.work.stops import is_kept_out
from tessera_schemas.cluster.devices import NAMES_NO_CARDS
from tessera_schemas.cluster.fencing import FENCED_WITHIN_MS
from tessera_schemas.config import Config
from tessera_schemas.facts import ConfigProposed, NodeSeen, PricesLearnt, WorkRefused
from tessera_schemas.ledger import (
    FORMAT,
    Booked,
    BookingEnded,
    BookingRefused,
    BudgetGranted,
    BudgetReached,
    BudgetReopened,
    Checkpoint,
    ConfigRefused,
    ConfigSet,
    EpochOpened,
    FenceAsked,
    FenceEnded,
    FormatRaised,
    JobTurnedAway,
    LeftChanged,
    MixPriced,
    NodeBackedOff,
    NodeChanged,
    NodeDrained,
    PlanRefused,
    PricesRefused,
    RefusalNoted,
    TakenFact,
)
from tessera_schemas.shard.bookings import PROMISE_ENDS, BookingShort, Rebooked
from tessera_schemas.shard.ledger_form import ARRAY_SLOTS_FROM, POOL_PARTS_FROM, SUMS_FROM
from tessera_schemas.shard.records import DatasetNoted, DatasetTold
from tessera_schemas.work.budgets import MICROS

FORMAT_OF_MEMORY = 4
"""Before, no node was remembered: states hash as they did."""


@applies(Checkpoint, ConfigRefused, JobTurnedAway, PlanRefused, PricesRefused)
def apply_nothing(state: State, record: Any, facts: Sequence[TakenFact]) -> None:
    """An audit record: it stands in the ledger and changes nothing."""


@applies(FormatRaised)
def apply_format_raised(state: State, record: FormatRaised, facts: Sequence[TakenFact]) -> None:
    """Sets the format of later records; raises UnknownFormat for one that this build does not know."""
    if record.format > FORMAT:
        raise UnknownFormat(f"record {state.n}: the ledger uses format {record.format}, this build knows {FORMAT}")
    before, state.format = state.format, record.format
    put_in_force(state, state.config)  # what the configuration does not name counts otherwise from here on
    for task in list(state.jobs.values()) if before < ARRAY_SLOTS_FROM else ():
        if is_aside(state, task):
            count_task(state, task, aside=1)


@applies(EpochOpened)
def apply_epoch_opened(state: State, record: EpochOpened, facts: Sequence[TakenFact]) -> None:
    """Begins the epoch of a new committer; raises Contradiction unless its number is higher than the last."""
    if record.epoch <= state.epoch:
        raise Contradiction(f"record {state.n}: epoch {record.epoch} opened after {state.epoch}")
    state.epoch = record.epoch


@applies(ConfigSet)
def apply_config_set(state: State, record: ConfigSet, facts: Sequence[TakenFact]) -> None:
    """Puts a proposed configuration in force; raises Contradiction unless its version is the next."""
    fact = facts[record.fact].fact
    if not isinstance(fact, ConfigProposed) or record.version != state.config.version + 1:
        raise Contradiction(f"record {state.n}: configuration {record.version} after {state.config.version}")
    put_in_force(state, Config(version=record.version, body=fact.body))
    count_limited(state)
    for node in list(state.nodes.values()):
        configured = _configured(state, node)
        if configured is not node:
            state.put_node(configured)
    _let_bear(state)


def _let_bear(state: State) -> None:
    """Gives live jobs and their runs, which may grow yet, the standing tolerations that their tenants have now."""
    for job in list(state.jobs.values()):
        roles = bearing(job.roles, state.tree.tolerated_by(job.tenant))
        if roles != job.roles:
            state.put_job(replace(job, roles=roles))
    for run in list(state.runs.values()):
        roles = bearing(run.roles, state.tree.tolerated_by(run.tenant))
        if roles != run.roles:
            state.put_run(replace(run, roles=roles))


def _configured(state: State, node: Node) -> Node:
    """The node with the standing tolerations of its pool, and the part of it that is kept beside its GPUs, if any."""
    tolerated = state.configured.tolerated.get(node.pool, ())
    kept = state.configured.policy.kept_beside_gpus_percent if node.gpus else 0
    if (node.tolerated, node.kept_percent) == (tolerated, kept):
        return node
    return replace(node, tolerated=tolerated, kept_percent=kept)


@applies(NodeChanged)
def apply_node_changed(state: State, record: NodeChanged, facts: Sequence[TakenFact]) -> None:
    """The node anew, less what runs and earmarks hold on it."""
    fact = facts[record.fact].fact
    if not isinstance(fact, NodeSeen):
        raise Contradiction(f"record {state.n}: fact {record.fact} is not about a node")
    before = state.nodes.get(fact.name)
    node = with_offer(state, _configured(state, empty_node(while_held(fact, before))))
    if before is not None and (before.is_cut or before.kept_data):
        # A machine that is no more has taken its data along, though its runs hold the node yet.
        node = replace(node, is_cut=before.is_cut, kept_data=() if node.gone else before.kept_data)
    node = with_sick_slots(node, state.health.get(node.name))
    holders: list[Run | Earmark] = []
    if before is not None and before.is_held:  # else nothing holds it, and nobody need be asked
        holders = [*state.runs_on(node.name), *state.earmarks.values()]
    other_flavor = before is not None and state.tree.flavor_of(before) != state.tree.flavor_of(node)
    priced_anew = holders if other_flavor and state.tree.money else ()
    count_costs(state, priced_anew)
    anew = {node.name: node}
    for holder in holders:
        holder.gang.take(anew, holder.places if isinstance(holder, Run) else holder.placements)
    node = with_drawn_elsewhere(state, anew[node.name])
    if state.format >= SUMS_FROM:
        node = _counted(state, node, before, holders)
    if node.gone and not node.is_held:
        if before is not None:
            forget_node(state, before)
    else:
        state.put_node(node)
    if state.format >= FORMAT_OF_MEMORY:
        state.remember_node(node.name, remember(state.remembered_nodes.get(node.name), before, node, state.ts))
    state.count_node(node.name)
    if other_flavor:
        count_anew(state)
    state.weigh_runs(priced_anew)
    _end_held_back(state, node)
    _note_back(state, node)


def _end_held_back(state: State, node: Node) -> None:
    """Of a node that is well: what seemed lost on it is not."""
    for run in state.runs_on(node.name) if node.ready else ():
        if run.held_back is not None:
            state.put_run(replace(run, held_back=None))


def _note_back(state: State, node: Node) -> None:
    """Of a node that was turned off, or was to be: from here on its next loss is another one."""
    fence = state.fences.get(node.name)
    if fence is not None and fence.outcome and not fence.back_ts and not node.silent:
        state.fences.put(node.name, replace(fence, back_ts=state.ts))


def _counted(state: State, node: Node, before: Node | None, holders: Sequence[Run | Earmark]) -> Node:
    """The node with what is held in slots that it lacks now, and with since when it has been away, or short."""
    if node.silent or node.cordoned:
        same = before is not None and (before.silent, before.cordoned) == (node.silent, node.cordoned)
        node = replace(node, away_ts=before.away_ts if before is not None and same and before.away_ts else state.ts)
    if state.format >= POOL_PARTS_FROM and node.is_short:
        node = replace(node, short_ts=before.short_ts if before is not None and before.short_ts else state.ts)
    if node.device_profile not in NAMES_NO_CARDS:
        return node
    beyond = sum(
        1
        for holder in holders
        for place in (holder.places if isinstance(holder, Run) else holder.placements)
        if place.node == node.name
        for device in place.devices
        if device >= node.gpus
    )
    return node.counting(beyond) if beyond else node


@applies(DatasetNoted)
def apply_dataset_noted(state: State, record: DatasetNoted, facts: Sequence[TakenFact]) -> None:
    """Notes on nodes what a tenant says of its data set; raises Contradiction for what is no news of any of them."""
    fact = facts[record.fact].fact
    nodes = told_nodes(state, fact.tenant, fact.dataset, fact.places) if isinstance(fact, DatasetTold) else ()
    if not nodes:
        raise Contradiction(f"record {state.n}: fact {record.fact} says nothing new of a data set")
    keep_told(state, nodes)


@applies(NodeDrained)
def apply_node_drained(state: State, record: NodeDrained, facts: Sequence[TakenFact]) -> None:
    """Marks a node as drained since the message's time, or with `undo` takes the mark away."""
    if record.undo:
        state.drains.drop(record.node)
    else:
        state.drains.put(record.node, Drain(record.node, state.ts, record.why, record.by))
    state.count_node(record.node)


@applies(FenceAsked)
def apply_fence_asked(state: State, record: FenceAsked, facts: Sequence[TakenFact]) -> None:
    """
    Opens a request; raises Contradiction for a node that answers and is not out for its health, or of which a request
    stands.
    """
    node, before, known = state.nodes.get(record.node), state.fences.get(record.node), state.health.get(record.node)
    is_due = node is not None and (node.silent if record.cause is None else is_kept_out(state, node.name))
    if node is None or not is_due or (before is not None and not may_ask_again(before)):
        raise Contradiction(f"record {state.n}: node {record.node} cannot be fenced now")
    if record.cause is not None and known is not None:
        state.health.put(known.node, replace(known, fenced=True))
    for name, old in list(state.fences.items()):
        if old.back_ts and old.asked_ts + FENCED_WITHIN_MS <= state.ts:
            state.fences.drop(name)
    fence = Fence(node.name, node.pool, record.request, state.ts, record.why, record.by, cause=record.cause or "")
    state.fences.put(node.name, fence)


@applies(FenceEnded)
def apply_fence_ended(state: State, record: FenceEnded, facts: Sequence[TakenFact]) -> None:
    """Ends a request, or takes back one that has put its node out of service; raises Contradiction for any other."""
    fence, node = state.fences.get(record.node), state.nodes.get(record.node)
    if fence is None or fence.request != record.request or not may_end(fence, record.outcome):
        raise Contradiction(f"record {state.n}: no request {record.request} to fence node {record.node} can end so")
    answers = node is None or not node.silent
    if record.outcome == "off" and answers:
        raise Contradiction(f"record {state.n}: node {record.node} is said to be off, and answers")
    # Of a sick node that answers all the while its next loss is another one, and may be fenced as such.
    back = state.ts if record.outcome in ("back", "gone") or answers else fence.back_ts
    detail = record.detail or fence.detail
    state.fences.put(fence.node, replace(fence, outcome=record.outcome, detail=detail, ended_ts=state.ts, back_ts=back))


@applies(NodeBackedOff)
def apply_node_backed_off(state: State, record: NodeBackedOff, facts: Sequence[TakenFact]) -> None:
    """Keeps a node free of new pods until a time, or remembers whose programs failed on it."""
    before = state.backoffs.get(record.node)
    since = state.ts if before is None else before.since_ts
    backoff = NodeBackoff(record.node, record.until_ts, record.times, since, record.reason, record.failed)
    state.backoffs.put(record.node, backoff)


@applies(LeftChanged)
def apply_left_changed(state: State, record: LeftChanged, facts: Sequence[TakenFact]) -> None:
    """Notes how many slots of each size were last said to be free in a pool."""
    state.lefts.put(record.pool, PublishedSlots(record.pool, record.free))


@applies(MixPriced)
def apply_mix_priced(state: State, record: MixPriced, facts: Sequence[TakenFact]) -> None:
    """Gives the settled mix of a pool its prices; raises Contradiction unless there is one price per kind."""
    fact, mix = facts[record.fact].fact, state.mixes.get(record.pool)
    if not isinstance(fact, PricesLearnt) or mix is None or len(fact.prices) != len(mix.known):
        raise Contradiction(f"record {state.n}: fact {record.fact} has no prices for the mix of pool {record.pool}")
    state.mixes.put(mix.pool, replace(mix, prices=fact.prices, priced=fact.settled, priced_gpus=fact.gpus))


@applies(RefusalNoted)
def apply_refusal_noted(state: State, record: RefusalNoted, facts: Sequence[TakenFact]) -> None:
    """Remembers refused work with its reasons since the first refusal; a fact without reasons ends the memory."""
    fact = facts[record.fact].fact
    if not isinstance(fact, WorkRefused):
        raise Contradiction(f"record {state.n}: fact {record.fact} refuses nothing")
    known = state.refused.get(fact.work_id)
    if not fact.reasons:
        state.refused.drop(fact.work_id)
        return
    since = state.ts if known is None else known.since_ts
    work = RefusedWork(fact.work_id, fact.tenant, fact.group, fact.owner, fact.queue, fact.reasons, since)
    state.refused.put(work.work_id, work)


def _row_of(state: State, name: str) -> BudgetUse:
    row = state.spending.get(name)
    if row is None:
        raise Contradiction(f"record {state.n} names budget {name}, which nobody has configured")
    return counted(state, row, state.ts)


@applies(BudgetReached, BudgetReopened)
def apply_level(state: State, record: BudgetReached | BudgetReopened, facts: Sequence[TakenFact]) -> None:
    """Notes the percent of a budget that is told; raises Contradiction unless just that is spent."""
    row = _row_of(state, record.budget)
    if level_of(state.budgets[row.name], row) != record.percent or row.level == record.percent:
        raise Contradiction(f"record {state.n}: budget {row.name} is not at {record.percent} percent")
    state.spending.put(row.name, replace(row, level=record.percent))


@applies(BudgetGranted)
def apply_granted(state: State, record: BudgetGranted, facts: Sequence[TakenFact]) -> None:
    """Adds to a budget for the month of the message."""
    row = _row_of(state, record.budget)
    state.spending.put(row.name, replace(row, granted=row.granted + record.amount * MICROS))


@applies(Booked)
def apply_booked(state: State, record: Booked, facts: Sequence[TakenFact]) -> None:
    """Keeps nodes from here on; raises Contradiction for a name that is taken."""
    if state.bookings.get(record.name) is not None:
        raise Contradiction(f"record {state.n}: reservation {record.name} is there already")
    windows = tuple((window.start_ts, window.end_ts) for window in record.windows)
    kept = Booking(record.name, record.pool, record.nodes, windows, record.who, record.why, record.by, state.ts)
    wished = {"node_count": record.node_count or 0, "gpus": record.gpus or 0, "gpu_model": record.gpu_model}
    price = {"job": record.job, "price_gpu_ms": record.price_gpu_ms, "price_micros": record.price_micros}
    if record.job:
        _charge(state, record.job, record.price_gpu_ms, record.price_micros)
    state.bookings.put(record.name, replace(kept, **wished, **price))


def _charge(state: State, job_id: str, gpu_ms: int, micros: int) -> None:
    """Adds a promise's price to the budgets that its job is of; below nothing it gives a price back."""
    job = state.jobs.get(job_id)
    if job is None:
        return
    for name in budget_names(state.tree, job.queue, job.tenant, job.project):
        if name in state.budgets:
            charge(state, name, gpu_ms, micros)


@applies(Rebooked)
def apply_rebooked(state: State, record: Rebooked, facts: Sequence[TakenFact]) -> None:
    """Keeps other nodes in place of lost ones; raises Contradiction for nodes named by people, or within a window."""
    booking, lost, found = state.bookings.get(record.name), {*record.lost}, {*record.found}
    if booking is None or not booking.is_chosen or booking.window_at(state.ts) is not None:
        raise Contradiction(f"record {state.n}: no nodes of reservation {record.name} can be replaced")
    nodes = tuple(sorted({*booking.nodes} - lost | found))
    # Without any node it would be of the whole pool.
    if not lost <= {*booking.nodes} or found & {*booking.nodes} or not nodes:
        raise Contradiction(f"record {state.n}: reservation {record.name} has not these nodes")
    replaced = (*booking.replaced, (state.ts, record.lost, record.found))[-REPLACED_MAX:]
    missing = tuple(name for name in booking.missing if name not in lost)
    state.bookings.put(record.name, replace(booking, nodes=nodes, replaced=replaced, missing=missing))


@applies(BookingShort)
def apply_booking_short(state: State, record: BookingShort, facts: Sequence[TakenFact]) -> None:
    """Notes nodes that are told as missing; raises Contradiction where they are no news."""
    booking = state.bookings.get(record.name)
    if booking is None or booking.missing == record.missing:
        raise Contradiction(f"record {state.n}: that is no news of reservation {record.name}")
    state.bookings.put(record.name, replace(booking, missing=record.missing))


@applies(BookingEnded)
def apply_booking_ended(state: State, record: BookingEnded, facts: Sequence[TakenFact]) -> None:
    """Keeps them no longer; raises Contradiction for a booking that is not there, or is not over yet."""
    booking = state.bookings.get(record.name)
    if booking is None or (record.why == "over" and booking.ends_ts > state.ts):
        raise Contradiction(f"record {state.n}: reservation {record.name} does not end")
    if record.job != booking.job or bool(booking.job) != (record.why in PROMISE_ENDS):
        raise Contradiction(f"record {state.n}: reservation {record.name} does not end so")
    if record.why == "broken":
        _charge(state, booking.job, -booking.price_gpu_ms, -booking.price_micros)
    state.bookings.drop(record.name)


@applies(BookingRefused)
def apply_booking_refused(state: State, record: BookingRefused, facts: Sequence[TakenFact]) -> None:
    """Changes nothing: the record is for who asked."""
