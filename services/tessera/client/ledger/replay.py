"""
Replay: is this ledger one that our engine would have written, record by record?

Two things are verified. *Validity* of every message of any age: chain, epochs, phases, checkpoints, who may say what,
capacity, quota, gangs. And *recomputation*, compared exactly, of every decision, order and proposed plan whose engine
id this build carries; what another engine decided is counted and said, never passed over in silence.

An engine changes only where a committer opens an epoch: otherwise a message that names another engine could take
itself out of the recomputation. A ledger that was cut short, or changed with every hash done again, is whole by itself;
only a head that was remembered elsewhere, the `anchor`, can tell.

Two passes: orders and plans are functions of an older state, so they are collected by that state first.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest

from tessera.client.ledger.validity import Taking, violations
from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import apply_record, take_in
from tessera.domain.state import State
from tessera.engine.defragmentation.mig_changes import next_change
from tessera.engine.defragmentation.search import defragmentation
from tessera.engine.preemption.plans import Plan, plan, proposal
from tessera.kernel.errors import InvariantViolation
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.projection.events import StoredEvent, events_of
from tessera.queueing.decide import RULES, OrderCache
from tessera.scheduler.decide import LOOKS_OF, CapacityCache, Inputs, decide
from tessera_schemas.cluster.mig_changes import MigChangeProposed
from tessera_schemas.facts import PlanProposed, owner
from tessera_schemas.ledger import AnyRecord, Checkpoint, EpochOpened, LedgerMessage, PodsTakenOver
from tessera_schemas.shard.ledger_form import Head
from tessera_schemas.shard.orders import Order

FINDINGS_MAX = 20
AnyPlan = PlanProposed | MigChangeProposed


@dataclass(slots=True)
class ReplayReport:
    """Findings of a replay; `ok` only if there is neither a contradiction nor a difference."""

    messages: int = 0
    records: int = 0
    recomputed: int = 0
    not_recomputed: int = 0
    orders: int = 0
    orders_not_recomputed: int = 0
    plans: int = 0
    plans_not_recomputed: int = 0
    events: int = 0
    wrong: int = 0
    findings: list[str] = field(default_factory=list)
    n: int = 0
    state_hash: str = ""
    chain: str = ""
    anchored: bool = False
    other_engines: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every decision, order and plan was recomputed; else they are only known to be valid."""
        return not (self.not_recomputed or self.orders_not_recomputed or self.plans_not_recomputed)

    @property
    def ok(self) -> bool:
        """Tells whether nothing in the ledger was found wrong."""
        return self.wrong == 0

    def found(self, text: str) -> None:
        """One more thing that is wrong; the first ones are kept in words."""
        self.wrong += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(text)


def verify(stored: Iterable[bytes], anchor: Head | None = None) -> ReplayReport:
    """Replay a whole ledger, given as its stored bytes from the first message on."""
    ledger = list(stored)
    replay = Replay(anchor)
    for data in ledger:
        replay.note_orders(data)
    for data in ledger:
        if not replay.check(data):
            break
    return replay.finish()


