"""A gang that restarts keeps what is well of its place, by the real committer, and judged by the checkers."""

from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.engine.explain.explanation import explain
from tessera.scheduler import decide
from tessera.testkit.checker import check
from tessera.testkit.pays_checker import check_pays
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import job_id
from tessera_schemas.config import Flavor
from tessera_schemas.facts import CancelRequested, HoldRequested, PriorityRequested, RunEnded, RunLost
from tessera_schemas.job import Retry
from tessera_schemas.ledger import LEDGER_MESSAGE, EarmarkEnded
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import RESTART_PLACES_FROM
from tests.builders import SHARD, config_proposed, node_seen, run_absent
from tests.rounds import Rounds, share

FAILED = Reason(code=Code.POD_FAILED, numbers={"exit_code": 1})
AGAIN = Retry(max_attempts=4, on_failure=True)


def two_nodes(*queues: Any, nodes: int = 2, **policy: Any) -> Rounds:
    """Nodes of 8 GPUs, with the policy that `config init` writes where it matters here."""
    named = {f"node-{name}": 8 for name in "abcd"[:nodes]}
    more: dict[str, Any] = {"preset": "fair", "backfill": "reserve", "min_runtime_seconds": 60} | policy
    return Rounds(*(queues or (share("research", 8 * nodes, parent=None),)), nodes=named, **more)


def fails(rounds: Rounds, key: str, reason: Reason = FAILED, rank: int = 0) -> None:
    run = rounds.run(key).run_id
    rounds.commit(RunEnded(kind="run_ended", run_id=run, reason=reason, own=True, rank=rank))
    rounds.commit(run_absent(run))


def passes(rounds: Rounds, seconds: int) -> Rounds:
    rounds.ts += seconds * 1000
    return rounds.settle()


def mark(rounds: Rounds, key: str) -> Any:
    return rounds.state.earmarks.get(job_id(SHARD, "lab", key))


def ends(rounds: Rounds) -> list[str]:
    """Why earmarks ended, in order."""
    read = [LEDGER_MESSAGE.validate_json(stored) for stored in rounds.stored]
    return [record.why for message in read for record in message.records if isinstance(record, EarmarkEnded)]


def judge(rounds: Rounds) -> None:
    report = check(rounds.stored)
    check_rules(report, rounds.stored)
    check_pays(report, rounds.stored)
    assert report.violations == []
    assert verify(rounds.stored).findings == []


def gang_among_others(rounds: Rounds, **more: Any) -> Rounds:
    """A gang over both nodes runs, and four jobs of a whole node stand behind it."""
    rounds.submit("gang", gpus=8, pods=2, retry=AGAIN)
    rounds.settle()
    for n in range(4):
        rounds.submit(f"other-{n}", gpus=8, **more)
    return rounds.settle()


