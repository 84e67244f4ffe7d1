"""
A state as it is expected to be at a later time, if nothing else starts: without the runs that have ended by then. Pure.
"""

from tessera.domain.folding.fold import apply_record
from tessera.domain.state import State
from tessera.domain.storing.fast import replace
from tessera.engine.ahead.booked_nodes import BookedNodes
from tessera.engine.queueing.reservations import Forecast
from tessera_schemas.ledger import Released


def state_at(state: State, at: int) -> State:
    """
    An overlay of the state with the ledger time `at`, or the state's own where that is later.

    Runs have ended by their time limits, by what was learnt of such jobs, or as a booking of their nodes begins. What
    is earmarked stays so, and whoever waits still does.
    """
    then = state.overlay()
    if at <= state.ts:
        return then
    pools = sorted({node.pool for node in state.nodes.values()})
    forecasts = {pool: Forecast(state, BookedNodes(state, pool)) for pool in pools}
    known = Forecast(state)
    # Of the state as it is: who has gone makes nobody else end sooner.
    for run in list(state.runs.values()):
        end = forecasts.get(state.tree.pool(run.queue) or "", known).end(run)
        if end is not None and end <= at:
            then.put_run(replace(run, over=True))
            apply_record(then, Released(kind="released", run_id=run.run_id), ())
    then.ts = at
    return then
