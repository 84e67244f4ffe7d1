"""Ends of runs that were to be stopped: whether such an end counts instead of what the run was revoked for. Pure."""

from tessera.domain.entities import Run
from tessera_schemas.work.run_ends import Word, end_of


def may_end_instead(run: Run) -> bool:
    """
    Whether a revoked run's own end counts: an observed end wins over an intention.

    Not of a run that was revoked for its end. Nor of one that saved its work since it was told: its program may have
    left on purpose, to go on from there.
    """
    if run.revoked is None:
        return False
    end = end_of(run.revoked.code)
    return end.word is not Word.ENDED and not (end.notice and run.saved_ts > run.stopped_ts)
