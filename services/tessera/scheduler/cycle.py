"""
The committer's cycle, in numbered steps: take in, decide, append, fold.

One append is in flight at a time; what arrives meanwhile shares the next message (group commit), and an idle
committer appends at once. An append of unknown outcome is never resent: the tail is read again, and either the
transaction is found there, or the world is decided anew from whatever is.
"""

import asyncio
from dataclasses import fields
from enum import StrEnum
from itertools import islice

import structlog

from tessera.domain.errors import Contradiction
from tessera.domain.state import State
from tessera.engine import ENGINE_ID
from tessera.kernel.errors import Conflict, Full, InvariantViolation, Transient, UnknownOutcome
from tessera.kernel.ledger.room import WAY_OUT
from tessera.kernel.ledger.shard import Entry, Shard
from tessera.kernel.ledger.timestamps import LedgerTime, Skew
from tessera.kernel.service.context import Ports
from tessera.kernel.service.job_log import log_steps
from tessera.kernel.service.spans import Spans, job_span, step_span
from tessera.kernel.tasks.freshness import keep_looking
from tessera.kernel.tasks.task_group import run_beside
from tessera.scheduler.decide import CapacityCache, Inputs, decide
from tessera.scheduler.decide.draft import Draft
from tessera.scheduler.decide.runs import is_start_due
from tessera.scheduler.inbox import Inbox
from tessera.scheduler.settings import SchedulerSettings
from tessera.scheduler.start_clock import StartClock
from tessera_schemas.ledger import Allocated, BookingEnded, Checkpoint, LedgerMessage, MoveScored, Started, Waiting
from tessera_schemas.subjects import MESSAGE_BYTES_MAX


def report_spans(spans: Spans, state: State, message: LedgerMessage) -> None:
    """Report what a committed message ends; `state` is the one after it."""
    for record in message.records:
        if type(record) is Allocated and (job := state.jobs.get(record.job_id)) is not None:
            since = max(job.submitted_ts, job.not_before)
            queued = step_span("queue", job.job_id, job.trace, since, message.ts, record.attempt)
            spans.report(queued)
        elif type(record) is Started and (run := state.runs.get(record.run_id)) is not None:
            owner = state.jobs.get(run.job_id)
            if owner is not None:
                spans.report(step_span("start", owner.job_id, owner.trace, run.allocated_ts, message.ts, run.attempt))
                names = {"tessera.queue": owner.queue, "tessera.tenant": owner.tenant, "tessera.name": owner.name}
                spans.report(job_span(owner.job_id, owner.trace, owner.submitted_ts, message.ts, **names))


OPENING_RECORDS = 3
"""The checkpoint stands behind the format and the epoch at most."""


