"""
Learns the prices of a pool's mix.

Pricing takes a few seconds, off the decision path; what comes of it is an integer table, so that a record may carry it
and a replay need not learn anything.
"""

from collections import Counter
from collections.abc import Mapping

from tessera.domain.mix import DEAREST, MixKind, in_full
from tessera.engine.pricing.dual_prices import SolverTerms, draw_tables, learn_prices, rounded
from tessera.engine.pricing.fragmentation import TypicalPod
from tessera.engine.pricing.pricing_problem import PricingProblem
from tessera.engine.pricing.simulated_filling import FillingTerms, choose_prices
from tessera.engine.pricing.worth_tables import PriceTable, Shape

USUAL = SolverTerms()
TRIED = FillingTerms()


def learnt(problem: PricingProblem, terms: SolverTerms = USUAL, plan: FillingTerms = TRIED) -> tuple[int, ...]:
    """
    The prices of a problem's kinds, in millionths of a GPU.

    What runs nowhere is worth what it holds, so that it can be told from what nobody need keep room for.
    """
    weights: Counter[TypicalPod] = Counter()
    for *kind, weight in problem.kinds:
        weights[TypicalPod(*kind)] += weight
    shapes = tuple(Shape(*shape) for shape in problem.shapes)
    mixed = {kind: weight for kind, weight in weights.items() if weight}
    table = dict(_learn(mixed, shapes, problem.models, terms, plan if problem.rehearsed else None))
    found = []
    for cpu, milli, gpus, bits, weight in problem.kinds:
        full = in_full(MixKind(cpu, milli, gpus))
        price = table.get(rounded(TypicalPod(cpu, milli, gpus, bits)), 0) if weight else full
        # A bound on each price, so that no kind's scarcity outweighs all else in a score.
        found.append(min(price, DEAREST * full))
    return tuple(found)


def _learn(
    weights: Mapping[TypicalPod, int],
    shapes: tuple[Shape, ...],
    models: int,
    terms: SolverTerms,
    plan: FillingTerms | None,
) -> PriceTable:
    """Learns a price table; without a plan no simulated filling is tried."""
    if plan is None:
        return learn_prices(weights, shapes, models, terms)
    tables = draw_tables(weights, shapes, models, terms)
    return choose_prices(weights, shapes, models, tables, plan) if tables else ()
