"""The learnt mix, when it is priced anew, and what its prices say."""

from tessera.engine.packing.fragmentation import Kind
from tessera.engine.packing.learning import BOUND_FADES_OVER, FADES_OVER, WEIGHT, Mix, next_repricing, with_bound
from tessera.engine.packing.market import Terms, learn_prices
from tessera.engine.packing.pricing import Shape

SHORT = Terms(draws=4, sales=2, lots=6)
SMALL, LARGE = Kind(4000, 470, 1, 0), Kind(12_000, 1000, 1, 0)


def test_before_anything_was_seen_a_general_mix_stands_in():
    weights = Mix(cpu_per_gpu=12_000).weights()
    assert {kind.devices for kind in weights} == {0, 1, 2, 4, 8}
    assert max(kind.cpu for kind in weights if kind.devices == 1) == 15_600


def test_what_was_presumed_is_gone_after_400_arrivals():
    mix = Mix(12_000)
    mix.see(SMALL, FADES_OVER - 1)
    assert len(mix.weights()) > 1
    mix.see(LARGE)
    assert mix.weights() == {SMALL: (FADES_OVER - 1) * WEIGHT, LARGE: WEIGHT}


def test_the_mix_does_not_depend_on_who_was_seen_first():
    one, other = Mix(12_000), Mix(12_000)
    one.see(SMALL, 2)
    one.see(LARGE)
    other.see(LARGE)
    other.see(SMALL, 2)
    assert list(one.weights().items()) == list(other.weights().items())


def test_some_jobs_are_presumed_to_be_bound_to_each_model_until_enough_were_seen():
    early = with_bound({SMALL: 1000}, 0, 12_000, models=3)
    assert {kind.models for kind in early} == {0, 0b1, 0b10, 0b100}
    bound = {arrivals: sum(with_bound({}, arrivals, 12_000, 3).values()) for arrivals in (0, 1500, BOUND_FADES_OVER)}
    assert bound[0] > bound[1500] > bound[BOUND_FADES_OVER] == 0
    assert with_bound({SMALL: 1000}, BOUND_FADES_OVER, 12_000, 3) == {SMALL: 1000}


def test_prices_are_renewed_often_at_first_and_then_at_every_doubling():
    assert [next_repricing(n) for n in (0, 49, 50, 2999, 3000, 6000, 11_999)] == [
        50,
        50,
        150,
        3000,
        6000,
        12_000,
        12_000,
    ]


def test_equal_mixes_have_equal_prices_and_the_mix_is_worth_its_gpus():
    shapes = [Shape(0, 8, 96_000, 10), Shape(1, 2, 104_000, 5)]
    prices = learn_prices({SMALL: 3, LARGE: 2}, shapes, 2, SHORT)
    assert prices == learn_prices({LARGE: 2, SMALL: 3}, shapes[::-1], 2, SHORT)
    worth = {SMALL: 3, LARGE: 2}
    assert abs(sum(worth[kind] * price for kind, price in prices) - (3 * 470_000 + 2 * 1_000_000)) < 10


def test_pods_bound_to_a_scarce_model_are_dearer_than_others():
    bound, free = Kind(4000, 1000, 1, 0b10), Kind(4000, 1000, 1, 0)
    shapes = [Shape(0, 8, 96_000, 90), Shape(1, 8, 96_000, 10)]
    prices = dict(learn_prices({bound: 20, free: 80}, shapes, 2, Terms(draws=8, sales=3, lots=20)))
    assert prices[bound] > prices[free]


def test_a_mix_without_gpus_has_no_prices():
    assert learn_prices({Kind(4000, 0, 0, 0): 5}, [Shape(0, 8, 96_000, 1)], 1, SHORT) == ()