class SinceCheckpoint:
    """Counts the committer's own messages: an epoch begins with a checkpoint."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._messages_max = settings.checkpoint_every
        self._records_max, self._bytes_max = settings.checkpoint_records, settings.checkpoint_bytes
        self._records = self._bytes = 0

    def is_due(self, n: int) -> bool:
        """Tells whether message `n` is to have a checkpoint."""
        return n % self._messages_max == 0 or self._records >= self._records_max or self._bytes >= self._bytes_max

    def count(self, entry: Entry) -> None:
        """Take in a message that is in the ledger."""
        if any(type(record) is Checkpoint for record in islice(entry.message.records, OPENING_RECORDS)):
            self._records = self._bytes = 0
        self._records += len(entry.message.records)
        self._bytes += len(entry.stored)


RETRY_SECONDS = 0.2
REST, LONGEST = 4, 5  # times as long as it decides, a busy committer collects facts; so many times its share at most
FULL_SECONDS = 1.0  # until a full ledger is tried again
ORDERS_ALONE_SECONDS = 300  # an idle ledger grows by one message in so long, and its lines are no older

log = structlog.get_logger()


class Step(StrEnum):
    TAKE_IN = "take_in"
    DECIDE = "decide"
    APPEND = "append"
    FOLD = "fold"


class Deposed(Exception):
    """A younger epoch stands in the ledger: this committer is no longer one."""


class Committer:
    """One epoch of one committer, from its first append until it is deposed or told to stop."""

    def __init__(self, ports: Ports, settings: SchedulerSettings, shard: Shard) -> None:
        self._ports, self._settings, self._shard = ports, settings, shard
        self._time = LedgerTime(ports.clock, shard.state.ts)
        self._linger_seconds = 0.0
        self._capacity = CapacityCache()
        self._since_checkpoint = SinceCheckpoint(settings)
        self._full: str | None = None
        self._skew = Skew(ports)
        self._starts = StartClock(ports, settings.shard, shard.state, settings.lease_seconds)
        self.epoch = 0
        ports.health.check("ledger", lambda: self._full)

    async def lead(self, stop: asyncio.Event) -> None:
        """Open a new epoch and commit until `stop`; raises Deposed or InvariantViolation."""
        try:
            await self._open_epoch(stop)
            looking = keep_looking(self._starts.fresh, self._ports.clock, self._starts.look)
            async with Inbox(self._ports, self._settings.shard, self._shard.state) as inbox, run_beside(looking):
                while not stop.is_set():
                    await self._wait(inbox, stop)
                    inbox.wake.clear()
                    while not stop.is_set() and await self._cycle(inbox):
                        if self._linger_seconds and inbox.waiting < self._settings.facts_per_message:
                            await self._ports.clock.sleep(self._linger_seconds)
        finally:
            self._full = None

    async def _open_epoch(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._shard.catch_up(self._ports.ledger)
                self.epoch = self._shard.state.epoch + 1
                inputs = self._inputs((self._shard.state.facts_upto, ()), (), holder=self._ports.instance)
                if await self._commit(self._message(inputs, self._decide(inputs))):
                    log.info("epoch_opened", epoch=self.epoch, n=self._shard.state.n)
                    return
            except Deposed:
                # Somebody opened the same epoch first; theirs stands, and ours comes after it.
                continue
            except Transient as error:
                log.warning("epoch_not_opened", error=str(error))
                await self._ports.clock.sleep(RETRY_SECONDS)

    async def _wait(self, inbox: Inbox, stop: asyncio.Event) -> None:
        """Waits until something came, a deadline is due, or the tick."""
        if inbox.failed is not None:
            raise inbox.failed
        seconds = self._settings.tick_seconds
        index = self._shard.state.index
        due = [line[0][0] for line in (index.start_by, index.latest_starts) if line]
        left = (min(due) - self._time.now(self._shard.state.ts)) / 1000 if due else 0.0
        if left > 0:  # one that is due already waits for its starts to be watched for long enough
            seconds = min(seconds, left)
        waits = [
            asyncio.ensure_future(wait) for wait in (inbox.wake.wait(), stop.wait(), self._ports.clock.sleep(seconds))
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in waits:
                waiting.cancel()

    async def _cycle(self, inbox: Inbox) -> bool:
        """One message, if anything calls for one; True when there may be more to do at once."""
        limit, began = 1 if self._full else self._settings.facts_per_message, self._ports.clock.monotonic()
        while True:
            inputs = self._take_in(inbox, limit)
            draft = self._decide(inputs)
            if self._changes_nothing(inputs, draft):
                await self._ports.clock.sleep(0)
                return inbox.came_to_nothing(inputs.orders)
            entry = self._message(inputs, draft)
            if len(entry.stored) <= MESSAGE_BYTES_MAX or len(inputs.facts) <= 1:
                break
            limit = len(inputs.facts) // 2  # rare: what follows from these facts is far larger than they are
        # By the wall clock: deciding takes long where there is much of it, and where others need the CPU, too.
        share, rest = self._settings.share_seconds, REST * (self._ports.clock.monotonic() - began)
        busy = len(inputs.facts) >= self._settings.busy_facts
        self._linger_seconds = min(max(share, rest), LONGEST * share) if busy else 0.0
        await self._commit(entry)
        return True

    def _changes_nothing(self, inputs: Inputs, draft: Draft) -> bool:
        """Orders alone wait for the next message that changes something; when there is none for long, they go alone."""
        state = self._shard.state
        if inputs.facts_upto != state.facts_upto or any(record.kind != "checkpoint" for record in draft.records):
            return False
        return not inputs.orders or inputs.ts - state.ts < ORDERS_ALONE_SECONDS * 1000

    def _take_in(self, inbox: Inbox, limit: int) -> Inputs:
        clock, metrics = self._ports.clock, self._ports.metrics
        started = clock.monotonic()
        facts = inbox.facts(limit)
        # What is left of a full ledger is for facts, one at a time: nothing new starts while some wait.
        is_behind = self._full is not None and facts[0] > self._shard.state.facts_upto
        inputs = self._inputs(facts, () if is_behind else inbox.orders())
        metrics.step(Step.TAKE_IN, clock.monotonic() - started)
        metrics.queue_depth.set(inbox.waiting)
        return inputs

    def _decide(self, inputs: Inputs) -> Draft:
        started = self._ports.clock.monotonic()
        try:
            draft = decide(self._shard.state, inputs, self._capacity)
        except (Contradiction, KeyError, IndexError, ValueError) as error:
            raise InvariantViolation(f"deciding record {inputs.n}: {error!r}") from error
        self._ports.metrics.step(Step.DECIDE, self._ports.clock.monotonic() - started)
        return draft

    def _inputs(self, facts: tuple[int, tuple], orders: tuple, holder: str = "") -> Inputs:  # type: ignore[type-arg]
        state = self._shard.state
        n = state.n + 1
        ts = self._time.now(state.ts)
        since = self._starts.since(ts)
        checkpoint = bool(holder) or self._since_checkpoint.is_due(n)
        return Inputs(
            n=n,
            ts=ts,
            epoch=self.epoch,
            facts_upto=facts[0],
            holder=holder,
            state_hash=self._shard.hasher.of(state) if checkpoint and state.n else "",
            facts=facts[1],
            orders=orders,
            starts_since=since if is_start_due(state, ts) else 0,
        )

    def _message(self, inputs: Inputs, draft: Draft) -> Entry:
        state, tx = self._shard.state, self._ports.new_tx()
        # An input stands in its message under its own name; the hash is that of a checkpoint among the records.
        taken = {each.name: getattr(inputs, each.name) for each in fields(inputs) if each.name != "state_hash"}
        made = {"tx": tx, "engine": ENGINE_ID, "policy": state.config.version, "records": tuple(draft.records)}
        message = LedgerMessage(v=1, prev=state.chain, **taken, **made)
        return Entry(message, message.join_bytes(**draft.stored))

    async def _commit(self, entry: Entry) -> bool:
        """Append and fold one message; False when it did not get in and everything is to be decided anew."""
        ports, state, clock, message = self._ports, self._shard.state, self._ports.clock, entry.message
        started = clock.monotonic()
        try:
            await ports.ledger.append(entry.stored, state.n, known=state.format)
        except Conflict:
            ports.metrics.conflicts.inc()
            return await self._settle(message.tx)
        except UnknownOutcome as error:
            log.warning("append_outcome_unknown", n=message.n, tx=message.tx, error=str(error))
            return await self._settle(message.tx)
        except Full as error:
            await self._wait_for_room(message.n, error)
            return False
        except Transient as error:
            log.warning("append_failed", n=message.n, error=str(error))
            await clock.sleep(RETRY_SECONDS)
            return False
        appended = clock.monotonic()
        self._full = None
        ports.metrics.step(Step.APPEND, appended - started)
        self._shard.fold(entry)
        self._since_checkpoint.count(entry)
        ports.metrics.step(Step.FOLD, clock.monotonic() - appended)
        ports.metrics.ledger_n.set(state.n)
        self._skew.note(message.ts)
        self._count(message)
        log_steps(message.n, message.records)
        if ports.spans.on:
            report_spans(ports.spans, state, message)
        return True

    def _count(self, message: LedgerMessage) -> None:
        """Counts in metrics what a committed message says."""
        metrics, jobs = self._ports.metrics, self._shard.state.jobs
        for record in message.records:
            if type(record) is Waiting:
                metrics.reason(record.reason.code)
            elif type(record) is MoveScored:
                metrics.moves_scored(record.model_dump(exclude={"kind", "job_id"}))
            elif type(record) is BookingEnded and record.job:
                metrics.promises.labels(record.why).inc()
            elif type(record) is Allocated and record.attempt == 1:
                job = jobs.get(record.job_id)
                if job is not None:
                    metrics.sharing.waited(job.queue, (message.ts - job.submitted_ts) / 1000)

    async def _wait_for_room(self, n: int, error: Full) -> None:
        """Wait until the ledger has room again; facts stay in their stream and are taken in then."""
        if self._full is None:
            log.error("ledger_full", n=n, error=str(error), fix=WAY_OUT)
        self._full = f"LedgerFull: record {n} is not stored ({error}); {WAY_OUT}"
        await self._ports.clock.sleep(FULL_SECONDS)

    async def _settle(self, tx: str) -> bool:
        """Read the tail through the leader until it is known whether `tx` got in; raises Deposed on a foreign epoch."""
        new: list[Entry] = []
        while True:
            try:
                await self._shard.catch_up(self._ports.ledger, new.append)
                break
            except Transient as error:
                log.warning("tail_unreadable", error=str(error))
                await self._ports.clock.sleep(RETRY_SECONDS)
        # Folding our own transaction brought our epoch in; anything else from another writer ends this one.
        if (
            any(entry.message.holder and entry.message.tx != tx for entry in new)
            or self._shard.state.epoch > self.epoch
        ):
            raise Deposed(f"epoch {self._shard.state.epoch} was opened after {self.epoch}")
        return any(entry.message.tx == tx for entry in new)
