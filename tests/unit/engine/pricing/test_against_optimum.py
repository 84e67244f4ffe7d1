"""Placements and the worth of nodes against exact optima, which a solver finds on small cases."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.engine.pricing.packer import Ask
from tessera.engine.pricing.policies import POLICIES
from tests.unit.engine.pricing.pools import pool, room
from tests.unit.engine.pricing.worth_builders import PRICES, worth_of

highspy = pytest.importorskip("highspy")

KINDS = (
    Ask(2000, 1, 1, 300),
    Ask(4000, 1, 1, 500),
    Ask(1000, 1, 1, 810, 2),
    Ask(3000, 1, 1, 1000),
    Ask(5000, 1, 2, 1000),
    Ask(3000, 1),
)
TABLE = tuple(sorted((ask.kind, 1000 * ask.devices * ask.milli) for ask in KINDS if ask.devices))


def ways(solver, ask, free, loads):
    """
    A binary variable for each way to place a pod on a node, its parts entered in the loads of the devices.

    A share or a single GPU has a way per device that holds it. Several have one, with a variable per whole device.
    """
    if ask.devices == 1:
        holds = [d for d, left in enumerate(free) if left >= ask.milli]
        found = [solver.addBinary() for _ in holds]
        for d, one in zip(holds, found, strict=True):
            loads[d].append((ask.milli, one))
        return found
    way = solver.addBinary()
    parts = [(d, solver.addBinary()) for d, left in enumerate(free) if left == 1000 and ask.devices]
    for d, part in parts:
        loads[d].append((1000, part))
    if ask.devices:
        solver.addConstr(sum(part for _, part in parts) - ask.devices * way == 0)
    return [way]


def optimum(rooms, wanted, prices):
    """The most that the placed ones of `wanted` are worth together, each placed once or not at all."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    limits, goal, once = [], [], [[] for _ in wanted]
    for each in rooms:
        loads, cpu, memory = [[] for _ in each.free], [], []
        for at, (ask, price) in enumerate(zip(wanted, prices, strict=True)):
            allowed = not ask.models or ask.models >> each.model & 1
            for way in ways(solver, ask, each.free, loads) if allowed else ():
                once[at].append((1, way))
                cpu.append((ask.cpu, way))
                memory.append((ask.memory, way))
                goal.append(price * way)
        limits += [*zip(loads, each.free, strict=True), (cpu, each.cpu), (memory, each.memory)]
    for row, limit in [*limits, *((row, 1) for row in once)]:
        if row:
            solver.addConstr(sum(size * way for size, way in row) <= limit)
    if not goal:
        return 0
    solver.maximize(sum(goal))
    return round(solver.getInfo().objective_function_value)


rooms = st.lists(
    st.builds(
        lambda free, cpu, model: room(*free, cpu=cpu, model=model),
        st.lists(st.sampled_from([0, 500, 810, 1000]), min_size=1, max_size=3),
        st.sampled_from([3000, 7000, 16_000]),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25, deadline=None)
@given(rooms, st.lists(st.sampled_from(KINDS), min_size=1, max_size=9), st.sampled_from(sorted(POLICIES)))
def test_what_a_policy_places_fits_and_is_no_more_than_the_optimum(rooms, wanted, policy):
    packer = pool(*rooms, policy=policy)
    packer.know({ask.kind: 1 for ask in KINDS})
    packer.price(TABLE)
    numbers = {ask: packer.add_class(ask) for ask in KINDS}
    placed = [ask for ask in wanted if packer.place(numbers[ask]) is not None]
    gpus = [ask.devices * ask.milli for ask in wanted]
    assert sum(ask.devices * ask.milli for ask in placed) <= optimum(rooms, wanted, gpus)
    # What was placed is itself a solution: the solver, asked for these alone, places every one of them.
    assert optimum(rooms, placed, [1] * len(placed)) == len(placed)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([0, 300, 500, 800, 1000]), min_size=2, max_size=4),
    st.integers(0, 24).map(lambda n: n * 1000),
    st.integers(0, 1),
)
def test_the_worth_of_a_node_is_the_optimum_of_a_solver(free, cpu, model):
    here = room(*free, cpu=cpu, model=model)
    packer = pool(here, policy="tessera")
    packer.price(PRICES)
    most_of_each = 8  # shares of 300 on at most four devices with 800 free, and fewer of all others
    asks = [Ask(kind.cpu, 0, kind.devices, kind.milli, kind.models) for kind, _ in PRICES]
    wanted = [ask for ask in asks for _ in range(most_of_each if ask.milli < 500 else 2 * len(free))]
    prices = dict(PRICES)
    assert worth_of(packer, 0) == optimum([here], wanted, [prices[ask.kind] for ask in wanted])
