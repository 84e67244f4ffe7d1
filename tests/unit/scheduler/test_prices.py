"""Prices that were learnt are taken while they belong to the mix as it is settled; others are refused with numbers."""

from collections.abc import Callable
from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.errors import Contradiction
from tessera.domain.folding.fold import apply_record
from tessera.domain.mix import SETTLED_AT, Mix, MixKind, in_full
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera_schemas.facts import PricesLearnt
from tessera_schemas.ledger import MixPriced, PricesRefused, TakenFact
from tessera_schemas.reasons import Code
from tests.rounds import Rounds


def shard() -> Rounds:
    """One job has come, so that the mix has settled once."""
    rounds = Rounds(nodes={"node-a": 8})
    rounds.submit("first")
    return rounds


def mix_of(rounds: Rounds) -> Mix:
    found: Mix = rounds.state.mixes.get("default")
    return found


def learnt(rounds: Rounds, times: int = 2, **changes: Any) -> PricesLearnt:
    """Each kind is worth so many times what it holds."""
    mix = mix_of(rounds)
    fields = {
        "kind": "prices_learnt",
        "pool": "default",
        "settled": mix.settled,
        "basis_n": rounds.state.n,
        "gpus": 8,
        "engine": "any",
        "learnt_by": "auction",
        "prices": tuple(times * in_full(kind) for kind, _ in mix.known),
    }
    return PricesLearnt.model_validate(fields | changes)


def test_prices_of_the_mix_as_it_is_settled_come_into_force() -> None:
    rounds = shard()
    fact = learnt(rounds)
    assert rounds.commit(fact).records == (MixPriced(kind="mix_priced", fact=0, pool="default"),)
    mix = mix_of(rounds)
    assert (mix.prices, mix.priced, mix.priced_gpus) == (fact.prices, mix.settled, 8)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param(lambda fact: {"settled": fact.settled + 1}, Code.PRICES_OUTDATED, id="of a mix that never was"),
        pytest.param(lambda fact: {"pool": "elsewhere"}, Code.PRICES_OUTDATED, id="of a pool without a mix"),
        pytest.param(lambda fact: {"prices": fact.prices[1:]}, Code.PRICES_DO_NOT_FIT, id="one too few"),
        pytest.param(lambda fact: {"prices": (*fact.prices, 1)}, Code.PRICES_DO_NOT_FIT, id="one too many"),
        pytest.param(
            lambda fact: {"prices": tuple(9 * price for price in fact.prices)}, Code.PRICES_DO_NOT_FIT, id="too dear"
        ),
        pytest.param(
            lambda fact: {"prices": tuple(price or 1 for price in fact.prices)},
            Code.PRICES_DO_NOT_FIT,
            id="a price for pods without a GPU",
        ),
    ],
)
def test_others_are_refused_and_change_nothing(change: Callable[[PricesLearnt], dict[str, Any]], code: Code) -> None:
    rounds = shard()
    before, fact = mix_of(rounds), learnt(rounds)
    (record,) = rounds.commit(fact.model_copy(update=change(fact))).records
    assert isinstance(record, PricesRefused)
    assert record.reason.code is code
    assert record.reason.numbers
    assert mix_of(rounds) == before


def test_the_same_said_again_is_refused_and_after_nodes_came_it_is_taken() -> None:
    rounds = shard()
    rounds.commit(learnt(rounds))
    (again,) = rounds.commit(learnt(rounds)).records
    assert again.kind == "prices_refused"
    (more,) = rounds.commit(learnt(rounds, times=3, gpus=16)).records
    assert more.kind == "mix_priced"


def test_prices_that_come_after_the_next_settlement_are_refused() -> None:
    rounds = shard()
    late = learnt(rounds)
    for number in range(SETTLED_AT[0]):
        rounds.submit(f"job-{number}")
    (record,) = rounds.commit(late).records
    assert isinstance(record, PricesRefused)
    assert record.reason.numbers == {"settled": 1, "settled_now": 2}


def test_kinds_of_a_newly_settled_mix_keep_their_prices_and_new_ones_cost_their_gpus() -> None:
    rounds = shard()
    rounds.commit(learnt(rounds))
    for number in range(SETTLED_AT[0]):
        rounds.submit(f"job-{number}", cpu_milli=1234)
    mix = mix_of(rounds)
    prices = dict(zip((kind for kind, _ in mix.known), mix.prices, strict=True))
    assert (mix.settled, mix.priced) == (2, 1)
    assert prices.pop(MixKind(1234, 1000, 1)) == 1_000_000
    assert all(price == 2 * in_full(kind) for kind, price in prices.items())


def test_a_ledger_with_prices_is_replayed_restored_and_verified() -> None:
    rounds = shard()
    rounds.commit(learnt(rounds))
    rounds.commit(learnt(rounds, gpus=3, prices=(1,)))
    rounds.submit("second")
    rounds.settle()
    rounds.commit(checkpoint=True)
    report = verify(rounds.stored)
    assert report.ok
    assert report.recomputed == report.messages
    restored = load(iter(list(dump(rounds.state))))
    assert restored.mixes.get("default") == mix_of(rounds)
    assert StateHash().of(restored) == rounds.shard.hasher.of(rounds.state)


def test_a_record_of_prices_that_are_not_those_of_its_fact_contradicts_the_state() -> None:
    rounds = shard()
    taken = TakenFact(seq=1, service="reclamation", fact=learnt(rounds, prices=(1,)))
    with pytest.raises(Contradiction, match="has no prices for the mix of pool default"):
        apply_record(rounds.state.overlay(), MixPriced(kind="mix_priced", fact=0, pool="default"), (taken,))
