"""
Whole ledgers made by the real committer's decision, in memory and without any service around it.

`Committed` commits facts as the scheduler would; `rechain` puts a tampered ledger into a form in which every hash is
right again, so that only a recomputation can tell.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tessera.engine import ENGINE_ID, ORDER_ENGINE_ID
from tessera.kernel.errors import InvariantViolation
from tessera.kernel.ledger.shard import Entry, Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.queueing.decide import order
from tessera.scheduler.decide import CapacityCache, Inputs, decide
from tessera_schemas.facts import AnyFact, PodsMade, RunAbsent, RunEnded, RunStarted, owner
from tessera_schemas.ledger import GENESIS, LEDGER_MESSAGE, LedgerMessage, TakenFact
from tessera_schemas.shard.ledger_form import chain_hash
from tessera_schemas.shard.orders import Order
from tests.builders import admitted, config_proposed, job_spec, node_seen, role


class Committed:
    """A shard that has only a committer: `commit` takes facts and orders in, decides, and folds."""

    def __init__(self, ts: int = 1_760_000_000_000, name: str = "tx") -> None:
        self.tx_name = name  # what its transaction ids begin with
        self.shard, self.stored = Shard(), list[bytes]()
        self.ts, self.facts_upto = ts, 0
        self.capacity = CapacityCache()

    @classmethod
    def continuing(cls, stored: Sequence[bytes]) -> "Committed":
        """A committer that goes on where a stored ledger ends."""
        made = cls()
        for seq, data in enumerate(stored, start=1):
            made.shard.fold(decode_entry(Message("", seq, data)))
        made.stored, made.ts, made.facts_upto = list(stored), made.state.ts, made.state.facts_upto
        return made

    @property
    def state(self) -> Any:
        return self.shard.state

    def commit(
        self,
        *facts: AnyFact,
        orders: Sequence[Order] = (),
        ms: int = 1000,
        holder: str = "",
        checkpoint: bool = False,
        starts_since: int = 0,
    ) -> LedgerMessage:
        state = self.state
        self.ts += ms
        taken = []
        for fact in facts:
            self.facts_upto += 1
            taken.append(TakenFact(seq=self.facts_upto, service=owner(fact), fact=fact))
        inputs = Inputs(
            n=state.n + 1,
            ts=self.ts,
            epoch=state.epoch + bool(holder),
            facts_upto=self.facts_upto,
            holder=holder,
            state_hash=self.shard.hasher.of(state) if checkpoint else "",
            facts=tuple(taken),
            orders=tuple(orders),
            starts_since=starts_since,
        )
        message = LedgerMessage(
            v=1,
            n=inputs.n,
            prev=state.chain,
            epoch=inputs.epoch,
            tx=f"{self.tx_name}-{inputs.n:08d}",
            ts=inputs.ts,
            engine=ENGINE_ID,
            policy=state.config.version,
            holder=inputs.holder,
            facts_upto=inputs.facts_upto,
            facts=inputs.facts,
            orders=inputs.orders,
            starts_since=inputs.starts_since,
            records=tuple(decide(state, inputs, self.capacity).records),
        )
        self.stored.append(message.to_bytes())
        self.shard.fold(Entry(message, self.stored[-1]))
        return message

    def line(self, pool: str = "default") -> Order:
        """The order that queueing would publish now."""
        state = self.state
        jobs = order(state, pool, self.ts)
        return Order(
            v=1, pool=pool, basis_n=state.n, ts=self.ts, engine=ORDER_ENGINE_ID, policy=state.config.version, jobs=jobs
        )

    def begin(self, *nodes: AnyFact, **config: Any) -> "Committed":
        """Epoch, configuration and nodes."""
        self.commit(holder="scheduler-1")
        self.commit(config_proposed(**config))
        self.commit(*(nodes or (node_seen("node-a"), node_seen("node-b"))))
        return self

    def run_to_its_end(self, key: str = "k1", **spec: Any) -> str:
        """One job from submit to release; returns its id."""
        job = admitted(key, job_spec(role(**spec)))
        self.commit(job)
        return self.end(job.job_id, key)

    def end(self, job_id: str, key: str) -> str:
        """Place a job that waits, and let it run to its release; returns its id."""
        run = self.start(job_id, key)
        self.commit(RunEnded(kind="run_ended", run_id=run), checkpoint=True)
        self.commit(RunAbsent(kind="run_absent", run_id=run))
        return job_id

    def start(self, job_id: str, key: str) -> str:
        """Place a job that waits, and let it run; returns the run's id."""
        placed = self.commit(orders=(self.line(),))
        run = f"{job_id}-1"
        pods = sum(len(r.placements) for r in placed.records if r.kind == "allocated" and r.job_id == job_id)
        self.commit(PodsMade(kind="pods_made", run_id=run, uids=tuple(f"uid-{key}-{i}" for i in range(pods))))
        self.commit(RunStarted(kind="run_started", run_id=run))
        return run


def rechain(stored: Sequence[bytes], at: int, change: Callable[[dict[str, Any]], None]) -> list[bytes]:
    """
    The ledger with message `at` (from 1) changed and every hash after it done again, those of checkpoints too.

    Where the changed ledger cannot be folded any more, the checkpoints stay as they were.
    """
    prev, made, shard = GENESIS, list[bytes](), Shard()
    for n, data in enumerate(stored, start=1):
        message = LEDGER_MESSAGE.validate_json(data).model_dump(mode="json", exclude_defaults=True)
        for record in message.get("records", ()):
            if record["kind"] == "checkpoint" and shard.state.n == n - 1:
                record["state_hash"] = shard.hasher.of(shard.state)
        if n == at:
            change(message)
        decoded = LEDGER_MESSAGE.validate_python({**message, "prev": prev})
        made.append(decoded.to_bytes())
        prev = chain_hash(prev, made[-1])
        with suppress(InvariantViolation):
            shard.fold(Entry(decoded, made[-1]))
    return made
