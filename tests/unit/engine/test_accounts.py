"""The account of GPUs in its smallest settings: each cause once, a run of a millisecond, what a message costs."""

from collections import Counter
from typing import Any

import pytest

from tessera.engine.accounts import account as account_module
from tessera.engine.accounts import dividing as dividing_module
from tessera.engine.accounts.account import HOUR_MS, Account
from tessera.engine.accounts.dividing import by_decision
from tessera.engine.accounts.naming import name_decision
from tessera.engine.accounts.owners import GpuCause
from tessera.engine.accounts.periods import HOURS, STEP_MS
from tessera_schemas.config import Flavor, Policy, Queue
from tessera_schemas.facts import (
    AnyFact,
    BookingAsked,
    BookingEndAsked,
    CancelRequested,
    DrainRequested,
    NodeSeen,
    Others,
    PodsMade,
    RunAbsent,
    RunEnded,
    RunIdle,
    RunUsed,
)
from tessera_schemas.ledger import ConfigSet, EarmarkEnded, EarmarkSet, JobQueued, LedgerMessage, NodeChanged
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.bookings import BookedWindow, BookingWish
from tessera_schemas.work.budgets import Budget
from tessera_schemas.work.measured_use import MeasuredUse
from tests.account_oracle import messages
from tests.account_periods import AllPeriods
from tests.builders import (
    GIB,
    Chain,
    admitted,
    config_body,
    config_proposed,
    job_spec,
    node_seen,
    placement,
    role,
)
from tests.ledgers import Committed
from tests.rounds import share

MINUTE = 60_000
CALLS = {
    "divided": dividing_module,
    "pods_of_run": account_module,
    "pods_of_mark": account_module,
    "request_of": account_module,
}


