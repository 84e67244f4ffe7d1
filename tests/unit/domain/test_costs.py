"""What a job's runs cost, by the prices of the time and the flavors of their nodes; in state, views and events."""

from typing import Any

import pytest

from tessera.domain.folding import steps
from tessera.domain.state import State
from tessera.kernel.ledger.shard import decode_entry
from tessera.kernel.ports import Message
from tessera.projection.events import events_of
from tessera.projection.views import Views, all_views
from tessera_schemas.config import ConfigBody, Flavor
from tessera_schemas.events import CloudEvent
from tessera_schemas.facts import RunEnded
from tessera_schemas.ledger import FORMAT, LEDGER_MESSAGE
from tessera_schemas.views import JobView
from tessera_schemas.work.money import FlavorPrice, Money, amount_text
from tests.builders import (
    SHARD,
    admitted,
    config_body,
    config_proposed,
    first_run,
    job_spec,
    node_seen,
    role,
    run_absent,
)
from tests.ledgers import Committed

SECOND, HOUR = 1000, 3_600_000
JOB = first_run("k1")[:-2]
FLAVORS = (Flavor(name="spot", node_labels={"kind": "spot"}), Flavor(name="a100"))


def priced(*prices: tuple[str, int, str], **more: Any) -> ConfigBody:
    money = Money(currency="EUR", prices=tuple(FlavorPrice(flavor=f, gpu_hour_micros=p, since=s) for f, p, s in prices))
    return config_body(**more).model_copy(update={"flavors": FLAVORS, "money": money})


def shown(state: State) -> JobView:
    value = Views(state).value(("jobs", JOB))
    assert value is not None
    return JobView.from_bytes(value)


def started(body: ConfigBody, gpus: int = 2, **more: Any) -> Committed:
    """A job whose run was allocated at `ledger.ts - 2 s`."""
    ledger = Committed().begin(body=body)
    ledger.commit(admitted("k1", job_spec(role(gpus=gpus, **more))))
    ledger.start(JOB, "k1")
    return ledger


def test_a_job_costs_what_its_gpus_held_from_allocation_to_end() -> None:
    ledger = started(priced(("a100", 3_600_000, "")))  # 1 EUR per 1000 s and GPU
    held = shown(ledger.state).held_gpu_milli_ms(ledger.ts) // 1000
    assert shown(ledger.state).cost_at(ledger.ts) == amount_text(held, "EUR")
    ledger.commit(RunEnded(kind="run_ended", run_id=first_run("k1")), ms=1000 * SECOND)
    ended = shown(ledger.state)
    assert ended.cost_at(ledger.ts) == ended.cost_at(ledger.ts + HOUR) == amount_text(2_000_000 + held, "EUR")
    ledger.commit(run_absent(first_run("k1")), ms=HOUR)
    assert shown(ledger.state).cost_at(ledger.ts) == amount_text(2_000_000 + held, "EUR")


def test_new_prices_count_from_when_they_are_in_force() -> None:
    ledger = started(config_body().model_copy(update={"flavors": FLAVORS}))
    assert shown(ledger.state).cost_at(ledger.ts) == ""
    ledger.commit(config_proposed(priced(("a100", 3_600_000, "")), 1), ms=1000 * SECOND)
    ledger.commit(config_proposed(priced(("a100", 7_200_000, "")), 2), ms=1000 * SECOND)
    assert shown(ledger.state).cost_at(ledger.ts + 1000 * SECOND) == "6.00 EUR"
    ledger.commit(config_proposed(config_body().model_copy(update={"flavors": FLAVORS}), 3), ms=1000 * SECOND)
    assert shown(ledger.state).cost_at(ledger.ts) == ""


