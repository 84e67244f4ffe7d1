"""A tenant of which many runs have no pods yet gets no more of them, and everybody else goes on."""

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.storing.snapshot import dump, load
from tessera.engine.explain.explanation import explain
from tessera.engine.queueing import readiness
from tessera.engine.queueing.ordering import stuck_heads
from tessera.engine.queueing.readiness import UNMADE_MAX
from tessera.testkit.sim.planner import plan_for
from tessera_schemas.config import Queue
from tessera_schemas.facts import PodsMade, RunEnded
from tessera_schemas.job import Retry
from tessera_schemas.ledger import FORMAT, AnyRecord, EarmarkEnded, LedgerMessage
from tessera_schemas.reasons import Code
from tessera_schemas.work.adopted import Adopted
from tests.builders import admitted, first_run, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed
from tests.rounds import Rounds
from tests.unit.scheduler.committer_world import FAILED, cancel, reasons
from tests.unit.scheduler.contested_world import plan, refusal
from tests.unit.scheduler.reserving_world import HOUR, job, shard, start

FEW = 2
OWNER = Adopted(owner_kind="Job", owner_name="train", uids=("uid-0",))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of a tenant without pods are many."""
    monkeypatch.setattr(readiness, "UNMADE_MAX", FEW)


def send(ledger: Committed, *keys: str, tenant: str = "lab", gpus: int = 1, pods: int = 1, **more: object) -> None:
    spec = job_spec(role(replicas=pods, gpus=gpus), **more)
    ledger.commit(*(admitted(key, spec, tenant) for key in keys))


def line(ledger: Committed) -> LedgerMessage:
    return ledger.commit(orders=(ledger.line(),))


def begun(message: LedgerMessage, *keys: str, tenant: str = "lab") -> list[str]:
    """Which of these jobs the message starts."""
    ids = {record.job_id for record in message.records if record.kind == "allocated"}
    return [key for key in keys if admitted(key, tenant=tenant).job_id in ids]


def made(key: str, pods: int = 1, tenant: str = "lab") -> PodsMade:
    return PodsMade(
        kind="pods_made", run_id=first_run(key, tenant), uids=tuple(f"{key}-{rank}" for rank in range(pods))
    )


def counted(ledger: Committed) -> dict[str, int]:
    """Runs without pods by tenant, as the state counts them and as one counts the runs."""
    wanting = [run.tenant for run in ledger.state.runs.values() if not run.uids and not run.stopping]
    found = {tenant: count for tenant, count in ledger.state.unmade.items() if count}
    assert found == {tenant: wanting.count(tenant) for tenant in dict.fromkeys(wanting)}
    return found


def judged(ledger: Committed) -> None:
    assert verify(ledger.stored).findings == []


def test_no_more_than_the_bound_start_and_the_next_one_starts_with_the_fact_that_pods_are_made() -> None:
    ledger = shard(*(node_seen(f"node-{at}") for at in range(10)), backfill="off")
    keys = [f"k{at:02}" for at in range(UNMADE_MAX + 2)]
    send(ledger, *keys)
    first = line(ledger)
    assert [record.kind for record in first.records] == ["allocated"] * UNMADE_MAX
    rest = [key for key in keys if job(ledger, key).run_id not in {run for run, _ in ledger.state.runs.items()}]
    assert line(ledger).records == ()
    # No order comes with it: who was in line is looked at again.
    told = ledger.commit(made(begun(first, *keys)[0]))
    assert ([record.kind for record in told.records], counted(ledger)) == (["permitted", "allocated"], {"lab": 64})
    assert len(begun(told, *rest)) == 1
    judged(ledger)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("backfill", ["off", "reserve"])
def test_another_tenant_starts_in_the_room_that_a_resting_job_leaves_and_passes_nobody_who_is_blocked(
    backfill: str,
) -> None:
    ledger = shard(backfill=backfill)
    send(ledger, "a", "b", "c", "d")
    send(ledger, "mine", tenant="other")
    message = line(ledger)
    assert (begun(message, "a", "b", "c", "d"), begun(message, "mine", tenant="other")) == (["a", "b"], ["mine"])
    assert [record.passed for record in message.records if record.kind == "allocated"] == [(), (), ()]
    assert (reasons(message), counted(ledger)) == ([], {"lab": 2, "other": 1})
    judged(ledger)


@pytest.mark.usefixtures("few")
def test_a_gang_is_one_run_however_many_pods_it_has() -> None:
    ledger = shard()
    send(ledger, "gang", pods=4)
    send(ledger, "b", "c")
    assert begun(line(ledger), "gang", "b", "c") == ["gang", "b"]
    assert begun(ledger.commit(made("gang", 4)), "c") == ["c"]


@pytest.mark.usefixtures("few")
def test_nobody_passes_the_resting_first_job_of_a_strict_queue_and_other_queues_go_on() -> None:
    ledger = Rounds(Queue(name="research", queueing_strategy="strict_fifo"), Queue(name="open"))
    send(ledger, "a", "b", "c")
    send(ledger, "behind", tenant="other")
    send(ledger, "beside", tenant="other", queue="open")
    message = line(ledger)
    assert begun(message, "a", "b", "c") == ["a", "b"]
    assert begun(message, "behind", "beside", tenant="other") == ["beside"]
    assert reasons(message) == [Code.BEHIND_QUEUE_HEAD]
    freed = ledger.commit(made("a"))
    assert begun(freed, "c") == ["c"]
    assert begun(freed, "behind", tenant="other") == ["behind"]
    judged(ledger)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("before", "is_kept"), [(FEW - 1, True), (FEW, False)])
def test_room_is_kept_for_no_resting_job(before: int, is_kept: bool) -> None:
    ledger = shard()
    send(ledger, "holds", tenant="other", gpus=3, time_limit_seconds=HOUR)  # so that the large one is before `long`
    send(ledger, *("a", "b")[:before], time_limit_seconds=HOUR)
    line(ledger)
    send(ledger, "large", gpus=8, time_limit_seconds=HOUR)
    send(ledger, "long", tenant="other", time_limit_seconds=9 * HOUR)
    assert begun(line(ledger), "long", tenant="other") == ([] if is_kept else ["long"])
    assert (job(ledger, "large").reason is not None) is is_kept
    judged(ledger)


@pytest.mark.usefixtures("few")
def test_a_job_for_which_room_is_kept_starts_in_it_all_the_same() -> None:
    ledger = shard(node_seen("node-a"), node_seen("node-b", 2))
    send(ledger, "runs", gpus=8, time_limit_seconds=2 * HOUR)
    line(ledger)
    start(ledger)
    send(ledger, "large", gpus=8, time_limit_seconds=HOUR)
    send(ledger, "a", "b", time_limit_seconds=60)
    assert begun(line(ledger), "a", "b") == ["a", "b"]
    assert (job(ledger, "large").reason.code, counted(ledger)) == (Code.RESERVED, {"lab": FEW})
    ledger.commit(RunEnded(kind="run_ended", run_id=first_run("runs")))
    assert begun(ledger.commit(run_absent(first_run("runs"))), "large") == ["large"]
    judged(ledger)


@pytest.mark.usefixtures("few")
def test_no_plan_is_made_or_taken_for_a_resting_job() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 2}, preset="priority")
    rounds.submit("low", gpus=8, priority="low")
    rounds.settle()
    rounds.submit("urgent", gpus=8, priority="urgent")
    rounds.round(plans=False)
    assert [each.name for each in stuck_heads(rounds.state, rounds.ts, 32)] == ["urgent"]
    rounds.submit("a")
    rounds.submit("b")
    line(rounds)
    assert counted(rounds) == {"lab": FEW}
    assert stuck_heads(rounds.state, rounds.ts, 32) == []
    assert refusal(rounds.commit(plan((first_run("low"),), admitted("urgent").job_id))) is Code.NOT_WAITING
    rounds.settle()
    assert rounds.evicted() == [["low"]]
    judged(rounds)


@pytest.mark.usefixtures("few")
def test_a_job_for_which_others_were_stopped_starts_in_their_place_all_the_same() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 2}, preset="priority")
    rounds.submit("low", gpus=8, priority="low")
    rounds.settle()
    rounds.submit("urgent", gpus=8, priority="urgent")
    line(rounds)
    rounds.commit(plan_for(rounds.state, rounds.job("urgent"), [rounds.run("low")]))
    rounds.submit("a")
    rounds.submit("b")
    line(rounds)
    assert begun(rounds.commit(run_absent(first_run("low"))), "urgent") == ["urgent"]
    assert counted(rounds) == {"lab": FEW + 1}
    judged(rounds)


@pytest.mark.usefixtures("few")
def test_a_resting_job_of_a_higher_class_ends_nobodys_kept_place() -> None:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8, "node-c": 2}, preset="off")
    rounds.submit("gang", gpus=8, pods=2, retry=Retry(max_attempts=4, on_failure=True))
    rounds.settle()
    for key in ("a", "b"):
        rounds.submit(key)
    line(rounds)
    rounds.submit("urgent", gpus=8, priority="urgent")
    line(rounds)
    rounds.commit(RunEnded(kind="run_ended", run_id=first_run("gang"), reason=FAILED, own=True))
    rounds.commit(run_absent(first_run("gang")))
    assert rounds.state.earmarks.get(admitted("gang").job_id) is not None
    assert ended_marks(rounds.commit(made("a"), ms=0).records) == ["outranked"]
    judged(rounds)


def ended_marks(records: tuple[AnyRecord, ...]) -> list[str]:
    return [record.why for record in records if isinstance(record, EarmarkEnded)]


@pytest.mark.usefixtures("few")
def test_a_run_that_is_stopped_before_it_has_pods_gives_its_place_to_the_next_one_at_once() -> None:
    ledger = shard()
    send(ledger, "a", "b", "c")
    line(ledger)
    assert begun(ledger.commit(cancel(admitted("a").job_id)), "c") == ["c"]
    assert counted(ledger) == {"lab": FEW}


@pytest.mark.usefixtures("few")
def test_pods_that_users_made_count_for_nobody() -> None:
    ledger = shard()
    keys = ("a", "b", "c", "d")
    ledger.commit(*(admitted(key).model_copy(update={"adopted": OWNER}) for key in keys))
    message = line(ledger)
    assert (begun(message, *keys), counted(ledger)) == (list(keys), {})


@pytest.mark.usefixtures("few")
def test_a_ledger_of_an_earlier_format_starts_all_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "UNMADE_FROM", FORMAT + 1)
    ledger = shard()
    send(ledger, "a", "b", "c", "d")
    assert begun(line(ledger), "a", "b", "c", "d") == ["a", "b", "c", "d"]


@pytest.mark.usefixtures("few")
def test_a_restored_state_counts_the_same_and_an_overlay_moves_nothing_below_it() -> None:
    ledger = shard()
    send(ledger, "a", "b", "c")
    line(ledger)
    ledger.commit(made("a"))
    top = ledger.state.overlay()
    top.drop_run(top.runs.get(first_run("b")))
    assert (top.unmade.get("lab"), counted(ledger)) == (1, {"lab": FEW})
    assert dict(load(dump(ledger.state)).unmade.items()) == counted(ledger)


@pytest.mark.usefixtures("few")
def test_explain_tells_a_resting_job_of_the_runs_before_it() -> None:
    ledger = shard()
    send(ledger, "a", "b", "c")
    line(ledger)
    answer = explain(ledger.state, admitted("c").job_id, ledger.ts)
    assert answer is not None
    assert (answer.reason.code, answer.reason.numbers) == (
        Code.WAITING_FOR_TURN,
        {"runs_without_pods": FEW, "runs_without_pods_max": FEW},
    )
    assert "the binder makes the pods of the tenant's earlier runs first" in answer.sentence()
    ledger.commit(made("a"))
    assert job(ledger, "c").run_id in {run for run, _ in ledger.state.runs.items()}
