"""GPUs over time: what is held, idle and lost adds up, and a fold that starts again goes on where the rows end."""

from tessera.domain.devices.gpu_use import GPU_SECOND, KEPT_MS, STEP_MS
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.projection.usage import UsageHistory
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.views import GpuUseView
from tests.rounds import Rounds

MINUTE = 60_000


def counted(stored: list[bytes], shard: Shard, usage: UsageHistory) -> UsageHistory:
    """Folds what `shard` does not have yet, and counts it."""
    for data in stored[shard.state.n :]:
        entry = decode_entry(Message("", LEDGER_MESSAGE.validate_json(data).n, data))
        usage.count(entry.message, shard.state)
        shard.fold(entry)
    return usage


def rows(rounds: Rounds) -> list[GpuUseView]:
    found = counted(rounds.stored, Shard(), UsageHistory()).rows
    return [GpuUseView.from_bytes(row) for row in found.values()]


def busy_hour() -> Rounds:
    """A job of six of eight GPUs for an hour, while another waits."""
    rounds = Rounds(nodes={"node-a": 8})
    for key in ("runs", "waits"):
        rounds.submit(key, gpus=6)
    rounds.settle()
    for _ in range(12):
        rounds.commit(ms=5 * MINUTE)
    return rounds


def test_held_and_idle_gpus_add_up_to_all_of_the_pool_in_every_step() -> None:
    found = rows(busy_hour())
    assert len(found) >= 12
    for row in found[1:]:  # before the first one ends, the node is not known yet
        assert sum(dict(row.held).values()) + sum(dict(row.idle).values()) == 8000 * row.counted_ms
    assert {cause for row in found[2:] for cause, _ in row.idle} == {"jobs_wait"}
    full = [row for row in found if row.counted_ms == STEP_MS][-1]
    assert dict(full.held) == {"lab": 6 * 300 * GPU_SECOND}


def test_a_preempted_run_costs_what_it_did_since_its_last_checkpoint() -> None:
    rounds = Rounds(nodes={"node-a": 8}, preset="priority")
    rounds.submit("victim", gpus=8, priority="low")
    rounds.settle()
    rounds.commit(ms=10 * MINUTE)
    rounds.submit("urgent", gpus=8, priority="high")
    rounds.settle()
    (cost,) = [cost for row in rows(rounds) for cost in row.restarts]
    assert (cost.tenant, cost.reason, cost.restarts) == ("lab", "Preempted", 1)
    assert 8 * 600 * GPU_SECOND <= cost.lost < 8 * 610 * GPU_SECOND


def test_a_fold_that_begins_before_the_rows_end_gives_the_same_rows() -> None:
    rounds = busy_hour()
    whole = counted(rounds.stored, Shard(), UsageHistory()).rows
    for cut in range(1, len(rounds.stored)):
        first = counted(rounds.stored[:cut], Shard(), UsageHistory()).rows
        assert counted(rounds.stored, Shard(), UsageHistory(first)).rows == whole


def test_rows_are_dropped_after_a_week_however_long_nothing_happened() -> None:
    rounds = busy_hour()
    rounds.commit(ms=3 * KEPT_MS)
    rounds.commit(ms=MINUTE)
    found = rows(rounds)
    assert min(row.start_ts for row in found) >= rounds.ts - KEPT_MS - STEP_MS
    assert len(found) <= KEPT_MS // STEP_MS + 1
