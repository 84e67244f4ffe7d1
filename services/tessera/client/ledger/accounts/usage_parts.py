"""
The runs behind the decayed usage of a queue, a tenant in it or a user: what of each counts yet, by a stored ledger.

A run is followed by a row of its own that decays as the name's does. What a row rounds down, less than two digits a
run, is added again, so that the parts sum to the number in the state, to the digit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tessera.client.ledger.reading import LedgerBackup, LedgerFile, StoredLedger
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.live import progress_of
from tessera.domain.folding.decayed_usage import Decay, DecayedUsage, Usages, follow_half_life
from tessera.domain.state import State
from tessera.domain.table import Table
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera_schemas.config import Config

EARLIER = "(earlier)"
"""What no run in the ledger explains: from before its opening, from before a half-life, or of a former name."""
ROUNDED_MAX = 2


@dataclass(frozen=True, slots=True)
class UsagePart:
    """Part of a run: held between two times, `to_ts` 0 while it holds, and what of it counts (GPU thousandths x ms)."""

    run: str
    from_ts: int
    to_ts: int
    gpu_milli: int
    used: int


@dataclass(frozen=True, slots=True)
class UsageReport:
    """`parts` sum to `used`, which the state has as of message `n` and the time `ts`."""

    parts: tuple[UsagePart, ...]
    used: int
    half_life_ms: int
    ts: int
    n: int


class UsageParts:
    """Follows one name through a fold: after each message it takes the state in."""

    def __init__(self, names: Sequence[str], state: State) -> None:
        self._names, self._row_name = tuple(names), "/".join(names)
        self._rows: Usages = Table()
        self._parts: dict[str, UsagePart] = {}
        self._held: dict[str, int] = {}
        self._ts = state.ts
        self._decay: Decay | None = None
        self._row: DecayedUsage | None = None
        self._config: Config | None = None
        self.take(state)

    def take(self, state: State) -> None:
        """The state after one more message."""
        row, decay = state.decayed.get(self._row_name), state.decay
        if self._decay != decay:
            follow_half_life(self._rows, self._decay, decay, state.ts, (), {})
        elif decay is not None:
            decay.forget(self._rows, self._ts, state.ts)
        if row is None:
            self._rows, self._parts, self._held = Table(), {}, {}
        elif row is not self._row and decay is not None:
            self._follow_runs(state, decay)
        if decay is not None and row is not None and state.config is not self._config:
            self._add_earlier(state, decay)
        self._ts, self._decay, self._row, self._config = state.ts, decay, row, state.config

    def report(self, state: State) -> UsageReport:
        """As of the state. Raises Failure where nothing counts under the name."""
        row, decay = state.decayed.get(self._row_name), state.decay
        if row is None or decay is None:
            why = "no half-life is configured" if decay is None else "nothing counts under it; see `tessera share`"
            raise Failure(Exit.NOT_FOUND, f"{self._row_name}: {why}")
        used = decay.used(row, state.ts)
        rest = used - self._counted(state.ts, decay)
        if not 0 <= rest <= ROUNDED_MAX * len(self._rows):
            self._add_earlier(state, decay)
            rest = used - self._counted(state.ts, decay)
        each, more = divmod(rest, len(self._rows))
        parts = [
            replace(self._parts[name], used=decay.used(found, state.ts) + each + (at < more))
            for at, (name, found) in enumerate(sorted(self._rows.items()))
        ]
        parts.sort(key=lambda part: (part.from_ts, part.run))
        return UsageReport(tuple(parts), used, decay.half_life_ms, state.ts, state.n)

    def _counted(self, ts: int, decay: Decay) -> int:
        return sum(decay.used(row, ts) for row in self._rows.values())

    def _follow_runs(self, state: State, decay: Decay) -> None:
        names, ts = self._names, state.ts
        runs = (run for run in state.runs.values() if (run.queue, run.tenant, run.user)[: len(names)] == names)
        held = {run.run_id: run.used_milli for run in runs if run.used_milli}
        was, self._held = self._held, held  # of all that ever ran no more is looked at
        for run in held.keys() | was.keys():
            now, before = held.get(run, 0), was.get(run, 0)
            if now != before:
                decay.add(self._rows, ts, run, held=now - before)
                part = self._parts.get(run) or UsagePart(run, ts, 0, now, 0)
                self._parts[run] = replace(part, gpu_milli=now or before, to_ts=0 if now else ts)

    def _add_earlier(self, state: State, decay: Decay) -> None:
        rest = decay.used(state.decayed.get(self._row_name), state.ts) - self._counted(state.ts, decay)
        if not 0 <= rest <= ROUNDED_MAX * len(self._rows):
            decay.add(self._rows, state.ts, EARLIER, used=rest)
            self._parts[EARLIER] = UsagePart(EARLIER, 0, state.ts, 0, 0)


async def usage_report(ledger: StoredLedger | LedgerFile | LedgerBackup, names: Sequence[str]) -> UsageReport:
    """Reads the ledger from where it begins to its end. Raises Failure, and InvariantViolation where it contradicts."""
    opening, count = await ledger.opened_shard(), await ledger.count()
    shard = opening or Shard()
    parts = UsageParts(names, shard.state)
    with progress_of("share", count - shard.state.n) as advance:
        async for seq, data in ledger.messages():
            shard.fold(decode_entry(Message("", seq, data)))
            parts.take(shard.state)
            advance()
    return parts.report(shard.state)