class Replay:
    """
    First every message through `note_orders`, then every message through `check`, in order; then `finish`.

    With the name of the shard, `events` are the public events that follow from the message checked last.
    """

    def __init__(self, anchor: Head | None = None, shard: str = "", opening: Shard | None = None) -> None:
        """`opening` is the state before the first message, where that is the first of a later generation."""
        self.report = ReplayReport()
        self._name = shard
        self.events: tuple[StoredEvent, ...] = ()
        self._anchor, self._engine = anchor, ""
        self._facts_wait = True  # of a first message nothing is known
        self._shard = opening or Shard()
        self._before = self._shard.state.n
        self._capacity = CapacityCache()
        self._order_capacity = OrderCache()
        self._orders: dict[int, list[tuple[int, Order]]] = defaultdict(list)
        self._plans: dict[int, list[tuple[int, AnyPlan]]] = defaultdict(list)
        self._noted = self._seen = self._before
        self._unreached = 0
        self._broken = False

    def note_orders(self, data: bytes) -> None:
        """Remember which orders and plans a message carries, by the state they were made from."""
        self._noted += 1
        try:
            message = decode_entry(Message("", self._noted, data)).message
        except InvariantViolation:
            return  # the second pass says so
        for order in message.orders:
            if order.basis_n < self._before:
                self._unreached += 1
            else:
                self._orders[order.basis_n].append((message.n, order))
        for taken in message.facts:
            if isinstance(taken.fact, AnyPlan):
                if taken.fact.basis_n < self._before:
                    self._unreached += 1
                else:
                    self._plans[taken.fact.basis_n].append((message.n, taken.fact))

    def check(self, data: bytes) -> bool:
        """Verify the next message; False when the ledger contradicts itself there: nothing after it counts."""
        report, state = self.report, self._shard.state
        self._seen += 1
        try:
            entry = decode_entry(Message("", self._seen, data))
            if self._seen == self._before + 1:
                self._check_opening(entry.message)
                self._check_anchor()
                self._check_what_was_made_here()
            for text in self._inconsistencies(entry.message):
                report.found(f"message {entry.message.n}: {text}")
            self._recompute(entry.message)
            self._derive_events(entry.message)
            self._shard.fold(entry)
        except InvariantViolation as error:
            report.found(str(error))
            self._broken = True
            return False
        self._engine, self._facts_wait = entry.message.engine, entry.message.facts_wait
        self._check_anchor()
        report.messages, report.n, report.chain = report.messages + 1, state.n, state.chain
        report.records += len(entry.message.records)
        self._check_what_was_made_here()
        return True

    def _derive_events(self, message: LedgerMessage) -> None:
        self.events = ()
        if self._name:
            with suppress(Contradiction, IndexError):  # the fold finds the same and says it better
                self.events = events_of(self._name, message, self._shard.state)

    def finish(self) -> ReplayReport:
        """Returns the report; orders and plans of states never reached, and a ledger that was cut, are findings too."""
        for n in () if self._broken else sorted(self._orders):
            for at, order in self._orders[n]:
                self.report.found(f"message {at}: the order of pool {order.pool} comes from state {n}, never reached")
        for n in () if self._broken else sorted(self._plans):
            for at, fact in self._plans[n]:
                self.report.found(f"message {at}: the plan for job {fact.job_id} comes from state {n}, never reached")
        if self._anchor is not None and self._anchor.n < self._before:
            self.report.found(
                f"the anchor at {self._anchor.n} lies before message {self._before + 1}, with which the ledger begins: "
                "prove it with the backup that holds the messages before"
            )
        if self._before:
            self.report.notes.append(
                f"begins with the generation that opens after message {self._before}, as its checkpoint vouches; "
                f"{self._unreached} orders and plans were made from states before it"
            )
        if self._anchor is not None and not self._broken and self._anchor.n > self.report.n:
            self.report.found(f"the ledger ends at {self.report.n}, before its anchor at {self._anchor.n}: it was cut")
        self.report.state_hash = self._shard.hasher.of(self._shard.state)
        return self.report

    def _check_opening(self, message: LedgerMessage) -> None:
        """A state is trusted as an opening only because the message behind it says its hash."""
        if self._before and not any(isinstance(record, Checkpoint) for record in message.records):
            self.report.found(
                f"message {message.n}: begins a generation and has no checkpoint, so nothing vouches for it"
            )

    def _check_anchor(self) -> None:
        state, anchor = self._shard.state, self._anchor
        if anchor is None or anchor.n != state.n:
            return
        self.report.anchored = anchor.chain == state.chain
        if not self.report.anchored:
            self.report.found(f"message {state.n}: its chain hash is {state.chain}, the anchor says {anchor.chain}")

    def _recompute(self, message: LedgerMessage) -> None:
        """Both halves run before the fold, while the state is the one that the message was decided from."""
        report = self.report
        for text in self._invalid(message):
            report.found(f"message {message.n}: {text}")
        if message.engine not in LOOKS_OF:
            report.not_recomputed += 1
            self._by_another(message.engine)
            return
        try:
            expected = tuple(decide(self._shard.state, inputs_of(message), self._capacity, message.engine).records)
        except (Contradiction, KeyError, IndexError, ValueError) as error:
            report.found(f"message {message.n}: cannot be decided again: {error!r}")
            return
        report.recomputed += 1
        if expected != message.records:
            report.found(f"message {message.n}: {_first_difference(expected, message.records)}")

    def _by_another(self, engine: str) -> None:
        """
        Something that this engine does not recompute. Of an order or a plan that is no finding: services are upgraded
        one by one, and whoever proposes may be ahead of the committer or behind it.
        """
        self.report.other_engines[engine] = self.report.other_engines.get(engine, 0) + 1

    def _invalid(self, message: LedgerMessage) -> Iterator[str]:
        """Capacity and quota of all that a run takes, each at the state that the records before it leave."""
        if not any(isinstance(record, Taking) for record in message.records):
            return
        at_work = {record.job_id for record in message.records if isinstance(record, PodsTakenOver)}
        trial = self._shard.state.overlay()
        try:
            take_in(trial, message.n, message.ts, message.facts_upto, message.orders)
            for record in message.records:
                if isinstance(record, Taking):
                    yield from violations(trial, record, message.engine, at_work)
                apply_record(trial, record, message.facts)
        except (Contradiction, KeyError, IndexError, ValueError):
            return  # the fold finds the same and says it better

    def _inconsistencies(self, message: LedgerMessage) -> Iterator[str]:
        """Claims of the envelope that contradict the state."""
        state = self._shard.state
        if self._engine and message.engine != self._engine and not message.holder:
            yield f"its engine is {message.engine}, after {self._engine}, and it opens no epoch"
        if message.facts_wait and not (message.holder or self._facts_wait):
            yield "facts wait in the middle of an epoch, so that runs would outlive their deadlines"
        if message.starts_since > message.ts:
            yield "starts are watched from a time on that is still to come"
        if message.policy != state.config.version:
            yield f"policy {message.policy}, but configuration {state.config.version} is in force"
        opened = [record.epoch for record in message.records if isinstance(record, EpochOpened)]
        if message.epoch != (opened[-1] if opened else state.epoch) or bool(opened) != bool(message.holder):
            yield f"epoch {message.epoch} is not the one in force, or was not opened as it should"
        last = state.facts_upto
        for taken in message.facts:
            if taken.service != owner(taken.fact):
                yield f"fact {taken.seq}: {taken.fact.kind} is not {taken.service}'s to say"
            if not last < taken.seq <= message.facts_upto:
                yield f"fact {taken.seq} is out of order: after {last}, facts_upto {message.facts_upto}"
            last = max(last, taken.seq)

    def _check_what_was_made_here(self) -> None:
        self._check_orders()
        self._check_plans()

    def _check_plans(self) -> None:
        """The plans that were made from the state as it is now, whether they were carried out or refused."""
        state = self._shard.state
        for at, fact in self._plans.pop(state.n, ()):
            if fact.engine not in LOOKS_OF:
                self.report.plans_not_recomputed += 1
                self._by_another(fact.engine)
                continue
            self.report.plans += 1
            where = f"message {at}: the plan for job {fact.job_id}, made from state {state.n},"
            if at <= state.n or fact.policy != state.config.version or fact.ts < state.ts:
                self.report.found(f"{where} claims a state, policy or time that it cannot have seen")
            elif replanned(state, fact) != fact:
                self.report.found(f"{where} is not the one that follows")

    def _check_orders(self) -> None:
        """The orders that were made from the state as it is now."""
        state = self._shard.state
        for at, order in self._orders.pop(state.n, ()):
            rule = RULES.get(order.engine)
            if rule is None:
                self.report.orders_not_recomputed += 1
                self._by_another(order.engine)
                continue
            self.report.orders += 1
            where = f"message {at}: the order of pool {order.pool}, made from state {state.n},"
            if at <= state.n or order.policy != state.config.version:
                self.report.found(f"{where} claims a state or policy that it cannot have seen")
            elif rule(state, order.pool, order.ts, self._order_capacity) != order.jobs:
                self.report.found(f"{where} is not the one that follows")


