"""What each name has for its weight: held, used by the half-life, factor and place; and what a tenant sees of it."""

from collections.abc import Sequence

import pytest

from tessera.domain.folding import decayed_usage
from tessera.engine.queueing.ordering import PoolLine
from tessera.engine.queueing.shares import seen_by, shares, would_borrow
from tessera.queueing.decide import order
from tessera_schemas.config import ConfigBody, Queue, Tenant
from tessera_schemas.facts import RunEnded
from tessera_schemas.views import ShareView
from tests.builders import admitted, config_body, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

HOUR_MS = 3_600_000
WEEK = {"fair_share": {"half_life_seconds": 7 * 24 * 3600}}


def ledger_of(*queues: Queue, gpus: int = 8, weights: Sequence[int] = (1, 1, 1), **policy: object) -> Committed:
    tenants = tuple(Tenant(name=f"t{at}", weight=weight) for at, weight in enumerate(weights))
    body: ConfigBody = config_body(*(queues or (Queue(name="q"),)), policy=policy or WEEK)
    return Committed().begin(node_seen("node-a", gpus), body=body.model_copy(update={"tenants": tenants}))


def start(ledger: Committed, key: str, gpus: int = 1, tenant: str = "t0", user: str = "", queue: str = "q") -> str:
    job = admitted(key, job_spec(role(gpus=gpus), queue=queue, user=user), tenant=tenant)
    ledger.commit(job)
    return ledger.start(job.job_id, key)


def end(ledger: Committed, run: str, ms: int = HOUR_MS) -> None:
    ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=ms)
    ledger.commit(run_absent(run))


def row(rows: Sequence[ShareView], *names: str) -> ShareView:
    """The one row of a queue, a tenant in it, or a user of that tenant."""
    level = ("queue", "tenant", "user")[len(names) - 1]
    (found,) = [
        each for each in rows if (each.level, each.queue, each.tenant, each.user)[: len(names) + 1] == (level, *names)
    ]
    return found


def test_each_name_says_what_it_holds_what_it_used_and_its_place_among_those_beside_it() -> None:
    ledger = ledger_of(weights=(1, 3, 1))
    end(ledger, start(ledger, "k0", 8, "t0", "ann"), 10 * HOUR_MS)
    start(ledger, "k1", 2, "t1", "bob")
    start(ledger, "k2", 1, "t1")
    rows, state = shares(ledger.state), ledger.state
    assert [(each.level, each.tenant, each.user) for each in rows] == [
        ("queue", "", ""),
        ("tenant", "t0", ""),
        ("user", "t0", "ann"),
        ("tenant", "t1", ""),
        ("user", "t1", ""),
        ("user", "t1", "bob"),
    ]
    t0, t1 = row(rows, "q", "t0"), row(rows, "q", "t1")
    assert (t0.held_gpu_milli, t1.held_gpu_milli) == (0, 3000)
    assert (t0.weight, t0.share_ppm, t1.weight, t1.share_ppm) == (1, 250_000, 3, 750_000)
    assert t0.used_gpu_milli_ms == state.decay.used(state.decayed.get("q/t0"), state.ts) > 8000 * 9 * HOUR_MS
    assert t0.average_gpu_milli == state.decay.average_of(t0.used_gpu_milli_ms) > 300
    # 8 GPUs for ten hours of a week's average against three held now for three times the weight.
    assert (t0.place, t1.place, t1.of) == (1, 2, 2)
    assert t0.factor < t1.factor
    assert row(rows, "q").used_gpu_milli_ms - t0.used_gpu_milli_ms - t1.used_gpu_milli_ms in (0, 1)
    assert (row(rows, "q", "t1", "").held_gpu_milli, row(rows, "q", "t1", "bob").held_gpu_milli) == (1000, 2000)


def test_an_inner_queue_has_the_sum_of_those_below_it_and_those_beside_each_other_share() -> None:
    ledger = ledger_of(
        Queue(name="all"), Queue(name="a", parent="all", weight=3), Queue(name="b", parent="all"), gpus=8
    )
    end(ledger, start(ledger, "k0", 4, queue="a"))
    start(ledger, "k1", 1, queue="b")
    rows = shares(ledger.state)
    assert [each.queue for each in rows if each.level == "queue"] == ["all", "a", "b"]
    top, a, b = (row(rows, name) for name in ("all", "a", "b"))
    assert (top.used_gpu_milli_ms, top.held_gpu_milli) == (a.used_gpu_milli_ms + b.used_gpu_milli_ms, 1000)
    assert (a.parent, a.share_ppm, a.place, b.place) == ("all", 750_000, 1, 2)


