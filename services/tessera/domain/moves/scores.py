"""Forecasts of moves, what they gain and lose, kept until the job that they make room for has started or gone. Pure."""

from dataclasses import dataclass

from tessera.domain.entities import Run
from tessera.domain.storing.fast import fast_init, replace
from tessera.domain.table import Table

WHOLE_GPU = 1000
"""In thousandths; what holds no GPU counts as one, as in plans."""


@fast_init
@dataclass(frozen=True, slots=True)
class MovedRun:
    """A run that stops for a move, with its GPUs in thousandths; what it did since `since_ts` is not saved."""

    run_id: str
    job_id: str
    gpu_milli: int
    since_ts: int


@fast_init
@dataclass(frozen=True, slots=True)
class MovePlan:
    """Moves for job `owner`, begun at `planned_ts`, with the GPU seconds that were foretold of them."""

    owner: str
    planned_ts: int
    gain: int
    lost: int
    moved: tuple[MovedRun, ...]

    def after_save(self, run_id: str, ts: int) -> "MovePlan":
        """The plan once a run of it has saved its work, perhaps while it stops."""
        moved = tuple(replace(each, since_ts=ts) if each.run_id == run_id else each for each in self.moved)
        return replace(self, moved=moved)

    def without(self, run_id: str) -> "MovePlan":
        """The plan without a run that goes on after all."""
        return replace(self, moved=tuple(each for each in self.moved if each.run_id != run_id))

    def with_earlier(self, before: "MovePlan | None") -> "MovePlan":
        """The plan with what an earlier one for the same job cost."""
        return self if before is None else replace(self, lost=self.lost + before.lost, moved=before.moved + self.moved)


MovePlans = Table[MovePlan]


def moved_run(run: Run) -> MovedRun:
    """A run that begins to stop, as its move counts."""
    return MovedRun(run.run_id, run.job_id, run.amount.gpu_milli or WHOLE_GPU, max(run.saved_ts, run.started_ts))


def note_saved(plans: MovePlans, run_id: str, ts: int) -> None:
    """A run has saved its work: of those that move, less is lost."""
    for owner, plan in list(plans.items()):
        if any(each.run_id == run_id for each in plan.moved):
            plans.put(owner, plan.after_save(run_id, ts))


def note_spared(plans: MovePlans, run_id: str) -> None:
    """A run goes on that was to move: it loses nothing."""
    for owner, plan in list(plans.items()):
        if any(each.run_id == run_id for each in plan.moved):
            plans.put(owner, plan.without(run_id))
