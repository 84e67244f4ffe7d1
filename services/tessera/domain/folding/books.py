"""Books of queues by the configuration in force, made anew from where runs stand. Pure."""

from collections import Counter

from tessera.domain.entities import RemovedQueue, Run
from tessera.domain.folding.decayed_usage import follow_half_life
from tessera.domain.folding.spending import count_all, put_budgets_in_force, unit_of
from tessera.domain.folding.steps import count_costs, tally
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera_schemas.config import Config
from tessera_schemas.shard.ledger_form import BOOKS_ANEW_FROM


def put_in_force(state: State, config: Config) -> None:
    """Puts a configuration in force, and each run into the books that it has: of its queue, and its nodes' flavor."""
    if state.format < BOOKS_ANEW_FROM:
        state.set_config(config)
        return
    _keep_removed(state, config)
    if state.tree.money or (config.body and config.body.money):
        count_costs(state, list(state.runs.values()))
    decay, units = state.decay, {name: unit_of(state, budget) for name, budget in state.budgets.items()}
    count_all(state)
    state.set_config(config)
    put_budgets_in_force(state, units, state.tree.new_queues)
    follow_half_life(state.decayed, decay, state.decay, state.ts, state.runs.values(), state.tree.new_queues)
    for name in [name for name, _ in state.queue_use.items()]:
        state.queue_use.drop(name)
    for run in list(state.runs.values()):
        # The run has it, too, so that its end takes off what was counted.
        flavor = flavor_of_run(state, run.queue, run)
        if flavor != run.flavor:
            state.put_run(replace(run, flavor=flavor))
        tally(state, run.queue, flavor, run.amount, 1)
    state.weigh_runs(list(state.runs.values()))


def _keep_removed(state: State, config: Config) -> None:
    """Remembers where the queues of runs stood that `config` does not have, and forgets those that it has again."""
    before, there = state.tree, {queue.name for queue in config.body.queues} if config.body else set()
    holding = {run.queue: run for run in sorted(state.runs.values(), key=lambda run: run.run_id)}
    for name in [name for name, _ in state.removed_queues.items()]:
        state.removed_queues.drop(name)
    for name in sorted(holding.keys() - there):
        if (known := before.queues.get(name)) is not None:
            state.removed_queues.put(name, RemovedQueue(name, known.pool, before.path(name)[1:]))
            continue
        # Taken out before format 6, when nobody noted where it stood; its pool is that of its nodes.
        nodes = state.nodes.found(place.node for place in holding[name].places)
        state.removed_queues.put(name, RemovedQueue(name, nodes[0].pool if nodes else "default"))


def flavor_of_run(state: State, queue: str, run: Run) -> str:
    """
    The one flavor on which the run counts in the queue, as `flavors_for` names it: where most of its GPUs are.

    A run that began before quotas told flavors apart may stand on several; of equals the first by name. "" where it is
    on none that the queue could choose. Before format 6 it is the one that it began with.
    """
    if state.format < BOOKS_ANEW_FROM:
        return run.flavor
    tree = state.tree
    choices = tree.flavors_for(queue, run.amount) if queue in tree.queues else ()
    on = Counter[str]()
    for place in run.places if any(choices) else ():
        node = state.nodes.get(place.node)
        flavor = next((each for each in choices if node is not None and tree.is_on(node, each)), "")
        if flavor:
            on[flavor] += max(1, run.gang.amount_of((place,)).gpu_milli)
    return min(on, key=lambda flavor: (-on[flavor], flavor), default="")