def test_a_gang_that_fails_begins_again_at_the_end_of_each_back_off() -> None:
    rounds = gang_among_others(two_nodes())
    begun = []
    for _ in range(3):
        before = rounds.run("gang").placements
        fails(rounds, "gang")
        rounds.settle()
        assert rounds.run("gang") is None
        assert not any(rounds.running(f"other-{n}") for n in range(4))
        failed = rounds.ts
        while rounds.run("gang") is None:
            passes(rounds, 1)
        begun.append((rounds.run("gang").allocated_ts - failed) // 1000)
        assert rounds.run("gang").placements == before
    assert all(pause <= wait <= pause + 6 for pause, wait in zip((10, 20, 40), begun, strict=True))
    judge(rounds)


def test_after_so_many_failures_in_a_row_the_place_is_anybodys() -> None:
    rounds = gang_among_others(two_nodes(restart_place_failures=1))
    fails(rounds, "gang")
    assert mark(rounds, "gang") is not None
    passes(rounds, 11)
    fails(rounds, "gang")
    assert mark(rounds, "gang") is None
    rounds.settle()
    assert rounds.running("other-0", "other-1")
    judge(rounds)


@pytest.mark.parametrize(("seconds", "kept"), [(0, False), (10, False), (11, True)])
def test_no_place_is_kept_through_a_pause_that_outlasts_it(seconds: int, kept: bool) -> None:
    rounds = gang_among_others(two_nodes(restart_place_seconds=seconds))
    fails(rounds, "gang")
    assert (mark(rounds, "gang") is not None) is kept


def test_of_a_gang_that_lost_a_node_only_what_is_missing_is_sought() -> None:
    rounds = two_nodes(nodes=3)
    rounds.submit("gang", gpus=8, pods=2)
    rounds.settle()
    rounds.submit("busy", gpus=8)
    rounds.settle()
    rounds.submit("other", gpus=8)
    rounds.submit("small", gpus=1)
    rounds.settle()
    lost, kept = (place.node for place in rounds.run("gang").placements)
    rounds.commit(node_seen(lost, 8, ready=False))
    reason = Reason(code=Code.NODE_LOST, field=f"nodes.{lost}")
    rounds.commit(RunLost(kind="run_lost", run_id=rounds.run("gang").run_id, reason=reason, nodes=(lost,)))
    rounds.settle()
    assert [place.node for place in mark(rounds, "gang").placements] == [kept]
    assert not rounds.running("other")
    assert not rounds.running("small")
    told = rounds.job("gang").reason
    assert told is not None
    assert told.code is Code.NO_FIT
    said = explain(rounds.state, rounds.job("small").job_id, rounds.ts)
    assert said is not None
    assert any("Gangs that restart keep their places" in sentence for sentence in said.sentences)
    own = explain(rounds.state, rounds.job("gang").job_id, rounds.ts)
    assert own is not None
    assert own.reason is not None
    assert own.reason.code is Code.NO_FIT
    assert any(f"Room on {kept} is kept for it (restart)" in sentence for sentence in own.sentences)
    rounds.finish("busy")
    rounds.settle()
    assert rounds.running("gang")
    judge(rounds)


@pytest.mark.parametrize(("priority", "runs"), [("low", True), ("normal", False)])
def test_for_what_is_missing_room_is_made_as_for_any_job(priority: str, runs: bool) -> None:
    rounds = two_nodes(nodes=3)
    rounds.submit("gang", gpus=8, pods=2)
    rounds.settle()
    rounds.submit("busy", gpus=8, priority=priority)
    rounds.settle()
    passes(rounds, 100)
    lost = rounds.run("gang").placements[0].node
    rounds.commit(node_seen(lost, 8, ready=False))
    reason = Reason(code=Code.NODE_LOST, field=f"nodes.{lost}")
    rounds.commit(RunLost(kind="run_lost", run_id=rounds.run("gang").run_id, reason=reason, nodes=(lost,)))
    rounds.settle()
    assert rounds.running("gang") is runs
    assert ends(rounds) == (["replaced", "used"] if runs else [])
    judge(rounds)


def test_what_is_missing_may_stay_missing_until_the_bound_passes() -> None:
    rounds = two_nodes()
    rounds.submit("gang", gpus=8, pods=2)
    rounds.settle()
    rounds.submit("small", gpus=1)
    rounds.settle()
    rounds.commit(node_seen("node-a", 8, ready=False))
    reason = Reason(code=Code.NODE_LOST, field="nodes.node-a")
    rounds.commit(RunLost(kind="run_lost", run_id=rounds.run("gang").run_id, reason=reason, nodes=("node-a",)))
    rounds.settle()
    passes(rounds, 280)
    assert not rounds.running("small")
    passes(rounds, 20)
    assert (mark(rounds, "gang"), ends(rounds)) == (None, ["deadline"])
    assert rounds.running("small")
    judge(rounds)


def lose(rounds: Rounds, *nodes: str, key: str = "gang") -> None:
    """Nodes of a run are not ready any more, all at once, and the run is stopped and absent."""
    run = rounds.run(key).run_id
    reason = Reason(code=Code.NODE_LOST, field=f"nodes.{nodes[0]}")
    rounds.commit(*(node_seen(node, 8, ready=False) for node in nodes))
    rounds.commit(RunLost(kind="run_lost", run_id=run, reason=reason, nodes=nodes))
    rounds.settle()


@pytest.mark.parametrize("at_once", [True, False])
def test_of_a_gang_that_lost_two_nodes_what_is_well_stays_kept(at_once: bool) -> None:
    rounds = two_nodes(nodes=4)
    rounds.submit("gang", gpus=8, pods=4)
    rounds.settle()
    for n in range(2):
        rounds.submit(f"other-{n}", gpus=8)
    lose(rounds, *(("node-a", "node-b") if at_once else ("node-a",)))
    until = mark(rounds, "gang").deadline
    if not at_once:
        passes(rounds, 20)
        rounds.commit(node_seen("node-b", 8, ready=False))
        rounds.settle()
    assert sorted(place.node for place in mark(rounds, "gang").placements) == ["node-c", "node-d"]
    assert mark(rounds, "gang").deadline == until
    assert not any(rounds.running(f"other-{n}") for n in range(2))
    rounds.commit(node_seen("node-a", 8), node_seen("node-b", 8))
    rounds.settle()
    assert rounds.running("gang")
    judge(rounds)


def test_a_gang_that_lost_its_last_node_keeps_nothing() -> None:
    rounds = two_nodes()
    rounds.submit("gang", gpus=8, pods=2)
    rounds.settle()
    lose(rounds, "node-a")
    rounds.commit(node_seen("node-b", 8, ready=False))
    assert (mark(rounds, "gang"), ends(rounds)) == (None, ["node_lost"])
    judge(rounds)


def test_nobody_younger_takes_piece_by_piece_what_is_missing_of_a_place() -> None:
    rounds = two_nodes(nodes=3)
    rounds.submit("gang", gpus=8, pods=2)
    rounds.settle()
    for n in range(8):
        rounds.submit(f"old-{n}", gpus=1, time_limit_seconds=3600)
    rounds.settle()
    for n in range(8):
        rounds.submit(f"young-{n}", gpus=1, time_limit_seconds=7200)
    brief = rounds.submit("brief", gpus=1, time_limit_seconds=60)
    passes(rounds, 60)
    lose(rounds, rounds.run("gang").placements[0].node)
    for n in range(7):
        rounds.finish(f"old-{n}")
        rounds.settle()
    # Who delays the gang stays out, and who has left before it can start passes.
    assert not any(rounds.running(f"young-{n}") for n in range(8))
    assert rounds.running("brief")
    told = rounds.job("gang").reason
    assert told is not None
    assert told.code is Code.RESERVED
    said = explain(rounds.state, rounds.job("gang").job_id, rounds.ts)
    assert said is not None
    assert any("room is kept on" in sentence for sentence in said.sentences)
    assert any("Room on" in sentence and "is kept for it (restart)" in sentence for sentence in said.sentences)
    assert rounds.state.jobs.get(brief).reason is None
    for key in ("brief", "old-7"):
        rounds.finish(key)
        rounds.settle()
    assert rounds.running("gang")
    judge(rounds)


@pytest.mark.parametrize(("strategy", "passes_it"), [("best_effort_fifo", True), ("strict_fifo", False)])
def test_in_a_strict_queue_nobody_passes_a_gang_that_lacks_a_part_of_its_place(strategy: str, passes_it: bool) -> None:
    rounds = two_nodes(share("research", 24, parent=None, queueing_strategy=strategy), nodes=3)
    rounds.submit("gang", gpus=8, pods=2)
    rounds.submit("old", gpus=4, time_limit_seconds=3600)
    rounds.settle()
    lose(rounds, rounds.run("gang").placements[0].node)
    rounds.submit("brief", gpus=1, time_limit_seconds=60)
    rounds.settle()
    assert rounds.running("brief") is passes_it
    told = rounds.job("brief").reason
    assert (told is not None and told.code is Code.BEHIND_QUEUE_HEAD) is not passes_it
    judge(rounds)


def test_a_higher_class_takes_the_room_and_an_equal_one_does_not() -> None:
    rounds = gang_among_others(two_nodes(preset="off"))
    fails(rounds, "gang")
    rounds.settle()
    assert mark(rounds, "gang") is not None
    rounds.submit("urgent", gpus=8, priority="urgent")
    rounds.settle()
    assert (mark(rounds, "gang"), ends(rounds)) == (None, ["outranked"])
    assert rounds.running("urgent")
    judge(rounds)


def test_a_higher_class_that_has_room_elsewhere_leaves_the_place() -> None:
    rounds = two_nodes(nodes=3)
    rounds.submit("gang", gpus=8, pods=2, retry=AGAIN)
    rounds.settle()
    fails(rounds, "gang")
    rounds.submit("urgent", gpus=8, priority="urgent")
    rounds.settle()
    assert rounds.running("urgent")
    assert mark(rounds, "gang") is not None


def test_who_is_owed_the_quota_takes_the_room() -> None:
    rounds = two_nodes(share("all", 16, parent=None), share("ours", 0), share("theirs", 16))
    rounds.submit("gang", gpus=8, pods=2, queue="ours", retry=AGAIN)
    rounds.settle()
    fails(rounds, "gang")
    rounds.settle()
    assert mark(rounds, "gang") is not None
    rounds.submit("owner", gpus=8, queue="theirs")
    rounds.settle()
    assert (mark(rounds, "gang"), rounds.running("owner")) == (None, True)
    judge(rounds)


@pytest.mark.parametrize("word", ["cancel", "hold", "low", "stop"])
def test_the_room_is_given_back_by_a_word_about_the_job(word: str) -> None:
    rounds = gang_among_others(two_nodes())
    fails(rounds, "gang")
    assert mark(rounds, "gang") is not None
    named = rounds.job("gang").job_id
    if word == "cancel":
        rounds.commit(CancelRequested(kind="cancel_requested", job_id=named, tenant="lab"))
    elif word == "hold":
        rounds.commit(HoldRequested(kind="hold_requested", job_id=named, tenant="lab"))
    elif word == "low":
        rounds.commit(PriorityRequested(kind="priority_requested", job_id=named, tenant="lab", priority_class="low"))
    else:
        body = rounds.state.config.body
        queues = tuple(queue.model_copy(update={"stop_policy": "hold"}) for queue in body.queues)
        rounds.commit(config_proposed(body.model_copy(update={"queues": queues}), rounds.state.config.version))
    assert mark(rounds, "gang") is None
    judge(rounds)


def test_a_place_of_a_flavor_that_was_abandoned_is_given_back() -> None:
    rounds = two_nodes()
    plain = rounds.state.config.body
    quotas = tuple(quota.model_copy(update={"flavor": "fast"}) for quota in plain.queues[0].quotas)
    queues = (plain.queues[0].model_copy(update={"quotas": quotas}),)
    flavored = plain.model_copy(update={"queues": queues, "flavors": (Flavor(name="fast"),)})
    rounds.commit(config_proposed(flavored, rounds.state.config.version))
    rounds.submit("gang", gpus=8, pods=2, retry=AGAIN)
    rounds.settle()
    fails(rounds, "gang")
    assert mark(rounds, "gang").flavor == "fast"
    rounds.commit(config_proposed(plain, rounds.state.config.version, abandon=True))
    assert mark(rounds, "gang") is None
    passes(rounds, 60)
    assert rounds.run("gang").flavor == ""
    judge(rounds)


def test_preemption_keeps_no_place() -> None:
    rounds = gang_among_others(two_nodes(min_runtime_seconds=0))
    rounds.submit("urgent", gpus=8, priority="urgent")
    rounds.settle()
    assert rounds.running("urgent")
    assert mark(rounds, "gang") is None
    assert "used" in ends(rounds)


def test_a_committer_of_an_older_format_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "FORMAT", RESTART_PLACES_FROM - 1)
    rounds = gang_among_others(two_nodes())
    fails(rounds, "gang")
    rounds.settle()
    assert mark(rounds, "gang") is None
    assert rounds.running("other-0", "other-1")
