"""What budgets spend in a month, what is told of it, and what becomes of work whose budget is spent."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.entities import Earmark
from tessera.domain.folding.books import put_in_force
from tessera.domain.folding.spending import BudgetUse, Holdings, counted, levels_due
from tessera.domain.state import State
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.explain.explanation import explain
from tessera.engine.preemption.plans import Plan, proposal
from tessera.engine.preemption.rules import budget_against
from tessera.engine.queueing.ordering import PoolLine
from tessera.kernel.ledger.shard import decode_entry
from tessera.kernel.ports import Message
from tessera.preemption.decide import preemption_heads, preemption_plan
from tessera.projection.events import events_of
from tessera.queueing.decide import order
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import job_id
from tessera_schemas.config import Config, ConfigBody, Flavor, Policy, Queue
from tessera_schemas.events import CloudEvent
from tessera_schemas.facts import GrantRequested, RunEnded
from tessera_schemas.ledger import (
    BudgetGranted,
    BudgetReached,
    BudgetReopened,
    EarmarkEnded,
    JobTurnedAway,
    LedgerMessage,
    Revoked,
)
from tessera_schemas.reasons import Code
from tessera_schemas.text.reading import read_operator_command
from tessera_schemas.work.budgets import MICROS, Budget, month_end, month_start
from tessera_schemas.work.money import FlavorPrice, Money
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000
LAB = "tenant/lab"


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def with_budgets(*budgets: Budget, **more: Any) -> ConfigBody:
    prices = (FlavorPrice(flavor="a100", gpu_hour_micros=2_000_000), *more.pop("prices", ()))
    body = config_body(*more.pop("queues", ()), **more)
    given = {"flavors": (Flavor(name="a100"),), "money": Money(currency="EUR", prices=prices), "budgets": budgets}
    return ConfigBody.model_validate(body.model_copy(update=given).model_dump())


def begun(*budgets: Budget, ts: str = "2026-11-10T00:00", **more: Any) -> Committed:
    ledger = Committed(ts=at(ts) - 3 * SECOND)
    return ledger.begin(*(node_seen(f"node-{name}") for name in "ab"), body=with_budgets(*budgets, **more))


def hold(gpu_hours: int = 10, **more: Any) -> Budget:
    return Budget(tenant="lab", gpu_hours=gpu_hours, **more)


def submit(ledger: Committed, key: str, gpus: int = 1, tenant: str = "lab", **more: Any) -> LedgerMessage:
    return ledger.commit(admitted(key, job_spec(role(gpus=gpus), **more), tenant=tenant))


def run(ledger: Committed, key: str, gpus: int = 1, tenant: str = "lab", **more: Any) -> str:
    """A job that runs; its GPUs are held since two seconds ago."""
    submit(ledger, key, gpus, tenant, **more)
    return ledger.start(job_id(SHARD, tenant, key), key)


def end(ledger: Committed, run_id: str, ms: int = 0) -> None:
    ledger.commit(RunEnded(kind="run_ended", run_id=run_id), ms=ms)
    ledger.commit(run_absent(run_id), ms=0)


def row(ledger: Committed, name: str = LAB) -> BudgetUse:
    state = ledger.state
    return counted(state, state.spending.get(name), ledger.ts)


def starts(ledger: Committed, ms: int = SECOND) -> list[str]:
    """Keys of jobs that start at the next pass over the line."""
    ledger.ts += ms
    message = ledger.commit(orders=(ledger.line(),), ms=0)
    return [ledger.state.jobs.get(r.job_id).key for r in message.records if r.kind == "allocated"]


def why(ledger: Committed, key: str, tenant: str = "lab") -> Any:
    job = ledger.state.jobs.get(job_id(SHARD, tenant, key))
    return job.reason and job.reason.code


def records(message: LedgerMessage, *kinds: type) -> list[Any]:
    return [record for record in message.records if isinstance(record, kinds)]


def grant(amount: int, granted: int = 0, month: str = "2026-11", budget: str = LAB) -> GrantRequested:
    said = {"why": "deadline of the paper", "by": "ana"}
    return GrantRequested(kind="grant_requested", budget=budget, month=month, amount=amount, granted=granted, **said)


def test_eighty_and_a_hundred_percent_are_told_at_their_millisecond_and_not_before() -> None:
    ledger = begun(hold(10))
    run(ledger, "k1")
    ledger.commit(ms=8 * HOUR - 2 * SECOND - 1)
    assert ledger.state.spending.get(LAB).level == 0
    (warned,) = records(ledger.commit(ms=1), BudgetReached)
    assert (warned.percent, warned.spent_micros, warned.limit_micros) == (80, 8 * MICROS, 10 * MICROS)
    assert (warned.unit, warned.when_spent, warned.tenant) == ("GPU-hours", "hold", "lab")
    assert not records(ledger.commit(ms=2 * HOUR - 1), BudgetReached)
    (spent,) = records(ledger.commit(ms=1), BudgetReached)
    assert (spent.percent, spent.spent_micros) == (100, 10 * MICROS)
    assert not records(ledger.commit(ms=HOUR), BudgetReached, BudgetReopened)


def test_a_level_is_found_again_by_the_next_message_where_one_that_told_it_was_thrown_away() -> None:
    ledger = begun(hold(10))
    run(ledger, "k1")
    draft = ledger.state.overlay()
    draft.ts += 9 * HOUR
    (found,) = levels_due(draft)
    assert (found[0].name, found[1]) == (LAB, 80)
    assert levels_due(draft) == [found]
    (warned,) = records(ledger.commit(ms=9 * HOUR), BudgetReached)
    assert warned.percent == 80


def test_money_is_spent_by_the_price_of_each_hour() -> None:
    dearer = FlavorPrice(flavor="a100", gpu_hour_micros=4_000_000, since="2026-11-10T02")
    ledger = begun(Budget(tenant="lab", amount=10), prices=(dearer,))
    held = ledger.ts + 2 * SECOND
    run(ledger, "k1", gpus=1)
    ledger.commit(ms=at("2026-11-10T03:30") - ledger.ts)
    micros = (2 * HOUR - (held - at("2026-11-10"))) * 2 * MICROS // HOUR + 6 * MICROS
    assert row(ledger).micros == micros
    assert ledger.state.spending.get(LAB).level == 80


def test_what_a_budget_has_spent_is_what_its_jobs_cost() -> None:
    ledger = begun(Budget(tenant="lab", amount=1000), Budget(queue="research", amount=1000))
    first, _ = run(ledger, "k1", gpus=3), run(ledger, "k2", gpus=2)
    other = run(ledger, "k3", tenant="other")
    end(ledger, first, ms=12_345)
    end(ledger, other, ms=777)
    ledger.commit(RunEnded(kind="run_ended", run_id=f"{job_id(SHARD, 'lab', 'k2')}-1"), ms=987_654)
    ended = {each.key: each for each in ledger.state.ended.values()}
    of_lab = sum(ended[key].gpu_milli_ms for key in ("k1", "k2"))
    assert row(ledger).micros == of_lab * 2_000_000 // (1000 * HOUR)
    assert row(ledger, "queue/research").micros == (of_lab + ended["k3"].gpu_milli_ms) * 2_000_000 // (1000 * HOUR)


@pytest.mark.parametrize(
    ("month", "after", "days"),
    [("2028-02", "2028-03", 29), ("2026-02", "2026-03", 28), ("2026-12", "2027-01", 31), ("2026-11", "2026-12", 30)],
)
def test_a_run_over_a_months_end_counts_in_each_month_for_its_part(month: str, after: str, days: int) -> None:
    assert month_end(at(f"{month}-01")) - month_start(at(f"{month}-{days}")) == days * DAY
    ledger = begun(hold(10_000), ts=f"{month}-{days}T20:00")
    run(ledger, "k1", gpus=2)
    ledger.commit(ms=at(f"{after}-01T05:00") - ledger.ts)
    found = row(ledger)
    assert (found.micros, found.before_micros) == (10 * MICROS, (4 * HOUR - 2 * SECOND) * 2 * MICROS // HOUR)
    assert found.ts == at(f"{after}-01T05:00")


def test_what_was_spent_two_months_ago_is_forgotten_and_a_month_without_a_record_has_its_part() -> None:
    ledger = begun(hold(100_000))
    run(ledger, "k1")
    ledger.commit(ms=at("2027-01-02") - ledger.ts)
    assert (row(ledger).micros, row(ledger).before_micros) == (24 * MICROS, 31 * 24 * MICROS)


def test_under_hold_no_run_begins_until_the_month_ends_and_running_work_goes_on() -> None:
    ledger = begun(hold(1))
    run(ledger, "k1")
    submit(ledger, "k2")
    assert starts(ledger, ms=HOUR) == []
    assert why(ledger, "k2") is Code.BUDGET_SPENT
    job = ledger.state.jobs.get(job_id(SHARD, "lab", "k2"))
    assert job.reason.sentence().endswith("(1.00 GPU-hours, until 2026-12-01 UTC)")
    assert explain(ledger.state, job.job_id, ledger.ts).reason == job.reason
    assert [each.key for each in ledger.state.jobs.values() if each.phase == "running"] == ["k1"]
    assert starts(ledger, ms=at("2026-12-01") - ledger.ts - 1) == []
    assert starts(ledger, ms=1) == ["k2"]
    assert (row(ledger).level, row(ledger).micros) == (0, 0)


def test_jobs_without_gpus_and_of_other_tenants_start_though_the_budget_is_spent() -> None:
    ledger = begun(hold(1))
    run(ledger, "k1")
    ledger.commit(ms=HOUR)
    for key, gpus, tenant in (("cpu", 0, "lab"), ("k2", 1, "other"), ("k3", 1, "lab")):
        submit(ledger, key, gpus, tenant)
    assert sorted(starts(ledger)) == ["cpu", "k2"]
    assert why(ledger, "k3") is Code.BUDGET_SPENT


def test_the_budget_of_a_queue_counts_and_keeps_the_queues_below_it() -> None:
    queues = (Queue(name="all"), Queue(name="research", parent="all"), Queue(name="beside"))
    ledger = begun(Budget(queue="all", gpu_hours=1), queues=queues)
    run(ledger, "k1")
    submit(ledger, "k2")
    submit(ledger, "k3", queue="beside")
    assert starts(ledger, ms=HOUR) == ["k3"]
    assert why(ledger, "k2") is Code.BUDGET_SPENT


def test_a_grant_is_a_record_and_lets_jobs_start_until_it_is_spent_too() -> None:
    ledger = begun(hold(1))
    run(ledger, "k1")
    submit(ledger, "k2")
    starts(ledger, ms=HOUR)
    message = ledger.commit(grant(3))
    (granted,) = records(message, BudgetGranted)
    assert (granted.amount, granted.why, granted.by) == (3, "deadline of the paper", "ana")
    assert records(message, BudgetReopened)
    assert [r.kind for r in message.records if r.kind == "allocated"] == ["allocated"]
    (warned,) = records(ledger.commit(ms=2 * HOUR), BudgetReached)
    assert (warned.percent, warned.limit_micros) == (100, 4 * MICROS)


@pytest.mark.parametrize(
    "asked",
    [grant(3, granted=1), grant(3, month="2026-10"), grant(3, budget="tenant/other")],
    ids=["others granted meanwhile", "another month", "no such budget"],
)
def test_a_grant_for_what_is_not_so_changes_nothing(asked: GrantRequested) -> None:
    ledger = begun(hold(1))
    assert not records(ledger.commit(asked), BudgetGranted)
    assert row(ledger).granted == 0


def test_a_grant_that_is_sent_twice_adds_once_and_ends_with_its_month() -> None:
    ledger = begun(hold(1))
    ledger.commit(grant(3), grant(3))
    assert row(ledger).granted == 3 * MICROS
    ledger.commit(ms=30 * DAY)
    assert (row(ledger).granted, row(ledger).before_granted) == (0, 3 * MICROS)


def test_a_higher_budget_reopens_what_was_spent() -> None:
    ledger = begun(hold(1))
    run(ledger, "k1")
    submit(ledger, "k2")
    starts(ledger, ms=HOUR)
    message = ledger.commit(config_proposed(with_budgets(hold(2)), 1))
    assert [record.percent for record in records(message, BudgetReopened)] == [0]
    assert [r.kind for r in message.records if r.kind == "allocated"] == ["allocated"]
    assert row(ledger).micros >= MICROS


def test_a_budget_that_is_taken_away_keeps_nobody_and_one_in_another_unit_starts_at_nothing() -> None:
    ledger = begun(hold(1))
    run(ledger, "k1")
    submit(ledger, "k2")
    starts(ledger, ms=HOUR)
    ledger.commit(config_proposed(with_budgets(Budget(tenant="lab", amount=50)), 1))
    assert row(ledger).micros == 0
    ledger.commit(config_proposed(with_budgets(), 2))
    assert len(ledger.state.spending) == 0


def test_a_projects_budget_counts_its_jobs_alone_and_holds_no_other() -> None:
    vlm = Budget(tenant="lab", project="vlm", gpu_hours=2)
    ledger = begun(vlm, hold(100), tenants=("lab", "other"))
    run(ledger, "k1", project="vlm")
    run(ledger, "k2", project="tts")
    run(ledger, "k3", tenant="other", project="vlm")
    (warned,) = records(ledger.commit(ms=at("2026-11-10T01:40") - ledger.ts), BudgetReached)
    assert (warned.budget, warned.percent, warned.tenant) == ("project/lab/vlm", 80, "lab")
    (spent,) = records(ledger.commit(ms=HOUR), BudgetReached)
    assert (spent.budget, spent.percent) == ("project/lab/vlm", 100)
    held = ledger.state.ts - at("2026-11-10") + 2 * SECOND
    assert 0 < held * MICROS // HOUR - row(ledger, "project/lab/vlm").micros < MICROS // 100
    submit(ledger, "w1", project="vlm")
    submit(ledger, "w2")
    submit(ledger, "w3", tenant="other", project="vlm")
    assert sorted(starts(ledger)) == ["w2", "w3"]
    assert why(ledger, "w1") is Code.BUDGET_SPENT
    message = ledger.commit(grant(5, budget="project/lab/vlm"))
    assert [r.job_id for r in message.records if r.kind == "allocated"] == [job_id(SHARD, "lab", "w1")]
    assert_followed(ledger.state)


def test_jobs_of_a_spent_project_take_no_places_in_the_order_that_others_need() -> None:
    ledger = begun(Budget(tenant="lab", project="vlm", gpu_hours=1))
    run(ledger, "k1", project="vlm")
    ledger.commit(ms=2 * HOUR)
    for number in range(4):
        submit(ledger, f"w{number}", project="vlm")
    submit(ledger, "other")
    line = PoolLine(ledger.state, "default", ledger.ts)
    chosen = line.select(lambda queues, gang, revocable: tuple(queues))
    assert [ledger.state.jobs.get(each).key for each in line.jobs(chosen)] == ["other"]


def test_a_job_without_gpus_does_not_stand_behind_its_owners_jobs_that_go_last() -> None:
    ledger = begun(hold(1, when_spent="last"))
    run(ledger, "k1")
    ledger.commit(ms=2 * HOUR)
    submit(ledger, "w1", gpus=1)
    submit(ledger, "w2", gpus=0)
    assert keys(ledger) == ["w2", "w1"]


def test_a_spent_projects_jobs_go_last_or_are_refused_as_its_budget_says() -> None:
    last, refuse = (Budget(tenant="lab", project=name, gpu_hours=1, when_spent=name) for name in ("last", "refuse"))
    ledger = begun(last, refuse)
    for name in ("last", "refuse"):
        run(ledger, name, gpus=1, project=name)
    ledger.commit(ms=2 * HOUR)
    submit(ledger, "w1", gpus=6, project="last")
    submit(ledger, "w2", gpus=6)
    assert keys(ledger) == ["w2", "w1"]
    assert set(starts(ledger)) == {"w2", "w1"}
    assert ledger.state.jobs.get(job_id(SHARD, "lab", "w1")).project == "last"
    (away,) = records(submit(ledger, "w3", project="refuse"), JobTurnedAway)
    assert away.reasons[0].field == "budgets.project/lab/refuse"


def test_a_configuration_sums_up_what_runs_hold_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = begun(hold(9))
    run(ledger, "k1")
    sums, rebuild = list[int](), Holdings.rebuild

    def counted_rebuild(holdings: Holdings, state: Any) -> None:
        sums.append(state.n)
        rebuild(holdings, state)

    monkeypatch.setattr(Holdings, "rebuild", counted_rebuild)
    put_in_force(ledger.state, Config(version=2, body=with_budgets(hold(12))))
    assert len(sums) == 1
    assert_followed(ledger.state)


def test_the_budget_of_a_renamed_queue_goes_on() -> None:
    ledger = begun(Budget(queue="research", gpu_hours=9))
    run(ledger, "k1")
    renamed = with_budgets(Budget(queue="science", gpu_hours=9), queues=(Queue(name="science", was="research"),))
    ledger.commit(config_proposed(renamed, 1), ms=HOUR)
    ledger.commit(ms=HOUR)
    assert 2 * MICROS <= row(ledger, "queue/science").micros < 2.01 * MICROS
    assert_followed(ledger.state)


def test_under_refuse_nothing_starts_and_new_jobs_with_gpus_are_refused() -> None:
    ledger = begun(hold(1, when_spent="refuse"))
    run(ledger, "k1")
    submit(ledger, "k2")
    assert starts(ledger, ms=HOUR) == []
    (refused,) = records(submit(ledger, "k3"), JobTurnedAway)
    (reason,) = refused.reasons
    assert (reason.code, reason.field) == (Code.BUDGET_SPENT, "budgets.tenant/lab")
    assert not records(submit(ledger, "cpu", gpus=0), JobTurnedAway)


def keys(ledger: Committed) -> list[str]:
    return [ledger.state.jobs.get(job).key for job in order(ledger.state, "default", ledger.ts)]


@pytest.mark.parametrize("strategy", ["best_effort_fifo", "strict_fifo"])
def test_under_last_its_jobs_stand_behind_all_others_and_start_where_nobody_else_can(strategy: str) -> None:
    queues = (Queue(name="research", queueing_strategy=strategy), Queue(name="beside"))
    ledger = begun(hold(1, when_spent="last"), queues=queues)
    run(ledger, "k1")
    ledger.commit(ms=HOUR)
    assert ledger.state.spending.get(LAB).level == 100
    for key, tenant, queue in (("a", "lab", "research"), ("b", "other", "research"), ("c", "other", "beside")):
        submit(ledger, key, tenant=tenant, queue=queue, priority_class="high" if key == "a" else "low")
    submit(ledger, "d", queue="beside")
    line = keys(ledger)
    assert set(line[:2]) == {"b", "c"}
    assert set(line[2:]) == {"a", "d"}
    assert set(starts(ledger)) == {"a", "b", "c", "d"}


def pressed(
    when_spent: str, queue: str = "beside", preset: str = "priority", others: tuple[Budget, ...] = ()
) -> Committed:
    """Two nodes are full: of what lab runs on a spent budget, and of what may not be evicted; another tenant waits."""
    queues = (Queue(name="research"), Queue(name="beside"))
    policy = Policy.model_validate({"preset": preset, "min_runtime_seconds": 0})
    ledger = begun(hold(1, when_spent=when_spent), *others, queues=queues, policy=policy)
    run(ledger, "yields", gpus=8, priority_class="high")
    run(ledger, "stays", gpus=8, tenant="other" if others else "lab", priority_class="low", preemptible=False)
    ledger.commit(ms=HOUR)
    submit(ledger, "waits", gpus=8, tenant="other", queue=queue, priority_class="low")
    assert starts(ledger) == []
    return ledger


def preempted(ledger: Committed) -> list[str]:
    """Jobs whose runs are stopped for the first one in line, by the plan that preemption proposes."""
    for head in preemption_heads(ledger.state, ledger.ts, 8):
        found = preemption_plan(ledger.state, head, ledger.ts)
        if isinstance(found, Plan):
            done = ledger.commit(proposal(ledger.state, found, ledger.ts))
            stops = records(done, Revoked)
            assert all(record.reason.detail == "preset priority; budget tenant/lab is spent" for record in stops)
            return [ledger.state.runs.get(record.run_id).job_id for record in stops]
    return []


@pytest.mark.parametrize("queue", ["research", "beside"])
@pytest.mark.parametrize("when_spent", ["hold", "last", "refuse"])
def test_preemptible_work_of_a_spent_budget_gives_way_to_who_waits_within_its_own(when_spent: str, queue: str) -> None:
    ledger = pressed(when_spent, queue)
    (stopped,) = preempted(ledger)
    assert stopped == job_id(SHARD, "lab", "yields")
    ledger.commit(run_absent(f"{stopped}-1"))
    assert ledger.state.jobs.get(job_id(SHARD, "other", "waits")).attempt == 1
    # It comes back when there is room, or its budget is there again, and stops nobody then.
    assert preempted(ledger) == []
    report = Report()
    check_rules(report, ledger.stored)
    assert report.violations == []
    assert verify(ledger.stored).findings == []


def test_else_nobody_is_stopped_by_a_budget() -> None:
    assert preempted(pressed("last", preset="off")) == []
    assert preempted(pressed("last", others=(Budget(tenant="other", gpu_hours=1),))) == []
    ledger = pressed("last")
    submit(ledger, "cpu", gpus=0, tenant="other")
    cpu, yields = (ledger.state.jobs.get(job_id(SHARD, *names)) for names in (("other", "cpu"), ("lab", "yields")))
    assert budget_against(ledger.state, cpu, yields) is None
    ledger.commit(grant(1000), ms=2 * SECOND)
    assert preempted(ledger) == []


def test_a_job_that_goes_last_is_told_so() -> None:
    ledger = begun(hold(1, when_spent="last"))
    run(ledger, "k1", gpus=8)
    submit(ledger, "k2", gpus=8)
    submit(ledger, "k3", gpus=8)
    ledger.commit(ms=HOUR, orders=(ledger.line(),))
    said = explain(ledger.state, job_id(SHARD, "lab", "k3"), ledger.ts)
    assert said is not None
    until = "it goes behind all others until 2026-12-01 UTC, or more is granted."
    assert f"Budget tenant/lab is spent: {until}" in said.sentences


def events_at(ledger: Committed) -> list[CloudEvent]:
    """Events of all messages."""
    shard, found = Committed().shard, list[CloudEvent]()
    for seq, data in enumerate(ledger.stored, start=1):
        entry = decode_entry(Message("", seq, data))
        told = events_of(SHARD, entry.message, shard.state)
        found += [CloudEvent.model_validate_json(event.data) for event in told if ".budget." in event.subject]
        shard.fold(entry)
    return found


def test_the_tenant_is_told_of_its_budget_and_operators_of_a_queue_that_several_use() -> None:
    own, shared = Queue(name="research"), Queue(name="beside", tenants=("lab", "other"))
    ledger = begun(hold(10), Budget(queue="beside", gpu_hours=10), queues=(own, shared))
    run(ledger, "k1", queue="beside")
    ledger.commit(ms=9 * HOUR)
    ledger.commit(ms=HOUR)
    told = [(event.type.removeprefix("io.tessera."), event.tenant) for event in events_at(ledger)]
    kinds = ["budget.warned.v1", "budget.spent.v1"]
    assert told == [(kind, tenant) for kind in kinds for tenant in ("lab", "operator")]
    spent = events_at(ledger)[2].data
    assert (spent["budget"], spent["month"], spent["percent"], spent["until_ts"]) == (
        LAB,
        "2026-11",
        100,
        at("2026-12-01"),
    )
    assert (spent["limit_micros"], spent["unit"], spent["when_spent"]) == (10 * MICROS, "GPU-hours", "hold")


def test_earmarked_room_of_jobs_that_may_not_start_is_common_again() -> None:
    ledger = begun(hold(1))
    run(ledger, "k1")
    submit(ledger, "k2")
    job = ledger.state.jobs.get(job_id(SHARD, "lab", "k2"))
    ledger.state.earmarks.put(job.job_id, Earmark(job.job_id, "preemption", ledger.ts + DAY, job.roles, ()))
    ended = records(ledger.commit(ms=HOUR), EarmarkEnded)
    assert [(mark.owner, mark.why) for mark in ended] == [(job.job_id, "owner_gone")]


def test_elastic_runs_do_not_grow_on_a_spent_budget() -> None:
    grown = []
    for budget in (hold(1), hold(100)):
        ledger = begun(budget, policy={"grow_after_seconds": 3600})
        ledger.commit(admitted("k1", job_spec(role(gpus=1, replicas=1, max_replicas=5))))
        elastic = ledger.start(job_id(SHARD, "lab", "k1"), "k1")
        ledger.commit(ms=2 * HOUR)
        grown.append(len(ledger.state.runs.get(elastic).extra) > 0)
    assert grown == [False, True]


def assert_followed(state: State) -> None:
    """What runs hold by budget is what a sum over all of them says."""
    anew = Holdings()
    anew.rebuild(state)
    assert {name: +held for name, held in state.holdings.of.items() if +held} == anew.of


def busy(ledger: Committed) -> None:
    first, second = run(ledger, "k1", gpus=2), run(ledger, "k2", gpus=3, tenant="other")
    ledger.commit(node_seen("node-a").model_copy(update={"labels": {"kind": "spot"}}), ms=HOUR)
    ledger.commit(grant(2), checkpoint=True)
    submit(ledger, "k3")
    starts(ledger, ms=HOUR)
    end(ledger, first, ms=HOUR)
    ledger.commit(ms=25 * DAY, checkpoint=True)
    end(ledger, second, ms=HOUR)
    ledger.commit(checkpoint=True)


def test_a_snapshot_a_replay_and_every_checkpoint_in_between_give_the_same_rows() -> None:
    spot = Flavor(name="spot", node_labels={"kind": "spot"})
    body = with_budgets(hold(5), Budget(queue="research", amount=20, when_spent="last"))
    body = body.model_copy(update={"flavors": (spot, *body.flavors)})
    ledger = Committed(ts=at("2026-11-10")).begin(node_seen("node-a"), node_seen("node-b"), body=body)
    busy(ledger)
    assert_followed(ledger.state)
    assert verify(ledger.stored).ok
    copy = load(iter(list(dump(ledger.state))))
    assert StateHash().of(copy) == ledger.shard.hasher.of(ledger.state)
    assert copy.holdings.of == {name: held for name, held in ledger.state.holdings.of.items() if +held}


def test_ledgers_of_older_formats_know_no_budgets() -> None:
    ledger = begun(hold(1))
    state = ledger.state
    state.format = 5
    state.make_tree()
    assert state.budgets == {}


@pytest.mark.parametrize(
    ("budgets", "said"),
    [
        ([{"tenant": "nobody", "gpu_hours": 5}], "budgets[0].tenant: no such tenant: nobody"),
        ([{"queue": "nowhere", "gpu_hours": 5}], "budgets[0].queue: no such queue: nowhere"),
        ([{"tenant": "lab", "gpu_hours": -1}], "budgets[0].gpu_hours"),
        ([{"tenant": "lab", "gpu_hours": 0}], "budgets[0].gpu_hours"),
        ([{"tenant": "lab", "gpu_hours": 5, "amount": 5}], "say amount or gpu_hours"),
        ([{"tenant": "lab"}], "say amount or gpu_hours"),
        ([{"tenant": "lab", "queue": "research", "amount": 5}], "say tenant or queue"),
        ([{"gpu_hours": 5}], "say tenant or queue"),
        ([{"project": "vlm", "gpu_hours": 5}], "project vlm: say its tenant, too"),
        ([{"queue": "research", "project": "vlm", "gpu_hours": 5}], "project vlm: say its tenant, too"),
        ([{"tenant": "nobody", "project": "vlm", "gpu_hours": 5}], "budgets[0].tenant: no such tenant: nobody"),
        ([{"tenant": "lab", "project": "", "gpu_hours": 5}], "budgets[0].project"),
        ([{"tenant": "lab", "project": "a/b", "gpu_hours": 5}], "budgets[0].project"),
        ([{"tenant": "lab", "project": "p", "gpu_hours": n} for n in (5, 6)], "budgets: project/lab/p has two"),
        ([{"tenant": "lab", "amount": 5}], "budgets[0].amount: nothing has a price"),
        ([{"tenant": "lab", "gpu_hours": 5}, {"tenant": "lab", "gpu_hours": 6}], "budgets: tenant/lab has two"),
        ([{"tenant": "lab", "gpu_hours": 5, "when_spent": "stop"}], "budgets[0].when_spent"),
    ],
)
def test_a_budget_that_cannot_be_meant_is_refused_by_its_field(budgets: list[dict[str, Any]], said: str) -> None:
    body = config_body().model_dump(mode="json") | {"budgets": budgets}
    command = {"kind": "apply_config", "v": 1, "expected_version": 0, "body": body}
    parsed = read_operator_command(orjson.dumps(command))
    assert parsed.command is None
    assert any(said in f"{reason.field} {reason.detail}" for reason in parsed.reasons), parsed.reasons
