"""A shard's life by chance: everything that services may report, in any order, decided by the real committer."""

from random import Random

from tessera_schemas.config import Policy, PriorityClass
from tessera_schemas.facts import (
    AnyFact,
    BindFailed,
    CancelRequested,
    JobRefused,
    PodsBound,
    PodsMade,
    RunEnded,
    RunStarted,
)
from tessera_schemas.ledger import LedgerMessage
from tessera_schemas.reasons import Code, Reason
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, queue, role, run_absent
from tests.ledgers import Committed

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
QUEUES = ("research", "batch", "forgotten")


def random_ledger(seed: int, messages: int = 80, ts: int = 1_760_000_000_000) -> Committed:
    """Starts configured; every fourth message or so has a checkpoint."""
    life = Life(Random(seed), ts)
    while life.ledger.state.n < messages:
        life.go_on()
    return life.ledger


class Life:
    def __init__(self, random: Random, ts: int) -> None:
        self.random, self.ledger = random, Committed(ts).begin()
        self._keys = 0

    def go_on(self) -> LedgerMessage:
        chance = self.random
        facts = [fact for _ in range(chance.randrange(6)) if (fact := self._fact()) is not None]
        return self.ledger.commit(
            *facts,
            orders=(self.ledger.line(),) if chance.random() < 0.6 else (),
            ms=chance.choice((0, 1, 900, 20_000)),
            holder="scheduler-2" if chance.random() < 0.03 else "",
            checkpoint=chance.random() < 0.25,
        )

    def _fact(self) -> AnyFact | None:
        chance = self.random
        runs = sorted(run_id for run_id, _ in self.ledger.state.runs.items())
        if runs and chance.random() < 0.65:
            return self._about_run(chance.choice(runs))
        kind = chance.randrange(12)
        if kind < 7:
            return self._submit()
        if kind == 7:
            why = (Reason(code=Code.NO_SUCH_QUEUE, field="queue", detail="n\u00f6pe"),)
            named = {"job_id": "abcdefghij234567abcd", "name": "train", "repeats": 3} if chance.random() < 0.5 else {}
            return JobRefused.model_validate({"kind": "job_refused", "tenant": "lab", "reasons": why, **named})
        if kind == 8:
            return self._configuration()
        if kind == 9 and self._keys:
            key = f"k{chance.randrange(self._keys)}"
            return CancelRequested(kind="cancel_requested", job_id=admitted(key).job_id, tenant="lab", why="enough")
        gone = chance.random() < 0.3
        return node_seen(f"node-{chance.choice('abc')}", gpus=chance.choice((0, 4, 8)), gone=gone, ready=not gone)

    def _submit(self) -> AnyFact:
        """Mostly a new job, sometimes a key that was used before, sometimes a queue that is not there."""
        chance = self.random
        again = self._keys and chance.random() < 0.2
        key = f"k{chance.randrange(self._keys)}" if again else f"k{self._keys}"
        self._keys += not again
        asked = role(replicas=chance.choice((1, 1, 2, 5)), gpus=chance.choice((0, 1, 4)))
        spec = job_spec(
            asked,
            queue=chance.choice(QUEUES),
            priority_class=chance.choice(("low", "high")),
            retry={"max_attempts": chance.choice((1, 3)), "backoff_seconds": 10},
        )
        return admitted(key, spec).model_copy(update={"trace": chance.choice(("", TRACE))})

    def _configuration(self) -> AnyFact:
        chance = self.random
        body = config_body(
            *(queue(name) for name in QUEUES[: chance.choice((1, 2, 2))]),
            priority_classes=(
                PriorityClass(name="low", value=-1),
                PriorityClass(name="high", value=chance.randrange(3)),
            ),
            policy=Policy(key_memory_seconds=chance.choice((1, 30, 3600)), start_timeout_seconds=60),
        )
        return config_proposed(body, self.ledger.state.config.version - (chance.random() < 0.2))

    def _about_run(self, run_id: str) -> AnyFact:
        chance = self.random
        run = self.ledger.state.runs.get(run_id)
        pods = len(run.placements)
        if run.stopping:
            return run_absent(run_id)
        why = Reason(code=Code.POD_FAILED, numbers={"exit_code": 3}, detail="oom")
        failed = RunEnded(kind="run_ended", run_id=run_id, reason=why, own=chance.random() < 0.5, exit_code=3)
        if not run.uids:
            made = PodsMade(kind="pods_made", run_id=run_id, uids=tuple(f"{run_id}-{i}" for i in range(pods)))
            refused = BindFailed(kind="bind_failed", run_id=run_id, rank=0, reason=Reason(code=Code.BIND_REFUSED))
            return refused if chance.random() < 0.2 else made
        return chance.choice(
            (
                PodsBound(kind="pods_bound", run_id=run_id),
                RunStarted(kind="run_started", run_id=run_id),
                RunEnded(kind="run_ended", run_id=run_id, exit_code=0),
                failed,
            )
        )