def replanned(state: State, fact: AnyPlan) -> AnyPlan | None:
    """
    The plan that follows for the same job, cause and time, in the name of its engine; None where there is none.

    Of changes of MIG geometry, the one that follows for the pool of the same node.
    """
    if isinstance(fact, MigChangeProposed):
        node = state.nodes.get(fact.node)
        change = None if node is None else next_change(state, node.pool, fact.ts)
        return change and change.model_copy(update={"engine": fact.engine})
    job = state.jobs.get(fact.job_id)
    if job is None:
        return None
    moves = fact.cause == "defragment"
    found = defragmentation(state, job, fact.ts) if moves else plan(state, job, fact.ts, fact.cause)
    made = proposal(state, found, fact.ts) if isinstance(found, Plan) else None
    return made and made.model_copy(update={"engine": fact.engine})


def inputs_of(message: LedgerMessage) -> Inputs:
    """The inputs of a decision as the ledger recorded them."""
    hashes = [record.state_hash for record in message.records if isinstance(record, Checkpoint)]
    return Inputs(
        n=message.n,
        ts=message.ts,
        epoch=message.epoch,
        facts_upto=message.facts_upto,
        holder=message.holder,
        state_hash=hashes[0] if hashes else "",
        facts=message.facts,
        orders=message.orders,
        facts_wait=message.facts_wait,
        starts_since=message.starts_since,
    )


def _first_difference(expected: tuple[AnyRecord, ...], found: tuple[AnyRecord, ...]) -> str:
    for index, (ours, theirs) in enumerate(zip_longest(expected, found)):
        if ours != theirs:
            return f"record {index} is {_describe(theirs)}; recomputed, it is {_describe(ours)}"
    return "records differ"


def _describe(record: AnyRecord | None) -> str:
    return "missing" if record is None else record.to_bytes().decode()[:300]
