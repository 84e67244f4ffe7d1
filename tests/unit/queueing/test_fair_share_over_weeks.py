"""Whose turn it is after a heavy week: the committer and the orders of queueing over weeks of jobs, in virtual time."""

from collections import Counter
from cProfile import Profile

import pytest

from tessera.queueing.decide import OrderCache, order
from tessera_schemas.config import Limits, Queue, Tenant
from tessera_schemas.facts import PodsMade, RunEnded, RunStarted
from tests.builders import admitted, config_body, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

HOUR_MS, WEEK = 3_600_000, 21  # steps of eight hours
WEEK_SECONDS = 7 * 24 * 3600
GPUS = 16


class Weeks:
    """A pool of 16 GPUs that are always taken, by jobs of one GPU and eight hours of whoever goes first."""

    def __init__(self, half_life: int, between: str, weights: tuple[int, int] = (1, 1)) -> None:
        self.between, self.known, self.count = between, OrderCache(), Counter[str]()
        tenants = [Tenant(name=f"t{at}", weight=weight, limits=Limits(jobs=None)) for at, weight in enumerate(weights)]
        queues = [Queue(name="all"), *(Queue(name=f"q{at}", parent="all", weight=w) for at, w in enumerate(weights))]
        body = config_body(
            *(queues if between == "queues" else [Queue(name="q0")]),
            policy={"fair_share": {"half_life_seconds": half_life}},
        )
        nodes = (node_seen(f"n{number}", gpus=8) for number in range(GPUS // 8))
        self.ledger = Committed().begin(*nodes, body=body.model_copy(update={"tenants": tuple(tenants)}))

    def submit(self, who: int, jobs: int) -> None:
        facts = []
        for _ in range(jobs):
            self.count["jobs"] += 1
            spec = job_spec(
                role(gpus=1),
                queue=f"q{who}" if self.between == "queues" else "q0",
                user=f"u{who}" if self.between == "users" else "",
            )
            facts.append(
                admitted(f"k{self.count['jobs']}", spec, tenant="t0" if self.between == "users" else f"t{who}")
            )
        self.ledger.commit(*facts, ms=1)

    def pass_steps(self, steps: int, *who: int) -> list[float]:
        """In each step those named keep the pool full; which part of the GPUs that started the last of them got."""
        parts = []
        for _ in range(steps):
            ends = [run.run_id for run in self.ledger.state.runs.values()]
            self.ledger.commit(*(RunEnded(kind="run_ended", run_id=run) for run in ends), ms=8 * HOUR_MS)
            # All end at once: who starts is for the next order to say.
            nobody = self.ledger.line().model_copy(update={"jobs": ()})
            self.ledger.commit(*(run_absent(run) for run in ends), orders=(nobody,), ms=1)
            waiting = Counter(self.whose(job) for job in self.ledger.state.jobs.values())
            for each in who:
                self.submit(each, max(0, GPUS - waiting[each]))
            state = self.ledger.state
            line = self.ledger.line().model_copy(update={"jobs": order(state, "default", self.ledger.ts, self.known)})
            placed = self.ledger.commit(orders=(line,), ms=1)
            begun = [f"{record.job_id}-1" for record in placed.records if record.kind == "allocated"]
            self.ledger.commit(*(PodsMade(kind="pods_made", run_id=run, uids=(f"u-{run}",)) for run in begun), ms=1)
            self.ledger.commit(*(RunStarted(kind="run_started", run_id=run) for run in begun), ms=1)
            got = Counter(self.whose(run) for run in self.ledger.state.runs.values())
            parts.append(got[who[-1]] / max(1, got.total()) if who else 0)
        return parts

    def whose(self, work: object) -> int:
        name = getattr(work, self.between.removesuffix("s"))
        return int(name[1:])


@pytest.mark.parametrize("between", ["tenants", "queues", "users"])
def test_who_waited_while_another_ran_alone_for_a_week_gets_three_of_four_until_it_evens_out(between: str) -> None:
    weeks = Weeks(WEEK_SECONDS, between)
    weeks.pass_steps(WEEK, 0)
    parts = weeks.pass_steps(3 * WEEK, 0, 1)
    day = WEEK // 7
    assert 0.68 < sum(parts[:day]) / day < 0.78  # three quarters at first
    assert 0.52 < sum(parts[WEEK - day : WEEK]) / day < 0.63  # 9 of 16 a week later
    assert 0.48 < sum(parts[-day:]) / day < 0.53
    first, last = parts[:WEEK], parts[-WEEK:]
    assert 0.58 < sum(first) / WEEK < 0.70
    assert abs(sum(last) / WEEK - 0.5) < 0.03


def test_without_a_half_life_both_get_half_from_the_first_day_on() -> None:
    weeks = Weeks(0, "tenants")
    weeks.pass_steps(WEEK, 0)
    parts = weeks.pass_steps(WEEK // 7, 0, 1)
    assert set(parts) == {0.5}


def test_who_comes_back_after_a_month_is_not_punished_for_last_quarter() -> None:
    weeks = Weeks(WEEK_SECONDS, "tenants")
    weeks.pass_steps(4 * WEEK, 0)  # alone, for four weeks
    weeks.pass_steps(1)  # nobody
    weeks.ledger.ts += 30 * 24 * HOUR_MS
    parts = weeks.pass_steps(WEEK // 7, 1, 0)
    assert sum(parts) / len(parts) > 0.45


def test_a_promise_and_a_class_stay_what_they_are_whatever_was_used() -> None:
    weeks = Weeks(WEEK_SECONDS, "tenants")
    weeks.pass_steps(WEEK, 0)
    weeks.submit(1, 1)
    urgent = admitted("urgent", job_spec(role(gpus=1), queue="q0", priority_class="high"), tenant="t0")
    weeks.ledger.commit(urgent)
    assert order(weeks.ledger.state, "default", weeks.ledger.ts)[0] == urgent.job_id


def calls_of_an_order(half_life: int, tenants: int = 40) -> int:
    """Function calls of an order before as many tenants of five users each, shortly after another one."""
    body = config_body(Queue(name="q"), policy={"fair_share": {"half_life_seconds": half_life}})
    lines = tuple(Tenant(name=f"t{at}", limits=Limits(jobs=None)) for at in range(tenants))
    ledger = Committed().begin(node_seen("n0", gpus=8), body=body.model_copy(update={"tenants": lines}))
    for tenant in lines:
        specs = [job_spec(role(gpus=1), queue="q", user=f"u{user}") for user in range(5)]
        ledger.commit(*(admitted(f"k{spec.user}", spec, tenant=tenant.name) for spec in specs), ms=1)
    state, known, profile = ledger.state, OrderCache(), Profile()
    for names in [(tenant.name, *user) for tenant in lines for user in ((), *((f"u{at}",) for at in range(5)))]:
        if half_life:
            state.decay.add(state.decayed, ledger.ts, "/".join(("q", *names)), used=10**12)
    first = order(state, "default", ledger.ts, known)
    profile.enable()
    again = order(state, "default", ledger.ts + 1, known)
    profile.disable()
    assert first == again == order(state, "default", ledger.ts + 1)
    return sum(entry.callcount for entry in profile.getstats())


def test_an_order_with_history_makes_a_tenth_more_calls_at_most() -> None:
    without, with_history = calls_of_an_order(0), calls_of_an_order(WEEK_SECONDS)
    assert without > 4000
    assert with_history * 10 <= without * 11


def test_a_burst_finds_no_gap_since_what_the_line_has_given_counts_at_once() -> None:
    """
    One of two tenants of equal history sends 50 jobs while nobody holds anything: the other's two are among the first
    four of the order, and start in the same message. So a run's start needs no penalty of its own.
    """
    weeks = Weeks(WEEK_SECONDS, "tenants")
    weeks.submit(0, 50)
    weeks.submit(1, 2)
    state, ledger = weeks.ledger.state, weeks.ledger
    line = order(state, "default", ledger.ts)
    assert [weeks.whose(state.jobs.get(job)) for job in line[:5]] == [0, 1, 0, 1, 0]
    ledger.commit(orders=(ledger.line(),), ms=1)
    assert Counter(weeks.whose(run) for run in state.runs.values()) == {0: GPUS - 2, 1: 2}
    # What began a moment ago counts in the next order, before anything of it has become history.
    weeks.submit(1, 4)
    first = order(state, "default", ledger.ts + 1)[:4]
    assert [weeks.whose(state.jobs.get(job)) for job in first] == [1] * 4


def test_a_weight_counts_for_history_as_for_what_is_held_now() -> None:
    weeks = Weeks(WEEK_SECONDS, "tenants", weights=(3, 1))
    parts = weeks.pass_steps(2 * WEEK, 0, 1)
    assert abs(sum(parts[-WEEK:]) / WEEK - 0.25) < 0.03
