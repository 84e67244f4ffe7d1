"""Who is next within a queue: its tenants, and their users, take turns by what they hold; a flood delays itself."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.devices.resources import Amount
from tessera.domain.storing.snapshot import dump, load
from tessera.queueing.decide import order
from tessera_schemas.config import Queue, Tenant
from tessera_schemas.facts import AnyFact, PodsMade, RunEnded, RunStarted
from tessera_schemas.shard.orders import HEADS_MAX
from tests.builders import admitted, config_body, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed
from tests.rounds import Rounds, share


def shard(*tenants: Tenant, gpus: int = 8, nodes: int = 1, **more: Any) -> Committed:
    body = config_body(Queue(name="research", **more))
    body = body.model_copy(update={"tenants": tenants or tuple(Tenant(name=name) for name in ("flood", "quiet"))})
    return Committed().begin(*(node_seen(f"node-{n}", gpus) for n in range(nodes)), body=body)


def line_of(ledger: Committed) -> list[str]:
    names = {job.job_id: job.key for job in ledger.state.jobs.values()}
    return [names[job_id] for job_id in order(ledger.state, "default", ledger.ts)]


def jobs(tenant: str, count: int, gpus: int = 1, user: str = "", priority: str = "normal") -> Iterable[AnyFact]:
    spec = job_spec(role(gpus=gpus), user=user, priority_class=priority)
    return [admitted(f"{tenant}{user}{number}", spec, tenant) for number in range(count)]


def test_tenants_of_equal_weight_take_turns_however_many_jobs_one_sent_before() -> None:
    ledger = shard()
    ledger.commit(*jobs("flood", 4))
    ledger.commit(*jobs("quiet", 3))
    assert line_of(ledger) == ["flood0", "quiet0", "flood1", "quiet1", "flood2", "quiet2", "flood3"]


def test_a_tenants_weight_is_its_part_and_without_one_it_goes_when_nobody_else_asks() -> None:
    ledger = shard(Tenant(name="flood", weight=3), Tenant(name="quiet"), Tenant(name="none", weight=0))
    ledger.commit(*jobs("none", 1))
    ledger.commit(*jobs("flood", 4), *jobs("quiet", 2))
    assert line_of(ledger) == ["flood0", "quiet0", "flood1", "flood2", "flood3", "quiet1", "none0"]


def test_what_a_tenant_holds_already_counts_and_the_largest_part_of_one_resource_decides() -> None:
    ledger = shard()
    ledger.commit(*jobs("flood", 1, gpus=4))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(*jobs("flood", 2, user="more"), *jobs("quiet", 5))
    assert line_of(ledger)[:5] == [f"quiet{n}" for n in range(4)] + ["floodmore0"]


def test_the_priority_class_comes_before_every_share() -> None:
    ledger = shard()
    ledger.commit(*jobs("flood", 3, priority="high"))
    ledger.commit(*jobs("quiet", 1))
    assert line_of(ledger) == ["flood0", "flood1", "flood2", "quiet0"]


def test_users_that_a_tenants_jobs_name_take_turns_and_the_tenant_gets_no_more_by_them() -> None:
    ledger = shard()
    ledger.commit(*jobs("flood", 3, user="ada"))
    ledger.commit(*jobs("flood", 2, user="bob"), *jobs("flood", 1), *jobs("quiet", 3))
    assert line_of(ledger) == [
        "floodada0", "quiet0", "floodbob0", "quiet1", "flood0", "quiet2", "floodada1", "floodbob1", "floodada2",
    ]  # fmt: skip


def test_a_strict_queue_goes_by_class_and_age_alone() -> None:
    ledger = shard(queueing_strategy="strict_fifo")
    ledger.commit(*jobs("flood", 2))
    ledger.commit(*jobs("quiet", 1))
    assert line_of(ledger) == ["flood0", "flood1", "quiet0"]


def test_jobs_of_a_higher_class_that_would_borrow_stand_behind_an_owner_within_its_own() -> None:
    """A class that everybody may use: its jobs would fill all that is published of the order."""
    rounds = Rounds(Queue(name="all"), share("owner", 8), share("borrower", 8), nodes={"node-a": 16}, preset="off")
    rounds.submit("borrows", gpus=16, queue="borrower", priority="urgent")
    rounds.settle()
    for number in range(3):
        rounds.submit(f"b{number}", gpus=8, queue="borrower", priority="urgent")
    rounds.submit("promised", gpus=8, queue="owner", priority="low")
    rounds.submit("beyond", gpus=8, queue="owner", priority="low")
    assert [rounds.name(job) for job in rounds.line().jobs] == ["promised", "b0", "b1", "b2", "beyond"]


def test_ten_thousand_jobs_of_one_tenant_leave_the_other_among_the_next() -> None:
    ledger = shard()
    ledger.commit(*jobs("flood", 10 * HEADS_MAX))
    ledger.commit(*jobs("quiet", 3))
    assert [name for name in line_of(ledger)[:6] if "quiet" in name] == ["quiet0", "quiet1", "quiet2"]


def test_ten_times_the_jobs_do_not_cost_ten_times_the_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[int] = []
    for count in (HEADS_MAX, 10 * HEADS_MAX):
        ledger = shard()
        ledger.commit(*jobs("flood", count))
        ledger.commit(*jobs("quiet", 2))
        order(ledger.state, "default", ledger.ts)  # the first one indexes the jobs by kind
        table, calls = ledger.state.jobs, Counter[str]()

        def counted(self: Any, key: str, calls: Counter[str] = calls) -> Any:
            calls[key] += 1
            return self._rows.get(key)

        monkeypatch.setattr(type(table), "get", counted)
        order(ledger.state, "default", ledger.ts)
        monkeypatch.undo()
        looked_up.append(calls.total())
    assert looked_up[1] <= looked_up[0] + 2


def test_a_restored_state_has_the_same_order() -> None:
    ledger = shard(gpus=2)
    ledger.commit(*jobs("flood", 3, user="ada"), *jobs("flood", 3, user="bob"))
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(*jobs("quiet", 3))
    restored = load(dump(ledger.state))
    assert order(restored, "default", ledger.ts) == order(ledger.state, "default", ledger.ts)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "ada", "bob"]), st.integers(1, 4)), max_size=24))
def test_nobody_goes_before_a_tenant_that_holds_less_for_its_weight(sent: list[tuple[str, str, int]]) -> None:
    """So nobody is passed over for ever: whoever is passed over comes nearer with every job that starts."""
    weights = {"a": 1, "b": 2, "c": 3}
    ledger = shard(*(Tenant(name=name, weight=weight) for name, weight in weights.items()), gpus=4)
    for number, (tenant, user, gpus) in enumerate(sent):
        ledger.commit(admitted(f"{tenant}{number}", job_spec(role(gpus=gpus, cpu_milli=1), user=user), tenant))
        if number % 5 == 4:
            ledger.commit(orders=(ledger.line(),))
    held = {name: ledger.state.index.held.get(("research", name), Amount()).gpu_milli for name in weights}
    line = [ledger.state.jobs.get(name) for name in order(ledger.state, "default", ledger.ts)]
    left = Counter(job.tenant for job in line)
    for job in line:
        mine = held[job.tenant] * 1000 // weights[job.tenant]
        assert all(mine <= held[name] * 1000 // weights[name] + 1 for name in left if left[name])
        held[job.tenant] += job.amount.gpu_milli
        left[job.tenant] -= 1
    assert len(line) == sum(job.phase.value == "queued" for job in ledger.state.jobs.values())


# -- a flood, in virtual time ---------------------------------------------------------------------------------------

RUNS_SECONDS, EVERY, LASTS = 20, 2, 240


def turnaround(flood: int, **more: Any) -> int:
    """The 99th of 100 seconds from submit to end of a tenant that sends a job every 2 s; another sends many at once."""
    ledger = shard(nodes=4, **more)
    sent, ends, took = dict[str, int](), dict[str, int](), list[int]()
    for second in range(LASTS):
        facts: list[AnyFact] = [*jobs("flood", flood)] if second == RUNS_SECONDS else []
        if second % EVERY == 0:
            facts.append(admitted(f"q{second}", job_spec(role(gpus=1)), "quiet"))
            sent[facts[-1].job_id] = second
        for run_id in [run_id for run_id, end in ends.items() if end == second]:
            facts += [RunEnded(kind="run_ended", run_id=run_id), run_absent(run_id)]
            job_id = run_id.partition("-")[0]
            took += [second - sent[job_id]] if job_id in sent else []
        ledger.commit(*facts)
        ledger.commit(orders=(ledger.line(),), ms=0)
        fresh = [run.run_id for run in ledger.state.runs.values() if not run.uids]
        ledger.commit(*(PodsMade(kind="pods_made", run_id=run, uids=(f"{run}-0",)) for run in fresh), ms=0)
        ledger.commit(*(RunStarted(kind="run_started", run_id=run) for run in fresh), ms=0)
        ends |= dict.fromkeys(fresh, second + RUNS_SECONDS)
    waiting = [LASTS - at for job, at in sent.items() if ledger.state.jobs.get(job) is not None]
    return sorted([*took, *(age for age in waiting if age > RUNS_SECONDS)])[-2]


def test_a_fiftyfold_flood_costs_another_tenant_of_the_queue_at_most_a_fifth() -> None:
    alone, beside = turnaround(0), turnaround(500)
    assert beside <= alone * 12 // 10
    assert turnaround(500, queueing_strategy="strict_fifo") > 5 * alone, "by age alone it would wait for all of it"


SHORT_MS, STEP_MS, NORMAL_MS, SHORT_LASTS_MS = 2000, 100, 500, 6000


def short_runs(flood: int, **more: Any) -> tuple[int, int]:
    """
    Runs of two seconds on 16 GPUs: one tenant sends two a second, another `flood` times as many and 100 at once.

    Returns the longest wait (ms) of the first, and how many runs of the other began while one of its jobs that stood
    in the published line waited.
    """
    ledger = shard(nodes=2, **more)
    sent, ends, begun = dict[str, int](), dict[str, int](), dict[str, int]()
    number, passed, spec = 0, 0, job_spec(role(gpus=1))
    for now in range(0, SHORT_LASTS_MS, STEP_MS):
        wanted = flood * (now + STEP_MS) // NORMAL_MS + 100 * bool(flood)
        facts: list[AnyFact] = [admitted(f"f{at}", spec, "flood") for at in range(number, wanted)]
        number = wanted
        if now // NORMAL_MS == len(sent):
            facts.append(admitted(f"q{now}", spec, "quiet"))
            sent[facts[-1].job_id] = now
        ledger.commit(*facts, ms=STEP_MS // 2)
        ledger.commit(orders=(ledger.line(),), ms=0)
        over = [run_id for run_id, end in ends.items() if end == now]
        ended = [RunEnded(kind="run_ended", run_id=run_id) for run_id in over]
        ledger.commit(*ended, *map(run_absent, over), ms=STEP_MS // 2)
        fresh = [run.run_id for run in ledger.state.runs.values() if not run.uids]
        ledger.commit(*(PodsMade(kind="pods_made", run_id=run, uids=(f"{run}-0",)) for run in fresh), ms=0)
        ledger.commit(*(RunStarted(kind="run_started", run_id=run) for run in fresh), ms=0)
        ends |= dict.fromkeys(fresh, now + SHORT_MS)
        begun |= {job: now for job in (run_id.partition("-")[0] for run_id in fresh) if job in sent}
        others = sum(run_id.partition("-")[0] not in sent for run_id in fresh)
        passed += others if sent.keys() - begun.keys() else 0
    return max(begun.get(job, SHORT_LASTS_MS) - at for job, at in sent.items()), passed


def test_beside_a_flood_of_two_second_runs_another_tenant_waits_for_a_gpu_to_be_free_and_for_nobody_else() -> None:
    """Runs are not cut short: whoever comes while all GPUs are busy waits for one to end, at most a run's length."""
    assert short_runs(0) == (0, 0)
    longest, passed = short_runs(50)
    assert (longest <= SHORT_MS, passed) == (True, 0)
    longest, passed = short_runs(50, queueing_strategy="strict_fifo")
    assert longest > 2 * SHORT_MS
    assert passed > 20
