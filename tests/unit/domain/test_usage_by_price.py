"""Used GPU time by the price of its flavor: what a run counts for is fixed when it, its nodes or the prices change."""

from typing import Any

import pytest
from pydantic import ValidationError

from tessera.client.ledger.accounts.usage_parts import UsageParts
from tessera.client.ledger.replay import verify
from tessera.domain.storing.snapshot import dump, load
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera_schemas.config import ConfigBody, Flavor
from tessera_schemas.facts import RunEnded
from tessera_schemas.work.money import Money
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, role, run_absent
from tests.ledgers import Committed

HOUR_MS = 3_600_000
DEAR, CHEAP = 2_100_000, 700_000


def body(*prices: dict[str, Any], by_price: bool = True) -> ConfigBody:
    fair = {"half_life_seconds": 7 * 24 * 3600, "by_price": by_price}
    flavors = tuple(Flavor(name=name, node_labels={"kind": name}) for name in ("dear", "spot", "other"))
    priced = Money.model_validate({"currency": "EUR", "prices": prices}) if prices else None
    return config_body(policy={"fair_share": fair}, flavors=flavors, money=priced)


PRICES = {"flavor": "dear", "gpu_hour_micros": DEAR}, {"flavor": "spot", "gpu_hour_micros": CHEAP}


def node(kind: str, name: str = "node-a") -> Any:
    return node_seen(name, 8, labels={"kind": kind})


def begun(kind: str, config: ConfigBody) -> tuple[Committed, str]:
    ledger = Committed().begin(node(kind), body=config)
    job = admitted("k1", job_spec(role(gpus=2)))
    ledger.commit(job)
    return ledger, ledger.start(job.job_id, "k1")


def held(ledger: Committed) -> int:
    return int(ledger.state.decayed.get("research/lab").gpu_milli)


@pytest.mark.parametrize(("kind", "counts"), [("dear", 2000), ("spot", 666), ("other", 2000), ("none", 2000)])
def test_gpus_count_by_their_price_over_the_dearest_and_without_a_price_as_the_dearest(kind: str, counts: int) -> None:
    ledger, run = begun(kind, body(*PRICES))
    assert held(ledger) == counts
    ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=HOUR_MS)
    ledger.commit(run_absent(run))
    assert held(ledger) == 0
    assert verify(ledger.stored).ok


def test_a_flavor_that_costs_nothing_counts_nothing_and_unpriced_prices_all_alike() -> None:
    free = {"flavor": "spot", "gpu_hour_micros": 0}
    assert begun("spot", body(PRICES[0], free))[0].state.decayed.get("research/lab") is None
    assert held(begun("spot", body(*PRICES, by_price=False))[0]) == 2000


def test_another_price_counts_from_when_it_is_applied_and_an_end_takes_off_what_was_put_on() -> None:
    ledger, run = begun("spot", body(*PRICES))
    ledger.commit(ms=HOUR_MS)
    dearer = {"flavor": "spot", "gpu_hour_micros": DEAR // 2}
    ledger.commit(config_proposed(body(PRICES[0], dearer), 1))
    assert held(ledger) == 1000
    ledger.commit(config_proposed(body(*PRICES, by_price=False), 2), ms=HOUR_MS)
    assert held(ledger) == 2000
    ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=HOUR_MS)
    ledger.commit(run_absent(run))
    assert held(ledger) == 0


def test_a_price_that_begins_later_counts_for_runs_that_start_then() -> None:
    later = {"flavor": "spot", "gpu_hour_micros": DEAR, "since": "2025-10-09T12"}  # hours after the ledger begins
    ledger, _ = begun("spot", body(*PRICES, later))
    ledger.commit(ms=5 * HOUR_MS)
    assert held(ledger) == 666
    job = admitted("k2", job_spec(role(gpus=2)))
    ledger.commit(job)
    ledger.start(job.job_id, "k2")
    assert held(ledger) == 666 + 2000


def test_a_node_of_another_flavor_counts_by_that_from_then_on() -> None:
    ledger, run = begun("spot", body(*PRICES))
    ledger.commit(node("dear"), ms=HOUR_MS)
    assert held(ledger) == 2000
    ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=HOUR_MS)
    ledger.commit(run_absent(run))
    assert held(ledger) == 0


def test_a_snapshot_a_replay_and_the_runs_behind_the_number_agree() -> None:
    ledger, _ = begun("spot", body(*PRICES))
    ledger.commit(node("dear"), ms=HOUR_MS)
    ledger.commit(config_proposed(body(PRICES[0], {"flavor": "spot", "gpu_hour_micros": 1}), 1), ms=HOUR_MS)
    ledger.commit(checkpoint=True)
    again = load(iter(list(dump(ledger.state))))
    assert dict(again.decayed.items()) == dict(ledger.state.decayed.items())
    assert [run.weighed_milli for run in again.runs.values()] == [2000]
    shard = Shard()
    parts = UsageParts(("research", "lab"), shard.state)
    for seq, data in enumerate(ledger.stored, start=1):
        shard.fold(decode_entry(Message("", seq, data)))
        parts.take(shard.state)
    report = parts.report(shard.state)
    assert (len(report.parts), sum(part.used for part in report.parts)) == (1, report.used)
    assert verify(ledger.stored).ok


def test_by_price_without_prices_or_a_half_life_is_refused_by_its_field() -> None:
    fair = {"half_life_seconds": 3600, "by_price": True}
    for wrong in ({"money": None}, {"policy": {"fair_share": {**fair, "half_life_seconds": 0}}}):
        with pytest.raises(ValidationError, match=r"policy\.fair_share\.by_price: needs half_life_seconds"):
            ConfigBody.model_validate({**body(*PRICES).model_dump(mode="json"), **wrong})
