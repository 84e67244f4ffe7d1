"""The view of a gang that restarts: to it alone its kept place is free. Pure."""

from tessera.domain.entities import RESTART, Earmark, Job
from tessera.domain.folding.fold import apply_record
from tessera.domain.state import State
from tessera_schemas.ledger import EarmarkEnded


def own_place(state: State, job_id: str) -> Earmark | None:
    """The job's earmark, if it is the place of its last run: room may be made for what is missing."""
    mark = state.earmarks.get(job_id)
    return mark if mark is not None and mark.cause == RESTART else None


def place_given_back(job_id: str) -> EarmarkEnded:
    """The record by which the place goes over into the room that is made for the whole gang."""
    return EarmarkEnded(kind="earmark_ended", owner=job_id, why="replaced")


def without_own_place(state: State, job: Job) -> State:
    """The state without the kept place of the job: an overlay, or the state itself where none is kept."""
    mark = own_place(state, job.job_id)
    if mark is None:
        return state
    # Given back for one question alone: to all others, who came first here, the room stays kept.
    over = state.overlay()
    over.given_back = frozenset(place.node for place in mark.placements)
    apply_record(over, place_given_back(job.job_id), ())
    return over
