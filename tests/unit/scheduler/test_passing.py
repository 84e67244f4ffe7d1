"""A start names the blocked jobs that it passes in line, and why it may."""

import pytest

from tessera.scheduler.decide import starts
from tessera_schemas.facts import DrainRequested
from tessera_schemas.ledger import FORMAT, Allocated, AnyRecord
from tests.builders import admitted, node_seen
from tests.unit.scheduler.reserving_world import end, ids, job, of_model, shard, submit


def passed(records: tuple[AnyRecord, ...]) -> dict[str, list[tuple[str, str]]]:
    """By key of the job that starts: the keys that it passes, each with why."""
    keys = {admitted(key).job_id: key for key in KEYS}
    starts = [record for record in records if isinstance(record, Allocated)]
    return {keys[each.job_id]: [(keys[other.job_id], other.why) for other in each.passed] for each in starts}


KEYS = ("runs", "head", "next", "short", "beside", "single", "useless-0", *(f"small-{i}" for i in range(8)))


def test_who_ends_before_the_kept_room_is_needed_says_so() -> None:
    ledger = shard()
    assert passed(submit(ledger, ("runs", 4, 2))) == {"runs": []}
    submit(ledger, ("head", 8, 1))
    assert passed(submit(ledger, ("short", 1, 1))) == {"short": [("head", "ends_before")]}


def test_who_runs_on_beside_the_kept_room_says_so() -> None:
    ledger = shard(node_seen("node-a"), node_seen("node-b"))
    submit(ledger, ("runs", 4, 2), ("next", 5, 9))
    submit(ledger, ("head", 6, 1))
    assert passed(submit(ledger, ("beside", 2, 9))) == {"beside": [("head", "beside")]}


@pytest.mark.parametrize("backfill", ["off", "reserve"])
def test_who_passes_a_job_for_which_no_room_is_kept_says_so(backfill: str) -> None:
    ledger = shard(node_seen("node-a"), node_seen("node-b"), backfill=backfill)
    ledger.commit(DrainRequested(kind="drain_requested", node="node-b"))
    assert passed(submit(ledger, ("head", 9, 1), ("short", 1, 1))) == {"short": [("head", "unreserved")]}
    # In a later message too, in which nobody asks about the blocked job again.
    assert passed(submit(ledger, ("beside", 1, 1))) == {"beside": [("head", "unreserved")]}


def test_who_needs_another_model_takes_nothing_from_a_blocked_job() -> None:
    ledger = shard(node_seen("node-h", gpu_model="h100"), node_seen("node-a", gpu_model="a100"))
    ledger.commit(DrainRequested(kind="drain_requested", node="node-h"))
    ledger.commit(of_model("useless-0", "h100"), of_model("single", "a100", 1, 9))
    assert passed(ledger.commit(orders=(ledger.line(),)).records) == {"single": [("useless-0", "beside")]}


def test_those_with_kept_room_are_named_before_the_first_of_the_others() -> None:
    ledger = shard()
    submit(ledger, ("runs", 4, 2))
    submit(ledger, *((f"small-{i}", 9, 1) for i in range(6)), ("head", 8, 1))
    (names,) = passed(submit(ledger, ("short", 1, 1))).values()
    assert names == [("head", "ends_before"), *((f"small-{i}", "unreserved") for i in range(3))]


def test_a_ledger_of_an_earlier_format_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "PASSED_FROM", FORMAT + 1)
    ledger = shard()
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    assert passed(submit(ledger, ("short", 1, 1))) == {"short": []}


def test_the_job_and_its_memory_keep_whom_it_passed() -> None:
    ledger = shard()
    submit(ledger, ("runs", 4, 2))
    submit(ledger, ("head", 8, 1))
    submit(ledger, ("short", 1, 1))
    (named,) = job(ledger, "short").passed
    end(ledger, *ids("short"))
    assert ledger.state.ended.get(*ids("short")).passed == (named,)
