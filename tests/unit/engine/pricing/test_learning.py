"""What the prices of a mix say."""

from tessera.domain.mix import settle_at
from tessera.engine.pricing.dual_prices import SolverTerms, learn_prices
from tessera.engine.pricing.fragmentation import TypicalPod
from tessera.engine.pricing.learner import learnt
from tessera.engine.pricing.pricing_problem import PricingProblem
from tessera.engine.pricing.worth_tables import Shape

SHORT = SolverTerms(draws=4, repeats=2, batches=6)
SMALL, LARGE = TypicalPod(4000, 470, 1, 0), TypicalPod(12_000, 1000, 1, 0)


def test_prices_are_renewed_whenever_the_mix_settles():
    assert [settle_at(n) for n in (0, 49, 50, 2999, 3000, 6000, 12_000)] == [50, 50, 150, 3000, 6000, 12_000, 16_384]


def test_equal_mixes_have_equal_prices_and_the_mix_is_worth_its_gpus():
    shapes = [Shape(0, 8, 96_000, 10), Shape(1, 2, 104_000, 5)]
    prices = learn_prices({SMALL: 3, LARGE: 2}, shapes, 2, SHORT)
    assert prices == learn_prices({LARGE: 2, SMALL: 3}, shapes[::-1], 2, SHORT)
    worth = {SMALL: 3, LARGE: 2}
    assert abs(sum(worth[kind] * price for kind, price in prices) - (3 * 470_000 + 2 * 1_000_000)) < 10


def test_pods_bound_to_a_scarce_model_are_dearer_than_others():
    bound, free = TypicalPod(4000, 1000, 1, 0b10), TypicalPod(4000, 1000, 1, 0)
    shapes = [Shape(0, 8, 96_000, 90), Shape(1, 8, 96_000, 10)]
    prices = dict(learn_prices({bound: 20, free: 80}, shapes, 2, SolverTerms(draws=8, repeats=3, batches=20)))
    assert prices[bound] > prices[free]


def test_a_mix_without_gpus_has_no_prices():
    assert learn_prices({TypicalPod(4000, 0, 0, 0): 5}, [Shape(0, 8, 96_000, 1)], 1, SHORT) == ()


def test_a_lesson_is_answered_with_one_price_for_each_of_its_kinds_in_their_order():
    kinds = ((1000, 0, 0, 0, 7), (4000, 1000, 1, 0, 80), (4000, 1000, 1, 0b10, 20), (4000, 1000, 2, 0, 0))
    prices = learnt(PricingProblem(kinds, ((0, 8, 96_000, 9), (1, 8, 96_000, 3)), 2, False), SHORT)
    assert prices[0] == 0  # no GPU
    assert prices[2] > prices[1] > 0  # bound to the scarce model
    assert prices[3] == 2_000_000  # runs nowhere


def test_kinds_that_differ_by_less_than_half_a_cpu_have_one_price():
    kinds = ((4000, 1000, 1, 0, 80), (4100, 1000, 1, 0, 5), (9000, 1000, 1, 0, 5))
    first, alike, other = learnt(PricingProblem(kinds, ((0, 8, 96_000, 9),), 1, False), SHORT)
    assert first == alike != other


def test_nothing_is_worth_more_than_the_bound_that_the_committer_takes():
    kinds = ((100, 1, 1, 0b10, 1), (12_000, 1000, 8, 0, 10**6))
    assert learnt(PricingProblem(kinds, ((0, 8, 96_000, 90), (1, 1, 1000, 1)), 2, False), SHORT)[0] <= 16_000
