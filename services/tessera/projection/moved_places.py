"""Places at which a ledger record moves capacity, as far as the state before it says."""

from tessera.domain.state import State
from tessera_schemas.ledger import Allocated, EarmarkEnded, EarmarkSet, Grown, Released
from tessera_schemas.work.placement import Placement


def placements_of(state: State, record: object) -> tuple[Placement, ...]:
    """Placements at which the record takes or gives back capacity."""
    if isinstance(record, Allocated | Grown | EarmarkSet):
        return record.placements
    if isinstance(record, Released):
        run = state.runs.get(record.run_id)
        return () if run is None else run.places
    if isinstance(record, EarmarkEnded):
        mark = state.earmarks.get(record.owner)
        return () if mark is None else mark.placements
    return ()