def test_the_least_factor_is_whom_the_line_takes_first() -> None:
    ledger = ledger_of()
    for at, hours in enumerate((5, 1, 3)):
        end(ledger, start(ledger, f"k{at}", 8, f"t{at}"), hours * HOUR_MS)
    jobs = [admitted(f"w{at}", job_spec(role(gpus=8), queue="q"), tenant=f"t{at}") for at in range(3)]
    ledger.commit(*jobs)
    rows = shares(ledger.state)
    by_place = sorted(range(3), key=lambda at: row(rows, "q", f"t{at}").place)
    assert by_place == [1, 2, 0]
    assert list(order(ledger.state, "default", ledger.ts)) == [jobs[at].job_id for at in by_place]


def test_without_a_half_life_what_is_held_now_alone_makes_the_factor() -> None:
    ledger = ledger_of(fair_share={"half_life_seconds": 0})
    start(ledger, "k0", 2)
    rows = shares(ledger.state)
    assert (row(rows, "q", "t0").used_gpu_milli_ms, row(rows, "q", "t0").factor) == (0, 250_000)


def test_equal_names_have_the_same_place_and_weight_nothing_comes_last() -> None:
    ledger = ledger_of(weights=(1, 1, 0))
    for at in range(3):
        ledger.commit(admitted(f"k{at}", job_spec(role(gpus=9), queue="q"), tenant=f"t{at}"))
    assert [row(shares(ledger.state), "q", f"t{at}").place for at in range(3)] == [1, 1, 3]


def test_a_tenant_sees_its_users_by_name_and_other_tenants_in_sum() -> None:
    ledger = ledger_of()
    for at, user in enumerate(("ann", "bob", "cy")):
        start(ledger, f"k{at}", 1 + at, f"t{at}", user)
    rows = shares(ledger.state)
    seen = list(seen_by(rows, "t1", {"q"}))
    assert [(each.level, each.tenant, each.user, each.others) for each in seen] == [
        ("queue", "", "", False),
        ("tenant", "t1", "", False),
        ("user", "t1", "bob", False),
        ("tenant", "", "", True),
    ]
    assert seen[-1].held_gpu_milli == 1000 + 3000
    assert list(seen_by(rows, "t1", ())) == []
    assert list(seen_by(rows, None, ())) == list(rows)


def test_names_that_are_told_apart_no_more_are_a_row_of_others_of_each_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decayed_usage, "NAMES_MAX", 4)
    monkeypatch.setattr(decayed_usage, "LOOK_EVERY", 1)
    monkeypatch.setattr(decayed_usage, "PART_DROPPED", 1)
    ledger = ledger_of()
    for at in range(3):
        end(ledger, start(ledger, f"k{at}", 1 + at, f"t{at}"))
    rows, state = shares(ledger.state), ledger.state
    others = {each.level: each for each in rows if each.others}
    assert others["tenant"].used_gpu_milli_ms == state.decay.used(state.decayed.get("/"), state.ts) > 0
    assert (others["user"].pool, others["user"].queue, others["user"].place) == ("", "", 0)
    assert [each for each in seen_by(rows, "t0", {"q"}) if not each.pool] == []


def test_a_job_borrows_where_its_queue_and_all_above_it_hold_their_own() -> None:
    quotas = [({"resource": "gpu_milli", "nominal": nominal},) for nominal in (2000, 6000)]
    ledger = ledger_of(
        Queue(name="all"),
        *(
            Queue.model_validate({"name": name, "parent": "all", "quotas": quota})
            for name, quota in zip("ab", quotas, strict=True)
        ),
    )
    start(ledger, "k0", 1, queue="a")
    facts = [admitted(f"w{gpus}", job_spec(role(gpus=gpus), queue="a")) for gpus in (1, 2)]
    ledger.commit(*facts)
    line = PoolLine(ledger.state, "default", ledger.ts)
    assert [would_borrow(line, ledger.state.jobs.get(fact.job_id)) for fact in facts] == [False, True]