def test_a_node_that_gets_another_flavor_has_its_price_from_then_on() -> None:
    ledger = started(priced(("a100", 3_600_000, ""), ("spot", 360_000, "")), gpus=1)
    before = shown(ledger.state).cost_at(ledger.ts + 1000 * SECOND)
    (node,) = [place.node for place in ledger.state.runs.get(first_run("k1")).places]
    seen = node_seen(node).model_copy(update={"labels": {"kind": "spot"}})
    ledger.commit(seen, ms=1000 * SECOND)
    job = shown(ledger.state)
    assert job.cost_at(ledger.ts) == before
    assert float(job.cost_at(ledger.ts + 1000 * SECOND).split()[0]) == pytest.approx(float(before.split()[0]) + 0.1)


def test_the_cost_of_an_elastic_job_follows_its_size() -> None:
    body = priced(("a100", 3_600_000, ""), policy={"grow_after_seconds": 0})
    ledger = started(body, replicas=2, max_replicas=5)
    ledger.commit(run_absent(first_run("k1")).model_copy(update={"ranks": (0,)}), ms=10 * SECOND)
    job = shown(ledger.state)
    for later in (0, 77, 5 * SECOND):
        held = job.held_gpu_milli_ms(ledger.ts + later)
        assert job.cost_at(ledger.ts + later) == amount_text(held // 1000, "EUR")


def test_the_event_of_a_jobs_end_and_its_view_say_the_same_cost() -> None:
    ledger = started(priced(("a100", 3_141_593, "")))
    before = Committed().shard
    ledger.commit(RunEnded(kind="run_ended", run_id=first_run("k1")), ms=12_345)
    costs = []
    for data in ledger.stored:
        entry = decode_entry(Message("", LEDGER_MESSAGE.validate_json(data).n, data))
        told = [CloudEvent.model_validate_json(event.data) for event in events_of(SHARD, entry.message, before.state)]
        costs += [event.data for event in told if event.type == "io.tessera.job.succeeded.v1"]
        before.fold(entry)
    (told_end,) = costs
    view = shown(ledger.state)
    assert (told_end["cost_micros"], told_end["currency"]) == (view.cost_micros, "EUR")
    assert view.cost_micros == view.held_gpu_milli_ms(ledger.ts) * 3_141_593 // (1000 * HOUR)


def test_views_made_record_by_record_are_those_of_a_rebuild() -> None:
    ledger = started(config_body().model_copy(update={"flavors": FLAVORS}))
    later = (
        lambda: ledger.commit(config_proposed(priced(("a100", 5, "")), 1), ms=SECOND),
        lambda: ledger.commit(RunEnded(kind="run_ended", run_id=first_run("k1")), ms=SECOND),
        lambda: ledger.commit(run_absent(first_run("k1"))),
        lambda: ledger.commit(config_proposed(priced(("a100", 6, "")), 2), ms=SECOND),
        lambda: ledger.commit(config_proposed(config_body(), 3), ms=SECOND),
    )
    shadow = Committed().shard
    kept: dict[tuple[str, str], bytes | None] = {}
    for act in (lambda: None, *later):
        act()
        views = Views(shadow.state)
        for data in ledger.stored[shadow.state.n :]:
            entry = decode_entry(Message("", LEDGER_MESSAGE.validate_json(data).n, data))
            for field in views.moved_by(entry.message, lambda entry=entry: shadow.fold(entry)):
                kept[field] = views.value(field)
        rebuilt = {
            (change.view, change.key): change.value for change in all_views(ledger.state) if change.view == "jobs"
        }
        assert {field: value for field, value in kept.items() if field[0] == "jobs" and value} == rebuilt


def test_without_prices_and_in_older_ledgers_no_cost_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = started(config_body())
    plain.commit(RunEnded(kind="run_ended", run_id=first_run("k1")), ms=HOUR)
    view = shown(plain.state)
    assert (view.cost_micros, view.currency, b"cost" in view.to_bytes()) == (0, "", False)
    monkeypatch.setattr(steps, "PRICES_FROM", FORMAT + 1)
    older = started(priced(("a100", 3_600_000, "")))
    older.commit(RunEnded(kind="run_ended", run_id=first_run("k1")), ms=HOUR)
    assert shown(older.state).cost_micros == 0
