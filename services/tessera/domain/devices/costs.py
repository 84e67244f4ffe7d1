"""
Costs of jobs, by the prices of the configuration in force and the flavors of the nodes that their runs hold. Pure.

What a run holds is counted whenever it, its nodes' flavors or the prices change, so that each millisecond has the
price and the flavor of its time, and the parts of a cost are its sum.
"""

from tessera.domain.entities import Job, Run
from tessera.domain.folding.spending import held_of
from tessera.domain.queues import QueueTree
from tessera.domain.state import State
from tessera_schemas.job import JobSpec
from tessera_schemas.work.money import GPU_HOUR, CostRates, amount_text, held_cost


def rates_of(state: State, run: Run | None) -> CostRates:
    """Cost of the run from when its job counts no more of it; nothing once it is over, and without prices."""
    money = state.tree.money
    if money is None or run is None or run.over:
        return ()
    return money.rates(held_of(state, run), run.uncounted_ts)


def most_of_run(tree: QueueTree, spec: JobSpec, now_ms: int) -> tuple[str, ...]:
    """
    Most that a run of a job costs in its time limit, or in an hour without one, in words; none without prices.

    By the dearest flavor of its GPU models, and the highest price of it from now on.
    """
    if tree.money is None or not spec.gpu_milli():
        return ()
    most = amount_text(most_micros(tree, spec, now_ms), tree.money.currency)
    return (f"a run costs at most {most} in {'its time limit' if spec.time_limit_seconds else 'an hour'}",)


def most_micros(tree: QueueTree, spec: JobSpec, now_ms: int) -> int:
    """The same in millionths of the currency's unit, rounded up; 0 without prices."""
    rate = 0
    for role in spec.roles:
        flavors = [
            flavor.name
            for flavor in tree.flavors
            if not {*role.gpu_models}.isdisjoint(flavor.gpu_models) or not (role.gpu_models and flavor.gpu_models)
        ]
        rates = [tree.money.rates({name: 1}, now_ms) for name in flavors] if tree.money is not None else []
        price = max((each for found in rates for _, each in found), default=0)
        rate += price * role.most * role.resources.total_gpu_milli
    return -(-rate * (spec.time_limit_seconds or 3600) * 1000 // GPU_HOUR)


def cost_of(state: State, job: Job, to_ms: int) -> tuple[int, int]:
    """Cost of all its runs up to a time: millionths of the currency's unit, and the rest in parts of `GPU_HOUR`."""
    run = state.runs.get(job.run_id)
    more = 0 if run is None else held_cost(rates_of(state, run), run.uncounted_ts, to_ms)
    whole, rest = divmod(job.cost_rest + more, GPU_HOUR)
    return job.cost_micros + whole, rest