class Accounted(Committed):
    """A shard with an account beside it."""

    def __init__(self, *nodes: AnyFact, **config: Any) -> None:
        super().__init__()
        self.periods = AllPeriods()
        self.account = Account(self.periods, step_ms=STEP_MS)
        self.begin(*nodes, **config)

    def commit(self, *facts: Any, **more: Any) -> LedgerMessage:
        message = super().commit(*facts, **more)
        self.account.take(message, self.state)
        return message

    def queue(self, key: str, spec: Any = None, **asked: Any) -> str:
        fact = admitted(key, spec or job_spec(role(**asked)))
        self.commit(fact)
        return fact.job_id

    def causes(self) -> dict[str, int]:
        """GPUs by cause now."""
        found = Counter[str]()
        for owner, ((milli, _, _), _) in self.account.lines.items():
            found[str(owner.cause)] += milli
        assert 2 * found["capacity"] == found.total()
        del found["capacity"]
        return {cause: milli // 1000 for cause, milli in found.items() if milli}


def one_node(**seen: Any) -> Accounted:
    return Accounted(node_seen("node-a", **seen))


def test_gpus_for_which_nobody_waits_say_so():
    assert one_node().causes() == {"nothing_waits": 8}


def test_a_run_holds_its_gpus_first_starting_then_used_then_stopping():
    shard = one_node()
    job = shard.queue("k1", gpus=3)
    shard.commit(orders=(shard.line(),))
    assert shard.causes() == {"starting": 3, "nothing_waits": 5}
    shard = one_node()
    job = shard.queue("k1", gpus=3)
    run = shard.start(job, "k1")
    assert shard.causes() == {"used": 3, "nothing_waits": 5}
    shard.commit(RunEnded(kind="run_ended", run_id=run))
    assert shard.causes() == {"stopping": 3, "nothing_waits": 5}
    shard.commit(RunAbsent(kind="run_absent", run_id=run))
    assert shard.causes() == {"nothing_waits": 8}


@pytest.mark.parametrize(
    ("node", "asked", "cause"),
    [
        ({}, {"gpus": 9}, "gpu"),
        ({"pods": 0}, {"gpus": 1}, "pods"),
        ({"cpu_milli": 1000}, {"gpus": 1, "cpu_milli": 1001}, "cpu"),
        ({"memory_bytes": GIB}, {"gpus": 1, "memory_bytes": GIB + 1}, "memory"),
        ({"gpu_model": "h100"}, {"gpus": 1, "gpu_models": ("a100",)}, "model"),
        ({"labels": {"zone": "a"}}, {"gpus": 1, "node_selector": {"zone": "b"}}, "work_waits"),
        ({}, {"gpus": 0}, "nothing_waits"),
    ],
    ids=["GPUs", "pods", "CPU", "memory", "model", "no proof", "no GPU asked for"],
)
def test_free_gpus_name_what_they_lack_as_far_as_the_state_proves_it(
    node: dict[str, Any], asked: dict[str, Any], cause: str
) -> None:
    shard = one_node(**node)
    shard.queue("k1", **asked)
    assert shard.causes() == {cause: 8}


def test_one_job_that_may_start_takes_the_proof_away():
    shard = one_node()
    shard.queue("k1", gpus=9)
    shard.queue("k2", gpus=1)
    assert shard.causes() == {"work_waits": 8}


def test_quota_is_named_where_each_job_in_line_was_refused_for_it():
    body = config_body(Queue(name="all"), share("research", 2))
    shard = Accounted(node_seen("node-a"), body=body)
    shard.queue("k1", gpus=3)
    assert shard.causes() == {"work_waits": 8}
    shard.commit(orders=(shard.line(),))
    assert shard.causes() == {"quota": 8}


def test_a_budget_is_named_where_it_keeps_each_job_in_line():
    body = config_body().model_copy(update={"budgets": (Budget(tenant="lab", gpu_hours=1),)})
    shard = Accounted(node_seen("node-a"), body=body)
    shard.start(shard.queue("k1", gpus=2), "k1")
    shard.commit(ms=HOUR_MS)
    shard.queue("k2", gpus=1)
    shard.commit(orders=(shard.line(),))
    assert shard.causes() == {"used": 2, "budget": 6}


def test_decisions_are_named_where_they_took_a_node_out():
    shard = one_node()
    shard.commit(DrainRequested(kind="drain_requested", node="node-a", undo=False, why="fans"))
    assert decisions(shard) == {"out: node-a drained: fans", "capacity"}
    shard.commit(DrainRequested(kind="drain_requested", node="node-a", undo=True))
    assert decisions(shard) == {"nothing_waits", "capacity"}


def decisions(shard: Accounted) -> set[str]:
    lines = Account(AllPeriods(), shard.state, divide=by_decision).lines
    return {name_decision(line) for line, ((gpus, _, _), _) in lines.items() if gpus}


@pytest.mark.parametrize("seen", [{"ready": False}, {"ready": False, "cordoned": True}], ids=["silent", "cordoned"])
def test_a_node_that_is_out_is_out_and_its_runs_use_what_they_use(seen: dict[str, Any]) -> None:
    shard = one_node()
    shard.start(shard.queue("k1", gpus=3), "k1")
    shard.commit(node_seen("node-a", **seen))
    assert shard.causes() == {"used": 3, "out": 5}


def test_a_drained_node_is_out_until_it_is_undrained():
    shard = one_node()
    drain = DrainRequested(kind="drain_requested", node="node-a", undo=False)
    shard.commit(drain)
    assert shard.causes() == {"out": 8}
    shard.commit(drain.model_copy(update={"undo": True}))
    assert shard.causes() == {"nothing_waits": 8}


@pytest.mark.parametrize(
    ("cause", "counted"), [("head", "reserved"), ("reservation", "reserved"), ("preemption", "earmarked")]
)
def test_what_is_kept_for_a_job_is_kept_from_the_earmarks_record_to_the_one_that_ends_it(
    cause: Any, counted: str
) -> None:
    owner, place = admitted("k1").job_id, placement(devices=(0,))
    chain = Chain()
    chain.add(
        ConfigSet(kind="config_set", fact=0, version=1),
        NodeChanged(kind="node_changed", fact=1),
        facts=(config_proposed(), node_seen("node-a")),
    )
    chain.add(JobQueued(kind="job_queued", fact=0, job_id=owner), facts=[admitted("k1")])
    chain.add(EarmarkSet(kind="earmark_set", owner=owner, cause=cause, deadline=2**50, placements=(place,)))
    chain.add(EarmarkEnded(kind="earmark_ended", owner=owner, why="deadline"))
    account, told, names = Account(AllPeriods(), step_ms=STEP_MS), list[dict[str, int]](), list[set[str]]()
    for message, shard in messages(chain.stored):
        account.take(message, shard.state)
        lines = {line: milli for line, ((milli, _, _), _) in account.lines.items() if milli}
        names.append({name_decision(line) for line in lines})
        told.append({str(line.cause): milli // 1000 for line, milli in lines.items()})
    assert told[1:] == [
        {"capacity": 8, "work_waits": 8},
        {"capacity": 8, "work_waits": 7, counted: 1},
        {"capacity": 8, "work_waits": 8},
    ]
    assert names[2] == {"capacity", "work_waits", f"{counted} for {owner}"}


def test_pods_of_others_have_what_they_hold():
    assert one_node(others=Others(gpus=3, pods=1)).causes() == {"others": 3, "nothing_waits": 5}


def test_a_node_that_is_gone_is_no_capacity():
    shard = one_node()
    shard.commit(node_seen("node-a", gone=True))
    assert shard.causes() == {}


def test_lines_name_pool_flavor_and_whose_run_it_is():
    flavors = (Flavor(name="fast", gpu_models=("h100",)),)
    shard = Accounted(node_seen("node-a", gpu_model="h100"), body=config_body(flavors=flavors))
    job = shard.queue("k1", job_spec(role(gpus=3)).model_copy(update={"user": "ana", "project": "vlm"}))
    shard.start(job, "k1")
    line = next(owner for owner in shard.account.lines if owner.cause is GpuCause.USED)
    assert line[:2] + line[3:] == ("default", "fast", "lab", "research", "ana", job, "vlm", "")


def test_a_run_of_one_millisecond_is_in_the_books():
    shard = one_node()
    job = shard.queue("k1", gpus=3)
    run = shard.start(job, "k1")
    shard.commit(RunEnded(kind="run_ended", run_id=run), ms=1)
    shard.commit(RunAbsent(kind="run_absent", run_id=run), ms=1)
    amounts = {owner.cause: sum_of for rows in shard.periods.hours.values() for owner, sum_of in rows.items()}
    assert (amounts[GpuCause.USED], amounts[GpuCause.STOPPING]) == (3000, 3000)


def test_what_lasts_over_full_hours_is_split_at_them():
    shard = one_node()
    shard.start(shard.queue("k1", gpus=3), "k1")
    began, hour = shard.ts, shard.ts - shard.ts % HOUR_MS
    shard.commit(ms=2 * HOUR_MS)
    shard.account.settle()
    used = {
        start: amount
        for start, rows in shard.periods.hours.items()
        for owner, amount in rows.items()
        if owner.cause is GpuCause.USED
    }
    assert used == {
        hour: 3000 * (hour + HOUR_MS - began),
        hour + HOUR_MS: 3000 * HOUR_MS,
        hour + 2 * HOUR_MS: 3000 * (began - hour),
    }


def test_a_run_that_was_warned_holds_gpus_and_does_not_use_them_until_it_does_again():
    shard = Accounted(node_seen("node-a"), body=config_body(policy=Policy(idle="warn")))
    run = shard.start(shard.queue("k1", gpus=3), "k1")
    warning = RunIdle(kind="run_idle", run_id=run, idle_seconds=1800)
    shard.commit(warning)
    assert shard.causes() == {"unused": 3, "nothing_waits": 5}
    shard.commit(warning.model_copy(update={"idle_seconds": 0}))
    assert shard.causes() == {"used": 3, "nothing_waits": 5}


@pytest.mark.parametrize("waiting", [0, 1], ids=["nobody waits", "a job waits that fits nowhere"])
def test_a_jobs_life_is_as_much_to_look_at_however_many_nodes_there_are(
    waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Counter[str]()

    def counted(name: str) -> Any:
        work = getattr(CALLS[name], name)
        return lambda *given, **named: (looks.update([name]), work(*given, **named))[1]

    def life(nodes: int) -> Counter[str]:
        shard = Accounted(*(node_seen(f"node-{at:03}") for at in range(nodes)))
        for at in range(waiting):
            shard.queue(f"waits-{at}", gpus=9)
        looks.clear()
        shard.end(shard.queue("k1", gpus=3), "k1")
        return Counter(looks)

    for name, module in CALLS.items():
        monkeypatch.setattr(module, name, counted(name))
    assert life(4) == life(40)


def test_use_that_is_told_with_the_release_of_its_run_counts_for_it():
    shard = one_node()
    shard.account = Account(shard.periods, shard.state, STEP_MS, note_use=shard.periods.note_use)
    run = shard.start(shard.queue("k1"), "k1")
    use = MeasuredUse(measured_gpu_milli_ms=900_000, worked_gpu_milli_ms=300_000, gpus=1)
    shard.commit(RunEnded(kind="run_ended", run_id=run))
    records = shard.commit(
        RunUsed(kind="run_used", run_id=run, use=use), RunAbsent(kind="run_absent", run_id=run)
    ).records
    assert {"use_noted", "released"} <= {record.kind for record in records}
    amounts = Counter[GpuCause]()
    for rows in shard.periods.hours.values():
        amounts.update({owner.cause: amount for owner, amount in rows.items()})
    assert (amounts[GpuCause.MEASURED], amounts[GpuCause.WORKED]) == (900_000, 300_000)


def test_use_counts_in_the_pool_of_a_run_whose_first_pod_and_its_node_are_gone():
    shard = Accounted(*(node_seen(name, gpus=1) for name in ("node-a", "node-b")))
    shard.account = Account(shard.periods, shard.state, STEP_MS, note_use=shard.periods.note_use)
    run = shard.start(shard.queue("k1", replicas=2, gpus=1), "k1")
    shard.commit(RunAbsent(kind="run_absent", run_id=run, ranks=(0,)))
    first, _ = shard.state.runs.get(run).placements
    shard.commit(NodeSeen(kind="node_seen", name=first.node, gone=True))
    assert shard.state.nodes.get(first.node) is None
    use = MeasuredUse(measured_gpu_milli_ms=900_000, worked_gpu_milli_ms=300_000, gpus=1)
    shard.commit(RunUsed(kind="run_used", run_id=run, use=use))
    owners = {owner for rows in shard.periods.hours.values() for owner in rows}
    assert {owner.pool for owner in owners if owner.cause is GpuCause.MEASURED} == {"default"}


def test_the_end_of_a_run_ends_back_offs_also_of_nodes_that_its_pods_had_left():
    shard = Accounted(node_seen("node-a"), node_seen("node-b"))
    gang = shard.queue("gang", job_spec(role(replicas=2, gpus=8)))
    run = shard.start(gang, "gang")
    shard.commit(RunAbsent(kind="run_absent", run_id=run, ranks=(1,)))
    [left] = {place.node for place in shard.state.runs.get(run).placements[1:]}
    # Another job's pod is refused where the gang's second one was.
    other = shard.queue("other", job_spec(role(gpus=8)))
    shard.commit(orders=(shard.line(),))
    refused = Reason(code=Code.POD_REFUSED_BY_NODE, detail="UnexpectedAdmissionError")
    shard.commit(PodsMade(kind="pods_made", run_id=f"{other}-1", uids=("uid-other-0",)))
    shard.commit(RunEnded(kind="run_ended", run_id=f"{other}-1", reason=refused, own=False))
    shard.commit(RunAbsent(kind="run_absent", run_id=f"{other}-1"))
    shard.commit(CancelRequested(kind="cancel_requested", job_id=other, tenant="lab"))
    assert shard.state.backoffs.get(left) is not None
    assert shard.causes()["out"] == 8
    shard.commit(RunEnded(kind="run_ended", run_id=run))
    assert shard.state.backoffs.get(left) is None
    assert "out" not in shard.causes()


def reserve(shard: Accounted, *windows: tuple[int, int], **more: Any) -> None:
    """Keeps the node in windows of so many minutes from now on."""
    begin = shard.ts + 1000
    times = tuple(BookedWindow(start_ts=begin + a * MINUTE, end_ts=begin + b * MINUTE) for a, b in windows)
    said = {"name": "demo", "pool": "default", "nodes": ("node-a",), "windows": times, "who": ("lab",), **more}
    shard.commit(BookingAsked(kind="booking_asked", wish=BookingWish.model_validate(said)))


@pytest.mark.parametrize("more", [{}, {"nodes": ()}], ids=["a node", "the whole pool"])
def test_what_is_free_in_a_window_is_booked_to_the_millisecond_and_what_runs_is_used(more: dict[str, Any]) -> None:
    shard = one_node()
    reserve(shard, (10, 20), (30, 40), **more)
    assert shard.causes() == {"nothing_waits": 8}
    shard.commit(ms=10 * MINUTE)
    assert shard.causes() == {"booked": 8}
    # No message at all while windows end and begin: they do so at their own time.
    shard.commit(ms=60 * MINUTE)
    shard.account.settle()
    spent = Counter[str]()
    for rows in shard.periods.rows(HOURS).values():
        for owner, amount in rows.items():
            spent[str(owner.cause)] += amount
    assert spent["booked"] == 8_000 * 20 * MINUTE
    assert spent["capacity"] == spent["booked"] + spent["nothing_waits"]


def test_what_a_job_of_the_reservation_has_in_its_window_is_used() -> None:
    shard = one_node()
    reserve(shard, (0, 60))
    spec = job_spec(role(gpus=3), reservation="demo", time_limit_seconds=60)
    shard.commit(ms=1000)
    shard.start(shard.queue("k1", spec), "k1")
    assert shard.causes() == {"used": 3, "booked": 5}


def test_a_reservation_that_ends_keeps_nothing_and_a_node_that_is_out_is_out() -> None:
    shard = one_node()
    reserve(shard, (0, 60))
    shard.commit(ms=1000)
    assert shard.causes() == {"booked": 8}
    shard.commit(DrainRequested(kind="drain_requested", node="node-a", undo=False))
    assert shard.causes() == {"out": 8}
    shard.commit(DrainRequested(kind="drain_requested", node="node-a", undo=True))
    assert shard.causes() == {"booked": 8}
    shard.commit(BookingEndAsked(kind="booking_end_asked", name="demo"))
    assert shard.causes() == {"nothing_waits": 8}


def test_an_account_that_begins_in_the_middle_of_a_window_knows_it() -> None:
    shard = one_node()
    reserve(shard, (0, 60))
    shard.commit(ms=1000)
    later = Account(AllPeriods(), shard.state, step_ms=STEP_MS)
    assert {owner: line[0] for owner, line in later.lines.items()} == {
        owner: line[0] for owner, line in shard.account.lines.items()
    }


def test_free_gpus_before_a_window_are_booked_where_it_keeps_each_job_in_line() -> None:
    shard = one_node()
    reserve(shard, (10, 20))
    shard.queue("k1", job_spec(role(gpus=3), preemptible=False, time_limit_seconds=3600))
    shard.queue("k2", job_spec(role(gpus=3), reservation="demo", time_limit_seconds=60))
    assert shard.causes() == {"work_waits": 8}
    shard.commit(orders=(shard.line(),))
    assert shard.causes() == {"booked": 8}
