"""Placements and the worth of nodes against exact optima, which a solver finds on small cases."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.domain.storing.fast import replace
from tessera.engine.placement.gangs import FreeCapacity
from tessera_lab.pack.baselines import gang_of_pod
from tessera_lab.pack.replay import POLICIES, scoring_of
from tessera_lab.traces.alibaba import TracePod
from tests.unit.engine.pricing.worth_builders import PRICES, priced, worth_of
from tests.unit.lab.pack.one_node import node, trace_of

highspy = pytest.importorskip("highspy")

KINDS = (
    TracePod(2000, 1, 1, 300),
    TracePod(4000, 1, 1, 500),
    TracePod(1000, 1, 1, 810, ("B",)),
    TracePod(3000, 1, 1, 1000),
    TracePod(5000, 1, 2, 1000),
    TracePod(3000, 1, 0, 0),
)


def ways(solver, ask, free, loads):
    """
    A binary variable for each way to place a pod on a node, its parts entered in the loads of the devices.

    A share or a single GPU has a way per device that holds it. Several have one, with a variable per whole device.
    """
    if ask.gpus == 1:
        holds = [d for d, left in enumerate(free) if left >= ask.gpu_milli]
        found = [solver.addBinary() for _ in holds]
        for d, one in zip(holds, found, strict=True):
            loads[d].append((ask.gpu_milli, one))
        return found
    way = solver.addBinary()
    parts = [(d, solver.addBinary()) for d, left in enumerate(free) if left == 1000 and ask.gpus]
    for d, part in parts:
        loads[d].append((1000, part))
    if ask.gpus:
        solver.addConstr(sum(part for _, part in parts) - ask.gpus * way == 0)
    return [way]


def optimum(rooms, wanted, prices):
    """The most that the placed ones of `wanted` are worth together, each placed once or not at all."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    limits, goal, once = [], [], [[] for _ in wanted]
    for each in rooms:
        free = each.gpu_free
        loads, cpu, memory = [[] for _ in free], [], []
        for at, (ask, price) in enumerate(zip(wanted, prices, strict=True)):
            allowed = not ask.models or each.gpu_model in ask.models
            for way in ways(solver, ask, free, loads) if allowed else ():
                once[at].append((1, way))
                cpu.append((ask.cpu_milli, way))
                memory.append((ask.memory_mib, way))
                goal.append(price * way)
        limits += [*zip(loads, free, strict=True), (cpu, each.cpu_free), (memory, each.memory_free >> 20)]
    for row, limit in [*limits, *((row, 1) for row in once)]:
        if row:
            solver.addConstr(sum(size * way for size, way in row) <= limit)
    if not goal:
        return 0
    solver.maximize(sum(goal))
    return round(solver.getInfo().objective_function_value)


rooms = st.lists(
    st.tuples(
        st.lists(st.sampled_from([0, 500, 810, 1000]), min_size=1, max_size=3),
        st.sampled_from([3000, 7000, 16_000]),
        st.sampled_from("AB"),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25, deadline=None)
@given(rooms, st.lists(st.sampled_from(KINDS), min_size=1, max_size=9), st.sampled_from(POLICIES))
def test_what_a_policy_places_fits_and_is_no_more_than_the_optimum(rooms, wanted, policy):
    made = [
        replace(node(*free, policy=policy, cpu=cpu, model=model), name=f"n{at}")
        for at, (free, cpu, model) in enumerate(rooms)
    ]
    room = FreeCapacity(made, scoring=scoring_of(trace_of(pods=KINDS), policy, 1).in_force())
    placed = [pod for pod in wanted if isinstance(room.place(gang_of_pod(policy, pod)), tuple)]
    gpus = [pod.total_gpu_milli for pod in wanted]
    assert sum(pod.total_gpu_milli for pod in placed) <= optimum(made, wanted, gpus)
    # What was placed is itself a solution: the solver, asked for these alone, places every one of them.
    assert optimum(made, placed, [1] * len(placed)) == len(placed)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([0, 300, 500, 800, 1000]), min_size=2, max_size=4),
    st.integers(0, 24).map(lambda n: n * 1000),
    st.integers(0, 1),
)
def test_the_worth_of_a_node_is_the_optimum_of_a_solver(free, cpu, model):
    here = replace(node(*free, cpu=128_000, model="AB"[model]), cpu_free=cpu)
    most_of_each = 8  # shares of 300 on at most four devices with 800 free, and fewer of all others
    wanted, prices = [], []
    for kind, price in PRICES:
        pod = TracePod(kind.cpu_milli, 0, kind.gpus, kind.gpu_milli, ("B",) if kind.models else ())
        times = most_of_each if kind.gpu_milli < 500 else 2 * len(free)
        wanted += [pod] * times
        prices += [price] * times
    assert worth_of(priced(free, cpu, model), 0) == optimum([here], wanted, prices)
